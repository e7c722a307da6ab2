//! Notices foreign changes to our tables where they cannot be owned (S-255, S-260, S-267).
//! Used by commit on kernels before 6.9; an owned table is not changed by anybody else.

use std::io;

use onehop_nft::{Batch, CommitError, DumpError, Ears, Event, Events, Socket};

use super::line;
use crate::table::element::Family;
use crate::table::layout::table;

/// Foreign commits to other tables that one commit of ours may meet before it gives up.
const TRIES: usize = 10;

/// Follows the commits of everybody in the namespace.
#[derive(Debug)]
pub(super) struct Watch {
    events: Events,
    generation: u32,
    port_id: u32,
}

impl Watch {
    /// Begins before anything is read, so that no change is missed.
    pub(super) fn begin(socket: &mut Socket) -> Result<Self, DumpError> {
        let events = Events::open()?;
        let generation = socket.generation()?;
        Ok(Self {
            events,
            generation,
            port_id: socket.port_id(),
        })
    }

    /// Whether somebody else changed one of our tables since the last look.
    pub(super) fn touched(&mut self) -> io::Result<bool> {
        let (mut foreign, mut touched) = (false, false);
        while let Some(event) = self.events.poll()? {
            match event {
                Event::Changed { table, port_id } => {
                    foreign |= port_id != self.port_id && is_ours(&table);
                }
                Event::Committed {
                    generation,
                    process,
                    ..
                } => {
                    self.generation = generation;
                    if std::mem::take(&mut foreign) {
                        tracing::warn!(?process, "somebody else changed our nftables tables");
                        touched = true;
                    }
                }
                Event::Lost => {
                    tracing::warn!("nftables notifications were lost");
                    touched = true;
                }
            }
        }
        Ok(touched)
    }

    /// Commits if our tables are as we left them; commits of others to other tables do not matter.
    pub(super) fn commit(
        &mut self,
        socket: &mut Socket,
        batch: &Batch,
        others: &[Ears],
    ) -> Result<(), CommitError> {
        let listeners = [others, &[self.events.ears()]].concat();
        for _ in 0..TRIES {
            if self.touched()? {
                break;
            }
            match line::commit(socket, batch, Some(self.generation), &listeners) {
                Err(CommitError::Generation) => {}
                Ok(()) => {
                    // A large batch is not told.
                    self.generation = line::next(self.generation);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Err(CommitError::Generation)
    }
}

fn is_ours(changed: &onehop_nft::Table) -> bool {
    Family::ALL.map(table).contains(changed)
}
