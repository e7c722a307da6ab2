//! Services, networks and a model of AWS for the pure tests of this provider.

mod drive;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::id::{PortKey, Protocol, ServiceKey};
use onehop_core::service::{ServiceKind, ServicePort, ServiceSpec, TargetPort};
use onehop_core::time::Time;

use super::annotations::keys::PREFIX;
use super::model::{
    Balancer, BalancerState, Group, HealthState, Listener, Network, Observed, RuleSource,
    SecurityGroup, Subnet, TargetHealth,
};
use super::names;
use super::resolve::{is_unfit, resolve};
use super::settings::Settings;
use super::stack::{self, GroupRef, Live, Stack};
use super::step::{AwsStep, BalancerChange, GroupChange};
use crate::plan::membership::{Guard, Member, Owner, State, TargetKey, View};
use crate::plan::{Intent, Machine, Members, PortMembers, Refusal, Resolution};

pub(super) use drive::{converge, planned};

pub(super) const NOW: Time = Time::from_millis(1_000_000_000);
pub(super) const UID_A: &str = "bdca2bd0-bfc6-449a-88a3-03451f05f18c";
pub(super) const UID_B: &str = "2dc098f0-ae33-4378-af7b-83e2a0424495";
/// The peer's class.
pub(super) const PEER: &str = "service.k8s.aws/nlb";

/// Of section 19: cluster `my-cluster`.
pub(super) fn settings() -> Settings {
    Settings::new("my-install".into(), "my-cluster")
}

/// A Service whose class is the peer's, with TCP ports: number, target port, node port.
pub(super) fn service(key: (&str, &str), uid: &str, ports: &[(u16, u16, u16)]) -> ServiceSpec {
    let port = |(number, target, node): &(u16, u16, u16)| tcp(*number, *target, *node);
    ServiceSpec {
        key: ServiceKey::new(key.0, key.1),
        uid: uid.into(),
        kind: ServiceKind::LoadBalancer,
        class: Some(PEER.to_owned()),
        allocates_node_ports: true,
        ports: ports.iter().map(port).collect(),
        ..ServiceSpec::default()
    }
}

pub(super) fn tcp(number: u16, target: u16, node: u16) -> ServicePort {
    ServicePort {
        key: PortKey::new(format!("p{number}"), Protocol::Tcp),
        port: number,
        target: TargetPort::Number(target),
        node_port: Some(node).filter(|port| *port != 0),
        app_protocol: None,
    }
}

pub(super) fn udp(number: u16, target: u16, node: u16) -> ServicePort {
    ServicePort {
        key: PortKey::new(format!("u{number}"), Protocol::Udp),
        ..tcp(number, target, node)
    }
}

/// With annotations, keys without their prefix.
pub(super) fn annotated(mut service: ServiceSpec, pairs: &[(&str, &str)]) -> ServiceSpec {
    for (key, value) in pairs {
        let key = if key.starts_with("onehop.dev/") {
            (*key).to_owned()
        } else {
            format!("{PREFIX}{key}")
        };
        service.annotations.insert(key, (*value).to_owned());
    }
    service
}

/// A VPC 192.168.0.0/16 with these subnets of it, each in a zone of its own, for both schemes.
pub(super) fn network(ranges: &[&str]) -> Network {
    let subnet = |(index, range): (usize, &&str)| {
        let id = format!("subnet-{}", index + 1);
        let roles = ["kubernetes.io/role/elb", "kubernetes.io/role/internal-elb"];
        let subnet = Subnet {
            id: id.clone(),
            zone: format!("zone-{}", index + 1),
            cidr: range.parse().ok(),
            ipv6: Vec::new(),
            free: 100,
            tags: roles.map(|role| (role.to_owned(), "1".to_owned())).into(),
            public: None,
        };
        (id, subnet)
    };
    Network {
        vpc: "vpc-1".to_owned(),
        cidrs: vec!["192.168.0.0/16".parse().unwrap()],
        subnets: ranges.iter().enumerate().map(subnet).collect(),
        named_groups: [("name".to_owned(), "sg-id1".to_owned())].into(),
    }
}

