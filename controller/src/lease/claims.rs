//! Claims of installs: published as annotations of the leader Lease, so that two installs which would
//! own the same Services find out before either writes (K-01, C-121).

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{Claim, Classless};

/// The classes owned, separated by commas.
pub const CLASSES: &str = "onehop.dev/claim-classes";
/// Whether Services without a class are owned: `true` or `false`.
pub const CLASSLESS: &str = "onehop.dev/claim-classless";
/// The namespaces' label selector; empty for all namespaces.
pub const NAMESPACES: &str = "onehop.dev/claim-namespace-selector";

/// What an install owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    classes: BTreeSet<String>,
    classless: Classless,
    namespaces: String,
}

impl From<&Claim> for Claims {
    fn from(claim: &Claim) -> Self {
        Self {
            classes: claim.classes.clone(),
            classless: claim.classless,
            namespaces: String::new(),
        }
    }
}

impl Claims {
    /// As annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let classes: Vec<_> = self.classes.iter().map(String::as_str).collect();
        let classless = self.classless != Classless::Ignore;
        [
            (CLASSES, classes.join(",")),
            (CLASSLESS, classless.to_string()),
            (NAMESPACES, self.namespaces.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// From annotations; none if nothing is claimed there.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let classes = annotations.get(CLASSES)?;
        let classes = classes.split(',').map(str::trim).filter(|c| !c.is_empty());
        let classless = annotations.get(CLASSLESS).is_some_and(|v| v == "true");
        Some(Self {
            classes: classes.map(str::to_owned).collect(),
            classless: if classless {
                Classless::Claim
            } else {
                Classless::Ignore
            },
            namespaces: annotations.get(NAMESPACES).cloned().unwrap_or_default(),
        })
    }

    /// What both own, in words; none if nothing. All namespaces overlap with any selector; two
    /// selectors only if they are the same, since others are nobody's to compare.
    pub fn overlap(&self, other: &Self) -> Option<String> {
        let everywhere = self.namespaces.is_empty() || other.namespaces.is_empty();
        if !everywhere && self.namespaces != other.namespaces {
            return None;
        }
        if let Some(class) = self.classes.intersection(&other.classes).next() {
            return Some(format!("class {class}"));
        }
        let some = |claims: &Self| claims.classless != Classless::Ignore;
        (some(self) && some(other)).then(|| "Services without a class".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(classes: &[&str], classless: Classless, namespaces: &str) -> Claims {
        Claims {
            classes: classes.iter().map(|&c| c.to_owned()).collect(),
            classless,
            namespaces: namespaces.to_owned(),
        }
    }

    #[test]
    fn c121_claims_overlap_by_class_and_namespaces_or_if_both_are_classless() {
        let one = claims(
            &["onehop.dev/local", "peer/nlb"],
            Classless::Claim,
            "team=a",
        );
        let none = |other: &Claims| assert_eq!(one.overlap(other), None, "C-121: {other:?}");
        none(&claims(&["onehop.dev/aws"], Classless::Ignore, "team=a"));
        none(&claims(&["peer/nlb"], Classless::Claim, "team=b"));
        none(&claims(&[], Classless::Ignore, ""));
        let same = claims(&["peer/nlb"], Classless::Ignore, "team=a");
        let words = Some("class peer/nlb".to_owned());
        assert_eq!(one.overlap(&same), words, "C-121");
        let all = claims(&["peer/nlb"], Classless::Ignore, "");
        assert_eq!(one.overlap(&all), words, "C-121");
        assert_eq!(all.overlap(&one), words, "C-121");
        let classless = claims(&[], Classless::Claim, "team=a");
        assert!(one.overlap(&classless).is_some(), "C-121");
    }

    #[test]
    fn k01_claims_are_read_as_they_were_published() {
        let ours = claims(&["a/b", "c/d"], Classless::Claim, "team in (x,y)");
        assert_eq!(Claims::read(&ours.annotations()), Some(ours), "K-01");
        assert_eq!(
            Claims::read(&BTreeMap::new()),
            None,
            "a Lease of somebody else"
        );
    }
}
