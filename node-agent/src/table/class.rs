//! Class chains: one per kind of list and number of endpoints in use, shared by all frontends with such a list (S-230).

use onehop_nft::{CmpOp, Field, Rule};

use super::counts::Counted;
use super::element::{ClassKind, Family, LOCAL_SCOPE, MAX_SCOPES, SetId};
use super::guard;
use super::layout::{K, MASQUERADE, P, UPLINK_MARK, nft_family};

/// Classes of Services up to this number of endpoints are made with the table and stay: a new one costs a walk of the
/// kernel over all chains and verdicts (S-230).
pub const IN_STORE: u16 = 16;
/// Kinds of class that are kept in store.
const STORED: [ClassKind; 4] = [ClassKind::Npl, ClassKind::Np, ClassKind::N, ClassKind::L];

/// Whether a class is there from the start and stays.
pub fn is_in_store(kind: ClassKind, count: u16) -> bool {
    STORED.contains(&kind) && count <= IN_STORE
}

/// The classes that are made with the table.
pub fn in_store() -> impl Iterator<Item = (ClassKind, u16)> {
    STORED
        .into_iter()
        .flat_map(|kind| (1..=IN_STORE).map(move |count| (kind, count)))
}

/// Name of the chain for lists of this kind with this many endpoints.
pub fn name(kind: ClassKind, count: u16) -> String {
    match kind {
        ClassKind::N => format!("n{count}"),
        ClassKind::L => format!("l{count}"),
        ClassKind::Np => format!("np{count}"),
        ClassKind::Npl => format!("npl{count}"),
        ClassKind::W => format!("w{count}"),
        ClassKind::Npw => format!("npw{count}"),
        ClassKind::Gl(scope) => format!("gl{count}-{scope}"),
        ClassKind::Gr(scope) => format!("gr{count}-{scope}"),
    }
}

/// The class that a chain's name stands for.
pub fn parse(chain: &str) -> Option<(ClassKind, u16)> {
    let digits = chain.find(|c: char| c.is_ascii_digit())?;
    let (prefix, number) = chain.split_at(digits);
    let (number, scope) = number.split_once('-').unwrap_or((number, "0"));
    let scope = scope.parse().ok().filter(|scope| *scope < MAX_SCOPES)?;
    let kind = match prefix {
        "n" => ClassKind::N,
        "l" => ClassKind::L,
        "np" => ClassKind::Np,
        "npl" => ClassKind::Npl,
        "w" => ClassKind::W,
        "npw" => ClassKind::Npw,
        "gl" => ClassKind::Gl(scope),
        "gr" => ClassKind::Gr(scope),
        _ => return None,
    };
    let count = number.parse().ok().filter(|count| *count > 0)?;
    // Only the form that we write.
    (name(kind, count) == chain).then_some((kind, count))
}

/// Rules of a class chain. A packet that finds no slot any more is dropped and sent again (S-246).
pub fn rules(family: Family, kind: ClassKind, count: u16) -> Vec<Rule> {
    let (key, map): (&[Field], _) = match kind {
        ClassKind::N | ClassKind::L | ClassKind::W => (&K, SetId::Endpoints),
        ClassKind::Np | ClassKind::Npl | ClassKind::Npw => (&P, SetId::NodePortEndpoints),
        ClassKind::Gl(_) | ClassKind::Gr(_) => (&K, SetId::GuardEndpoints),
    };
    let offset = match kind {
        ClassKind::N | ClassKind::Np | ClassKind::W | ClassKind::Npw => 0,
        ClassKind::L | ClassKind::Npl => LOCAL_SCOPE,
        ClassKind::Gl(scope) | ClassKind::Gr(scope) => u32::from(scope) * LOCAL_SCOPE,
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
    // Towards another node only an address of this one brings the replies back here (ZD-41).
    let window = matches!(kind, ClassKind::W | ClassKind::Npw);
    let leaves = window || matches!(kind, ClassKind::Gr(_));
    let masquerade = leaves.then(|| rule().jump(MASQUERADE));
    // A packet in the middle of a flow that has no entry any more begins none (ZD-44).
    let first_only = window.then(|| guard::syn(family, CmpOp::Neq).accept());
    let counted = match kind {
        ClassKind::Gl(_) => Some(Counted::SteeredHere),
        ClassKind::Gr(_) => Some(Counted::SteeredElsewhere),
        ClassKind::W | ClassKind::Npw => Some(Counted::Window),
        ClassKind::N | ClassKind::L | ClassKind::Np | ClassKind::Npl => None,
    };
    let count = counted.map(|counted| rule().jump(counted.chain()));
    first_only
        .into_iter()
        .chain([rule().jump(UPLINK_MARK)])
        .chain(count)
        .chain(masquerade)
        .chain([rule().dnat_to_map(&slot, map.name()), rule().drop()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s230_names_of_classes_are_read_back() {
        let kinds = [
            (ClassKind::N, "n7"),
            (ClassKind::L, "l7"),
            (ClassKind::Np, "np7"),
            (ClassKind::Npl, "npl7"),
            (ClassKind::W, "w7"),
            (ClassKind::Npw, "npw7"),
            (ClassKind::Gl(0), "gl7-0"),
            (ClassKind::Gr(7), "gr7-7"),
        ];
        for (kind, seven) in kinds {
            assert_eq!(name(kind, 7), seven);
            assert_eq!(parse(&name(kind, 65_535)), Some((kind, 65_535)));
        }
        let foreign = [
            "n",
            "n0",
            "n07",
            "nat-output",
            "x3",
            "n70000",
            "np-3",
            "3",
            "gl7",
            "gl7-8",
            "n7-0",
        ];
        for foreign in foreign {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}
