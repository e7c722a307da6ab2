//! Target groups and their targets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::account::{Check, Group};
use super::balancers::{check_attributes, check_name};
use super::error::Refusal;
use super::tags;
use super::xml::{el, members, wrap};
use super::{Answer, Call};
use crate::engine::{
    Choice, GroupId, GroupSpec, HealthCheck, Mode, ProbeProtocol, Protocol, TargetSpec,
    TargetStatus,
};

/// Attributes of a target group of a Network Load Balancer with their defaults; that of the client's address
/// depends on the group.
const DEFAULTS: [(&str, &str); 15] = [
    (
        "deregistration_delay.connection_termination.enabled",
        "false",
    ),
    ("deregistration_delay.timeout_seconds", "300"),
    (
        "load_balancing.cross_zone.enabled",
        "use_load_balancer_configuration",
    ),
    ("preserve_client_ip.enabled", ""),
    ("proxy_protocol_v2.enabled", "false"),
    ("stickiness.enabled", "false"),
    ("stickiness.type", "source_ip"),
    ("target_failover.on_deregistration", "no_rebalance"),
    ("target_failover.on_unhealthy", "no_rebalance"),
    (
        "target_group_health.dns_failover.minimum_healthy_targets.count",
        "1",
    ),
    (
        "target_group_health.dns_failover.minimum_healthy_targets.percentage",
        "off",
    ),
    (
        "target_group_health.unhealthy_state_routing.minimum_healthy_targets.count",
        "1",
    ),
    (
        "target_group_health.unhealthy_state_routing.minimum_healthy_targets.percentage",
        "off",
    ),
    (
        "target_health_state.unhealthy.connection_termination.enabled",
        "true",
    ),
    (
        "target_health_state.unhealthy.draining_interval_seconds",
        "0",
    ),
];
const PRESERVE: &str = "preserve_client_ip.enabled";
const DELAY: &str = "deregistration_delay.timeout_seconds";
const PROXY: &str = "proxy_protocol_v2.enabled";
/// Most targets of one call.
const AT_ONCE: usize = 200;

/// The engine's protocols of one of AWS's.
pub(super) fn transports(protocol: &str) -> &'static [Protocol] {
    match protocol {
        "UDP" => &[Protocol::Udp],
        "TCP_UDP" => &[Protocol::Tcp, Protocol::Udp],
        _ => &[Protocol::Tcp],
    }
}

