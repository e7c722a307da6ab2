//! What security groups let through, for whoever puts it on packets (FC-79).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use e2e_fabric::Admit;
use ipnet::Ipv4Net;

use super::account::{Account, RuleKey};
use crate::engine::Protocol;

/// The rules of the account. Security groups are in force at load balancers and machines; pods are behind the machines'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// By address of a load balancer that has security groups; one without takes everything.
    pub balancers: BTreeMap<Ipv4Addr, Vec<Admit>>,
    /// What machines take from load balancers.
    pub machines: Vec<Admit>,
}

/// Told of the rules whenever they change, before the call that did it is answered.
pub type OnRules = Arc<dyn Fn(&Rules) + Send + Sync>;

impl Account {
    /// The rules as they are.
    pub(super) fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        for lb in self.balancers.values() {
            if lb.security_groups.is_empty() {
                continue;
            }
            let groups = lb.security_groups.iter();
            let groups = groups.filter_map(|id| self.security_groups.get(id));
            let open: Vec<_> = groups
                .flat_map(|group| group.rules.keys())
                .filter(|rule| rule.kind == "range")
                .filter_map(|rule| admit(rule, rule.source.parse().ok()?))
                .collect();
            for address in lb.addresses() {
                if let IpAddr::V4(address) = address {
                    rules.balancers.insert(address, open.clone());
                }
            }
        }
        let worn = |id: &String| {
            self.balancers
                .values()
                .any(|lb| lb.security_groups.contains(id))
        };
        let machines = self
            .security_groups
            .values()
            .filter(|group| !group.made_by_call);
        for rule in machines.flat_map(|group| group.rules.keys()) {
            // All load balancers share LB nodes, so that one's group stands for all of them.
            let source = match rule.kind {
                "range" => rule.source.parse().ok(),
                "group" => worn(&rule.source).then(Ipv4Net::default),
                _ => None,
            };
            rules
                .machines
                .extend(source.and_then(|source| admit(rule, source)));
        }
        rules
    }
}

fn admit(rule: &RuleKey, source: Ipv4Net) -> Option<Admit> {
    let protocol = match rule.protocol.as_str() {
        "-1" => None,
        "tcp" => Some(Protocol::Tcp.number()),
        "udp" => Some(Protocol::Udp.number()),
        // What carries no port never is the first packet of a flow here.
        _ => return None,
    };
    let port = |number: i32| u16::try_from(number).ok();
    Some(Admit {
        protocol,
        ports: (
            port(rule.from).unwrap_or(0),
            port(rule.to).unwrap_or(u16::MAX),
        ),
        source,
    })
}
