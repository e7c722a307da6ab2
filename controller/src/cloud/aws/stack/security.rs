//! Security groups of a stack (section 8 of the AWS page): who may reach the load balancer, and which
//! rules let it reach targets.

use std::collections::BTreeSet;

use onehop_core::crd::{ClientIp, Scheme};
use onehop_core::id::{Cidr, IpFamily};

use super::{Builder, GroupRef, GroupSpec, ListenerSpec, SecuritySpec, TargetRule, TargetSource};
use crate::cloud::aws::annotations::keys;
use crate::cloud::aws::model::{GroupProtocol, IpType, Rule, RuleSource, TargetType};
use crate::cloud::aws::names;
use crate::cloud::aws::resolve::refusal;
use crate::cloud::aws::settings::{BackendGroup, RulePorts};
use crate::plan::{Notice, Refusal};

/// Security groups, and how rules on targets are made.
#[derive(Clone, Debug, Default)]
pub(super) struct Security {
    pub(super) of_balancer: Vec<GroupRef>,
    pub(super) managed: Option<SecuritySpec>,
    pub(super) backend: Option<SecuritySpec>,
    rules: TargetRules,
}

/// Where rules on targets come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TargetRules {
    /// None are made.
    #[default]
    None,
    /// The backend group is their source.
    Backend,
    /// Ranges are, for a load balancer without groups.
    Ranges,
}

