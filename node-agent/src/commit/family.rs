//! One family's table: commits its share of a change, in pieces or without what the kernel refuses (S-258).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use onehop_core::time::Time;
use onehop_nft::{Batch, CommitError, DumpError, Element, Table};

use super::chains::Chains;
use super::line::Line;
use super::parts::{Part, Planned};
use crate::table::affinity::{self, Sticky};
use crate::table::element::{CommitFailure, ElementKey, Family};
use crate::table::layout::Layout;

/// One family's table.
#[derive(Debug)]
pub(super) struct FamilyState {
    pub(super) family: Family,
    pub(super) layout: Layout,
    /// `None` until the table was read back, and after a failure that leaves its content in doubt (S-130).
    pub(super) chains: Option<Chains>,
    /// The table of a stopped kube-proxy, which goes with the last piece of the next commit (S-127).
    pub(super) retired: Option<Table>,
    /// Affinity maps that are looked at once more when there is nothing else to do (S-240).
    pub(super) recheck: Retain,
}

/// Affinity maps with the endpoints that their entries may name.
pub(super) type Retain = BTreeMap<Sticky, BTreeSet<SocketAddr>>;

/// What came of the families and pieces of one change.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    refused: BTreeSet<ElementKey>,
    messages: Vec<String>,
    /// The content of a table is in doubt.
    lost: bool,
    standby: bool,
}

impl Outcome {
    fn refuse(&mut self, part: &Part, message: String) {
        self.refused.extend(part.keys());
        self.messages.push(message);
    }

    fn lose(&mut self, message: String) {
        self.lost = true;
        self.messages.push(message);
    }

    pub(super) fn result(self) -> Result<(), CommitFailure> {
        if self.messages.is_empty() {
            return Ok(());
        }
        // In doubt about anything, the caller reads back all of it: that is what an empty list says.
        let refused = if self.lost {
            BTreeSet::new()
        } else {
            self.refused
        };
        Err(CommitFailure {
            refused,
            message: self.messages.join("; "),
            standby: self.standby,
        })
    }
}

impl FamilyState {
    /// Lists that only gained: a look that is due goes by them.
    pub(super) fn gain(&mut self, lists: Retain) {
        for (map, endpoints) in lists {
            self.recheck.entry(map).and_modify(|due| *due = endpoints);
        }
    }

    /// Commits a part. What is refused or in doubt is in `outcome`; all else is in the kernel.
    pub(super) fn commit(
        &mut self,
        line: &mut Line,
        (part, retain): (Part, Retain),
        now: Time,
        outcome: &mut Outcome,
    ) {
        let mut stale = if line.features.destroy_elements {
            self.stale(line, &retain)
        } else {
            Vec::new()
        };
        // A stack instead of recursion: pieces keep their order, so that slots of a frontend go with its verdict.
        let mut pieces = vec![part];
        while let Some(part) = pieces.pop() {
            let Some(chains) = &mut self.chains else {
                let message = format!("{:?}: the table was not read back", self.family);
                outcome.refuse(&part, message);
                continue;
            };
            let mut planned = Planned::new(&self.layout, &part, chains, now);
            // With the slots that go; whatever this misses is found afterwards.
            for (map, clients) in std::mem::take(&mut stale) {
                planned.forget(&self.layout, map, clients);
            }
            let retired = self.retired.as_ref().filter(|_| pieces.is_empty());
            if let Some(table) = retired {
                planned.retire(table);
            }
            match Self::send(line, &part, &planned) {
                Ok(()) => {
                    chains.committed(&part, &planned.new_chains, now);
                    if pieces.is_empty() {
                        self.retired = None;
                    }
                }
                Err(error) => pieces.extend(self.after_error(part, &planned, &error, outcome)),
            }
        }
        self.recheck.extend(retain);
        // A packet that was under way may have recorded itself after the first look.
        self.purge(line);
    }

    /// Removes clients whose endpoint has left (S-240). Maps that could not be looked at are tried again when idle.
    fn purge(&mut self, line: &mut Line) {
        for (map, clients) in self.stale(line, &self.recheck) {
            if let Err(error) = self.forget(line, map, clients) {
                tracing::warn!(%error, map = map.map_name(), "cannot forget clients of endpoints that left");
            }
        }
    }

    /// The clients to be forgotten, by map. A map that does not exist has none.
    fn stale(&self, line: &mut Line, retain: &Retain) -> Vec<(Sticky, Vec<Element>)> {
        let mut stale = Vec::new();
        for (map, endpoints) in retain {
            let entries = match line.socket.elements(&self.layout.table, &map.map_name()) {
                Ok(entries) => entries,
                Err(DumpError::NotFound) => continue,
                Err(error) => {
                    tracing::warn!(%error, map = map.map_name(), "cannot read known clients");
                    continue;
                }
            };
            let left = |entry: &&Element| {
                affinity::endpoint(self.family, entry).is_none_or(|at| !endpoints.contains(&at))
            };
            let clients: Vec<Element> = entries
                .iter()
                .filter(left)
                .map(|entry| Element::key(entry.key))
                .collect();
            if !clients.is_empty() {
                stale.push((*map, clients));
            }
        }
        stale
    }

