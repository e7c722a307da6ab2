//! One family's table: commits its share of a change, in pieces or without what the kernel refuses (S-258).

use std::collections::BTreeSet;
use std::time::Duration;

use onehop_core::time::Time;
use onehop_nft::{Batch, CommitError};

use super::Line;
use super::classes::Classes;
use super::parts::{Part, Planned};
use crate::table::element::{CommitFailure, ElementKey, Family};
use crate::table::layout::Layout;

/// One family's table.
#[derive(Debug)]
pub(super) struct FamilyState {
    pub(super) family: Family,
    pub(super) layout: Layout,
    /// `None` until the table was read back, and after a failure that leaves its content in doubt (S-130).
    pub(super) classes: Option<Classes>,
}

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
    /// Commits a part. What is refused or in doubt is in `outcome`; all else is in the kernel.
    pub(super) fn commit(&mut self, line: &mut Line, part: Part, now: Time, outcome: &mut Outcome) {
        // A stack instead of recursion: pieces keep their order, so that slots of a frontend go with its verdict.
        let mut pieces = vec![part];
        while let Some(part) = pieces.pop() {
            let Some(classes) = &mut self.classes else {
                let message = format!("{:?}: the table was not read back", self.family);
                outcome.refuse(&part, message);
                continue;
            };
            let planned = Planned::new(self.family, &part, classes, now);
            match Self::send(line, &part, &planned) {
                Ok(()) => classes.committed(&part, &planned.new_classes, now),
                Err(error) => pieces.extend(self.after_error(part, &planned, &error, outcome)),
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
                self.classes = None;
                outcome.standby = true;
                outcome.lose(format!("the tables belong to another agent: {error}"));
                Vec::new()
            }
            CommitError::Encoding if !planned.unencodable.is_empty() => {
                let message = "an element is not of its set or family".to_owned();
                without(part, &planned.unencodable, message, outcome)
            }
            CommitError::Refused(failed) => {
                let bad = planned.meaning(failed);
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
                self.classes = None;
                outcome.lose(error.to_string());
                Vec::new()
            }
        }
    }

    /// Deletes class chains that nothing named for `rest`; whether some are still waiting (S-247).
    pub(super) fn tidy(
        &mut self,
        line: &mut Line,
        rest: Duration,
        now: Time,
    ) -> Result<bool, CommitError> {
        let Some(classes) = &mut self.classes else {
            return Ok(false);
        };
        for class in classes.rested(now, rest) {
            let mut batch = Batch::new();
            batch.del_chain(&self.layout.table, &class.name());
            match line.commit(&batch) {
                Ok(()) => classes.deleted(class),
                // Kernels before 6.2 hold the reference of a removed element for a moment: later.
                Err(error) if error.errno() == Some(libc::EBUSY) => classes.rest_again(class, now),
                Err(error) => {
                    self.classes = None;
                    return Err(error);
                }
            }
        }
        Ok(classes.any_resting())
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