pub(super) fn member(address: [u8; 4], port: u16, state: State) -> Member {
    Member {
        key: TargetKey {
            address: IpAddr::from(address),
            port,
        },
        owner: Owner::Unknown,
        state,
        guard: Guard::Absent,
        held_since: None,
    }
}

/// The intent of a resolved Service: pods `192.168.9.<n>` and two nodes.
pub(super) fn intent(
    service: &ServiceSpec,
    resolution: Resolution,
    pods: &[(u8, State)],
) -> Intent {
    let spec = resolution
        .spec
        .unwrap_or_else(|| panic!("refused: {:?}", resolution.refusals));
    let machine = |n: u8| {
        let machine = Machine {
            node: format!("node-{n}").into(),
            provider_id: format!("aws:///zone-{n}/i-{n:017x}"),
            zone: None,
            labels: [("pool".to_owned(), format!("{n}"))].into(),
        };
        (IpAddr::from([192, 168, 1, n]), machine)
    };
    let of = |port: &onehop_core::crd::LoadBalancerPort| {
        let target = port.target_port.unwrap_or(8080);
        let pods = pods
            .iter()
            .map(|(n, state)| member([192, 168, 9, *n], target, *state));
        let node_port = service
            .port(&port.key())
            .and_then(|p| p.node_port)
            .unwrap_or(1);
        let nodes = (1..=2).map(|n| {
            let unfit = is_unfit(&settings(), &spec, &machine(n).1);
            let state = if unfit {
                State::Withdrawn
            } else {
                State::Ready
            };
            member([192, 168, 1, n], node_port, state)
        });
        let list = |list: Vec<Member>| Members {
            list,
            ..Members::default()
        };
        let members = PortMembers {
            pods: list(pods.collect()),
            nodes: list(nodes.collect()),
            vips: Members::default(),
        };
        (port.key(), members)
    };
    Intent {
        service: service.key.clone(),
        uid: service.uid.clone(),
        members: spec.ports.iter().map(of).collect(),
        addresses: Vec::new(),
        departed: BTreeMap::new(),
        machines: Arc::new((1..=2).map(machine).collect()),
        view: View::Watched,
        spec,
    }
}

/// The stack of a Service on a network, or what stands in its way.
pub(super) fn stack_of(
    settings: &Settings,
    service: &ServiceSpec,
    network: &Network,
    live: Option<&Balancer>,
) -> Result<Stack, Vec<Refusal>> {
    let resolution = resolve(settings, service, None);
    if resolution.spec.is_none() {
        return Err(resolution.refusals);
    }
    let intent = intent(service, resolution, &[(1, State::Ready)]);
    stack::build(
        settings,
        &intent,
        network,
        Live {
            balancer: live,
            ..Live::default()
        },
    )
}

/// A load balancer that is there.
pub(super) fn live(
    scheme: onehop_core::crd::Scheme,
    groups: &[&str],
    subnets: &[&str],
) -> Balancer {
    Balancer {
        arn: "arn:lb".to_owned(),
        name: "lb".to_owned(),
        dns: "LB.example".to_owned(),
        scheme,
        state: BalancerState::Active,
        ip_type: super::model::IpType::Ipv4,
        subnets: subnets
            .iter()
            .map(|id| ((*id).to_owned(), Vec::new()))
            .collect(),
        security_groups: groups.iter().map(|id| (*id).to_owned()).collect(),
        tags: names::Tags::new(),
        attributes: Some(BTreeMap::new()),
        listeners: Some(BTreeMap::new()),
    }
}

/// AWS, as far as the planner can see it: every step does what its call does, and refuses what AWS does.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) seen: Observed,
    pub(super) writes: u32,
    made: u32,
}

impl Model {
    pub(super) fn on(network: Network) -> Self {
        Self {
            seen: Observed {
                network: Arc::new(network),
                ..Observed::default()
            },
            ..Self::default()
        }
    }

