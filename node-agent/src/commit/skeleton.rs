//! The static part of a table in the kernel: made, taken over, or replaced in one transaction (S-121, S-132, S-135).

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::time::Time;
use onehop_nft::{
    Batch, ChainInfo, CommitError, DumpError, Element, Rule, SetInfo, Socket, TABLE_OWNER,
    TABLE_PERSIST, TableInfo,
};

use super::Features;
use super::line::{self, Line};
use super::parts::add_chains;
use crate::table::affinity::Sticky;
use crate::table::class;
use crate::table::demand::OnDemand;
use crate::table::element::{Elements, SetId};
use crate::table::layout::{Layout, VERSION};
use crate::table::set::declared_alike;

/// Type of our user data on rules: what the rule was written as. Types below 128 are nft's own.
const FINGERPRINT: u8 = 200;

/// What a table holds beside its static part.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) elements: Elements,
    pub(super) chains: BTreeSet<OnDemand>,
}

impl Held {
    /// The chains that a table with these elements needs, and those that are in store.
    fn needed_chains(&self) -> BTreeSet<OnDemand> {
        let named = self.elements.iter();
        let mut chains: BTreeSet<OnDemand> = named
            .filter_map(|((_, set, _), data)| OnDemand::named_by(*set, data.as_ref()))
            .flat_map(|chain| chain.needs().into_iter().chain([chain]))
            .collect();
        chains.extend(class::in_store().map(|(kind, count)| OnDemand::Class(kind, count)));
        chains
    }
}

/// What clients are known, by affinity map; read only when a table is replaced (S-132).
type Clients = BTreeMap<Sticky, Vec<Element>>;

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

