//! The static part of a table: sets, chains and rules of sections 12.3 to 12.5.
//! Depends on the configuration only; commit makes it once and compares it at every start (S-132).
//! Affinity (12.7) has its hooks here; its chains and maps per service port are made on demand.

use std::net::IpAddr;

use ipnet::IpNet;
use onehop_nft::expr::{CT_STATE_NEW, CT_STATUS_DNAT, NAT_FULLY_RANDOM};
use onehop_nft::{Chain, ChainType, CmpOp, CtDirection, Field, Hook, Rule, Set, Table, Value};

use super::counts;
use super::element::{Family, SetId};
use super::guard;
use super::set::REJECT_CHAIN;

/// Name of our tables (S-201).
pub const TABLE: &str = "onehop";
/// The table's comment; carries the layout version (S-132).
pub const VERSION: &str = "onehop node agent, layout 7";
/// Remembers by which uplink a connection came (S-404); does nothing while there is one uplink (S-402).
pub const UPLINK_MARK: &str = "uplink-mark";

/// Asks for masquerade in postrouting.
pub const MASQUERADE: &str = "masquerade-mark";
/// Masquerades.
const SOURCE: &str = "masquerade";

/// Fields of the frontend key K.
pub(super) const K: [Field; 3] = [Field::Daddr, Field::L4Proto, Field::Dport];
/// Fields of the node port key P.
pub(super) const P: [Field; 2] = [Field::L4Proto, Field::Dport];

/// What the static part depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Packet mark that asks for masquerade; one bit (S-67).
    pub masquerade_mark: u32,
    /// Masquerade all `ClusterIP` traffic (S-60).
    pub masquerade_all: bool,
    /// Ranges of source ports that masquerade chooses from, by how many they are, at most two; all ports, if there is
    /// none (S-34).
    pub masquerade_ports: Vec<(u16, u16)>,
    /// How pods are told from others.
    pub detector: Detector,
    /// Whether kube-proxy runs on this node too; decides where the checks stand (S-128).
    pub beside_kube_proxy: bool,
    /// Whether chains of a kube-proxy in an iptables mode are left, before which ours have to decide (S-127).
    pub before_iptables: bool,
    /// Ranges in which an address that is no `ClusterIP` is dropped (S-26); only ever filled when alone.
    pub service_cidrs: Vec<IpNet>,
}

/// How the source of a packet is known to be a pod (S-61).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detector {
    /// Its address lies in one of these; none of a family: no detector there (S-60).
    Ranges(Vec<IpNet>),
    /// Its address lies in a range of the own Node object, which is followed.
    NodeRanges(Vec<IpNet>),
    /// It comes by this bridge.
    Bridge(String),
    /// It comes by an interface whose name begins so.
    Prefix(String),
}

/// What the static part takes from objects, and follows live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Ranges of the cluster's virtual addresses (S-26).
    pub service_cidrs: Vec<IpNet>,
    /// Ranges of the own Node's pods.
    pub node_pod_cidrs: Vec<IpNet>,
}

impl Options {
    /// The options where these are the ranges.
    #[must_use]
    pub fn with(&self, ranges: &Ranges) -> Self {
        let detector = match &self.detector {
            Detector::NodeRanges(_) => Detector::NodeRanges(ranges.node_pod_cidrs.clone()),
            other => other.clone(),
        };
        Self {
            detector,
            service_cidrs: ranges.service_cidrs.clone(),
            ..self.clone()
        }
    }
}

/// Sets and chains with rules, in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The family.
    pub family: Family,
    /// Our table of the family.
    pub table: Table,
    /// All sets and maps.
    pub sets: Vec<Set>,
    /// All chains but those made on demand. Regular ones come first.
    pub chains: Vec<(Chain, Vec<Rule>)>,
    /// What it was made from; chains made on demand need it too.
    pub options: Options,
}

/// nft's word for a family.
pub fn nft_family(family: Family) -> onehop_nft::Family {
    match family {
        Family::V4 => onehop_nft::Family::Ip,
        Family::V6 => onehop_nft::Family::Ip6,
    }
}