    fn next(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}-{}", self.made)
    }

    fn balancer(&mut self, name: &str) -> &mut Balancer {
        let found = self.seen.balancers.iter_mut().find(|b| b.name == name);
        found.unwrap_or_else(|| panic!("no load balancer {name}"))
    }

    fn group(&mut self, name: &str) -> &mut Group {
        let found = self.seen.groups.iter_mut().find(|g| g.name == name);
        found.unwrap_or_else(|| panic!("no group {name}"))
    }

    fn security(&mut self, name: &str) -> Option<&mut SecurityGroup> {
        let all = self.seen.security_groups.iter_mut();
        all.chain(self.seen.backend.iter_mut())
            .find(|g| g.name == name)
    }

    fn group_ids(&mut self, groups: &[GroupRef]) -> Vec<String> {
        let id = |group: &GroupRef| match group {
            GroupRef::Given(id) => id.clone(),
            GroupRef::Managed(name) | GroupRef::Backend(name) => {
                let found = self.security(name);
                found
                    .unwrap_or_else(|| panic!("no group {name}"))
                    .id
                    .clone()
            }
        };
        groups.iter().map(id).collect()
    }

    pub(super) fn execute(&mut self, step: &AwsStep) {
        self.writes += 1;
        match step {
            AwsStep::CreateBalancer(spec) => {
                let twice = self.seen.balancers.iter().any(|b| b.name == spec.name);
                assert!(!twice, "made twice: {step}");
                let subnets = spec.subnets.iter().map(|m| (m.subnet.clone(), Vec::new()));
                let made = Balancer {
                    arn: self.next("lb"),
                    name: spec.name.clone(),
                    dns: format!("{}.Example", spec.name),
                    state: BalancerState::Active,
                    scheme: spec.scheme,
                    ip_type: spec.ip_type,
                    subnets: subnets.collect(),
                    security_groups: self.group_ids(&spec.security_groups),
                    tags: spec.tags.clone(),
                    attributes: Some(BTreeMap::new()),
                    listeners: Some(BTreeMap::new()),
                };
                self.seen.balancers.push(made);
            }
            AwsStep::AdjustBalancer { name, change } => self.adjust_balancer(name, change),
            AwsStep::DeleteBalancer { name, .. } => {
                let arn = self.balancer(name).arn.clone();
                self.seen.balancers.retain(|b| b.name != *name);
                for group in &mut self.seen.groups {
                    group.used_by.retain(|user| *user != arn);
                }
            }
            AwsStep::CreateGroup(spec) => {
                let twice = self.seen.groups.iter().any(|g| g.name == spec.name);
                assert!(!twice, "made twice: {step}");
                let made = Group {
                    arn: self.next("tg"),
                    name: spec.name.clone(),
                    target: spec.target,
                    protocol: spec.protocol,
                    port: spec.port,
                    ip_type: spec.ip_type,
                    check: spec.check.clone(),
                    tags: spec.tags.clone(),
                    attributes: Some(BTreeMap::new()),
                    used_by: Vec::new(),
                    targets: Some(BTreeMap::new()),
                    read_at: Some(NOW),
                    refused: BTreeMap::new(),
                };
                self.seen.groups.push(made);
            }
            AwsStep::AdjustGroup { name, change } => self.adjust_group(name, change),
            AwsStep::DeleteGroup { name } => {
                let group = self.group(name).clone();
                assert!(!self.seen.is_attached(&group), "ResourceInUse: {step}");
                self.seen.groups.retain(|g| g.name != *name);
            }
            AwsStep::Register { group, targets, .. } => {
                assert!(targets.len() <= 200, "{step}");
                let known = self.group(group).targets.get_or_insert_default();
                for (target, _) in targets {
                    known.insert(target.clone(), health(HealthState::Initial, ""));
                }
            }
            AwsStep::Deregister { group, targets, .. } => {
                assert!(targets.len() <= 200, "{step}");
                let known = self.group(group).targets.get_or_insert_default();
                for (target, _) in targets {
                    known.insert(target.clone(), health(HealthState::Draining, ""));
                }
            }
            other => self.security_step(other),
        }
    }

    fn security_step(&mut self, step: &AwsStep) {
        match step {
            AwsStep::CreateSecurity(spec) => {
                assert!(self.security(&spec.name).is_none(), "made twice: {step}");
                let group = SecurityGroup {
                    id: self.next("sg"),
                    name: spec.name.clone(),
                    tags: spec.tags.clone(),
                    rules: BTreeMap::new(),
                };
                if spec.tags[names::RESOURCE] == names::BACKEND_GROUP {
                    self.seen.backend = Some(group);
                } else {
                    self.seen.security_groups.push(group);
                }
            }
            AwsStep::Authorize { group, rules, .. } => {
                let node = self.seen.node_groups.iter_mut().find(|g| g.name == *group);
                let ours = names::rule_description(&"my-install".into());
                let rules = rules.iter().map(|rule| (rule.clone(), ours.clone()));
                match node {
                    Some(node) => node.rules.extend(rules),
                    None => self.security(group).unwrap().rules.extend(rules),
                }
            }
            AwsStep::Revoke { group, rules, .. } => {
                self.security(group)
                    .unwrap()
                    .rules
                    .retain(|rule, _| !rules.contains(rule));
            }
            AwsStep::TagSecurity { id, tags } => {
                let group = self.seen.security_groups.iter_mut().find(|g| g.id == *id);
                group.unwrap().tags.extend(tags.clone());
            }
            AwsStep::UntagSecurity { id, keys } => {
                let group = self.seen.security_groups.iter_mut().find(|g| g.id == *id);
                group.unwrap().tags.retain(|key, _| !keys.contains(key));
            }
            AwsStep::DeleteSecurity { name } => {
                let id = self.security(name).unwrap().id.clone();
                let used = self
                    .seen
                    .balancers
                    .iter()
                    .any(|b| b.security_groups.contains(&id));
                assert!(!used, "DependencyViolation: {step}");
                self.seen.security_groups.retain(|g| g.name != *name);
            }
            listener => self.listener(listener),
        }
    }

    fn listener(&mut self, step: &AwsStep) {
        match step {
            AwsStep::CreateListener {
                balancer,
                listener,
                group,
                ..
            } => {
                let (group, arn) = (self.group(group).arn.clone(), self.next("listener"));
                let lb = self.balancer(balancer);
                let made = Listener {
                    arn,
                    port: listener.port,
                    protocol: listener.protocol,
                    groups: [(group.clone(), 1)].into(),
                    certificates: listener.certificates.iter().take(1).cloned().collect(),
                    policy: listener.policy.clone(),
                    alpn: listener.alpn.clone(),
                    attributes: Some(BTreeMap::new()),
                };
                let old = lb
                    .listeners
                    .get_or_insert_default()
                    .insert(listener.port, made);
                assert!(old.is_none(), "DuplicateListener: {step}");
                let arn = lb.arn.clone();
                self.use_group(&group, &arn);
            }
            AwsStep::ModifyListener {
                balancer,
                listener,
                groups,
                ..
            } => {
                let groups: BTreeMap<String, u32> = groups
                    .iter()
                    .map(|(name, weight)| (self.group(name).arn.clone(), *weight))
                    .collect();
                let lb = self.balancer(balancer);
                let arn = lb.arn.clone();
                let known = lb
                    .listeners
                    .get_or_insert_default()
                    .get_mut(&listener.port)
                    .unwrap();
                known.protocol = listener.protocol;
                known.policy.clone_from(&listener.policy);
                known.alpn.clone_from(&listener.alpn);
                let more = known.certificates.iter().skip(1).cloned();
                let first = listener.certificates.iter().take(1).cloned();
                known.certificates = first.chain(more).collect();
                known.groups.clone_from(&groups);
                for group in groups.keys() {
                    self.use_group(group, &arn);
                }
                self.unuse();
            }
            AwsStep::SetListenerAttributes {
                balancer,
                port,
                attributes,
            } => {
                let listener = self.balancer(balancer).listeners.get_or_insert_default();
                let known = listener
                    .get_mut(port)
                    .unwrap()
                    .attributes
                    .get_or_insert_default();
                known.extend(attributes.clone());
            }
            AwsStep::Certificates {
                balancer,
                port,
                change,
                certificates,
            } => {
                let listener = self.balancer(balancer).listeners.get_or_insert_default();
                let known = &mut listener.get_mut(port).unwrap().certificates;
                match change {
                    super::step::Change::Add => known.extend(certificates.clone()),
                    super::step::Change::Remove => known.retain(|c| !certificates.contains(c)),
                }
            }
            AwsStep::DeleteListener { balancer, port, .. } => {
                self.balancer(balancer)
                    .listeners
                    .get_or_insert_default()
                    .remove(port);
                self.unuse();
            }
            other => panic!("not of a listener: {other}"),
        }
    }

    /// AWS-756.
    fn use_group(&mut self, group: &str, balancer: &str) {
        let group = self
            .seen
            .groups
            .iter_mut()
            .find(|g| g.arn == group)
            .unwrap();
        let other = group.used_by.iter().any(|user| user != balancer);
        assert!(!other, "TargetGroupAssociationLimit: {}", group.name);
        group.used_by = vec![balancer.to_owned()];
    }

    fn unuse(&mut self) {
        let seen = self.seen.clone();
        for group in &mut self.seen.groups {
            if !seen.is_attached(group) {
                group.used_by.clear();
            }
        }
    }

    fn adjust_balancer(&mut self, name: &str, change: &BalancerChange) {
        match change {
            BalancerChange::SecurityGroups(groups) => {
                let ids = self.group_ids(groups);
                self.balancer(name).security_groups = ids;
            }
            BalancerChange::Attributes(all) => {
                self.balancer(name)
                    .attributes
                    .get_or_insert_default()
                    .extend(all.clone());
            }
            BalancerChange::Subnets(subnets) => {
                let ids = subnets.iter().map(|m| (m.subnet.clone(), Vec::new()));
                self.balancer(name).subnets = ids.collect();
            }
            BalancerChange::IpType(ip_type) => self.balancer(name).ip_type = *ip_type,
            BalancerChange::Tags(tags) | BalancerChange::Adopt(tags) => {
                self.balancer(name).tags.extend(tags.clone());
            }
            BalancerChange::Untag(keys) | BalancerChange::Disown(keys) => {
                self.balancer(name).tags.retain(|k, _| !keys.contains(k));
            }
        }
    }

    fn adjust_group(&mut self, name: &str, change: &GroupChange) {
        let group = self.group(name);
        match change {
            GroupChange::Attributes(all) => {
                group.attributes.get_or_insert_default().extend(all.clone());
            }
            GroupChange::Check(check) => {
                assert!(group.check.same_kind(check), "AWS-091");
                group.check = check.clone();
            }
            GroupChange::Tags(tags) => group.tags.extend(tags.clone()),
            GroupChange::Untag(keys) => group.tags.retain(|k, _| !keys.contains(k)),
        }
    }

    /// Time passes: targets of groups that a listener names become healthy, those that drain go.
    pub(super) fn settle(&mut self) {
        let seen = self.seen.clone();
        for group in &mut self.seen.groups {
            let checked = seen.is_attached(group);
            let targets = group.targets.get_or_insert_default();
            targets.retain(|_, health| health.state != HealthState::Draining);
            for found in targets.values_mut() {
                *found = if checked {
                    health(HealthState::Healthy, "")
                } else {
                    health(HealthState::Unused, "Target.NotInUse")
                };
            }
        }
    }

    /// Sources and ports of the rules that are there on a security group of ours.
    pub(super) fn node_rules(&self) -> Vec<String> {
        let rules = self.seen.node_groups.iter().flat_map(|g| g.rules.keys());
        rules
            .map(|rule| match &rule.source {
                RuleSource::Group(_) => format!("{} {} from backend", rule.protocol, rule.from),
                other => format!("{} {} from {other:?}", rule.protocol, rule.from),
            })
            .collect()
    }
}

pub(super) fn health(state: HealthState, reason: &str) -> TargetHealth {
    TargetHealth {
        state,
        reason: reason.to_owned(),
    }
}
