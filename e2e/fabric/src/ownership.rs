//! Who owns which pod address of a node, and what becomes of it when its pod ends (FC-75 to FC-77).
//!
//! Pure: time is an argument, the router is told by the returned steps. Used by [`crate::NodeNet`].

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use onehop_core::time::Time;

/// What happens to a pod's address after its cool-down (FC-76).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCooldown {
    /// It stays on the interface, unused for the rest of the world's life.
    #[default]
    Idle,
    /// It stays on the interface, and a new pod of this node may get it.
    SameNode,
    /// It is taken off the interface: packets to it find no owner. Never used again.
    Release,
    /// As `Release`, and the next pod of any other node gets it.
    OtherNode,
    /// Fault: there is no cool-down at all, the next pod of this node may get it at once.
    Immediate,
}

/// One change of a pod address, for the world's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressEvent {
    /// The router delivers the address to this node from now on.
    Assigned {
        /// Node whose secondary interface owns the address.
        node: String,
        /// The address.
        address: Ipv4Addr,
    },
    /// A pod took an address that its node owns.
    Used {
        /// Node of the pod.
        node: String,
        /// The address.
        address: Ipv4Addr,
        /// The pod, as `namespace/name` or whatever its starter calls it.
        pod: String,
    },
    /// The pod ended; the cool-down begins.
    Cooling {
        /// Node of the pod.
        node: String,
        /// The address.
        address: Ipv4Addr,
        /// How long packets still reach the node.
        cooldown: Duration,
    },
    /// The router has no owner for the address any more.
    Released {
        /// Node that owned it.
        node: String,
        /// The address.
        address: Ipv4Addr,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Used,
    Cooling {
        until: Time,
    },
    /// Owned, and never given out again.
    Idle,
    /// Owned, and free for the next pod.
    Free,
    /// Not owned any more, and never given out again.
    Gone,
}

/// What the owner of the book has to do at the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take the address off the node's interface.
    Release(Ipv4Addr),
    /// As `Release`, then offer it to other nodes.
    Offer(Ipv4Addr),
}

/// The pod addresses of one node.
#[derive(Debug)]
pub(crate) struct AddressBook {
    // Hosts of the node's pod range, in the order in which they are given out.
    range: std::ops::RangeInclusive<u32>,
    cooldown: Duration,
    after: AfterCooldown,
    states: BTreeMap<Ipv4Addr, State>,
    next: Option<Ipv4Addr>,
}

impl AddressBook {
    pub(crate) fn new(
        first: Ipv4Addr,
        last: Ipv4Addr,
        cooldown: Duration,
        after: AfterCooldown,
    ) -> Self {
        Self {
            range: u32::from(first)..=u32::from(last),
            cooldown: if after == AfterCooldown::Immediate {
                Duration::ZERO
            } else {
                cooldown
            },
            after,
            states: BTreeMap::new(),
            next: None,
        }
    }

    /// The next [`AddressBook::take`] gives this address, whatever its state (FC-77). `false` if a pod uses it now.
    pub(crate) fn choose_next(&mut self, address: Ipv4Addr) -> bool {
        let free = self.states.get(&address) != Some(&State::Used);
        if free {
            self.next = Some(address);
        }
        free
    }

    /// An address for a new pod: the one asked for, else the lowest that may be given out. `None`: the range is used
    /// up.
    pub(crate) fn take(&mut self) -> Option<Ipv4Addr> {
        let address = self.next.take().or_else(|| self.lowest_free())?;
        self.states.insert(address, State::Used);
        Some(address)
    }

    fn lowest_free(&self) -> Option<Ipv4Addr> {
        let free = |a: &Ipv4Addr| matches!(self.states.get(a), None | Some(State::Free));
        self.range.clone().map(Ipv4Addr::from).find(free)
    }

    /// A pod takes an address that its starter chose (another node's released one, or any).
    pub(crate) fn take_exactly(&mut self, address: Ipv4Addr) -> bool {
        self.states.insert(address, State::Used) != Some(State::Used)
    }

    /// The pod is gone. The answer is when the address has cooled down.
    pub(crate) fn give_back(&mut self, address: Ipv4Addr, now: Time) -> Time {
        let until = now + self.cooldown;
        self.states.insert(address, State::Cooling { until });
        until
    }

    /// Ends every cool-down that is over at `now`.
    pub(crate) fn settle(&mut self, now: Time) -> Vec<Step> {
        let mut steps = Vec::new();
        for (&address, state) in &mut self.states {
            let State::Cooling { until } = *state else {
                continue;
            };
            if until > now {
                continue;
            }
            *state = match self.after {
                AfterCooldown::Idle => State::Idle,
                AfterCooldown::SameNode | AfterCooldown::Immediate => State::Free,
                AfterCooldown::Release => {
                    steps.push(Step::Release(address));
                    State::Gone
                }
                AfterCooldown::OtherNode => {
                    steps.push(Step::Offer(address));
                    State::Gone
                }
            };
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
    const B: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);
    const COOLDOWN: Duration = Duration::from_secs(30);

    fn book(after: AfterCooldown) -> AddressBook {
        AddressBook::new(A, Ipv4Addr::new(10, 244, 1, 254), COOLDOWN, after)
    }

    #[test]
    fn fc76_each_mode_ends_the_cooldown_its_own_way() {
        let cases = [
            (AfterCooldown::Idle, vec![], B),
            (AfterCooldown::SameNode, vec![], A),
            (AfterCooldown::Release, vec![Step::Release(A)], B),
            (AfterCooldown::OtherNode, vec![Step::Offer(A)], B),
        ];
        for (after, steps, next) in cases {
            let mut book = book(after);
            assert_eq!(book.take(), Some(A), "FC-76 {after:?}");
            assert_eq!(book.give_back(A, Time::EPOCH), Time::EPOCH + COOLDOWN);
            assert_eq!(
                book.settle(Time::EPOCH + COOLDOWN / 2),
                vec![],
                "FC-75: owned during the cool-down"
            );
            assert_eq!(
                book.settle(Time::EPOCH + COOLDOWN),
                steps,
                "FC-76 {after:?}"
            );
            assert_eq!(book.settle(Time::EPOCH + COOLDOWN * 2), vec![], "once only");
            assert_eq!(book.take(), Some(next), "FC-76 {after:?}");
        }
    }

    #[test]
    fn fc76_immediate_reuses_without_cooldown() {
        let mut book = book(AfterCooldown::Immediate);
        assert_eq!(book.take(), Some(A));
        assert_eq!(book.give_back(A, Time::EPOCH), Time::EPOCH);
        assert_eq!(book.settle(Time::EPOCH), vec![]);
        assert_eq!(book.take(), Some(A), "FC-76");
    }

    #[test]
    fn fc77_the_driver_chooses_the_next_address_once() {
        let mut book = book(AfterCooldown::Idle);
        assert!(book.choose_next(B));
        assert_eq!(book.take(), Some(B), "FC-77");
        assert!(!book.choose_next(B), "FC-77: not one that a pod uses");
        assert_eq!(book.take(), Some(A));
    }
}
