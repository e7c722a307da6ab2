//! How long new flows came to a target after the load balancer was told to let go of it (ZD-83, ZD-122), on a thread of
//! its own: the rules note the last flow of each guarded target, and it is read when the guard has ended.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use onehop_core::crd::{ServiceRef, Tail};
use onehop_core::time::Time;
use onehop_nft::Socket;
use onehop_runtime::clock::Clock;

use crate::guard::Ended;
use crate::metrics::Metrics;
use crate::table::counts;
use crate::table::element::{Family, Frontend};

/// The longest tail of each Service that was seen.
type Longest = Arc<Mutex<BTreeMap<ServiceRef, u32>>>;

/// Handle of the thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Tails {
    ended: Sender<Vec<Ended>>,
    longest: Longest,
}

/// Where the thread takes its work from.
#[derive(Debug)]
pub struct Inbox {
    ended: Receiver<Vec<Ended>>,
    longest: Longest,
}

impl Tails {
    /// A handle, and where its work arrives.
    pub fn new() -> (Self, Inbox) {
        let (sender, ended) = channel();
        let longest = Longest::default();
        let handle = Self {
            ended: sender,
            longest: Arc::clone(&longest),
        };
        (handle, Inbox { ended, longest })
    }

    /// Asks how long flows came to those of these targets that were let go.
    pub fn measure(&self, ended: Vec<Ended>) {
        if ended.iter().any(|ended| !ended.drained.is_empty()) {
            // Without the thread nothing is measured; it has said so.
            let _ = self.ended.send(ended);
        }
    }

    /// The longest tail that was seen of each of these Services.
    pub fn longest(&self, wanted: impl Fn(&ServiceRef) -> bool) -> Vec<Tail> {
        let mut longest = lock(&self.longest);
        longest.retain(|service, _| wanted(service));
        let tail = |(service, seconds): (&ServiceRef, &u32)| Tail {
            service: service.clone(),
            seconds: *seconds,
        };
        longest.iter().map(tail).collect()
    }
}

impl Inbox {
    /// Starts the thread in the network namespace of the caller.
    pub fn spawn(self, clock: Clock, metrics: Arc<Metrics>) -> io::Result<()> {
        let mut socket = Socket::open()?;
        let work = move || {
            while let Ok(ended) = self.ended.recv() {
                for (service, took) in look(&mut socket, &ended, clock.now()) {
                    metrics.late().last_flow_after(took);
                    let seconds = whole_seconds(took);
                    let mut longest = lock(&self.longest);
                    let known = longest.entry(service).or_default();
                    *known = seconds.max(*known);
                }
            }
        };
        thread::Builder::new()
            .name("tails".to_owned())
            .spawn(work)?;
        Ok(())
    }
}

/// Rounded up: a tail that is told is never shorter than it was.
fn whole_seconds(took: Duration) -> u32 {
    let seconds = took.as_millis().div_ceil(1000);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

fn look(socket: &mut Socket, ended: &[Ended], now: Time) -> Vec<(ServiceRef, Duration)> {
    let mut last = BTreeMap::new();
    for family in Family::ALL {
        match counts::last_flows(socket, family, now) {
            Ok(flows) => last.extend(flows),
            Err(error) => {
                tracing::warn!(%error, "cannot read when flows came last");
                return Vec::new();
            }
        }
    }
    tails(ended, &last)
}

/// From each target's deregistration to the last new flow that came to it; none after it counts as at once.
fn tails(ended: &[Ended], last: &BTreeMap<Frontend, Time>) -> Vec<(ServiceRef, Duration)> {
    let of = |ended: &Ended| {
        let last = last.get(&ended.key).copied();
        let drained = ended.drained.clone().into_iter();
        drained.map(move |(service, since)| {
            let took = last.map_or(Duration::ZERO, |last| last.since(since));
            (service, took)
        })
    };
    ended.iter().flat_map(of).collect()
}

fn lock(longest: &Longest) -> MutexGuard<'_, BTreeMap<ServiceRef, u32>> {
    // Every write is one number, so a poisoned lock holds nothing half done.
    longest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use onehop_core::id::{Protocol, ServiceKey};

    use super::*;
    use crate::guard::End;

    #[test]
    fn zd83_a_tail_is_from_the_deregistration_to_the_last_new_flow() {
        let key = |last| Frontend {
            address: [10, 244, 1, last].into(),
            protocol: Protocol::Tcp,
            port: 8080,
        };
        let web = ServiceRef::new(&ServiceKey::new("default", "web"), &"u1".into());
        let at = |seconds: i64| Time::from_millis(seconds * 1000);
        let ended = |last, drained: &[i64]| Ended {
            key: key(last),
            cause: End::Released,
            drained: drained.iter().map(|s| (web.clone(), at(*s))).collect(),
        };
        let last = [(key(1), at(190)), (key(2), at(90))].into();
        let of = |ended| -> Vec<u64> {
            let tails = tails(&[ended], &last).into_iter();
            tails.map(|(_, took)| took.as_secs()).collect()
        };
        assert_eq!(of(ended(1, &[100])), [90], "ZD-83");
        assert_eq!(of(ended(2, &[100])), [0], "the last one came before");
        assert_eq!(of(ended(3, &[100])), [0], "none ever came");
        assert_eq!(of(ended(1, &[])), [0; 0], "it was never let go");
    }

    #[test]
    fn zd83_a_tail_is_told_in_whole_seconds_and_not_shorter_than_it_was() {
        let told = [0, 1, 1000, 1001].map(|ms| whole_seconds(Duration::from_millis(ms)));
        assert_eq!(told, [0, 1, 1, 2], "ZD-83");
    }

    #[test]
    fn zd83_the_longest_tail_of_a_service_is_told_while_it_is_wanted() {
        let (tails, inbox) = Tails::new();
        let web = ServiceRef::new(&ServiceKey::new("default", "web"), &"u1".into());
        lock(&inbox.longest).insert(web.clone(), 90);
        let told = tails.longest(|_| true);
        assert_eq!(told.len(), 1);
        assert_eq!((&told[0].service, told[0].seconds), (&web, 90), "ZD-83");
        assert!(tails.longest(|service| *service != web).is_empty());
    }
}
