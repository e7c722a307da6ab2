//! Tags of load balancers, groups and listeners.

use super::error::Refusal;
use super::xml::{el, members, pair, wrap};
use super::{Answer, Call};
use crate::engine::Tags;

/// Most ARNs of one call.
const AT_ONCE: usize = 20;
/// Most tags of one object.
const MOST: usize = 50;

impl Call<'_> {
    fn tags_of(&mut self, arn: &str) -> Result<&mut Tags, Refusal> {
        if arn.contains(":targetgroup/") {
            Ok(&mut self.account.group(arn)?.tags)
        } else if arn.contains(":listener/") {
            Ok(&mut self.account.listener(arn)?.tags)
        } else {
            Ok(&mut self.account.balancer(arn)?.tags)
        }
    }

    pub(super) fn add_tags(&mut self) -> Answer {
        let tags = self.form.pairs("Tags");
        check(&tags)?;
        for arn in self.arns()? {
            let known = self.tags_of(&arn)?;
            let mut all = known.clone();
            all.extend(tags.clone());
            check(&all)?;
            *known = all;
        }
        Ok(String::new())
    }

    pub(super) fn remove_tags(&mut self) -> Answer {
        let keys = self.form.list("TagKeys");
        for arn in self.arns()? {
            self.tags_of(&arn)?
                .retain(|key, _| !keys.contains(&key.as_str()));
        }
        Ok(String::new())
    }

    pub(super) fn describe_tags(&mut self) -> Answer {
        let mut all = Vec::new();
        for arn in self.arns()? {
            let tags = self.tags_of(&arn)?;
            let list = members("Tags", tags.iter().map(|(key, value)| pair(key, value)));
            all.push(el("ResourceArn", &arn) + &list);
        }
        Ok(members("TagDescriptions", all.into_iter()))
    }

    fn arns(&self) -> Result<Vec<String>, Refusal> {
        let arns = self.form.list("ResourceArns");
        if arns.is_empty() || arns.len() > AT_ONCE {
            let message = format!(
                "ResourceArns has {} entries: 1 to {AT_ONCE} are allowed",
                arns.len()
            );
            return Err(Refusal::validation(message));
        }
        Ok(arns.into_iter().map(str::to_owned).collect())
    }
}

/// What AWS asks of tags.
pub(super) fn check(tags: &Tags) -> Result<(), Refusal> {
    if tags.len() > MOST {
        return Err(Refusal::new(
            "TooManyTags",
            format!("{} tags: {MOST} are allowed", tags.len()),
        ));
    }
    let allowed = |text: &str| {
        text.chars()
            .all(|c| c.is_alphanumeric() || c.is_whitespace() || "_.:/=+-@".contains(c))
    };
    for (key, value) in tags {
        let fits = (1..=128).contains(&key.chars().count()) && value.chars().count() <= 256;
        if !fits || !allowed(key) || !allowed(value) || key.starts_with("aws:") {
            return Err(Refusal::validation(format!(
                "the tag {key}={value} is not allowed"
            )));
        }
    }
    Ok(())
}

/// Attributes as a list.
pub(super) fn attributes(all: &std::collections::BTreeMap<String, String>) -> String {
    wrap(
        "Attributes",
        all.iter()
            .map(|(k, v)| wrap("member", pair(k, v)))
            .collect::<String>(),
    )
}
