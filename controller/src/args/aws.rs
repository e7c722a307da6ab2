//! Flags of provider aws: names and defaults of aws-load-balancer-controller where it has them (AWS-820),
//! so that its argument list still means the same.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use onehop_core::crd::{Scheme, TargetMode};
use onehop_core::id::InstallId;

use crate::cloud::aws::client::{Access, Limit, Limits};
use crate::cloud::aws::settings::{
    BackendGroup, Gate, LocalNodes, PeerServices, RulePorts, Selection, Settings, TakeOver,
};
use crate::cloud::local::resolve::NodeProxy;
use crate::snapshot::Kinds;

/// From our rules and tags to the end of the peer's bindings (AWS-129).
const SETTLE: Duration = Duration::from_mins(1);

/// As they are written.
#[derive(Clone, Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "flags as they are written; what they mean together is resolved into enums"
)]
pub(super) struct AwsArgs {
    /// Region; from the environment if not given (provider aws).
    #[arg(long, env = "ONEHOP_AWS_REGION")]
    aws_region: Option<String>,
    /// The VPC of the cluster (provider aws).
    #[arg(long, env = "ONEHOP_AWS_VPC_ID")]
    aws_vpc_id: Option<String>,
    /// Other endpoints, as elasticloadbalancing=https://…,ec2=https://… (provider aws).
    #[arg(long, env = "ONEHOP_AWS_API_ENDPOINTS", value_delimiter = ',')]
    aws_api_endpoints: Vec<String>,
    /// Calls a second and burst, as members=4:20,describe=8:30,change=3:20,ec2=10:50, or by service and operation as
    /// aws-load-balancer-controller has it (provider aws).
    #[arg(long, env = "ONEHOP_AWS_API_THROTTLE", value_delimiter = ',')]
    aws_api_throttle: Vec<String>,
    /// Target type where no annotation says (provider aws).
    #[arg(long, env = "ONEHOP_DEFAULT_TARGET_TYPE", value_enum, default_value_t = TargetTypeName::Instance)]
    default_target_type: TargetTypeName,
    /// Scheme where no annotation says (provider aws).
    #[arg(long, env = "ONEHOP_DEFAULT_LOAD_BALANCER_SCHEME", value_enum, default_value_t = SchemeName::Internal)]
    default_load_balancer_scheme: SchemeName,
    /// Tags of everything that is made, as k=v,k=v (provider aws).
    #[arg(long, env = "ONEHOP_DEFAULT_TAGS", value_delimiter = ',')]
    default_tags: Vec<String>,
    /// Keys of tags that others manage (provider aws).
    #[arg(long, env = "ONEHOP_EXTERNAL_MANAGED_TAGS", value_delimiter = ',')]
    external_managed_tags: Vec<String>,
    /// Tags of the security group that takes a target's rules where the target carries several, beside the cluster's own
    /// tag, as k=v,k=v (provider aws).
    #[arg(
        long,
        env = "ONEHOP_SERVICE_TARGET_ENI_SECURITY_GROUP_TAGS",
        value_delimiter = ','
    )]
    service_target_eni_security_group_tags: Vec<String>,
    /// Policy of TLS listeners (provider aws).
    #[arg(
        long,
        env = "ONEHOP_DEFAULT_SSL_POLICY",
        default_value = "ELBSecurityPolicy-2016-08"
    )]
    default_ssl_policy: String,
    /// Make a security group that targets know the load balancers by (provider aws).
    #[arg(long, env = "ONEHOP_ENABLE_BACKEND_SECURITY_GROUP", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_backend_security_group: bool,
    /// Use this security group for that instead of making one (provider aws).
    #[arg(long, env = "ONEHOP_BACKEND_SECURITY_GROUP")]
    backend_security_group: Option<String>,
    /// Rules on targets also where annotations name security groups (provider aws).
    #[arg(long, env = "ONEHOP_ENABLE_MANAGE_BACKEND_SECURITY_GROUP_RULES")]
    enable_manage_backend_security_group_rules: bool,
    /// Rules on targets for all ports instead of the very ones (provider aws).
    #[arg(long, env = "ONEHOP_DISABLE_RESTRICTED_SG_RULES")]
    disable_restricted_sg_rules: bool,
    /// Most targets of one target group; 0 for no limit (provider aws).
    #[arg(long, env = "ONEHOP_MAX_TARGETS_PER_TARGET_GROUP", default_value_t = 0)]
    max_targets_per_target_group: usize,
    /// Which nodes become targets of Services with externalTrafficPolicy Local, under zero-drop: those with a ready endpoint,
    /// or all, whose health check then tells which of them have one (provider aws).
    #[arg(long, env = "ONEHOP_LOCAL_REGISTRATION", value_enum, default_value_t = LocalRegistration::Endpoints)]
    local_registration: LocalRegistration,
    /// Gates by name, as EnableIPTargetType=false (provider aws).
    #[arg(long, env = "ONEHOP_FEATURE_GATES", value_delimiter = ',')]
    feature_gates: Vec<String>,
    /// Says that aws-load-balancer-controller runs with its feature gate EnableServiceController=false, or not at all:
    /// without it claimed Services of its class, or without a class, are looked at only (provider aws).
    #[arg(long, env = "ONEHOP_LBC_SERVICE_CONTROLLER_DISABLED")]
    lbc_service_controller_disabled: bool,
    /// Claimed Services whose load balancers are taken over from the cloud's other controller: *, namespaces, or
    /// namespace/name; those of others are looked at only (providers aws and azure).
    #[arg(long, env = "ONEHOP_TAKE_OVER", value_delimiter = ',')]
    take_over: Vec<String>,
    /// Of those, Services that are taken over although that changes something (providers aws and azure).
    #[arg(long, env = "ONEHOP_TAKE_OVER_WITH_DIFFERENCES", value_delimiter = ',')]
    take_over_with_differences: Vec<String>,
    /// Seconds that a replaced load balancer serves on, while clients may know its name (provider aws).
    #[arg(long, env = "ONEHOP_DNS_GRACE_SECONDS", default_value_t = 900)]
    dns_grace_seconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TargetTypeName {
    Instance,
    Ip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LocalRegistration {
    Endpoints,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SchemeName {
    Internal,
    InternetFacing,
}

/// Resolved.
#[derive(Clone, Debug)]
pub struct AwsConfig {
    /// How to reach AWS.
    pub access: Access,
    /// Of the provider.
    pub settings: Settings,
}

/// What is wrong with these flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AwsArgsError {
    /// The provider needs a flag.
    #[error("--provider aws needs --{0}")]
    Missing(&'static str),
    /// Two controllers would act on the same Services (AWS-013).
    #[error(
        "--take-over takes load balancers over from aws-load-balancer-controller: run it with feature gate \
         EnableServiceController=false, or not at all, and say so by --lbc-service-controller-disabled"
    )]
    PeerActs,
    /// A flag holds something else than it should.
    #[error("--{flag}: {value:?} is not {wanted}")]
    Wrong {
        /// The flag.
        flag: &'static str,
        /// What it holds.
        value: String,
        /// What is allowed.
        wanted: &'static str,
    },
}

