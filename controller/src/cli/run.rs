//! Reads, prints, and writes the one annotation.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use onehop_core::crd::{LoadBalancer, RELEASE_ANNOTATION};
use onehop_runtime::client::{ClientError, Options, Requests, connect};
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Cli, Finding, Output, State, Verb, Which, leave, preflight, release};
use crate::uninstall::UninstallError;

/// Objects of one list call.
const PAGE: u32 = 500;
/// Between two looks at what the controller says.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Why it cannot be told or done.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The API server cannot be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It refused, or did not answer.
    #[error("cannot {tried}: {source}")]
    Api {
        /// What was tried.
        tried: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// A Service that was named is not there.
    #[error("there is no Service {0}")]
    NoService(String),
    /// Names and all namespaces exclude each other.
    #[error("a Service is named in one namespace: give -n instead of -A")]
    NamedEverywhere,
    /// What an install has left cannot be removed.
    #[error(transparent)]
    Uninstall(#[from] UninstallError),
    /// The output cannot be written.
    #[error("cannot print: {0}")]
    Print(#[from] std::io::Error),
    /// The findings cannot be written as JSON.
    #[error("cannot print: {0}")]
    Json(#[from] serde_json::Error),
}

pub(super) fn failed(tried: impl Into<String>) -> impl FnOnce(kube::Error) -> CliError {
    let tried = tried.into();
    |source| CliError::Api {
        tried,
        source: Box::new(source),
    }
}

/// A Service with our object of its name.
pub(super) type Pair = (Service, Option<LoadBalancer>);

/// Carries out a command line; the answer is whether all is well.
pub async fn run(cli: Cli, out: &mut (impl Write + Send)) -> Result<bool, CliError> {
    match cli.verb {
        Verb::Preflight { which } => {
            let client = client(&which).await?;
            let found = chosen(&client, &which, preflight::concerns).await?;
            let findings: Vec<_> = found
                .iter()
                .map(|(s, o)| preflight::judge(s, o.as_ref()))
                .collect();
            print(
                out,
                which.output,
                &findings,
                "No Service of aws-load-balancer-controller.",
            )?;
            Ok(is_well(&findings))
        }
        Verb::Uninstall {
            which,
            install_id,
            how,
            yes,
            timeout,
        } => {
            let client = client(&which).await?;
            let install = install_id.as_str().into();
            let end = leave::End {
                client,
                which,
                install,
                how,
            };
            end.run(yes, timeout, out).await
        }
        Verb::Release {
            which,
            yes,
            timeout,
        } => {
            let client = client(&which).await?;
            let found = chosen(&client, &which, release::concerns).await?;
            let judge = |(s, o): &Pair| release::judge(s, o.as_ref());
            let mut findings: Vec<_> = found.iter().map(judge).collect();
            if yes {
                let ready = found
                    .iter()
                    .zip(&findings)
                    .filter(|(_, f)| f.state == State::Ready);
                for ((service, _), _) in ready {
                    ask(&client, service).await?;
                }
                findings = wait(&client, &found, findings, timeout).await?;
            }
            print(
                out,
                which.output,
                &findings,
                "No Service that was taken over.",
            )?;
            if !yes
                && which.output == Output::Text
                && findings.iter().any(|f| f.state == State::Ready)
            {
                writeln!(out, "Nothing was done: give --yes to do it.")?;
            }
            let done = |f: &Finding| f.state == State::GivenBack || timeout == 0;
            Ok(is_well(&findings) && (!yes || findings.iter().all(done)))
        }
    }
}

pub(super) fn is_well(findings: &[Finding]) -> bool {
    let bad = |f: &Finding| matches!(f.state, State::Stopped | State::Held);
    !findings.iter().any(bad)
}

async fn client(which: &Which) -> Result<Client, CliError> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    let options = Options {
        kubeconfig: which.kubeconfig.clone().or_else(home),
        context: which.context.clone(),
        ..Options::default()
    };
    let requests = Requests::new(&Metrics::default(), Clock::system());
    Ok(connect(&options, &requests).await?)
}

/// The Services that were named, or all that are concerned.
pub(super) async fn chosen(
    client: &Client,
    which: &Which,
    concerns: impl Fn(&Service, Option<&LoadBalancer>) -> bool,
) -> Result<Vec<Pair>, CliError> {
    if which.all_namespaces && !which.services.is_empty() {
        return Err(CliError::NamedEverywhere);
    }
    let namespace = which.namespace.as_deref().unwrap_or("default");
    let mut found = Vec::new();
    if !which.services.is_empty() {
        for name in &which.services {
            let service = Api::<Service>::namespaced(client.clone(), namespace);
            let key = format!("{namespace}/{name}");
            let service = service
                .get_opt(name)
                .await
                .map_err(failed(format!("read Service {key}")))?;
            let service = service.ok_or_else(|| CliError::NoService(key))?;
            found.push(with_object(client, service).await?);
        }
        return Ok(found);
    }
    let services: Vec<Service> = all(client, which, "list Services").await?;
    let objects: Vec<LoadBalancer> = all(client, which, "list LoadBalancers").await?;
    let place = |namespace: Option<String>, name: String| (namespace.unwrap_or_default(), name);
    let mut objects: BTreeMap<_, _> = objects
        .into_iter()
        .map(|o| (place(o.namespace(), o.name_any()), o))
        .collect();
    let pair = |service: Service| {
        let object = objects.remove(&place(service.namespace(), service.name_any()));
        (service, object)
    };
    let pairs = services.into_iter().map(pair);
    Ok(pairs
        .filter(|(service, object)| concerns(service, object.as_ref()))
        .collect())
}

pub(super) async fn with_object(client: &Client, service: Service) -> Result<Pair, CliError> {
    let namespace = service.namespace().unwrap_or_default();
    let objects = Api::<LoadBalancer>::namespaced(client.clone(), &namespace);
    let tried = format!("read LoadBalancer {namespace}/{}", service.name_any());
    let object = match objects.get_opt(&service.name_any()).await {
        // Without the object type there is no such object.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        object => object.map_err(failed(tried))?,
    };
    Ok((service, object))
}

/// Every object of a kind, page by page.
async fn all<K>(client: &Client, which: &Which, tried: &str) -> Result<Vec<K>, CliError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let namespace = which.namespace.as_deref().unwrap_or("default");
    let api: Api<K> = if which.all_namespaces {
        Api::all(client.clone())
    } else {
        Api::namespaced(client.clone(), namespace)
    };
    let (mut found, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(found),
            page => page.map_err(failed(tried))?,
        };
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// Asks the controller to give one back.
async fn ask(client: &Client, service: &Service) -> Result<(), CliError> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let objects = Api::<LoadBalancer>::namespaced(client.clone(), &namespace);
    let body = json!({ "metadata": { "annotations": { RELEASE_ANNOTATION: Clock::system().now().to_string() } } });
    let asked = objects
        .patch(&name, &PatchParams::default(), &Patch::Merge(body))
        .await;
    let tried = format!("annotate LoadBalancer {namespace}/{name}");
    asked.map(drop).map_err(failed(tried))
}

/// Waits until the controller has given all of them back, or says why it does not.
async fn wait(
    client: &Client,
    asked: &[Pair],
    mut findings: Vec<Finding>,
    timeout: u32,
) -> Result<Vec<Finding>, CliError> {
    let clock = Clock::system();
    let deadline = clock.now() + Duration::from_secs(timeout.into());
    let ends = |f: &Finding| matches!(f.state, State::GivenBack | State::Stopped);
    while timeout > 0 && !findings.iter().all(ends) && clock.now() < deadline {
        clock.sleep(POLL).await;
        for ((service, _), finding) in asked.iter().zip(&mut findings).filter(|(_, f)| !ends(f)) {
            let services = Api::<Service>::namespaced(client.clone(), &finding.namespace);
            let tried = format!("read Service {}/{}", finding.namespace, finding.name);
            let now = services
                .get(&service.name_any())
                .await
                .map_err(failed(tried))?;
            let (now, object) = with_object(client, now).await?;
            *finding = release::judge(&now, object.as_ref());
            if finding.state == State::Ready {
                finding.state = State::UnderWay;
            }
        }
    }
    Ok(findings)
}

pub(super) fn print(
    out: &mut impl Write,
    output: Output,
    findings: &[Finding],
    none: &str,
) -> Result<(), CliError> {
    if output == Output::Json {
        serde_json::to_writer_pretty(&mut *out, findings)?;
        writeln!(out)?;
        return Ok(());
    }
    if findings.is_empty() {
        writeln!(out, "{none}")?;
    }
    for finding in findings {
        writeln!(
            out,
            "{}/{}: {}",
            finding.namespace,
            finding.name,
            finding.state.as_str()
        )?;
        for (number, step) in (1..).zip(&finding.steps) {
            writeln!(out, "  {number}. {step}")?;
        }
        for difference in &finding.differences {
            writeln!(out, "  differs: {difference}")?;
        }
        for why in &finding.stopped_by {
            writeln!(out, "  stopped by: {why}")?;
        }
    }
    Ok(())
}