impl Builder<'_> {
    /// AWS-057 to AWS-059, AWS-300, AWS-302.
    pub(super) fn security(&mut self, ip_type: IpType) -> Result<Security, Vec<Refusal>> {
        let live = self.live.balancer;
        let gate = self.settings.gates.security_groups.is_on();
        let lives_without = live.is_some_and(|b| b.security_groups.is_empty());
        let lives_with = live.is_some_and(|b| !b.security_groups.is_empty());
        let wants_none = self.wishes.no_security_group || !gate;
        if wants_none && lives_with {
            let key = format!("{}{}", keys::PREFIX, keys::NO_SECURITY_GROUP);
            let message = format!(
                "{key}: conflicting: the load balancer has security groups, and AWS never lets them all go"
            );
            return Err(vec![refusal("FailedBuildModel", message)]);
        }
        if wants_none || lives_without {
            if !wants_none {
                self.notices.push(Notice {
                    reason: "AnnotationIgnored",
                    message:
                        "the load balancer was made without security groups and stays so: AWS \
                              does not let them be added"
                            .to_owned(),
                    degrades: false,
                });
            }
            let rules = if self.wishes.backend_rules == Some(false) {
                TargetRules::None
            } else {
                TargetRules::Ranges
            };
            return Ok(Security {
                rules,
                ..Security::default()
            });
        }
        if self.wishes.security_groups.is_empty() {
            Ok(self.managed(ip_type))
        } else {
            self.custom()
        }
    }

    fn managed(&self, ip_type: IpType) -> Security {
        let namer = self.namer();
        // Found by its tags, whatever the recipe gives now (AWS-011).
        let live = self.live.managed.map(str::to_owned);
        let name = live.unwrap_or_else(|| namer.managed_group());
        let mut tags = self.wishes.tags.clone();
        tags.extend(namer.tracking_tags(names::MANAGED_GROUP, 1));
        let managed = SecuritySpec {
            name: name.clone(),
            description: names::managed_description(self.settings, self.flavour),
            vpc: self.network.vpc.clone(),
            tags,
            rules: self.frontend_rules(ip_type),
        };
        let backend = self.backend();
        let mut of_balancer = vec![GroupRef::Managed(name)];
        of_balancer.extend(backend.0.clone());
        Security {
            of_balancer,
            managed: Some(managed),
            rules: if backend.0.is_some() {
                TargetRules::Backend
            } else {
                TargetRules::None
            },
            backend: backend.1,
        }
    }

    /// AWS-057, AWS-058.
    fn custom(&self) -> Result<Security, Vec<Refusal>> {
        let (mut groups, mut refusals) = (Vec::new(), Vec::new());
        for entry in &self.wishes.security_groups {
            let named = self.network.named_groups.get(entry);
            if let Some(id) = named.or_else(|| entry.starts_with("sg-").then_some(entry)) {
                groups.push(GroupRef::Given(id.clone()));
                continue;
            }
            let key = format!("{}{}", keys::PREFIX, keys::SECURITY_GROUPS);
            let message =
                format!("{key}: {entry} is no security group of the VPC by id or Name tag");
            refusals.push(refusal("AnnotationInvalid", message));
        }
        let manage = self
            .wishes
            .backend_rules
            .unwrap_or(self.settings.manage_backend_rules);
        let (reference, spec) = if manage { self.backend() } else { (None, None) };
        if manage && reference.is_none() {
            let key = format!("{}{}", keys::PREFIX, keys::BACKEND_RULES);
            let message = format!("{key}: true needs enable-backend-security-group");
            refusals.push(refusal("AnnotationInvalid", message));
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        groups.extend(reference);
        Ok(Security {
            of_balancer: groups,
            managed: None,
            backend: spec,
            rules: if manage {
                TargetRules::Backend
            } else {
                TargetRules::None
            },
        })
    }

    /// AWS-330.
    fn backend(&self) -> (Option<GroupRef>, Option<SecuritySpec>) {
        match &self.settings.backend {
            BackendGroup::Off => (None, None),
            BackendGroup::Given(id) => (Some(GroupRef::Given(id.clone())), None),
            BackendGroup::Ours => {
                let name = names::backend_group(&self.settings.install);
                let mut tags = self.settings.default_tags.clone();
                tags.extend(names::install_tags(self.settings));
                tags.insert(names::RESOURCE.to_owned(), names::BACKEND_GROUP.to_owned());
                let spec = SecuritySpec {
                    name: name.clone(),
                    description: format!(
                        "onehop: sources of load balancers of {}",
                        self.settings.install
                    ),
                    vpc: self.network.vpc.clone(),
                    tags,
                    rules: Vec::new(),
                };
                (Some(GroupRef::Backend(name)), Some(spec))
            }
        }
    }

    /// AWS-061 to AWS-063, AWS-301.
    fn frontend_rules(&self, ip_type: IpType) -> Vec<Rule> {
        let mut sources: Vec<RuleSource> =
            self.ranges().into_iter().map(RuleSource::Cidr).collect();
        if sources.is_empty() && self.wishes.prefix_lists.is_empty() {
            sources.extend(everywhere(ip_type).into_iter().map(RuleSource::Cidr));
        }
        let lists = self.wishes.prefix_lists.iter().cloned();
        sources.extend(lists.map(RuleSource::PrefixList));
        let mut rules = BTreeSet::new();
        for port in &self.intent.spec.ports {
            let protocol = match port.protocol {
                onehop_core::id::Protocol::Udp => "udp",
                _ => "tcp",
            };
            let number = i32::from(port.port);
            rules.extend(
                sources
                    .iter()
                    .map(|source| rule(protocol, (number, number), source)),
            );
        }
        if self.wishes.icmp {
            rules.extend(sources.iter().filter_map(|source| match source {
                RuleSource::Cidr(range) if range.family() == IpFamily::V4 => {
                    Some(rule("icmp", (3, 4), source))
                }
                RuleSource::Cidr(_) => Some(rule("icmpv6", (2, 0), source)),
                _ => None,
            }));
        }
        rules.into_iter().collect()
    }

    /// The ranges that somebody asks for.
    fn ranges(&self) -> Vec<Cidr> {
        self.wishes.source_ranges.clone()
    }

    /// AWS-303 to AWS-306, AWS-322.
    pub(super) fn target_rules(
        &self,
        security: &Security,
        listeners: &[(ListenerSpec, GroupSpec)],
        scheme: Scheme,
        subnets: &[String],
    ) -> Vec<TargetRule> {
        let mut rules = BTreeSet::new();
        for (_, group) in listeners {
            match security.rules {
                TargetRules::None => {}
                TargetRules::Backend => self.backend_rules(group, &mut rules),
                TargetRules::Ranges => self.range_rules(group, scheme, subnets, &mut rules),
            }
        }
        rules.into_iter().collect()
    }

    fn backend_rules(&self, group: &GroupSpec, rules: &mut BTreeSet<TargetRule>) {
        let mut put = |protocol, ports: (u16, u16)| {
            rules.insert(TargetRule {
                protocol,
                from: ports.0,
                to: ports.1,
                source: TargetSource::Backend,
            });
        };
        if self.settings.rules == RulePorts::All {
            for protocol in transports(group.protocol) {
                put(protocol, (0, 65535));
            }
            put("tcp", (0, 65535));
            return;
        }
        let traffic = self.traffic_ports(group);
        for port in &traffic {
            for protocol in transports(group.protocol) {
                put(protocol, (*port, *port));
            }
            if group.check.port.is_none_or(|check| check == *port) {
                put("tcp", (*port, *port));
            }
        }
        if let Some(check) = group.check.port.filter(|check| !traffic.contains(check)) {
            put("tcp", (check, check));
        }
    }

    /// AWS-304, AWS-305.
    fn range_rules(
        &self,
        group: &GroupSpec,
        scheme: Scheme,
        subnets: &[String],
        rules: &mut BTreeSet<TargetRule>,
    ) {
        let family = if group.ip_type == IpType::Ipv6 {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let of_family = |ranges: Vec<Cidr>| -> BTreeSet<Cidr> {
            ranges
                .into_iter()
                .filter(|range| range.family() == family)
                .collect()
        };
        let own = of_family(self.subnet_ranges(subnets));
        let asked = of_family(self.ranges());
        let udp = group.protocol != GroupProtocol::Tcp && group.protocol != GroupProtocol::Tls;
        let clients = udp || self.preserves(group);
        let anywhere = if family == IpFamily::V6 {
            IpType::Ipv6
        } else {
            IpType::Ipv4
        };
        let open = of_family(everywhere(anywhere));
        let traffic = match (clients, asked.is_empty(), scheme) {
            (false, _, _) => own.clone(),
            (true, false, _) => asked.clone(),
            (true, true, Scheme::InternetFacing) => open.clone(),
            (true, true, _) => of_family(self.network.cidrs.clone()),
        };
        let all = traffic.iter().any(|range| open.contains(range));
        let mut put = |protocol, port, ranges: &BTreeSet<Cidr>| {
            rules.extend(ranges.iter().map(|range| TargetRule {
                protocol,
                from: port,
                to: port,
                source: TargetSource::Range(RuleSource::Cidr(*range)),
            }));
        };
        for port in self.traffic_ports(group) {
            for protocol in transports(group.protocol) {
                put(protocol, port, &traffic);
            }
            let check = group.check.port.unwrap_or(port);
            let covered = check == port && !udp && (!clients || all || asked.is_empty());
            let both = group.protocol == GroupProtocol::TcpUdp && check == port && all;
            if !covered && !both {
                put("tcp", check, &own);
            }
        }
    }

    fn preserves(&self, group: &GroupSpec) -> bool {
        let ports = self.intent.spec.ports.iter();
        let of = ports.filter(|port| group.ports.contains(&port.key()));
        let proxied = |client_ip| client_ip == ClientIp::ProxyProtocol;
        of.clone().any(|port| port.client_ip == ClientIp::Preserve)
            || (group.target == TargetType::Instance
                && of.clone().any(|port| proxied(port.client_ip)))
    }

    /// The numbers on which targets take traffic: a named targetPort is every number that pods have.
    fn traffic_ports(&self, group: &GroupSpec) -> BTreeSet<u16> {
        if group.target == TargetType::Instance || group.port != 1 {
            return [group.port].into();
        }
        let members = group
            .ports
            .iter()
            .filter_map(|port| self.intent.members(port, group.mode));
        members
            .flat_map(|m| m.list.iter().map(|member| member.key.port))
            .collect()
    }

    fn subnet_ranges(&self, subnets: &[String]) -> Vec<Cidr> {
        let known = subnets.iter().filter_map(|id| self.network.subnets.get(id));
        known
            .flat_map(|s| s.cidr.into_iter().chain(s.ipv6.iter().copied()))
            .collect()
    }
}

fn rule(protocol: &'static str, (from, to): (i32, i32), source: &RuleSource) -> Rule {
    Rule {
        protocol,
        from,
        to,
        source: source.clone(),
    }
}

const fn transports(protocol: GroupProtocol) -> &'static [&'static str] {
    match protocol {
        GroupProtocol::Tcp | GroupProtocol::Tls => &["tcp"],
        GroupProtocol::Udp => &["udp"],
        GroupProtocol::TcpUdp => &["tcp", "udp"],
    }
}

fn everywhere(ip_type: IpType) -> Vec<Cidr> {
    let v4: [Option<Cidr>; 1] = ["0.0.0.0/0".parse().ok()];
    let v6: [Option<Cidr>; 1] = ["::/0".parse().ok()];
    let all: Vec<Option<Cidr>> = match ip_type {
        IpType::Ipv4 => v4.to_vec(),
        IpType::Ipv6 => v6.to_vec(),
        IpType::Dualstack => [v4, v6].concat(),
    };
    all.into_iter().flatten().collect()
}