/// Makes the table ours, as it should be, and tells what it holds. One transaction at most changes anything. Unless the
/// layout is `settled`, a table with other rules is left as it is.
pub(super) fn take_over(
    line: &mut Line,
    layout: &Layout,
    (settled, now): (bool, Time),
) -> Result<Takeover, TakeoverError> {
    let Line {
        socket,
        features,
        listeners,
        ..
    } = line;
    let features = *features;
    let found = socket
        .tables()?
        .into_iter()
        .find(|info| info.table == layout.table);
    let Some(info) = found else {
        let mut held = Held::default();
        held.chains = held.needed_chains();
        let mut batch = Batch::new();
        write(&mut batch, layout, features, (&held, &Clients::new()), now);
        return owned(socket.commit(&batch), held);
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
    let (mut held, state) = read(socket, layout, now)?;
    let flags_fit = info.flags | if is_orphan(&info) { TABLE_OWNER } else { 0 } == flags(features);
    let frame_fits = flags_fit && info.comment.as_deref() == Some(VERSION);
    let mut batch = Batch::new();
    match state {
        Static::Fits if frame_fits => return Ok(Takeover::Ours(held)),
        Static::Rules(_) if frame_fits && !settled => return Ok(Takeover::Ours(held)),
        Static::Rules(differing) if frame_fits => {
            tracing::info!(table = ?layout.table, chains = ?differing, "rules differ; writing them anew");
            rewrite(&mut batch, layout, &differing);
        }
        _ => {
            tracing::warn!(table = ?layout.table, held = ?info.comment, wanted = VERSION, "the table's static part differs; replacing it");
            // Chains that nothing names are not made again.
            held.chains = held.needed_chains();
            let clients = clients(socket, layout, &held)?;
            batch.del_table(&layout.table);
            write(&mut batch, layout, features, (&held, &clients), now);
        }
    }
    owned(line::commit(socket, &batch, None, listeners), held)
}

/// Writes rules anew that are not what the layout says; the table must be ours and have the layout's chains.
pub(super) fn repair(line: &mut Line, layout: &Layout) -> Result<(), TakeoverError> {
    let chains = read_chains(&mut line.socket, layout, &mut Held::default())?;
    if let Static::Rules(differing) = chains {
        tracing::info!(table = ?layout.table, chains = ?differing, "the network changed; writing rules anew");
        let mut batch = Batch::new();
        rewrite(&mut batch, layout, &differing);
        line.commit(&batch)?;
    }
    Ok(())
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

fn write(
    batch: &mut Batch,
    layout: &Layout,
    features: Features,
    (held, clients): (&Held, &Clients),
    now: Time,
) {
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
        add_rules(batch, layout, &chain.name, rules);
    }
    add_chains(batch, layout, &held.chains, |_| false);
    for (map, entries) in clients {
        batch.add_elements(table, &map.map_name(), entries.iter().cloned());
    }
    for id in SetId::ALL {
        let of_set = held.elements.iter().filter(|((_, set, _), _)| *set == id);
        let elements =
            of_set.filter_map(|((_, _, key), data)| id.encode(family, key, data.as_ref(), now));
        batch.add_elements(table, id.name(), elements);
    }
}

/// Appends rules, each with the mark by which it is recognised on read-back.
pub(super) fn add_rules(batch: &mut Batch, layout: &Layout, chain: &str, rules: &[Rule]) {
    for rule in rules {
        let fingerprint = rule.fingerprint();
        let marked = rule
            .clone()
            .user_data(FINGERPRINT, &fingerprint.to_ne_bytes());
        batch.add_rule(&layout.table, chain, &marked);
    }
}

/// Writes the rules of these chains anew, in one transaction with everything else left alone.
fn rewrite(batch: &mut Batch, layout: &Layout, differing: &BTreeSet<String>) {
    for name in differing {
        batch.flush_chain(&layout.table, name);
        let fixed = layout.chains.iter().find(|(chain, _)| chain.name == *name);
        let rules = match (fixed, OnDemand::parse(name)) {
            (Some((_, rules)), _) => rules.clone(),
            (None, Some(chain)) => chain.rules(layout.family, &layout.options),
            (None, None) => Vec::new(),
        };
        add_rules(batch, layout, name, &rules);
    }
}

/// The known clients of all affinity maps that are still needed, with what is left of their time (S-132).
fn clients(socket: &mut Socket, layout: &Layout, held: &Held) -> Result<Clients, DumpError> {
    let mut clients = Clients::new();
    let maps: BTreeSet<Sticky> = held.chains.iter().filter_map(|chain| chain.map()).collect();
    let sets = socket.sets(&layout.table)?;
    for map in maps {
        let declared = map.map(layout.family);
        if sets.iter().any(|set| declared_alike(&declared, set)) {
            clients.insert(map, socket.elements(&layout.table, &map.map_name())?);
        }
    }
    Ok(clients)
}

/// How the static part of a table stands to what the layout says.
enum Static {
    /// Alike, and nothing foreign lies in the table.
    Fits,
    /// All is there, but these chains have other rules.
    Rules(BTreeSet<String>),
    /// Otherwise different.
    Differs,
}

/// Reads all of the table.
fn read(socket: &mut Socket, layout: &Layout, now: Time) -> Result<(Held, Static), DumpError> {
    let family = layout.family;
    let sets = socket.sets(&layout.table)?;
    let of_layout = |set: &SetInfo| layout.sets.iter().any(|own| declared_alike(own, set));
    let of_affinity = |set: &SetInfo| {
        Sticky::parse_map(&set.name).is_some_and(|map| declared_alike(&map.map(family), set))
    };
    let mut fits = sets.iter().all(|set| of_layout(set) || of_affinity(set));
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
        let read = |element: Element| id.decode(family, &element, now);
        for element in socket.elements_as(&layout.table, id.name(), read)? {
            match element {
                Some((key, data)) => {
                    held.elements.insert((family, id, key), data);
                }
                None => fits = false,
            }
        }
    }
    let chains = read_chains(socket, layout, &mut held)?;
    // A hook can be deleted while elements need it: no verdict names it.
    let complete = held.needed_chains().is_subset(&held.chains);
    let state = if fits && complete {
        chains
    } else {
        Static::Differs
    };
    Ok((held, state))
}

/// Compares all chains and their rules; finds those made on demand.
fn read_chains(socket: &mut Socket, layout: &Layout, held: &mut Held) -> Result<Static, DumpError> {
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
    let mut differing = BTreeSet::new();
    for chain in chains {
        let alike = match (known(&chain), OnDemand::parse(&chain.name)) {
            (Some((wanted, rules)), _) => {
                fits &= chain.base == wanted.base;
                alike(&chain.name, rules)
            }
            (None, Some(demanded)) => {
                held.chains.insert(demanded);
                fits &= chain.base == demanded.chain().base;
                alike(&chain.name, &demanded.rules(layout.family, &layout.options))
            }
            (None, None) => {
                fits = false;
                true
            }
        };
        if !alike {
            differing.insert(chain.name);
        }
    }
    Ok(match (fits, differing.is_empty()) {
        (true, true) => Static::Fits,
        (true, false) => Static::Rules(differing),
        (false, _) => Static::Differs,
    })
}