impl AwsArgs {
    pub(super) fn resolve(
        &self,
        install: InstallId,
        cluster: Option<&String>,
        proxy: NodeProxy,
        switch_tail: Duration,
    ) -> Result<AwsConfig, AwsArgsError> {
        let cluster = cluster.ok_or(AwsArgsError::Missing("cluster-name"))?;
        let vpc = self
            .aws_vpc_id
            .clone()
            .ok_or(AwsArgsError::Missing("aws-vpc-id"))?;
        let endpoints = pairs("aws-api-endpoints", &self.aws_api_endpoints)?;
        let known = ["elasticloadbalancing", "ec2"];
        if let Some(other) = endpoints
            .keys()
            .find(|name| !known.contains(&name.as_str()))
        {
            let (flag, value) = ("aws-api-endpoints", other.clone());
            return Err(AwsArgsError::Wrong {
                flag,
                value,
                wanted: "elasticloadbalancing or ec2",
            });
        }
        let mut settings = Settings::new(install, cluster);
        settings.proxy = proxy;
        settings.scheme = match self.default_load_balancer_scheme {
            SchemeName::Internal => Scheme::Internal,
            SchemeName::InternetFacing => Scheme::InternetFacing,
        };
        settings.mode = match self.default_target_type {
            TargetTypeName::Instance => TargetMode::Node,
            TargetTypeName::Ip => TargetMode::Pod,
        };
        settings.default_tags = pairs("default-tags", &self.default_tags)?;
        settings.external_tags = self.external_managed_tags.iter().cloned().collect();
        settings.ssl_policy.clone_from(&self.default_ssl_policy);
        settings.backend = match (
            &self.backend_security_group,
            self.enable_backend_security_group,
        ) {
            (_, false) => BackendGroup::Off,
            (Some(id), true) => BackendGroup::Given(id.clone()),
            (None, true) => BackendGroup::Ours,
        };
        settings.manage_backend_rules = self.enable_manage_backend_security_group_rules;
        if self.disable_restricted_sg_rules {
            settings.rules = RulePorts::All;
        }
        settings.max_targets = self.max_targets_per_target_group;
        settings.local_nodes = match self.local_registration {
            LocalRegistration::Endpoints => LocalNodes::WithEndpoints,
            LocalRegistration::All => LocalNodes::All,
        };
        settings.switch_tail = switch_tail;
        settings.take_over = self.take_over()?;
        settings.dns_grace = Duration::from_secs(self.dns_grace_seconds.into());
        self.gates(&mut settings)?;
        Ok(AwsConfig {
            access: Access {
                region: self.aws_region.clone(),
                vpc,
                elb: endpoints.get("elasticloadbalancing").cloned(),
                ec2: endpoints.get("ec2").cloned(),
                credentials: None,
                target_group_tags: pairs(
                    "service-target-eni-security-group-tags",
                    &self.service_target_eni_security_group_tags,
                )?,
                limits: self.limits()?,
            },
            settings,
        })
    }

