//! `kubectl onehop`: what people ask of a running install, by the API server alone. The controller acts; this asks it to,
//! and says what it says.
//!
//! Judgements are pure (`preflight`, `release`, `removal`); `run` reads, prints and writes one annotation of our own
//! objects; `leave` lets go what an install holds, and only where it is told to.

mod leave;
pub mod preflight;
pub mod release;
pub mod removal;
mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde::Serialize;

use crate::cloud::aws::PEER_FINALIZER;
use crate::cloud::azure::takeover::FINALIZER as AZURE_FINALIZER;

pub use run::{CliError, run};

/// Take-overs from aws-load-balancer-controller and cloud-provider-azure, and the way back; the end of an install.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-onehop",
    bin_name = "kubectl onehop",
    version,
    after_help = "Exit codes: 0 all is well; 1 a Service is stopped or refused, or the wait was too long; 2 it cannot be told."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Say, for each Service of the cloud's other controller, what a take-over would do and what would stop it. Writes
    /// nothing.
    Preflight {
        /// Which Services.
        #[command(flatten)]
        which: Which,
    },
    /// Give load balancers back to the cloud's other controller: what is ours is taken off, the load balancers stay.
    /// Only told without --yes.
    Release {
        /// Which Services.
        #[command(flatten)]
        which: Which,
        /// Do it.
        #[arg(long)]
        yes: bool,
        /// Seconds to wait for the controller; 0 to ask only.
        #[arg(long, default_value_t = 300)]
        timeout: u32,
    },
    /// Say which Services hold load balancers of an install, so that it cannot be uninstalled, and let them go. Only told
    /// without --yes.
    Uninstall {
        /// Which Services.
        #[command(flatten)]
        which: Which,
        /// The install that is to go, as the chart's notes name it.
        #[arg(long)]
        install_id: String,
        /// How they go. Without it, they are only named.
        #[arg(long, value_enum)]
        how: Option<How>,
        /// Do it.
        #[arg(long, requires = "how")]
        yes: bool,
        /// Seconds to wait for the controller; 0 to ask only.
        #[arg(long, default_value_t = 300)]
        timeout: u32,
    },
}

/// How Services are let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// The Services are deleted: the controller, which has to run, removes their load balancers.
    Delete,
    /// They get type ClusterIP: likewise, but they stay.
    Convert,
    /// Our finalizers are taken off, once the controller is gone: load balancers stay in the cloud with their tags, and a
    /// controller of the same install id takes them up again.
    Keep,
}

/// Which Services, and how to reach and print them.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Names of Services; all that are concerned if none is given.
    pub services: Vec<String>,
    /// Their namespace; `default` if not given.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// In all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Kubeconfig; $KUBECONFIG or ~/.kube/config if not given.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    pub context: Option<String>,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What is said of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// How it stands, in one word.
    pub state: State,
    /// What is, or would be, done, in order.
    pub steps: Vec<String>,
    /// What the other program has otherwise.
    pub differences: Vec<String>,
    /// What stops it.
    pub stopped_by: Vec<String>,
}

impl Finding {
    /// Nothing is known of it yet.
    fn of(service: &Service) -> Self {
        Self {
            namespace: service.namespace().unwrap_or_default(),
            name: service.name_any(),
            state: State::Stopped,
            steps: Vec::new(),
            differences: Vec::new(),
            stopped_by: Vec::new(),
        }
    }
}

/// How a Service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// It can be taken over, or given back.
    Ready,
    /// Something stops it.
    Stopped,
    /// It is under way.
    UnderWay,
    /// It is ours: nothing is left to do.
    TakenOver,
    /// It is the other program's again: nothing is left to do.
    GivenBack,
    /// It holds a load balancer.
    Held,
    /// It holds nothing: nothing is left to do.
    LetGo,
}

impl State {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Stopped => "stopped",
            Self::UnderWay => "under way",
            Self::TakenOver => "taken over",
            Self::GivenBack => "given back",
            Self::Held => "held",
            Self::LetGo => "let go",
        }
    }
}

/// Class of the other program.
const PEER_CLASS: &str = "service.k8s.aws/nlb";

fn has(service: &Service, finalizer: &str) -> bool {
    service.finalizers().iter().any(|f| f == finalizer)
}

/// Whether it has the finalizer of another program.
fn is_theirs(service: &Service) -> bool {
    has(service, PEER_FINALIZER) || has(service, AZURE_FINALIZER)
}

fn class(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.load_balancer_class.as_deref()
}
