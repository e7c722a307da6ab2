//! The way to the kernel. Used by commit for every transaction that changes our tables.

use std::io;

use onehop_nft::{Batch, CommitError, Ears, Socket};

use super::Features;
use super::watch::Watch;

/// From this size on nobody of this process listens to notifications while a batch is committed: the kernel makes one of
/// several kilobytes of every element as long as anybody does, which takes longer than all the rest.
const UNHEARD: usize = 64 << 10;

/// The way to the kernel.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: Socket,
    /// Largest batch.
    pub(super) limit: usize,
    pub(super) features: Features,
    /// On kernels where the tables are not owned, once they were read.
    pub(super) watch: Option<Watch>,
    /// Who else of this process listens to notifications.
    pub(super) listeners: Vec<Ears>,
}

impl Line {
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        match &mut self.watch {
            Some(watch) => watch.commit(&mut self.socket, batch, &self.listeners),
            None => commit(&mut self.socket, batch, None, &self.listeners),
        }
    }
}

/// Commits once; with a generation, only if nobody committed since. The listeners do not hear of a large batch, but they
/// are told if they may have missed something else.
pub(super) fn commit(
    socket: &mut Socket,
    batch: &Batch,
    generation: Option<u32>,
    listeners: &[Ears],
) -> Result<(), CommitError> {
    if batch.len() < UNHEARD {
        return send(socket, batch, generation);
    }
    each(listeners, Ears::close);
    let before = socket.generation().ok();
    let result = send(socket, batch, generation);
    each(listeners, Ears::open);
    let ours = before.map(|before| if result.is_ok() { next(before) } else { before });
    if ours.is_none() || socket.generation().ok() != ours {
        each(listeners, Ears::missed);
    }
    result
}

/// The generation after one; the kernel leaves out 0.
pub(super) fn next(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}

fn send(socket: &mut Socket, batch: &Batch, generation: Option<u32>) -> Result<(), CommitError> {
    match generation {
        Some(generation) => socket.commit_if(batch, generation),
        None => socket.commit(batch),
    }
}

/// Who stays deaf notices nothing any more until somebody tells it that it missed something; that is for the log.
fn each(listeners: &[Ears], act: fn(&Ears) -> io::Result<()>) {
    for error in listeners.iter().filter_map(|ears| act(ears).err()) {
        tracing::warn!(%error, "cannot switch nftables notifications off or on");
    }
}
