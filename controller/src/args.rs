//! Flags as they are written, and what they mean: two types. Each flag can also be set by an
//! environment variable of the same name.

mod aws;
mod azure;
mod bounds;
mod election;
mod errand;
mod extras;
mod foreign;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use onehop_core::crd::MembershipPolicy;
use onehop_core::id::{Cidr, InstallId};
use reqwest::Url;

use self::aws::AwsArgs;
pub use self::aws::{AwsArgsError, AwsConfig};
use self::azure::AzureArgs;
pub use self::azure::{AzureArgsError, AzureConfig};
use self::bounds::BoundsArgs;
use self::election::ElectionArgs;
pub use self::election::{ElectionConfig, ElectionError};
use self::errand::ErrandArgs;
pub use self::errand::{Duty, Errand};
use self::extras::ExtrasArgs;
use crate::cloud::aws::settings as aws_settings;
use crate::cloud::azure::settings as azure_settings;
use crate::cloud::local::plan;
use crate::cloud::local::resolve::{Defaults, NodeProxy, TAIL_SECONDS};
use crate::node_targets::Ranges;
use crate::policy::{Policies, PolicyError};
use crate::reconcile::{self, Orphans, PodHealth};
use crate::snapshot::{Claim, Classless};

/// The onehop controller: makes cloud load balancers for Services and sends traffic to pods in one hop.
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
pub struct Args {
    /// Cloud to work with.
    #[arg(long, env = "ONEHOP_PROVIDER", value_enum)]
    provider: ProviderName,
    /// Identity of this install: part of every tag and label. Default: cluster name and provider.
    #[arg(long, env = "ONEHOP_INSTALL_ID")]
    install_id: Option<String>,
    /// Name of the cluster, for the default install id.
    #[arg(long, env = "ONEHOP_CLUSTER_NAME")]
    cluster_name: Option<String>,
    /// A class of Services to own beside the provider's (repeatable).
    #[arg(long, env = "ONEHOP_LOAD_BALANCER_CLASS", value_delimiter = ',')]
    load_balancer_class: Vec<String>,
    /// Own Services without a class too; with provider aws those whose annotations ask aws-load-balancer-controller for
    /// a load balancer.
    #[arg(long, env = "ONEHOP_CLAIM_CLASSLESS")]
    claim_classless: bool,
    /// What annotations may ask for, by namespace: a JSON list of rules, of which the first that chooses a namespace
    /// holds there: [{"name", "namespaceSelector", "addressPools", "sharingAcrossNamespaces", "internetFacing", "subnets",
    /// "publicIPs", "publicIPPrefixes", "resourceGroups", "securityGroups", "prefixLists", "elasticIPs",
    /// "loadBalancerNames"}].
    #[arg(long, env = "ONEHOP_POLICIES")]
    policies: Option<String>,
    /// The local cloud's URL (provider local).
    #[arg(long, env = "ONEHOP_LOCAL_ENDPOINT")]
    local_endpoint: Option<Url>,
    /// How agents run, which decides the port that tells a node's health.
    #[arg(long, env = "ONEHOP_PROXY", value_enum, default_value_t = ProxyName::Beside)]
    proxy: ProxyName,
    /// How members come and go for Services that do not say it by the annotation onehop.dev/membership. Default: zero-drop
    /// for our own classes, compat for those of peers.
    #[arg(long, env = "ONEHOP_MEMBERSHIP", value_enum)]
    membership: Option<MembershipName>,
    /// Kubeconfig; without one, the service account of the pod.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Seconds that a replaced group serves on after the switch.
    #[arg(long, env = "ONEHOP_SWITCH_TAIL_SECONDS", default_value_t = 120.0)]
    switch_tail_seconds: f64,
    /// Seconds between two full looks at a load balancer at rest.
    #[arg(long, env = "ONEHOP_SWEEP_SECONDS", default_value_t = 60.0)]
    sweep_seconds: f64,
    /// Delete cloud objects of this install whose Service is gone, instead of only reporting them.
    #[arg(long, env = "ONEHOP_DELETE_ORPHANS")]
    delete_orphans: bool,
    /// Ranges of pod addresses, by commas; default: those of the Nodes. With many nodes, give them.
    #[arg(long, env = "ONEHOP_POD_CIDRS", value_delimiter = ',')]
    pod_cidrs: Vec<Cidr>,
    /// Ranges of node addresses, by commas; default: the addresses of the Nodes. With many nodes, give them.
    #[arg(long, env = "ONEHOP_NODE_CIDRS", value_delimiter = ',')]
    node_cidrs: Vec<Cidr>,
    /// Seconds for which such an object is only reported before it is deleted.
    #[arg(long, env = "ONEHOP_ORPHAN_GRACE_SECONDS", default_value_t = 3600.0)]
    orphan_grace_seconds: f64,
    /// Port on which agents answer for the health of pods; 0: there are no agents, and load balancers ask the pods.
    #[arg(long, env = "ONEHOP_POD_HEALTH_PORT", default_value_t = 10290)]
    pod_health_port: u16,
    /// Services worked on side by side.
    #[arg(long, env = "ONEHOP_WORKERS", default_value_t = 16)]
    workers: usize,
    /// Address of the metrics server.
    #[arg(long, env = "ONEHOP_METRICS_ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,
    /// Answer on it over TLS only, with a certificate made here, to whoever shows a token that may `get` the path /metrics.
    #[arg(long, env = "ONEHOP_SECURE_METRICS")]
    secure_metrics: bool,
    /// Address of the health server.
    #[arg(long, env = "ONEHOP_HEALTH_ADDRESS", default_value = "0.0.0.0:8081")]
    health_address: SocketAddr,
    #[command(flatten)]
    aws: AwsArgs,
    #[command(flatten)]
    azure: AzureArgs,
    #[command(flatten)]
    bounds: BoundsArgs,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    extras: ExtrasArgs,
    /// Log filter.
    #[arg(long, env = "ONEHOP_LOG", default_value = "info")]
    log: String,
    #[command(flatten)]
    errand: ErrandArgs,
    /// Seed of all jitter; made from time and process id if not given.
    #[arg(long, env = "ONEHOP_SEED")]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProviderName {
    /// The local cloud.
    Local,
    /// AWS: Network Load Balancers.
    Aws,
    /// Azure: Standard Load Balancers.
    Azure,
}