/// Our table of a family.
pub fn table(family: Family) -> Table {
    Table::new(nft_family(family), TABLE)
}

/// New connections to a Service with affinity (S-237); a hook's rule.
pub(super) fn record_new(family: Family) -> Rule {
    Rule::new(nft_family(family))
        .ct_state(CT_STATE_NEW)
        .jump("record")
}

impl Layout {
    /// The static part of a family's table.
    pub fn new(family: Family, options: &Options) -> Self {
        let rules = Rules { family, options };
        let mut sets: Vec<Set> = SetId::ALL.iter().map(|id| id.declaration(family)).collect();
        sets.extend(guard::own_sets(family));
        sets.extend(counts::own_sets(family));
        let mut chains = rules.regular_chains();
        chains.extend(rules.base_chains());
        Self {
            family,
            table: table(family),
            sets,
            chains,
            options: options.clone(),
        }
    }
}

/// Builds the rules of one family.
pub(super) struct Rules<'a> {
    pub(super) family: Family,
    pub(super) options: &'a Options,
}

/// What differs between frontends and node ports in otherwise equal chains.
struct ByKey {
    key: &'static [Field],
    affinity: SetId,
    verdicts: SetId,
    window: SetId,
}

impl Rules<'_> {
    fn rule(&self) -> Rule {
        Rule::new(nft_family(self.family))
    }

    fn new_only(&self) -> Rule {
        self.rule().ct_state(CT_STATE_NEW)
    }

    fn mark(&self, rule: Rule) -> Rule {
        rule.set_mark(!0, self.options.masquerade_mark)
    }

    fn of_family(&self, nets: &[IpNet]) -> impl Iterator<Item = (IpAddr, u8)> {
        let family = self.family;
        let nets: Vec<IpNet> = nets
            .iter()
            .copied()
            .filter(|net| Family::of(net.addr()) == family)
            .collect();
        nets.into_iter()
            .map(|net| (net.network(), net.prefix_len()))
    }

    fn regular_chains(&self) -> Vec<(Chain, Vec<Rule>)> {
        let own = [
            (MASQUERADE, vec![self.mark(self.rule())]),
            (SOURCE, self.masquerade()),
            (
                REJECT_CHAIN,
                vec![
                    self.rule().jump(UPLINK_MARK),
                    self.rule().reject_port_unreachable(),
                ],
            ),
            (
                "external-client",
                self.external_client(&ByKey {
                    key: &K,
                    affinity: SetId::AffinityLocal,
                    verdicts: SetId::ServiceIpsLocal,
                    window: SetId::Window,
                }),
            ),
            (
                "external-client-nodeports",
                self.external_client(&ByKey {
                    key: &P,
                    affinity: SetId::AffinityNodePortsLocal,
                    verdicts: SetId::ServiceNodePortsLocal,
                    window: SetId::WindowNodePorts,
                }),
            ),
            ("nodeports", self.nodeports()),
            ("services", self.services()),
            ("source-ranges", self.source_ranges()),
            ("no-endpoints", self.no_endpoints()),
            ("cluster-ips-check", self.cluster_ips_check()),
            (
                "checks",
                ["no-endpoints", "cluster-ips-check"]
                    .map(|chain| self.rule().jump(chain))
                    .into(),
            ),
            ("record", self.record()),
        ];
        let own = own.map(|(name, rules)| (name.to_owned(), rules));
        counts::chains(self.family)
            .chain(guard::regular_chains(self.family))
            .chain(own)
            .map(|(name, rules)| (Chain::regular(&name), rules))
            .collect()
    }

    /// From a frontend or node port to its class chain; what comes from the detector's side never is external.
    fn services(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.masquerade_cluster_ips().into_iter().collect();
        rules.push(self.mark(self.rule().in_set(&K, SetId::MasqFrontends.name())));
        rules.push(
            self.rule()
                .in_set(&K, SetId::EtpLocal.name())
                .jump("external-client"),
        );
        rules.push(self.rule().vmap(&K, SetId::Affinity.name()));
        rules.push(self.rule().vmap(&K, SetId::ServiceIps.name()));
        rules.push(
            self.rule()
                .in_set(&[Field::Daddr], SetId::NodePortIps.name())
                .jump("nodeports"),
        );
        rules
    }

    /// S-60: without a detector there is no such rule, unless everything is masqueraded.
    fn masquerade_cluster_ips(&self) -> Option<Rule> {
        let to_cluster_ip = self
            .rule()
            .in_set(&[Field::Daddr], SetId::ClusterIps.name());
        if self.options.masquerade_all {
            return Some(self.mark(to_cluster_ip));
        }
        let from_outside = match &self.options.detector {
            Detector::Ranges(ranges) | Detector::NodeRanges(ranges) => {
                let mut pods = self.of_family(ranges).peekable();
                pods.peek()?;
                pods.fold(to_cluster_ip, |rule, (net, prefix)| {
                    rule.not_saddr(net, prefix)
                })
            }
            Detector::Bridge(name) => to_cluster_ip.not_iifname(name),
            Detector::Prefix(prefix) => to_cluster_ip.not_iifname(&format!("{prefix}*")),
        };
        Some(self.mark(from_outside))
    }

    /// Rules, to be ended, that match what comes from a pod (S-63 a): by the interfaces to this node's pods, whatever
    /// their addresses (S-64), and by the detector. A pod's address that comes in by an uplink is a pod of another
    /// node, which is an outside client here (S-65): passed on untranslated, the fabric's source check would drop it.
    pub(super) fn pods_only(&self) -> Vec<Rule> {
        let by_interface = [Field::IifName];
        let near = self
            .rule()
            .in_set(&by_interface, SetId::PodInterfaces.name());
        let mut pods = vec![near];
        match &self.options.detector {
            Detector::Ranges(ranges) | Detector::NodeRanges(ranges) => {
                let inward = || self.rule().not_in_set(&by_interface, SetId::Uplinks.name());
                let rules = self.of_family(ranges);
                pods.extend(rules.map(|(net, prefix)| inward().saddr(net, prefix)));
            }
            // The wildcard needs the name: an index would match one interface only (S-61).
            Detector::Bridge(name) => pods.push(self.rule().iifname(name)),
            Detector::Prefix(prefix) => pods.push(self.rule().iifname(&format!("{prefix}*"))),
        }
        pods
    }

    fn nodeports(&self) -> Vec<Rule> {
        vec![
            self.mark(self.rule().in_set(&P, SetId::MasqNodePorts.name())),
            self.rule()
                .in_set(&P, SetId::EtpLocalNodePorts.name())
                .jump("external-client-nodeports"),
            self.rule().vmap(&P, SetId::AffinityNodePorts.name()),
            self.rule().vmap(&P, SetId::ServiceNodePorts.name()),
        ]
    }

    /// S-63 in its order: pods, this node, everybody else. The last rule leaves the packet to the checks of S-221.
    fn external_client(&self, by: &ByKey) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.pods_only().into_iter().map(Rule::ret).collect();
        rules.push(self.mark(self.rule().saddr_is_local()).ret());
        rules.push(self.rule().vmap(by.key, by.affinity.name()));
        rules.push(self.rule().vmap(by.key, by.verdicts.name()));
        // Nobody is here any more (ZD-60); translated, a packet does not meet those checks.
        rules.push(self.rule().vmap(by.key, by.window.name()));
        rules.push(self.rule().accept());
        rules
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let ranged = [&K[..], &[Field::Saddr]].concat();
        let guarded = self.rule().in_set(&K, SetId::SourceGuarded.name());
        vec![
            guarded
                .not_in_set(&ranged, SetId::SourceAllow.name())
                .drop(),
        ]
    }

    fn no_endpoints(&self) -> Vec<Rule> {
        vec![
            // A translated packet may have a node port's number by chance (S-232).
            self.rule().ct_status(CT_STATUS_DNAT, true).ret(),
            self.rule().vmap(&K, SetId::NoEndpointServices.name()),
            self.rule()
                .in_set(&[Field::Daddr], SetId::NodePortIps.name())
                .vmap(&P, SetId::NoEndpointNodePorts.name()),
        ]
    }

    fn cluster_ips_check(&self) -> Vec<Rule> {
        let mut rules = vec![
            self.rule()
                .in_set(&[Field::Daddr], SetId::ClusterIps.name())
                .goto(REJECT_CHAIN),
        ];
        let mut cidrs = self.of_family(&self.options.service_cidrs).peekable();
        if !self.options.beside_kube_proxy && cidrs.peek().is_some() {
            rules.push(
                self.rule()
                    .in_set(&[Field::Daddr], SetId::OtherClusterIps.name())
                    .ret(),
            );
            rules.extend(cidrs.map(|(net, prefix)| self.rule().daddr(net, prefix).drop()));
        }
        rules
    }

    fn record(&self) -> Vec<Rule> {
        let original = CtDirection::Original;
        let key = [
            Field::CtDaddr(original),
            Field::L4Proto,
            Field::CtDport(original),
        ];
        vec![self.rule().vmap(&key, SetId::AffinityRecord.name())]
    }

    fn base_chains(&self) -> Vec<(Chain, Vec<Rule>)> {
        // Beside kube-proxy: after translation and before its own checks (S-128).
        let (inward, outward) = if self.options.beside_kube_proxy {
            (-115, -95)
        } else {
            (0, 0)
        };
        let translation = if self.options.before_iptables {
            -101
        } else {
            -100
        };
        let ranges = || vec![self.new_only().jump("source-ranges")];
        let services = || vec![self.rule().jump("services")];
        let input = vec![self.new_only().jump("no-endpoints")];
        let checks = || vec![self.new_only().jump("checks")];
        let (filter, nat) = (ChainType::Filter, ChainType::Nat);
        vec![
            (
                Chain::base("filter-prerouting-pre-dnat", filter, Hook::Prerouting, -110),
                ranges(),
            ),
            (
                Chain::base("filter-output-pre-dnat", filter, Hook::Output, -110),
                ranges(),
            ),
            (
                Chain::base("nat-prerouting", nat, Hook::Prerouting, translation),
                [vec![guard::enter(self.family)], services()].concat(),
            ),
            (
                Chain::base("nat-output", nat, Hook::Output, translation),
                services(),
            ),
            (
                Chain::base("filter-input", filter, Hook::Input, inward),
                input,
            ),
            (
                Chain::base("filter-forward", filter, Hook::Forward, inward),
                checks(),
            ),
            (
                Chain::base("filter-output", filter, Hook::Output, outward),
                checks(),
            ),
            (
                Chain::base("nat-postrouting", nat, Hook::Postrouting, 100),
                self.postrouting(),
            ),
        ]
    }

    fn postrouting(&self) -> Vec<Rule> {
        let bit = self.options.masquerade_mark;
        [
            self.rule()
                .ct_status(CT_STATUS_DNAT, true)
                .in_set(&[Field::Saddr, Field::Daddr], SetId::Hairpin.name()),
            // Cleared in the same rule: an outer packet of a tunnel keeps the mark of the inner one (S-67).
            self.rule()
                .masked(Field::Mark, bit, CmpOp::Eq, bit)
                .set_mark(!bit, 0),
        ]
        .map(|rule| rule.goto(SOURCE))
        .into()
    }

    /// A rule names one range of ports. The smaller of two gets its share by chance, so that both fill up alike.
    fn masquerade(&self) -> Vec<Rule> {
        let to = |rule: Rule, ports| rule.masquerade_to_ports(ports, NAT_FULLY_RANDOM);
        let count = |(first, last): (u16, u16)| u32::from(last.saturating_sub(first)) + 1;
        match *self.options.masquerade_ports {
            [] => vec![self.rule().masquerade(NAT_FULLY_RANDOM)],
            [most, fewer, ..] => {
                let chance = Field::Random {
                    modulus: ((count(most) + count(fewer)) / count(fewer)).max(2),
                    offset: 0,
                };
                let some = self.rule().cmp(chance, CmpOp::Eq, Value::new().u32_host(0));
                vec![to(some, fewer), to(self.rule(), most)]
            }
            [all] => vec![to(self.rule(), all)],
        }
    }
}

#[cfg(test)]
mod tests;
