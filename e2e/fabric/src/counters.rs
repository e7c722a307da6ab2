//! Packets counted on their way, hop by hop: what the demo shows of a flow.
//!
//! A table of its own, `ip hop-counters`, with one rule a hop and no verdict; removed when dropped. It sees packets
//! before any translation on the way in and after all of it on the way out.

use std::net::IpAddr;
use std::ops::Drop;

use onehop_nft::{Batch, Chain, ChainType, Hook as NftHook, Rule, Socket, Table};

use crate::netns::Netns;
use crate::tables::commit;
use crate::{Error, Result};

/// Where a packet is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Came in by this interface, as it was on the wire.
    In(String),
    /// Leaves by this interface, as it will be on the wire.
    Out(String),
}

/// Which packets a hop counts; what is `None` does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HopMatch {
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// Source port; needs the protocol.
    pub source_port: Option<u16>,
    /// Destination port; needs the protocol.
    pub destination_port: Option<u16>,
}

/// One counter's value.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// The name it was given.
    pub hop: String,
    /// Packets.
    pub packets: u64,
    /// Bytes, IP headers included.
    pub bytes: u64,
}

/// Counters in one namespace.
#[derive(Debug)]
pub struct HopCounters {
    ns: Netns,
    hops: Vec<String>,
}

impl HopCounters {
    /// Starts counting at zero. One set of counters per namespace: a second one replaces the first.
    pub fn start(ns: &Netns, hops: &[(&str, Hook, HopMatch)]) -> Result<Self> {
        let of = table();
        let mut batch = Batch::new();
        batch.destroy_table(&of);
        batch.add_table(&of, 0, None);
        batch.add_chain(
            &of,
            &Chain::base("in", ChainType::Filter, NftHook::Prerouting, -400),
        );
        batch.add_chain(
            &of,
            &Chain::base("out", ChainType::Filter, NftHook::Postrouting, 400),
        );
        for (name, hook, what) in hops {
            let (chain, rule) = match hook {
                Hook::In(interface) => ("in", Rule::ip().iifname(interface)),
                Hook::Out(interface) => ("out", Rule::ip().oifname(interface)),
            };
            batch.add_rule(&of, chain, &matching(rule, what).comment(name).counter());
        }
        commit(ns, "start hop counters", batch)?;
        Ok(Self {
            ns: ns.clone(),
            hops: hops.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        })
    }

    /// The values now, in the order of [`HopCounters::start`].
    pub fn read(&self) -> Result<Vec<Count>> {
        let rules = self.ns.run(|| {
            let mut socket = Socket::open().map_err(|e| e.to_string())?;
            socket.rules(&table(), None).map_err(|e| e.to_string())
        });
        let rules = rules.map_err(|e| Error::Nft {
            namespace: self.ns.name().to_owned(),
            message: format!("read hop counters: {e}"),
        })?;
        let count = |hop: &String| {
            let rule = rules.iter().find(|r| r.comment.as_ref() == Some(hop));
            let counter = rule.and_then(|r| r.counter).unwrap_or_default();
            Count {
                hop: hop.clone(),
                packets: counter.packets,
                bytes: counter.bytes,
            }
        };
        Ok(self.hops.iter().map(count).collect())
    }
}

impl Drop for HopCounters {
    fn drop(&mut self) {
        let mut batch = Batch::new();
        batch.destroy_table(&table());
        // The namespace may be on its way out; then the table goes with it.
        let _ = commit(&self.ns, "stop hop counters", batch);
    }
}

fn table() -> Table {
    Table::ip("hop-counters")
}

fn matching(mut rule: Rule, what: &HopMatch) -> Rule {
    if let Some(protocol) = what.protocol {
        rule = rule.l4proto(protocol);
    }
    if let Some(address) = what.source {
        rule = rule.saddr(address, 32);
    }
    if let Some(address) = what.destination {
        rule = rule.daddr(address, 32);
    }
    if let Some(port) = what.source_port {
        rule = rule.sport(port);
    }
    if let Some(port) = what.destination_port {
        rule = rule.dport(port);
    }
    rule
}
