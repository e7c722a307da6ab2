//! The static part of a table in the kernel: made, taken over, or replaced in one transaction (S-121, S-132, S-135).

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::time::Time;
use onehop_nft::{
    Batch, ChainInfo, CommitError, DumpError, Rule, Socket, TABLE_OWNER, TABLE_PERSIST, TableInfo,
};

use super::Features;
use super::classes::Class;
use super::parts::add_class;
use crate::table::class;
use crate::table::element::{Elements, Family, SetId};
use crate::table::layout::{Layout, VERSION};
use crate::table::set::declared_alike;

/// Type of our user data on rules: what the rule was written as. Types below 128 are nft's own.
const FINGERPRINT: u8 = 200;

/// What a table holds beside its static part.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) elements: Elements,
    pub(super) classes: BTreeSet<Class>,
}

impl Held {
    fn named_classes(&self) -> BTreeSet<Class> {
        self.elements
            .values()
            .filter_map(|data| Class::named_by(data.as_ref()))
            .collect()
    }
}

/// What came of taking over.
pub(super) enum Takeover {
    /// The table is ours and holds this.
    Ours(Held),
    /// Another agent has it.
    Standby,
}

/// Why a table could not be taken over.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeoverError {
    #[error("reading the table back: {0}")]
    Dump(#[from] DumpError),
    #[error("writing the table's static part: {0}")]
    Commit(#[from] CommitError),
}

/// A rule with the mark by which it is recognised on read-back.
pub(super) fn marked(rule: Rule) -> Rule {
    let fingerprint = rule.fingerprint();
    rule.user_data(FINGERPRINT, &fingerprint.to_ne_bytes())
}

/// Makes the table ours, as it should be, and tells what it holds. One transaction at most changes anything.
pub(super) fn take_over(
    socket: &mut Socket,
    family: Family,
    layout: &Layout,
    features: Features,
    now: Time,
) -> Result<Takeover, TakeoverError> {
    let found = socket
        .tables()?
        .into_iter()
        .find(|info| info.table == layout.table);
    let Some(info) = found else {
        let mut batch = Batch::new();
        write(&mut batch, layout, features, &Held::default(), now);
        return owned(socket.commit(&batch), Held::default());
    };
    if info.owner.is_some_and(|owner| owner != socket.port_id()) {
        return Ok(Takeover::Standby);
    }
    if is_orphan(&info) && features.owned_tables {
        let mut batch = Batch::new();
        batch.add_table(&layout.table, flags(features), None);
        if let Takeover::Standby = owned(socket.commit(&batch), Held::default())? {
            return Ok(Takeover::Standby);
        }
    }
    let (mut held, as_it_should_be) = read(socket, family, layout, now)?;
    let flags_fit = info.flags | if is_orphan(&info) { TABLE_OWNER } else { 0 } == flags(features);
    if as_it_should_be && flags_fit && info.comment.as_deref() == Some(VERSION) {
        return Ok(Takeover::Ours(held));
    }
    tracing::warn!(table = ?layout.table, held = ?info.comment, wanted = VERSION, "the table's static part differs; replacing it");
    // Class chains that nothing names are not made again.
    held.classes = held.named_classes();
    let mut batch = Batch::new();
    batch.del_table(&layout.table);
    write(&mut batch, layout, features, &held, now);
    owned(socket.commit(&batch), held)
}

/// An owner may have come between: that is no error (S-267).
fn owned(result: Result<(), CommitError>, held: Held) -> Result<Takeover, TakeoverError> {
    match result {
        Ok(()) => Ok(Takeover::Ours(held)),
        Err(error) if error.errno() == Some(libc::EPERM) => Ok(Takeover::Standby),
        Err(error) => Err(error.into()),
    }
}

fn flags(features: Features) -> u32 {
    if features.owned_tables {
        TABLE_OWNER | TABLE_PERSIST
    } else {
        0
    }
}

/// A table that outlived its owner.
fn is_orphan(info: &TableInfo) -> bool {
    info.flags & (TABLE_OWNER | TABLE_PERSIST) == TABLE_PERSIST
}

fn write(batch: &mut Batch, layout: &Layout, features: Features, held: &Held, now: Time) {
    let (table, family) = (&layout.table, layout.family);
    batch.add_table(table, flags(features), Some(VERSION));
    for set in &layout.sets {
        batch.add_set(table, set);
    }
    // All chains before any rule, since rules name chains. NAT chains begin to work with the commit.
    for (chain, _) in &layout.chains {
        batch.add_chain(table, chain);
    }
    for (chain, rules) in &layout.chains {
        for rule in rules {
            batch.add_rule(table, &chain.name, &marked(rule.clone()));
        }
    }
    for class in held.named_classes() {
        add_class(batch, family, class);
    }
    for id in SetId::ALL {
        let of_set = held.elements.iter().filter(|((_, set, _), _)| *set == id);
        let elements =
            of_set.filter_map(|((_, _, key), data)| id.encode(family, key, data.as_ref(), now));
        batch.add_elements(table, id.name(), elements);
    }
}

/// Reads all of the table; whether its static part is what the layout says, and nothing foreign lies in it.
fn read(
    socket: &mut Socket,
    family: Family,
    layout: &Layout,
    now: Time,
) -> Result<(Held, bool), DumpError> {
    let sets = socket.sets(&layout.table)?;
    let mut fits = sets.len() == layout.sets.len();
    for declared in &layout.sets {
        fits &= sets.iter().any(|held| declared_alike(declared, held));
    }
    let mut held = Held::default();
    for id in SetId::ALL {
        let declared = id.declaration(family);
        // The elements of a set that lies otherwise cannot be read by our rules.
        if !sets.iter().any(|set| declared_alike(&declared, set)) {
            continue;
        }
        for element in socket.elements(&layout.table, id.name())? {
            match id.decode(family, &element, now) {
                Some((key, data)) => {
                    held.elements.insert((family, id, key), data);
                }
                None => fits = false,
            }
        }
    }
    fits &= chains_fit(socket, family, layout, &mut held)?;
    Ok((held, fits))
}

/// Whether all chains have the rules they should have; finds the classes.
fn chains_fit(
    socket: &mut Socket,
    family: Family,
    layout: &Layout,
    held: &mut Held,
) -> Result<bool, DumpError> {
    let mut rules: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
    for rule in socket.rules(&layout.table, None)? {
        let mark = rule.user_data.iter().find(|(kind, _)| *kind == FINGERPRINT);
        let mark = mark
            .and_then(|(_, bytes)| bytes.as_slice().try_into().ok())
            .map(u64::from_ne_bytes);
        rules.entry(rule.chain).or_default().push(mark);
    }
    let alike = |chain: &str, wanted: &[Rule]| {
        let held = rules.get(chain).map_or(&[][..], Vec::as_slice);
        held.iter()
            .copied()
            .eq(wanted.iter().map(|rule| Some(rule.fingerprint())))
    };
    let chains = socket.chains(&layout.table)?;
    let known = |held: &ChainInfo| {
        layout
            .chains
            .iter()
            .find(|(chain, _)| chain.name == held.name)
    };
    let mut fits = layout
        .chains
        .iter()
        .all(|(chain, _)| chains.iter().any(|held| held.name == chain.name));
    for chain in &chains {
        fits &= match (known(chain), class::parse(&chain.name)) {
            (Some((wanted, rules)), _) => chain.base == wanted.base && alike(&chain.name, rules),
            (None, Some((kind, count))) => {
                held.classes.insert(Class(kind, count));
                chain.base.is_none() && alike(&chain.name, &class::rules(family, kind, count))
            }
            (None, None) => false,
        };
    }
    Ok(fits)
}
