//! Target groups of a stack: kind, name, check, attributes.

use onehop_core::crd::{HealthBy, HealthProtocol, LoadBalancerPort, MembershipPolicy, TargetMode};
use onehop_core::id::IpFamily;

use super::{Builder, GroupSpec};
use crate::cloud::aws::model::{
    Attributes, Check, CheckProtocol, GroupProtocol, IpType, TargetType,
};
use crate::cloud::aws::names::GroupHash;

pub(in crate::cloud::aws) const CUT_UNHEALTHY: &str =
    "target_health_state.unhealthy.connection_termination.enabled";
const PROXY: &str = "proxy_protocol_v2.enabled";

/// The word of the API for a mode.
pub const fn kind_of(mode: TargetMode) -> TargetType {
    match mode {
        TargetMode::Pod => TargetType::Ip,
        TargetMode::Node | TargetMode::Vip | TargetMode::Unknown => TargetType::Instance,
    }
}

impl Builder<'_> {
    /// The group of a listener on these ports, in its first generation.
    pub(super) fn group(
        &self,
        ports: &[&LoadBalancerPort],
        listener: GroupProtocol,
        transport: GroupProtocol,
        ip_type: IpType,
    ) -> GroupSpec {
        let port = ports[0];
        let target = kind_of(port.mode);
        let tls = listener == GroupProtocol::Tls && self.wishes.tls.to_targets;
        let protocol = if tls { GroupProtocol::Tls } else { transport };
        let number = group_port(port);
        let check = self.check(port);
        let namer = self.namer();
        let hash = GroupHash {
            port: number,
            service_port: port.port,
            target,
            protocol,
            check: check.protocol,
            check_port: check.port,
            interval: check.interval,
        };
        let mut tags = self.wishes.tags.clone();
        tags.extend(namer.tracking_tags(&namer.group_resource(port.port), 1));
        GroupSpec {
            ports: ports.iter().map(|port| port.key()).collect(),
            service_port: port.port,
            name: namer.group(&hash, 1),
            generation: 1,
            mode: port.mode,
            target,
            protocol,
            port: number,
            ip_type: self.group_family(ip_type),
            vpc: self.network.vpc.clone(),
            check,
            hash,
            attributes: self.group_attributes(port),
            tags,
        }
    }

    /// The check, with everything stated (AWS-077 to AWS-079).
    pub(super) fn check(&self, port: &LoadBalancerPort) -> Check {
        let health = port.health.as_ref();
        let protocol = match health.map(|h| h.protocol) {
            Some(HealthProtocol::Http) => CheckProtocol::Http,
            Some(HealthProtocol::Https) => CheckProtocol::Https,
            _ => CheckProtocol::Tcp,
        };
        let http = protocol != CheckProtocol::Tcp;
        let codes = self
            .wishes
            .health
            .codes
            .clone()
            .unwrap_or("200-399".to_owned());
        let number =
            |of: fn(&onehop_core::crd::HealthCheck) -> u32, default| health.map_or(default, of);
        Check {
            protocol,
            port: health.and_then(|h| h.port),
            path: health.and_then(|h| h.path.clone()).filter(|_| http),
            codes: http.then_some(codes),
            interval: number(|h| h.interval_seconds, 10),
            timeout: number(|h| h.timeout_seconds, 10),
            healthy: number(|h| h.healthy, 3),
            unhealthy: number(|h| h.unhealthy, 3),
        }
    }

    fn group_family(&self, balancer: IpType) -> IpType {
        match target_family(balancer, &self.intent.spec.families) {
            IpFamily::V6 => IpType::Ipv6,
            IpFamily::V4 => IpType::Ipv4,
        }
    }

    /// AWS-069 to AWS-072.
    fn group_attributes(&self, port: &LoadBalancerPort) -> Attributes {
        let mut all = self.wishes.group_attributes.clone();
        let of_port = self.wishes.group_attributes_of.get(&port.port);
        all.extend(of_port.cloned().unwrap_or_default());
        let by_agent = port
            .health
            .as_ref()
            .is_some_and(|h| h.by == HealthBy::Agent);
        if by_agent && self.intent.spec.membership.policy == MembershipPolicy::ZeroDrop {
            // AWS-613, ZD-33: health fails before the target leaves, and that must not cut its flows.
            all.entry(CUT_UNHEALTHY.to_owned())
                .or_insert_with(|| "false".to_owned());
        }
        let proxy = &self.wishes.proxy;
        let said = if proxy.everywhere {
            Some(true)
        } else {
            proxy.ports.as_ref().map(|ports| ports.contains(&port.port))
        };
        match said {
            Some(on) => {
                all.insert(PROXY.to_owned(), on.to_string());
            }
            None => {
                all.entry(PROXY.to_owned())
                    .or_insert_with(|| "false".to_owned());
            }
        }
        all
    }
}

/// Groups have one family: behind a dualstack load balancer IPv6 if the Service has it at all (AWS-049), else IPv4
/// (AWS-222).
pub fn target_family(balancer: IpType, families: &[IpFamily]) -> IpFamily {
    if balancer == IpType::Dualstack && families.contains(&IpFamily::V6) {
        IpFamily::V6
    } else {
        IpFamily::V4
    }
}

/// AWS-105: NodePort, numeric targetPort, or 1 where pods differ.
fn group_port(port: &LoadBalancerPort) -> u16 {
    match port.mode {
        TargetMode::Pod => port.target_port.unwrap_or(1),
        TargetMode::Node | TargetMode::Vip | TargetMode::Unknown => port.node_port.unwrap_or(1),
    }
}