impl ProviderName {
    const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Aws => "aws",
            Self::Azure => "azure",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProxyName {
    /// Beside kube-proxy.
    Beside,
    /// As the only service proxy.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MembershipName {
    /// Nothing leaves before what replaces it is healthy.
    ZeroDrop,
    /// The timing of the class's usual controller.
    Compat,
}

/// Everything resolved.
#[derive(Clone, Debug)]
pub struct Config {
    /// The local cloud's URL; there is one unless the provider is another.
    pub endpoint: Option<Url>,
    /// Of provider aws, if that is it.
    pub aws: Option<AwsConfig>,
    /// Of provider azure, if that is it.
    pub azure: Option<AzureConfig>,
    /// Of the local provider's planner.
    pub local: plan::Settings,
    /// What Services of the local provider get that do not say it themselves.
    pub defaults: Defaults,
    /// Kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Of the reconciler.
    pub settings: reconcile::Settings,
    /// Address of the metrics server.
    pub metrics_address: SocketAddr,
    /// Over TLS, for those only who may read them (S-300).
    pub secure_metrics: bool,
    /// Address of the health server.
    pub health_address: SocketAddr,
    /// The webhook's name and address, if there is one.
    pub webhook: Option<(String, SocketAddr)>,
    /// The election; none if this is the only replica.
    pub election: Option<ElectionConfig>,
    /// Name of this replica, for people.
    pub replica: String,
    /// Log filter.
    pub log: String,
    /// Seed of all jitter, if one was given.
    pub seed: Option<u64>,
}

/// What is wrong with the flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// Nothing tells this install from others.
    #[error("give --install-id, or --cluster-name to make one from")]
    NoInstallId,
    /// The provider needs a flag.
    #[error("--provider local needs --local-endpoint, the URL of the cloud's API")]
    NoEndpoint,
    /// A number makes no sense.
    #[error("--{0} must be a number of seconds from 0 to 1000000")]
    Seconds(&'static str),
    /// Flags of provider aws.
    #[error(transparent)]
    Aws(#[from] AwsArgsError),
    /// Flags of provider azure.
    #[error(transparent)]
    Azure(#[from] AzureArgsError),
    /// The policies make no sense.
    #[error(transparent)]
    Policies(#[from] PolicyError),
    /// The election makes no sense.
    #[error(transparent)]
    Election(#[from] ElectionError),
}

impl Args {
    /// Reads the command line; gives with it the flags of aws-load-balancer-controller that say nothing here (AWS-821).
    pub fn of_command_line() -> (Self, Vec<String>) {
        let (kept, foreign) = foreign::without_foreign(std::env::args());
        (Self::parse_from(kept), foreign)
    }

    /// What the program is started for, if that is something around an uninstall.
    pub fn errand(&self) -> Option<Result<Errand, ArgsError>> {
        let duty = self.errand.duty()?;
        let errand = |install| {
            Ok(Errand {
                duty,
                lease: self.election.lease(&install)?,
                lease_namespace: self.election.namespace(),
                install,
                kubeconfig: self.kubeconfig.clone(),
            })
        };
        Some(self.install().and_then(errand))
    }

    /// Resolves all flags.
    pub fn resolve(self) -> Result<Config, ArgsError> {
        let install = self.install()?;
        let name = install.clone();
        let mut classes: BTreeSet<String> = self.load_balancer_class.into_iter().collect();
        classes.insert(format!("onehop.dev/{}", self.provider.word()));
        let proxy = match self.proxy {
            ProxyName::Beside => NodeProxy::Beside,
            ProxyName::Replace => NodeProxy::Replace,
        };
        let membership = self.membership.map(|name| match name {
            MembershipName::ZeroDrop => MembershipPolicy::ZeroDrop,
            MembershipName::Compat => MembershipPolicy::Compat,
        });
        let switch_tail = seconds("switch-tail-seconds", self.switch_tail_seconds)?;
        let kinds = self.aws.kinds();
        let cluster = self.cluster_name.as_ref();
        let (mut aws, mut azure) = (None, None);
        match self.provider {
            ProviderName::Local => {}
            ProviderName::Aws => {
                let mut resolved =
                    self.aws
                        .resolve(install.clone(), cluster, proxy, switch_tail)?;
                resolved.settings.membership = membership;
                resolved.settings.bounds = self.bounds.resolve(aws_settings::TAIL_SECONDS);
                aws = Some(resolved);
            }
            ProviderName::Azure => {
                let selections = self.aws.selections()?;
                let resolved = self
                    .azure
                    .resolve(install.clone(), cluster, proxy, switch_tail)?;
                let mut resolved = resolved.taking(selections)?;
                resolved.settings.membership = membership;
                resolved.settings.bounds = self.bounds.resolve(azure_settings::TAIL_SECONDS);
                azure = Some(resolved);
            }
        }
        let endpoint = endpoint(self.local_endpoint, self.provider)?;
        Ok(Config {
            endpoint,
            aws,
            azure,
            local: plan::Settings {
                install: install.clone(),
                switch_tail,
            },
            defaults: Defaults {
                proxy,
                membership: membership.unwrap_or(MembershipPolicy::ZeroDrop),
                bounds: self.bounds.resolve(TAIL_SECONDS),
            },
            kubeconfig: self.kubeconfig,
            settings: reconcile::Settings {
                claim: Claim {
                    classes,
                    classless: match (self.claim_classless, self.provider) {
                        (false, _) => Classless::Ignore,
                        (true, ProviderName::Aws) => Classless::ByAwsAnnotations(kinds),
                        (true, _) => Classless::Claim,
                    },
                    install,
                },
                policies: match &self.policies {
                    Some(text) => Policies::parse(text)?,
                    None => Policies::default(),
                },
                workers: self.workers.max(1),
                sweep: seconds("sweep-seconds", self.sweep_seconds)?,
                second_look: Duration::from_mins(1),
                orphans: if self.delete_orphans {
                    Orphans::Delete
                } else {
                    Orphans::Report
                },
                pod_health: (self.pod_health_port != 0).then_some(PodHealth {
                    port: self.pod_health_port,
                    wait: Duration::from_mins(5),
                }),
                gates: self.extras.gates()?,
                proxy,
                tails: self.bounds.tails(),
                ranges: Ranges {
                    pods: self.pod_cidrs,
                    nodes: self.node_cidrs,
                },
                orphan_grace: seconds("orphan-grace-seconds", self.orphan_grace_seconds)?,
            },
            metrics_address: self.metrics_address,
            secure_metrics: self.secure_metrics,
            health_address: self.health_address,
            webhook: self.extras.webhook(),
            replica: self.election.replica(),
            election: self.election.resolve(&name)?,
            log: self.log,
            seed: self.seed,
        })
    }

    fn install(&self) -> Result<InstallId, ArgsError> {
        match (&self.install_id, &self.cluster_name) {
            (Some(id), _) => Ok(id.as_str().into()),
            (None, Some(cluster)) => Ok(format!("{cluster}-{}", self.provider.word()).into()),
            (None, None) => Err(ArgsError::NoInstallId),
        }
    }
}

fn seconds(flag: &'static str, value: f64) -> Result<Duration, ArgsError> {
    let duration = Duration::try_from_secs_f64(value).ok();
    duration
        .filter(|d| d.as_secs() <= 1_000_000)
        .ok_or(ArgsError::Seconds(flag))
}

/// Where the local cloud answers; with that provider it has to be said.
fn endpoint(given: Option<Url>, provider: ProviderName) -> Result<Option<Url>, ArgsError> {
    let Some(mut endpoint) = given else {
        return match provider {
            ProviderName::Local => Err(ArgsError::NoEndpoint),
            ProviderName::Aws | ProviderName::Azure => Ok(None),
        };
    };
    // Paths are joined to it, which would replace its last part.
    if !endpoint.path().ends_with('/') {
        let path = format!("{}/", endpoint.path());
        endpoint.set_path(&path);
    }
    Ok(Some(endpoint))
}

#[cfg(test)]
mod tests {
    use onehop_core::id::ServiceKey;

    use super::*;
    use crate::cloud::aws::settings::PeerServices;
    use crate::plan::Bounds;

    fn resolve(extra: &[&str]) -> Result<Config, ArgsError> {
        let base = ["onehop-controller", "--provider", "local"];
        Args::try_parse_from(base.iter().chain(extra))
            .unwrap()
            .resolve()
    }

    #[test]
    fn k01_c32_the_providers_class_is_owned_and_nothing_else_unless_told() {
        let endpoint = [
            "--local-endpoint",
            "http://10.0.0.1:9000",
            "--cluster-name",
            "demo",
        ];
        let config = resolve(&endpoint).unwrap();
        let claim = &config.settings.claim;
        assert_eq!(
            claim.classes,
            ["onehop.dev/local".to_owned()].into(),
            "K-01"
        );
        assert_eq!(claim.classless, Classless::Ignore, "K-01");
        assert_eq!(claim.install, "demo-local".into(), "K-02");
        assert_eq!(
            config.endpoint.unwrap().join("v1/groups").unwrap().path(),
            "/v1/groups"
        );
    }

    #[test]
    fn k32_the_installs_membership_policy_reaches_every_provider() {
        let base = ["--cluster-name", "demo", "--membership", "compat"];
        let local = [&base[..], &["--local-endpoint", "http://x"]].concat();
        let defaults = resolve(&local).unwrap().defaults;
        assert_eq!(defaults.membership, MembershipPolicy::Compat, "K-32");
        let aws = [
            "onehop-controller",
            "--provider",
            "aws",
            "--aws-vpc-id",
            "v",
        ];
        let aws = Args::try_parse_from(aws.iter().chain(&base)).unwrap();
        let settings = aws.resolve().unwrap().aws.unwrap().settings;
        assert_eq!(settings.membership, Some(MembershipPolicy::Compat), "K-32");
    }

    #[test]
    fn c52_the_installs_bounds_are_those_of_the_providers_cloud_unless_given() {
        let of = |extra: &[&str]| {
            let local = ["--cluster-name", "demo", "--local-endpoint", "http://x"];
            resolve(&[&local, extra].concat()).unwrap().defaults.bounds
        };
        assert_eq!(of(&[]), Bounds::with_tail(0), "C-52: local");
        assert_eq!(of(&["--tail-max-seconds=9"]), Bounds::with_tail(9), "C-52");
        let aws = [
            "onehop-controller",
            "--provider",
            "aws",
            "--cluster-name",
            "demo",
        ];
        let aws = Args::try_parse_from(aws.iter().chain(&["--aws-vpc-id", "v"]));
        let aws = aws.unwrap().resolve().unwrap().aws.unwrap();
        assert_eq!(aws.settings.bounds, Bounds::with_tail(180), "C-52: aws");
    }

    #[test]
    fn aws001_aws013_aws124_nothing_of_the_peers_is_taken_over_before_it_is_said_to_be_off() {
        let resolve = |extra: &[&str]| {
            let base = ["onehop-controller", "--provider", "aws"];
            let base = base
                .iter()
                .chain(&["--cluster-name", "demo", "--aws-vpc-id", "vpc-1"]);
            Args::try_parse_from(base.chain(extra)).unwrap().resolve()
        };
        let own = resolve(&[]).unwrap().settings.claim;
        assert_eq!(own.classes, ["onehop.dev/aws".to_owned()].into(), "AWS-001");
        assert_eq!(own.classless, Classless::Ignore, "AWS-001");
        let class = ["--load-balancer-class", "service.k8s.aws/nlb"];
        let (off, take) = (
            ["--lbc-service-controller-disabled"],
            ["--take-over", "shop,default/web"],
        );
        for claim in [&class[..], &["--claim-classless"][..]] {
            let of = |extra: &[&str]| {
                resolve(&[claim, extra].concat()).map(|c| c.aws.unwrap().settings.take_over)
            };
            assert_eq!(
                of(&[]).unwrap().peer,
                PeerServices::MayAct,
                "AWS-013: looked at only"
            );
            let refused = of(&take).unwrap_err();
            assert_eq!(refused, ArgsError::Aws(AwsArgsError::PeerActs), "AWS-013");
            let taking = of(&[&off[..], &take[..]].concat()).unwrap();
            assert_eq!(taking.peer, PeerServices::Off, "AWS-013");
            let chosen = |namespace, name| taking.of.has(&ServiceKey::new(namespace, name));
            assert!(chosen("shop", "any") && chosen("default", "web"), "AWS-124");
            assert!(
                !chosen("default", "api") && !chosen("other", "web"),
                "AWS-124"
            );
        }
        let wrong = resolve(&[&class[..], &off[..], &["--take-over", "a/b/c"][..]].concat());
        assert!(wrong.unwrap_err().to_string().contains("a/b/c"), "AWS-124");
    }

    #[test]
    fn what_is_missing_is_named() {
        let endpoint = ["--local-endpoint", "http://x"];
        assert_eq!(resolve(&endpoint).unwrap_err(), ArgsError::NoInstallId);
        assert_eq!(
            resolve(&["--install-id", "i"]).unwrap_err(),
            ArgsError::NoEndpoint
        );
    }
}
