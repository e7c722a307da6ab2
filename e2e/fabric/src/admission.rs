//! Interface filters, as security groups have them (FC-79): which first packets LB nodes take from clients, and which ones
//! the network takes from LB nodes. Established flows go on when a rule goes, as tracked connections do there.
//!
//! IPv4 only, as the API that writes the rules. Without a call everything is let through.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use ipnet::Ipv4Net;
use onehop_nft::expr::CT_STATE_NEW;
use onehop_nft::{Batch, Chain, ChainType, Family, Field, Hook, Rule, Table, Value};

use crate::Result;
use crate::lb::LbNet;
use crate::netns::Netns;
use crate::router::Router;
use crate::tables::commit;

/// Before destinations are translated.
const MANGLE: i32 = -150;
/// Where what no rule lets through is counted.
const CLOSED: &str = "closed";

/// What one rule lets through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Admit {
    /// IP protocol number; all when absent.
    pub protocol: Option<u8>,
    /// Destination ports.
    pub ports: (u16, u16),
    /// Sources.
    pub source: Ipv4Net,
}

impl Admit {
    /// This protocol, these ports, from everywhere.
    pub fn from_all(protocol: u8, ports: RangeInclusive<u16>) -> Self {
        Self {
            protocol: Some(protocol),
            ports: ports.into_inner(),
            source: Ipv4Net::default(),
        }
    }

    fn rule(&self) -> Rule {
        let mut rule = Rule::ip();
        if let Some(protocol) = self.protocol {
            let port = |port: u16| Value::new().port(port);
            let (from, to) = self.ports;
            rule = rule
                .l4proto(protocol)
                .within(Field::Dport, port(from), port(to));
        }
        if self.source.prefix_len() > 0 {
            rule = rule.saddr(self.source.addr().into(), self.source.prefix_len());
        }
        rule.accept()
    }
}

impl LbNet {
    /// Takes new flows to these addresses by their rules only; the last call counts.
    pub fn admit(&self, addresses: &BTreeMap<Ipv4Addr, Vec<Admit>>) -> Result<()> {
        let chains = addresses
            .iter()
            .enumerate()
            .map(|(number, (address, open))| {
                let to = Rule::ip().daddr((*address).into(), 32);
                (format!("address-{number}"), to, open.as_slice())
            });
        filter(self.netns(), Hook::Prerouting, chains)
    }
}

impl Router {
    /// Takes new flows from LB nodes by these rules only; the last call counts.
    pub fn admit_from_lb_nodes(&self, open: &[Admit]) -> Result<()> {
        let from = Rule::ip().iifname("lb*");
        let chain = ("from-lb-nodes".to_owned(), from, open);
        filter(self.netns(), Hook::Forward, [chain])
    }
}

/// One transaction: a chain of its own for each kind of first packet, with what is let through.
fn filter<'a>(
    ns: &Netns,
    hook: Hook,
    chains: impl IntoIterator<Item = (String, Rule, &'a [Admit])>,
) -> Result<()> {
    let of = Table::new(Family::Ip, "admission");
    let mut batch = Batch::new();
    batch.destroy_table(&of);
    batch.add_table(&of, 0, None);
    batch.add_chain(&of, &Chain::base("first", ChainType::Filter, hook, MANGLE));
    for (name, which, open) in chains {
        batch.add_chain(&of, &Chain::regular(&name));
        batch.add_rule(&of, "first", &which.ct_state(CT_STATE_NEW).goto(&name));
        for admit in open {
            batch.add_rule(&of, &name, &admit.rule());
        }
        batch.add_rule(&of, &name, &Rule::ip().comment(CLOSED).counter().drop());
    }
    commit(ns, "filter first packets", batch)
}
