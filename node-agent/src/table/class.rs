//! Class chains: one per kind of list and number of endpoints in use, shared by all frontends with such a list (S-230).

use onehop_nft::{Field, Rule};

use super::element::{ClassKind, Family, LOCAL_SCOPE, SetId};
use super::layout::{K, P, UPLINK_MARK, nft_family};

const KINDS: [(ClassKind, &str); 4] = [
    (ClassKind::Npl, "npl"),
    (ClassKind::Np, "np"),
    (ClassKind::N, "n"),
    (ClassKind::L, "l"),
];

/// Name of the chain for lists of this kind with this many endpoints.
pub fn name(kind: ClassKind, count: u16) -> String {
    let prefix = KINDS
        .iter()
        .find(|(of, _)| *of == kind)
        .map_or("", |(_, prefix)| prefix);
    format!("{prefix}{count}")
}

/// The class that a chain's name stands for.
pub fn parse(chain: &str) -> Option<(ClassKind, u16)> {
    let digits = chain.find(|c: char| c.is_ascii_digit())?;
    let (prefix, number) = chain.split_at(digits);
    let (kind, _) = KINDS.iter().find(|(_, of)| *of == prefix)?;
    let count = number.parse().ok().filter(|count| *count > 0)?;
    // Only the form that we write.
    (name(*kind, count) == chain).then_some((*kind, count))
}

/// Rules of a class chain. A packet that finds no slot any more is dropped and sent again (S-246).
pub fn rules(family: Family, kind: ClassKind, count: u16) -> Vec<Rule> {
    let (key, map): (&[Field], _) = match kind {
        ClassKind::N | ClassKind::L => (&K, SetId::Endpoints),
        ClassKind::Np | ClassKind::Npl => (&P, SetId::NodePortEndpoints),
    };
    let offset = match kind {
        ClassKind::N | ClassKind::Np => 0,
        ClassKind::L | ClassKind::Npl => LOCAL_SCOPE,
    };
    let slot = [
        key,
        &[Field::Random {
            modulus: u32::from(count),
            offset,
        }],
    ]
    .concat();
    let rule = || Rule::new(nft_family(family));
    vec![
        rule().jump(UPLINK_MARK),
        rule().dnat_to_map(&slot, map.name()),
        rule().drop(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s230_names_of_classes_are_read_back() {
        for (kind, prefix) in KINDS {
            assert_eq!(name(kind, 7), format!("{prefix}7"));
            assert_eq!(parse(&name(kind, 65_535)), Some((kind, 65_535)));
        }
        for foreign in ["n", "n0", "n07", "nat-output", "x3", "n70000", "np-3", "3"] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}
