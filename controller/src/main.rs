//! The binary: flags, logs, client, HTTP, then the controller until it is told to stop.

use std::io::Write;

use anyhow::Context;
use futures::FutureExt;
use onehop_controller::app::{App, Phase};
use onehop_controller::args::{Args, AwsConfig, AzureConfig, Config, Duty, Errand};
use onehop_controller::cloud::aws::{self, Aws};
use onehop_controller::cloud::azure::{self, Azure};
use onehop_controller::cloud::local::Local;
use onehop_controller::cloud::local::client::Client;
use onehop_controller::http;
use onehop_controller::lease::Election;
use onehop_controller::uninstall::{self, UninstallError};
use onehop_controller::webhook::{Times, Webhook};
use onehop_core::id::InstallId;
use onehop_runtime::client::{Options, Requests, connect};
use onehop_runtime::clock::Clock;
use onehop_runtime::log;
use onehop_runtime::metrics::Metrics;
use onehop_runtime::scrape::Scrapes;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (args, foreign) = Args::of_command_line();
    if let Some(errand) = args.errand() {
        // Read by people: no log.
        return around_uninstall(errand?).await;
    }
    let config = args.resolve()?;
    let install = config.settings.claim.install.clone();
    log::init(
        &config.log,
        log::Format::Json,
        ("install", install.as_str()),
    )?;
    for flag in foreign {
        tracing::warn!(
            flag,
            "a flag of aws-load-balancer-controller says nothing here"
        );
    }
    run(config).await
}

async fn around_uninstall(errand: Errand) -> anyhow::Result<()> {
    let options = Options {
        kubeconfig: errand.kubeconfig,
        ..Options::default()
    };
    let requests = Requests::new(&Metrics::default(), Clock::system());
    let client = connect(&options, &requests).await?;
    match errand.duty {
        Duty::Check => uninstall::check(&client, &errand.install).await?,
        Duty::CleanUp => {
            let namespace = errand.lease_namespace;
            let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            let lease = (namespace, errand.lease);
            let clock = Clock::system();
            match uninstall::clean_up(&client, &errand.install, &[lease], clock).await {
                // Without the check before, they may stay on purpose; agents still need to know of their targets.
                Err(UninstallError::StillHeld(held)) => {
                    writeln!(std::io::stderr(), "nothing was removed: {held}")?;
                }
                cleaned => {
                    cleaned?;
                }
            }
        }
    }
    Ok(())
}

async fn run(config: Config) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let (phase, phases) = watch::channel(Phase::default());
    let metrics_port = http::listen(config.metrics_address).await?;
    let health_port = http::listen(config.health_address).await?;
    tokio::spawn(axum::serve(health_port, http::health(phases)).into_future());

    let options = Options {
        kubeconfig: config.kubeconfig,
        ..Options::default()
    };
    let clock = Clock::system();
    let client = connect(&options, &Requests::new(&metrics, clock)).await?;
    if config.secure_metrics {
        let scrapes = Scrapes::new(&config.replica, client.clone(), clock)?;
        let page = metrics.clone();
        tokio::spawn(scrapes.serve(metrics_port, move || page.page()));
    } else {
        tokio::spawn(axum::serve(metrics_port, http::metrics(metrics.clone())).into_future());
    }
    let install = config.settings.claim.install.clone();
    let started = clock.now().as_millis().unsigned_abs();
    // Not from the seed, which two replicas may share.
    let caller = format!("{}_{started:x}{:x}", config.replica, std::process::id());
    let drawn = started ^ u64::from(std::process::id());
    let seed = config.seed.unwrap_or(drawn);
    let given = config.election.as_ref().and_then(|e| e.namespace.clone());
    let namespace = given.unwrap_or_else(|| client.default_namespace().to_owned());
    let election = config.election.map(|election| Election {
        namespace: namespace.clone(),
        identity: caller.clone(),
        name: election.name,
        timing: election.timing,
    });
    let webhook = match config.webhook {
        Some((name, address)) => Some(Webhook {
            listener: http::listen(address).await?,
            namespace,
            name,
            times: Times::default(),
        }),
        None => None,
    };
    let app = App {
        provider: (),
        client,
        clock,
        seed,
        settings: config.settings,
        metrics,
        election,
        webhook,
    };
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopper.cancel();
    });
    tracing::info!(seed, "starting");
    // Each on the heap: the futures of the AWS client are deep.
    if let Some(aws) = config.aws {
        return on_aws(app, aws, install, stop, phase).boxed().await;
    }
    if let Some(azure) = config.azure {
        return on_azure(app, azure, &caller, stop, phase).boxed().await;
    }
    let endpoint = config.endpoint.context("provider local: no endpoint")?;
    let cloud = Client::new(endpoint, install, &caller).context("provider local")?;
    let app = app.over(Local::new(cloud, config.local, config.defaults));
    app.run(stop, phase).boxed().await?;
    Ok(())
}

async fn on_aws(
    app: App<()>,
    aws: AwsConfig,
    install: InstallId,
    stop: CancellationToken,
    phase: watch::Sender<Phase>,
) -> anyhow::Result<()> {
    let cluster = aws.settings.cluster.clone();
    let connected = aws::client::Client::connect(aws.access, install, cluster, app.clock)
        .boxed()
        .await;
    let provider = Aws::new(connected.context("provider aws")?, aws.settings);
    app.over(provider).run(stop, phase).boxed().await?;
    Ok(())
}

async fn on_azure(
    app: App<()>,
    azure: AzureConfig,
    caller: &str,
    stop: CancellationToken,
    phase: watch::Sender<Phase>,
) -> anyhow::Result<()> {
    for note in &azure.notes {
        tracing::warn!("{note}");
    }
    let client =
        azure::client::Client::new(azure.access, azure.settings.clone(), app.clock, caller);
    let client = client.context("provider azure")?;
    let client = client.with_leases(app.client.clone());
    let client = client.with_metrics(&app.metrics);
    let provider = Azure::new(client, azure.settings);
    app.over(provider).run(stop, phase).boxed().await?;
    Ok(())
}
