//! The Kubernetes client: from a kubeconfig or from inside the cluster, with time-outs of ours.
//!
//! kube's own retries are off: they may hold one call for minutes, which no caller expects. Who
//! calls decides whether and when to try again.

mod requests;

use std::path::PathBuf;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::timeout::TimeoutLayer;

pub use self::requests::Requests;

/// Time for a connection, and time in which an answer must begin. Watches are bounded by their own
/// time-out: their answer begins at once and then goes on.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);

/// Where the API server is and who we are.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A kubeconfig file; without one we are in a cluster's pod.
    pub kubeconfig: Option<PathBuf>,
    /// The context to use of it instead of the current one.
    pub context: Option<String>,
    /// The server's URL, if not the one found there: the agent as the only service proxy cannot use
    /// the address that it has yet to program (crd.md section 8).
    pub server: Option<http::Uri>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("cannot use kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// There is no kubeconfig and this is no pod.
    #[error("no kubeconfig was given and this does not look like a pod of a cluster: {0}")]
    InCluster(#[from] InClusterError),
    /// The settings make no client.
    #[error("cannot set up the client for the API server: {0}")]
    Setup(#[from] Box<kube::Error>),
}

/// A client by these options, whose requests are noted. Does not connect yet.
pub async fn connect(options: &Options, requests: &Requests) -> Result<Client, ClientError> {
    let mut config = match &options.kubeconfig {
        Some(path) => from_file(path, options.context.clone())
            .await
            .map_err(|source| ClientError::Kubeconfig {
                path: path.clone(),
                source: Box::new(source),
            })?,
        None => Config::incluster()?,
    };
    if let Some(server) = &options.server {
        config.cluster_url = server.clone();
    }
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    let builder = ClientBuilder::try_from(config).map_err(Box::new)?;
    let builder = builder.with_layer(&TimeoutLayer::new(ANSWER));
    Ok(builder.with_layer(requests).build())
}

async fn from_file(path: &PathBuf, context: Option<String>) -> Result<Config, KubeconfigError> {
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await
}