    /// Deletes clients of a map in a batch of their own; those that ended by themselves are no error (S-268).
    fn forget(
        &self,
        line: &mut Line,
        map: Sticky,
        mut clients: Vec<Element>,
    ) -> Result<(), CommitError> {
        let (table, name) = (&self.layout.table, map.map_name());
        loop {
            let mut batch = Batch::new();
            if line.features.destroy_elements {
                batch.destroy_elements(table, &name, clients);
                return line.commit(&batch);
            }
            batch.del_elements(table, &name, clients.clone());
            let error = match line.commit(&batch) {
                Err(error) if error.errno() == Some(libc::ENOENT) => error,
                result => return result,
            };
            let CommitError::Refused(failed) = &error else {
                return Err(error);
            };
            let ended: BTreeSet<usize> = failed.iter().filter_map(|op| op.element).collect();
            if ended.is_empty() {
                return Err(error);
            }
            let mut index = 0..;
            clients.retain(|_| index.next().is_none_or(|at| !ended.contains(&at)));
            if clients.is_empty() {
                return Ok(());
            }
        }
    }

    fn send(line: &mut Line, part: &Part, planned: &Planned) -> Result<(), CommitError> {
        let bytes = planned.batch.len();
        if !planned.unencodable.is_empty() {
            return Err(CommitError::Encoding);
        }
        if bytes > line.limit && part.can_split() {
            return Err(CommitError::TooLarge { bytes });
        }
        line.commit(&planned.batch)
    }

    /// What is still to be tried after an error, the next piece last.
    fn after_error(
        &mut self,
        part: Part,
        planned: &Planned,
        error: &CommitError,
        outcome: &mut Outcome,
    ) -> Vec<Part> {
        match error {
            _ if error.errno() == Some(libc::EPERM) => {
                self.chains = None;
                outcome.standby = true;
                outcome.lose(format!("the tables belong to another agent: {error}"));
                Vec::new()
            }
            CommitError::Encoding if !planned.unencodable.is_empty() => {
                let message = "an element is not of its set or family".to_owned();
                without(part, &planned.unencodable, message, outcome)
            }
            CommitError::Refused(failed) => {
                let bad = planned.meaning(self.family, &part, failed);
                let mut part = part;
                part.forget_removed(&bad.already_gone);
                if bad.keys.is_empty() && bad.already_gone.is_empty() {
                    return halves(part, error, outcome);
                }
                without(part, &bad.keys, error.to_string(), outcome)
            }
            CommitError::TooLarge { .. } | CommitError::Batch { .. } | CommitError::Encoding => {
                halves(part, error, outcome)
            }
            CommitError::Generation | CommitError::Unknown(_) | CommitError::Socket(_) => {
                self.chains = None;
                outcome.lose(error.to_string());
                Vec::new()
            }
        }
    }

    /// Deletes chains that nothing named for `rest`; whether some are still waiting (S-247).
    pub(super) fn tidy(
        &mut self,
        line: &mut Line,
        rest: Duration,
        now: Time,
    ) -> Result<bool, CommitError> {
        if self.chains.is_some() {
            self.purge(line);
            self.recheck.clear();
        }
        let Some(chains) = &mut self.chains else {
            return Ok(false);
        };
        let table = &self.layout.table;
        for chain in chains.rested(now, rest) {
            let mut batch = Batch::new();
            batch.del_chain(table, &chain.name());
            chains.deleted(chain, now);
            // The last chain of an affinity map takes it along.
            if let Some(map) = chain.map().filter(|map| !chains.uses_map(*map)) {
                batch.del_set(table, &map.map_name());
            }
            match line.commit(&batch) {
                Ok(()) => {}
                // Kernels before 6.2 hold the reference of a removed element for a moment: later.
                Err(error) if error.errno() == Some(libc::EBUSY) => chains.rest_again(chain, now),
                Err(error) => {
                    self.chains = None;
                    return Err(error);
                }
            }
        }
        Ok(chains.any_resting())
    }
}

/// The part without everything of the frontends these keys belong to.
fn without(
    mut part: Part,
    keys: &BTreeSet<ElementKey>,
    message: String,
    outcome: &mut Outcome,
) -> Vec<Part> {
    let refused = part.take_owners_of(keys);
    if !refused.is_empty() {
        outcome.refuse(&refused, message);
    }
    if part.is_empty() {
        Vec::new()
    } else {
        vec![part]
    }
}

/// An error that names no element: each half alone (S-258); one owner alone is refused.
fn halves(part: Part, error: &CommitError, outcome: &mut Outcome) -> Vec<Part> {
    if part.can_split() {
        let (first, second) = part.split();
        return vec![second, first];
    }
    outcome.refuse(&part, error.to_string());
    Vec::new()
}