    /// AWS-711.
    fn limits(&self) -> Result<Limits, AwsArgsError> {
        let mut limits = Limits::default();
        for (of, value) in pairs("aws-api-throttle", &self.aws_api_throttle)? {
            let wrong = || AwsArgsError::Wrong {
                flag: "aws-api-throttle",
                value: format!("{of}={value}"),
                wanted: "members, describe, change, ec2, or a service and its operations, with rate:burst, both above 0",
            };
            let number = |text: &str| text.trim().parse().ok().filter(|n: &f64| *n > 0.0);
            let (rate, burst) = value.split_once(':').ok_or_else(wrong)?;
            let limit = Limit {
                rate: number(rate).ok_or_else(wrong)?,
                burst: number(burst).filter(|n| *n >= 1.0).ok_or_else(wrong)?,
            };
            let family = match of.as_str() {
                "members" => &mut limits.members,
                "describe" => &mut limits.describe,
                "change" => &mut limits.change,
                "ec2" => &mut limits.ec2,
                other => match other.split_once(':') {
                    Some(("EC2", _)) => &mut limits.ec2,
                    Some(("Elastic Load Balancing v2", of)) if of.contains("Register") => {
                        &mut limits.members
                    }
                    Some(("Elastic Load Balancing v2", of)) if of.contains("Describe") => {
                        &mut limits.describe
                    }
                    Some(("Elastic Load Balancing v2", _)) => &mut limits.change,
                    _ => return Err(wrong()),
                },
            };
            *family = limit;
        }
        Ok(limits)
    }

    /// AWS-013, AWS-124.
    fn take_over(&self) -> Result<TakeOver, AwsArgsError> {
        let (of, accepted) = self.selections()?;
        if !self.take_over.is_empty() && !self.lbc_service_controller_disabled {
            return Err(AwsArgsError::PeerActs);
        }
        Ok(TakeOver {
            peer: if self.lbc_service_controller_disabled {
                PeerServices::Off
            } else {
                PeerServices::MayAct
            },
            of,
            accepted,
            settle: SETTLE,
        })
    }

