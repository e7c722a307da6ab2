//! The doors to which probes of load balancers come: which of them are open, of those that shall be.

use std::collections::BTreeSet;

use tokio::sync::watch;

use super::ports::Listen;
use crate::ready::Readiness;

/// All doors of this process.
#[derive(Debug, Clone)]
pub struct Doors {
    open: watch::Sender<usize>,
    fixed: usize,
    listens: watch::Receiver<BTreeSet<Listen>>,
}

/// A door that is open until this is dropped.
#[derive(Debug)]
pub struct Open(watch::Sender<usize>);

impl Doors {
    /// So many that are always wanted, and those of Services.
    pub fn new(fixed: usize, listens: watch::Receiver<BTreeSet<Listen>>) -> Self {
        Self {
            open: watch::Sender::new(0),
            fixed,
            listens,
        }
    }

    /// One more is open.
    pub fn open(&self) -> Open {
        self.open.send_modify(|open| *open += 1);
        Open(self.open.clone())
    }

    /// Where an agent stands that counts as in sync only with all of its doors open.
    pub fn standing(&self, readiness: Readiness) -> Readiness {
        let wanted = self.fixed + self.listens.borrow().len();
        if readiness == Readiness::InSync && *self.open.borrow() < wanted {
            return Readiness::Starting;
        }
        readiness
    }

    /// Waits until it is in sync and all of them are open, or until the readiness is told no more.
    pub async fn all_open(&self, mut readiness: watch::Receiver<Readiness>) {
        let (mut open, mut listens) = (self.open.subscribe(), self.listens.clone());
        loop {
            let at = *readiness.borrow_and_update();
            if self.standing(at) == Readiness::InSync {
                return;
            }
            let told = tokio::select! {
                told = readiness.changed() => told,
                told = open.changed() => told,
                told = listens.changed() => told,
            };
            if told.is_err() {
                return;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn zd36_an_agent_answers_once_all_doors_are_open() {
        let (listens, wanted) = watch::channel(BTreeSet::new());
        let (tell, readiness) = watch::channel(Readiness::Standby);
        let doors = Doors::new(1, wanted);
        let health = doors.open();
        assert_eq!(doors.standing(Readiness::Standby), Readiness::Standby);
        assert_eq!(doors.standing(Readiness::InSync), Readiness::InSync);
        listens.send_replace(BTreeSet::from([Listen {
            service: onehop_core::id::ServiceKey::new("default", "web"),
            addr: "10.0.1.1:30034".parse().expect("an address"),
        }]));
        assert_eq!(doors.standing(Readiness::InSync), Readiness::Starting);
        let waits = tokio::spawn({
            let doors = doors.clone();
            async move { doors.all_open(readiness).await }
        });
        tell.send_replace(Readiness::InSync);
        let port = doors.open();
        waits.await.expect("it ends");
        drop((health, port));
        assert_eq!(doors.standing(Readiness::InSync), Readiness::Starting);
    }
}