impl Call<'_> {
    pub(super) fn create_group(&mut self) -> Answer {
        let name = self.form.need("Name")?.to_owned();
        check_name(&name)?;
        let protocol = self.form.need("Protocol")?.to_owned();
        if !["TCP", "UDP", "TCP_UDP"].contains(&protocol.as_str()) {
            return Err(Refusal::new(
                "InvalidConfigurationRequest",
                format!("no data path here for {protocol}"),
            ));
        }
        let port = self.form.number("Port", (1, 65535_u16))?;
        let port = port.ok_or_else(|| Refusal::validation("Port is missing"))?;
        if self.form.need("VpcId")? != self.account.vpc {
            return Err(Refusal::validation("the VPC does not exist"));
        }
        let target_type = self
            .form
            .maybe("TargetType")
            .unwrap_or("instance")
            .to_owned();
        if !["instance", "ip"].contains(&target_type.as_str()) {
            return Err(Refusal::validation(format!(
                "no target type {target_type} here"
            )));
        }
        if self.form.maybe("IpAddressType").unwrap_or("ipv4") != "ipv4" {
            return Err(Refusal::new(
                "InvalidConfigurationRequest",
                "the VPC has no IPv6",
            ));
        }
        let check = self.check(None)?;
        let tags = self.form.pairs("Tags");
        tags::check(&tags)?;
        if let Some(there) = self
            .account
            .groups
            .values()
            .find(|group| group.name == name)
            .cloned()
        {
            let same = (
                &there.protocol,
                there.port,
                &there.target_type,
                &there.check,
            ) == (&protocol, port, &target_type, &check);
            if same {
                return Ok(members(
                    "TargetGroups",
                    [self.group_xml(&there)].into_iter(),
                ));
            }
            let message = format!(
                "A target group with the same name '{name}' exists, but with different settings"
            );
            return Err(Refusal::new("DuplicateTargetGroupName", message));
        }
        let number = self.account.next_number();
        let kept = target_type == "instance" || protocol != "TCP";
        let mut attributes: BTreeMap<String, String> =
            DEFAULTS.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        attributes.insert(PRESERVE.to_owned(), kept.to_string());
        let mut group = Group {
            arn: self
                .account
                .arn(&format!("targetgroup/{name}/{number:016x}")),
            engine: Vec::new(),
            ids: BTreeMap::new(),
            name,
            target_type,
            protocol,
            port,
            check,
            attributes,
            tags,
        };
        for transport in transports(&group.protocol) {
            let (key, spec) = (
                format!("{}/{transport}", group.arn),
                engine_spec(&group, *transport),
            );
            let made = self
                .cloud
                .with(|engine, now| engine.create_group(now, &key, spec))?;
            group.engine.push(made.id);
        }
        self.account.groups.insert(group.arn.clone(), group.clone());
        Ok(members(
            "TargetGroups",
            [self.group_xml(&group)].into_iter(),
        ))
    }

    /// The check of the call over that of before, or over AWS's defaults.
    fn check(&self, before: Option<&Check>) -> Result<Check, Refusal> {
        let protocol = self.form.maybe("HealthCheckProtocol").map(str::to_owned);
        let protocol = protocol
            .or(before.map(|b| b.protocol.clone()))
            .unwrap_or("TCP".to_owned());
        if !["TCP", "HTTP"].contains(&protocol.as_str()) {
            let message = format!("Health check protocol '{protocol}' is not supported");
            return Err(Refusal::new("InvalidConfigurationRequest", message));
        }
        let http = protocol != "TCP";
        let port = self.form.maybe("HealthCheckPort").map(str::to_owned);
        let port = port
            .or(before.map(|b| b.port.clone()))
            .unwrap_or("traffic-port".to_owned());
        if port != "traffic-port" && port.parse::<u16>().is_err() {
            return Err(Refusal::validation(format!(
                "Health check port '{port}' must be a port or traffic-port"
            )));
        }
        let path = self.form.maybe("HealthCheckPath").map(str::to_owned);
        let codes = self.form.maybe("Matcher.HttpCode").map(str::to_owned);
        if !http && (path.is_some() || codes.is_some()) {
            let message = "path and matcher are for HTTP and HTTPS health checks only";
            return Err(Refusal::new("InvalidConfigurationRequest", message));
        }
        let number = |name: &str, bounds, of: fn(&Check) -> u32, default| {
            let asked = self.form.number(name, bounds)?;
            Ok::<u32, Refusal>(asked.or(before.map(of)).unwrap_or(default))
        };
        Ok(Check {
            path: path
                .or(before.and_then(|b| b.path.clone()))
                .or(http.then(|| "/".to_owned())),
            codes: codes
                .or(before.and_then(|b| b.codes.clone()))
                .or(http.then(|| "200-399".to_owned())),
            interval: number("HealthCheckIntervalSeconds", (5, 300), |b| b.interval, 30)?,
            timeout: number(
                "HealthCheckTimeoutSeconds",
                (2, 120),
                |b| b.timeout,
                if http { 6 } else { 10 },
            )?,
            healthy: number("HealthyThresholdCount", (2, 10), |b| b.healthy, 5)?,
            unhealthy: number("UnhealthyThresholdCount", (2, 10), |b| b.unhealthy, 2)?,
            protocol,
            port,
        })
    }

    pub(super) fn describe_groups(&mut self) -> Answer {
        let arns = self.form.list("TargetGroupArns");
        let names = self.form.list("Names");
        let of = self.form.maybe("LoadBalancerArn");
        for arn in &arns {
            self.account.group(arn)?;
        }
        let asked = |group: &&Group| {
            let named = arns.is_empty() && names.is_empty()
                || arns.contains(&group.arn.as_str())
                || names.contains(&group.name.as_str());
            named && of.is_none_or(|lb| self.account.users(&group.arn).contains(lb))
        };
        let all: Vec<Group> = self
            .account
            .groups
            .values()
            .filter(asked)
            .cloned()
            .collect();
        if all.is_empty() && !names.is_empty() {
            return Err(Refusal::new(
                "TargetGroupNotFound",
                "One or more target groups not found",
            ));
        }
        let (page, next) = self.page(all, |group| &group.arn)?;
        let list = members(
            "TargetGroups",
            page.iter().map(|group| self.group_xml(group)),
        );
        Ok(list + &next)
    }

    fn group_xml(&self, group: &Group) -> String {
        let check = &group.check;
        let users: String = self
            .account
            .users(&group.arn)
            .iter()
            .map(|arn| wrap("member", arn))
            .collect();
        let path = check.path.iter().map(|path| el("HealthCheckPath", path));
        let codes = check
            .codes
            .iter()
            .map(|codes| wrap("Matcher", el("HttpCode", codes)));
        [
            el("TargetGroupArn", &group.arn),
            el("TargetGroupName", &group.name),
            el("Protocol", &group.protocol),
            el("Port", group.port),
            el("VpcId", &self.account.vpc),
            el("HealthCheckProtocol", &check.protocol),
            el("HealthCheckPort", &check.port),
            el("HealthCheckEnabled", true),
            el("HealthCheckIntervalSeconds", check.interval),
            el("HealthCheckTimeoutSeconds", check.timeout),
            el("HealthyThresholdCount", check.healthy),
            el("UnhealthyThresholdCount", check.unhealthy),
            path.chain(codes).collect(),
            wrap("LoadBalancerArns", users),
            el("TargetType", &group.target_type),
            el("IpAddressType", "ipv4"),
        ]
        .concat()
    }

    pub(super) fn modify_group(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?;
        let before = self.account.group(arn)?.check.clone();
        let check = self.check(Some(&before))?;
        let group = self.account.group(arn)?;
        group.check = check;
        let group = group.clone();
        self.update_engine(&group)?;
        Ok(members(
            "TargetGroups",
            [self.group_xml(&group)].into_iter(),
        ))
    }

    fn update_engine(&self, group: &Group) -> Result<(), Refusal> {
        for (id, transport) in group.engine.iter().zip(transports(&group.protocol)) {
            let spec = engine_spec(group, *transport);
            self.cloud
                .with(|engine, now| engine.update_group(now, id, spec))?;
        }
        Ok(())
    }

    pub(super) fn delete_group(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?;
        let Some(group) = self.account.groups.get(arn).cloned() else {
            return Ok(String::new());
        };
        if !self.account.users(arn).is_empty() {
            let message =
                format!("Target group '{arn}' is currently in use by a listener or a rule");
            return Err(Refusal::new("ResourceInUse", message));
        }
        for id in &group.engine {
            self.cloud
                .with(|engine, now| engine.delete_group(now, id))?;
        }
        self.account.groups.remove(arn);
        Ok(String::new())
    }

    pub(super) fn group_attributes(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?;
        Ok(tags::attributes(&self.account.group(arn)?.attributes))
    }

    pub(super) fn set_group_attributes(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?;
        let asked = self.form.pairs("Attributes");
        check_attributes(&asked, &DEFAULTS)?;
        let group = self.account.group(arn)?;
        if asked.get(PRESERVE).is_some_and(|value| value == "false") && group.protocol != "TCP" {
            let message =
                "client IP preservation cannot be disabled for UDP and TCP_UDP target groups";
            return Err(Refusal::new("InvalidConfigurationRequest", message));
        }
        if let Some(delay) = asked.get(DELAY)
            && !delay.parse::<u32>().is_ok_and(|seconds| seconds <= 3600)
        {
            return Err(Refusal::validation(format!(
                "'{DELAY}' must be from 0 to 3600"
            )));
        }
        group.attributes.extend(asked);
        let group = group.clone();
        self.update_engine(&group)?;
        Ok(tags::attributes(&group.attributes))
    }

    pub(super) fn register(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?.to_owned();
        let targets = self.targets(&arn)?;
        let group = self.account.group(&arn)?;
        let specs: Vec<TargetSpec> = targets
            .iter()
            .map(|(id, at, zone)| {
                group.ids.insert(*at, id.clone());
                TargetSpec {
                    target: *at,
                    zone: zone.clone(),
                }
            })
            .collect();
        for engine_id in group.engine.clone() {
            self.cloud
                .with(|engine, now| engine.register(now, &engine_id, specs.clone()))?;
        }
        Ok(String::new())
    }

    pub(super) fn deregister(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?.to_owned();
        let targets = self.targets(&arn)?;
        let at: Vec<SocketAddr> = targets.iter().map(|(_, at, _)| *at).collect();
        for id in self.account.group(&arn)?.engine.clone() {
            self.cloud
                .with(|engine, now| engine.deregister(now, &id, &at))?;
        }
        Ok(String::new())
    }

    /// Targets of the call: id, where it is, and its zone.
    fn targets(&mut self, arn: &str) -> Result<Vec<(String, SocketAddr, Option<String>)>, Refusal> {
        let entries = self.form.entries("Targets");
        if entries.len() > AT_ONCE {
            let message = format!(
                "{} targets in one call: {AT_ONCE} are allowed",
                entries.len()
            );
            return Err(Refusal::validation(message));
        }
        let group = self.account.group(arn)?.clone();
        let mut all = Vec::new();
        let mut invalid = Vec::new();
        for stem in entries {
            let id = self.form.need(&format!("{stem}.Id"))?.to_owned();
            let port = self
                .form
                .number(&format!("{stem}.Port"), (1, 65535))?
                .unwrap_or(group.port);
            let zone = self
                .form
                .maybe(&format!("{stem}.AvailabilityZone"))
                .filter(|z| *z != "all");
            let found = if group.target_type == "instance" {
                let machine = self.account.machines.get(&id);
                machine.map(|machine| (machine.address, Some(machine.zone.clone())))
            } else {
                let address = id.parse::<IpAddr>().ok();
                let inside = address.filter(|a| self.account.ranges.iter().any(|r| r.contains(a)));
                let said = self.form.maybe(&format!("{stem}.AvailabilityZone")) == Some("all");
                let address = if said { address } else { inside };
                address.map(|a| (a, zone.map(str::to_owned).or_else(|| self.zone_of(a))))
            };
            match found {
                Some((address, zone)) => all.push((id, SocketAddr::new(address, port), zone)),
                None => invalid.push(id),
            }
        }
        if invalid.is_empty() {
            return Ok(all);
        }
        let list: Vec<_> = invalid.iter().map(|id| format!("'{id}'")).collect();
        let message = format!("The following targets are not valid: {}", list.join(", "));
        Err(Refusal::new("InvalidTarget", message))
    }

    /// The zone of an address, by its subnet.
    fn zone_of(&self, address: IpAddr) -> Option<String> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let subnet = self
            .account
            .subnets
            .values()
            .find(|s| s.range.contains(&address));
        subnet.map(|subnet| subnet.zone.clone())
    }

    pub(super) fn target_health(&mut self) -> Answer {
        let arn = self.form.need("TargetGroupArn")?.to_owned();
        let asked = self.targets(&arn)?;
        let asked: Vec<SocketAddr> = asked.iter().map(|(_, at, _)| *at).collect();
        let group = self.account.group(&arn)?.clone();
        let Some(id) = group.engine.first() else {
            return Err(Refusal::new("TargetGroupNotFound", "gone"));
        };
        let states = self
            .cloud
            .with(|engine, now| engine.targets(now, id, &asked))?;
        let entries = states.iter().map(|status| {
            let id = group.ids.get(&status.target).cloned();
            let id = id.unwrap_or_else(|| status.target.ip().to_string());
            Self::health_xml(&id, status, &group)
        });
        Ok(members("TargetHealthDescriptions", entries))
    }

    fn health_xml(id: &str, status: &TargetStatus, group: &Group) -> String {
        let zone = status
            .zone
            .iter()
            .map(|zone| el("AvailabilityZone", zone))
            .collect::<String>();
        let target = el("Id", id) + &el("Port", status.target.port()) + &zone;
        let mut health = el("State", status.state);
        if let Some(reason) = status.reason {
            health += &el("Reason", reason);
            health += &el("Description", format!("{reason}"));
        }
        let port = match group.check.port.as_str() {
            "traffic-port" => status.target.port().to_string(),
            port => port.to_owned(),
        };
        wrap("Target", target) + &el("HealthCheckPort", port) + &wrap("TargetHealth", health)
    }

    /// The engine's groups of a group, by transport.
    pub(super) fn engine_groups(&mut self, arn: &str) -> Result<Vec<GroupId>, Refusal> {
        Ok(self.account.group(arn)?.engine.clone())
    }
}