    /// Whose load balancers are taken over, and whose of them although something changes: of other providers too.
    pub(super) fn selections(&self) -> Result<(Selection, Selection), AwsArgsError> {
        let read = |flag: &'static str, entries: &[String]| {
            Selection::read(entries).map_err(|value| AwsArgsError::Wrong {
                flag,
                value,
                wanted: "*, a namespace, or namespace/name",
            })
        };
        let of = read("take-over", &self.take_over)?;
        let accepted = read(
            "take-over-with-differences",
            &self.take_over_with_differences,
        )?;
        Ok((of, accepted))
    }

    /// Of which types Services without a class may be (AWS-006).
    pub(super) fn kinds(&self) -> Kinds {
        let only = |entry: &String| entry.trim() == "ServiceTypeLoadBalancerOnly=true";
        if self.feature_gates.iter().any(only) {
            Kinds::LoadBalancer
        } else {
            Kinds::Any
        }
    }

    /// AWS-822: a gate that is not known is none of ours and is passed over.
    fn gates(&self, settings: &mut Settings) -> Result<(), AwsArgsError> {
        for (name, value) in pairs("feature-gates", &self.feature_gates)? {
            let gate = match value.as_str() {
                "true" => Gate::On,
                "false" => Gate::Off,
                _ => {
                    let value = format!("{name}={value}");
                    return Err(AwsArgsError::Wrong {
                        flag: "feature-gates",
                        value,
                        wanted: "true or false",
                    });
                }
            };
            match name.as_str() {
                "EnableIPTargetType" => settings.gates.ip_targets = gate,
                "NLBSecurityGroup" => settings.gates.security_groups = gate,
                "EnableTCPUDPListener" => settings.gates.tcp_udp = gate,
                "EnableDefaultTagsLowPriority" => settings.gates.default_tags_low = gate,
                "SubnetsClusterTagCheck" => settings.gates.subnets_of_cluster = gate,
                "SubnetDiscoveryByReachability" => settings.gates.subnets_by_routes = gate,
                _ => {}
            }
        }
        Ok(())
    }
}

fn pairs(flag: &'static str, entries: &[String]) -> Result<BTreeMap<String, String>, AwsArgsError> {
    let pair = |entry: &String| {
        let (key, value) = entry.split_once('=').ok_or_else(|| AwsArgsError::Wrong {
            flag,
            value: entry.clone(),
            wanted: "name=value",
        })?;
        Ok((key.trim().to_owned(), value.trim().to_owned()))
    };
    entries
        .iter()
        .filter(|entry| !entry.is_empty())
        .map(pair)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cloud::aws::settings::Gates;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        aws: AwsArgs,
    }

    fn gates(text: &str) -> Result<Gates, AwsArgsError> {
        let only = Only::try_parse_from(["onehop", "--aws-vpc-id=vpc-1", text]).unwrap();
        let cluster = "my-cluster".to_owned();
        let tail = Duration::from_mins(2);
        let install = InstallId::from("my-install");
        let config = only
            .aws
            .resolve(install, Some(&cluster), NodeProxy::Beside, tail);
        config.map(|config| config.settings.gates)
    }

    #[test]
    fn aws822_gates_of_the_peer_are_understood_with_its_defaults_and_others_passed_over() {
        let of = |gates: &Gates| {
            let Gates {
                ip_targets,
                security_groups,
                tcp_udp,
                default_tags_low,
                subnets_of_cluster,
                subnets_by_routes,
            } = gates;
            [
                ("EnableIPTargetType", ip_targets.is_on()),
                ("NLBSecurityGroup", security_groups.is_on()),
                ("EnableTCPUDPListener", tcp_udp.is_on()),
                ("EnableDefaultTagsLowPriority", default_tags_low.is_on()),
                ("SubnetsClusterTagCheck", subnets_of_cluster.is_on()),
                ("SubnetDiscoveryByReachability", subnets_by_routes.is_on()),
            ]
        };
        let defaults = of(&Gates::default());
        assert_eq!(
            defaults.map(|(_, on)| on),
            [true, true, false, false, true, true],
            "AWS-822"
        );
        for (n, (name, on)) in defaults.into_iter().enumerate() {
            let turned = gates(&format!("--feature-gates={name}={}", !on)).unwrap();
            let mut wanted = defaults;
            wanted[n].1 = !on;
            assert_eq!(of(&turned), wanted, "AWS-822: {name}");
        }
        let others = "--feature-gates=EnhancedDefaultBehavior=true,EnableRGTAPI=true";
        assert_eq!(gates(others).unwrap(), Gates::default(), "AWS-822");
        assert!(gates("--feature-gates=NLBSecurityGroup=maybe").is_err());
    }

    #[test]
    fn aws006_aws822_only_services_of_type_load_balancer_where_the_gate_says_so() {
        let kinds = |text: &str| {
            let only = Only::try_parse_from(["onehop", text]).unwrap();
            only.aws.kinds()
        };
        let gate = "--feature-gates=ServiceTypeLoadBalancerOnly";
        assert_eq!(kinds(&format!("{gate}=true")), Kinds::LoadBalancer);
        assert_eq!(kinds(&format!("{gate}=false")), Kinds::Any);
        assert_eq!(kinds("--aws-vpc-id=vpc-1"), Kinds::Any, "AWS-822: off");
    }
}
