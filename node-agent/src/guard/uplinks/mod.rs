//! Interfaces to the fabric in the node itself: finds them, keeps a routing table and a rule for each, and loosens their
//! reverse-path filter (S-400 to S-406). Called by `run` at the start and on every change of links, addresses or routes;
//! writes nothing beyond the tables and rules of its own numbers and `rp_filter`.

mod find;
mod messages;
mod netlink;
mod plan;
mod rp_filter;

use std::io;

use crate::guard::network::{Network, Uplink};
use netlink::Rtnetlink;
pub use plan::Numbers;

/// What the flags say about uplinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Names given by hand; empty: found by default routes.
    pub names: Vec<String>,
    /// Leave reverse-path filters as they are (ZD-47).
    pub keep_rp_filter: bool,
}

/// Keeps the network of the node as the guard needs it.
#[derive(Debug)]
pub struct Keeper {
    socket: Rtnetlink,
    wishes: Wishes,
    numbers: Numbers,
}

impl Keeper {
    /// For the network namespace of the calling thread.
    pub fn open(wishes: Wishes) -> io::Result<Self> {
        Ok(Self {
            socket: Rtnetlink::open()?,
            wishes,
            numbers: Numbers::default(),
        })
    }

    /// Looks at the node and puts right what differs. What cannot be put right is a problem in the answer.
    pub fn refresh(&mut self) -> io::Result<Network> {
        let seen = self.socket.look()?;
        let names = find::uplinks(&seen, &self.wishes.names);
        self.numbers.assign(&seen, &names);
        let uplinks: Vec<Uplink> = find::numbered(&seen, &names, &self.numbers);
        let mut problems = Vec::new();
        if uplinks.is_empty() {
            problems.push("no interface carries a default route: where the load balancer's packets come from is not known".to_owned());
        }
        problems.extend(find::past_netfilter(&seen));
        for change in plan::changes(&seen, &uplinks) {
            if let Err(error) = self.socket.apply(&change) {
                problems.push(format!("{change}: {error}"));
            }
        }
        problems.extend(rp_filter::loosen(
            &mut self.socket,
            &uplinks,
            self.wishes.keep_rp_filter,
        ));
        Ok(Network { uplinks, problems })
    }
}

/// Removes every rule and routing table that the agent may have made (S-122).
pub fn cleanup() -> io::Result<()> {
    let mut socket = Rtnetlink::open()?;
    let seen = socket.look()?;
    for change in plan::changes(&seen, &[]) {
        socket.apply(&change)?;
    }
    Ok(())
}