fn engine_spec(group: &Group, protocol: Protocol) -> GroupSpec {
    let seconds = |n: u32| Duration::from_secs(n.into());
    let check = &group.check;
    let delay = group
        .attributes
        .get(DELAY)
        .and_then(|d| d.parse().ok())
        .unwrap_or(300);
    let on = |key| group.attributes.get(key).is_some_and(|v| v == "true");
    // Where targets answer on another port than the traffic's, both halves ask there.
    let port = check.port.parse().ok();
    GroupSpec {
        name: group.name.clone(),
        tags: group.tags.clone(),
        protocol,
        mode: if group.target_type == "ip" {
            Mode::Pod
        } else {
            Mode::Node
        },
        health: Some(HealthCheck {
            protocol: if check.protocol == "TCP" {
                ProbeProtocol::Tcp
            } else {
                ProbeProtocol::Http
            },
            port,
            path: check.path.clone().unwrap_or("/".to_owned()),
            interval: seconds(check.interval),
            timeout: seconds(check.timeout),
            healthy: check.healthy,
            unhealthy: check.unhealthy,
        }),
        drain: seconds(delay),
        preserve_client_ip: Some(on(PRESERVE)),
        proxy_protocol: on(PROXY),
        choice: Choice::FiveTuple,
        lost_flow: None,
    }
}
