//! From the SDK's types to the planner's and back.

use std::collections::BTreeMap;

use aws_sdk_elasticloadbalancingv2::types as t;
use onehop_core::crd::Scheme;

use crate::cloud::aws::model::{
    Attributes, Balancer, BalancerState, Check, CheckProtocol, Group, GroupProtocol, HealthState,
    IpType, Listener, TargetHealth, TargetId, TargetType,
};
use crate::cloud::aws::names::Tags;
use crate::cloud::aws::stack::{ListenerSpec, Mapping};

pub(super) fn pairs<'a>(
    all: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>,
) -> Attributes {
    all.filter_map(|(key, value)| Some((key?.to_owned(), value.unwrap_or_default().to_owned())))
        .collect()
}

pub(super) fn number(seconds: u32) -> i32 {
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

pub(super) fn small(number: Option<i32>) -> u32 {
    number
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or_default()
}

pub(super) fn tag_list(tags: &Tags) -> Vec<t::Tag> {
    tags.iter()
        .map(|(key, value)| t::Tag::builder().key(key).value(value).build())
        .collect()
}

pub(super) fn mappings(subnets: &[Mapping]) -> Vec<t::SubnetMapping> {
    let mapping = |mapping: &Mapping| {
        t::SubnetMapping::builder()
            .subnet_id(&mapping.subnet)
            .set_allocation_id(mapping.eip.clone())
            .set_private_ipv4_address(mapping.private_ipv4.clone())
            .build()
    };
    subnets.iter().map(mapping).collect()
}

pub(super) fn certificates(arns: &[String]) -> Vec<t::Certificate> {
    arns.iter()
        .map(|arn| t::Certificate::builder().certificate_arn(arn).build())
        .collect()
}

pub(super) fn default_certificate(spec: &ListenerSpec) -> Option<Vec<t::Certificate>> {
    let first = spec.certificates.get(..1)?;
    Some(certificates(first))
}

pub(super) fn check_port(check: &Check) -> String {
    check
        .port
        .map_or("traffic-port".to_owned(), |port| port.to_string())
}

pub(super) fn matcher(check: &Check) -> Option<t::Matcher> {
    let codes = check.codes.as_ref()?;
    Some(t::Matcher::builder().http_code(codes).build())
}

pub(super) fn forward(groups: &BTreeMap<String, u32>) -> t::Action {
    let mut config = t::ForwardActionConfig::builder();
    for (arn, weight) in groups {
        let tuple = t::TargetGroupTuple::builder()
            .target_group_arn(arn)
            .weight(number(*weight));
        config = config.target_groups(tuple.build());
    }
    t::Action::builder()
        .r#type(t::ActionTypeEnum::Forward)
        .forward_config(config.build())
        .build()
}

pub(super) fn balancer(of: &t::LoadBalancer) -> Option<Balancer> {
    let subnets = of.availability_zones().iter().filter_map(|zone| {
        let addresses = zone.load_balancer_addresses().iter();
        let addresses = addresses.flat_map(|a| {
            let address = a.private_ipv4_address().or(a.ip_address());
            address.into_iter().chain(a.allocation_id())
        });
        Some((
            zone.subnet_id()?.to_owned(),
            addresses.map(str::to_owned).collect(),
        ))
    });
    let state = of
        .state()
        .and_then(|state| state.code())
        .map_or("", |code| code.as_str());
    Some(Balancer {
        arn: of.load_balancer_arn()?.to_owned(),
        name: of.load_balancer_name()?.to_owned(),
        dns: of.dns_name().unwrap_or_default().to_owned(),
        scheme: match of.scheme() {
            Some(t::LoadBalancerSchemeEnum::InternetFacing) => Scheme::InternetFacing,
            _ => Scheme::Internal,
        },
        state: BalancerState::read(state).unwrap_or(BalancerState::Provisioning),
        ip_type: of
            .ip_address_type()
            .and_then(|t| IpType::read(t.as_str()))
            .unwrap_or(IpType::Ipv4),
        subnets: subnets.collect(),
        security_groups: of.security_groups().to_vec(),
        tags: Tags::new(),
        attributes: None,
        listeners: None,
    })
}

pub(super) fn group(of: &t::TargetGroup) -> Option<Group> {
    let http = of.health_check_protocol() != Some(&t::ProtocolEnum::Tcp);
    Some(Group {
        arn: of.target_group_arn()?.to_owned(),
        name: of.target_group_name()?.to_owned(),
        target: TargetType::read(of.target_type()?.as_str())?,
        protocol: GroupProtocol::read(of.protocol()?.as_str())?,
        port: of
            .port()
            .and_then(|port| u16::try_from(port).ok())
            .unwrap_or_default(),
        ip_type: of
            .ip_address_type()
            .and_then(|t| IpType::read(t.as_str()))
            .unwrap_or(IpType::Ipv4),
        check: Check {
            protocol: of
                .health_check_protocol()
                .and_then(|p| CheckProtocol::read(p.as_str()))?,
            port: of.health_check_port().and_then(|port| port.parse().ok()),
            path: of.health_check_path().filter(|_| http).map(str::to_owned),
            codes: of
                .matcher()
                .and_then(|m| m.http_code())
                .filter(|_| http)
                .map(str::to_owned),
            interval: small(of.health_check_interval_seconds()),
            timeout: small(of.health_check_timeout_seconds()),
            healthy: small(of.healthy_threshold_count()),
            unhealthy: small(of.unhealthy_threshold_count()),
        },
        tags: Tags::new(),
        attributes: None,
        used_by: of.load_balancer_arns().to_vec(),
        targets: None,
        read_at: None,
        refused: BTreeMap::new(),
    })
}

pub(super) fn listener(of: &t::Listener) -> Option<Listener> {
    let mut groups = BTreeMap::new();
    for action in of.default_actions() {
        let config = action.forward_config();
        for tuple in config
            .into_iter()
            .flat_map(t::ForwardActionConfig::target_groups)
        {
            let weight = tuple.weight().map_or(1, |weight| small(Some(weight)));
            groups.insert(tuple.target_group_arn()?.to_owned(), weight);
        }
        if let Some(arn) = action.target_group_arn().filter(|_| groups.is_empty()) {
            groups.insert(arn.to_owned(), 1);
        }
    }
    let certificates = of.certificates().iter();
    Some(Listener {
        arn: of.listener_arn()?.to_owned(),
        port: u16::try_from(of.port()?).ok()?,
        protocol: GroupProtocol::read(of.protocol()?.as_str())?,
        groups,
        certificates: certificates
            .filter_map(|c| Some(c.certificate_arn()?.to_owned()))
            .collect(),
        policy: of
            .ssl_policy()
            .filter(|policy| !policy.is_empty())
            .map(str::to_owned),
        alpn: of.alpn_policy().first().cloned(),
        attributes: None,
    })
}

pub(super) fn target(of: &t::TargetHealthDescription) -> Option<(TargetId, TargetHealth)> {
    let target = of.target()?;
    let id = TargetId {
        id: target.id()?.to_owned(),
        port: u16::try_from(target.port()?).ok()?,
    };
    let health = of.target_health()?;
    let health = TargetHealth {
        state: HealthState::read(health.state()?.as_str()).unwrap_or(HealthState::Unavailable),
        reason: health
            .reason()
            .map_or(String::new(), |reason| reason.as_str().to_owned()),
    };
    Some((id, health))
}
