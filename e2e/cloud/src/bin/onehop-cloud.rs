//! `./e2e/run cloud`: the local cloud alone, over REST on a loopback address, without packets. For
//! whoever writes a client of it, or wants to see what a controller asks of a cloud.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Event, Profile, What};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use ipnet::IpNet;
use onehop_runtime::clock::Clock;
use tokio::net::TcpListener;

/// A local cloud: load balancers, listeners, groups, targets and an event log over REST, in memory.
///
/// No packet is forwarded: the cloud keeps the books, and answers its own probes. Everything is gone
/// when it ends. The API is under /v1, and what no cloud has (faults, edits behind a client's back)
/// is under /control. docs/local-cloud.md explains both with examples.
#[derive(Debug, Parser)]
#[command(bin_name = "./e2e/run cloud", after_help = EXAMPLES)]
struct Args {
    /// Address to listen on; loopback only, since nothing asks who is calling. Port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:9000", value_parser = loopback)]
    listen: SocketAddr,
    /// Zones, each with one load balancer node.
    #[arg(long, value_delimiter = ',', default_value = "zone-a")]
    zones: Vec<String>,
    /// Networks that frontend addresses must be in; any address if there is none.
    #[arg(long, value_delimiter = ',')]
    ranges: Vec<IpNet>,
    /// What the probes of targets find. With 'up', /control/faults can still fail single targets.
    #[arg(long, value_enum, default_value = "up")]
    targets: Targets,
    /// Seed of every draw; the same calls at the same times give the same log.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many times faster than the wall the cloud's time runs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    speed: u32,
    /// Print the events as they happen, one JSON object a line.
    #[arg(long)]
    events: bool,
}

const EXAMPLES: &str = "Examples, once it runs:
  curl -s -X POST localhost:9000/v1/groups -H 'Idempotency-Key: 1' \\
       -d '{\"name\":\"web\",\"protocol\":\"TCP\",\"mode\":\"node\"}'
  curl -s -X POST localhost:9000/v1/groups/group-000001/targets \\
       -d '{\"targets\":[{\"address\":\"10.0.1.11\",\"port\":30080}]}'
  curl -s localhost:9000/v1/groups/group-000001/targets
  curl -sN 'localhost:9000/v1/events?follow=true'
  curl -s -X PUT localhost:9000/control/faults -d '{\"describeLag\":5}'";

/// What probes find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Targets {
    /// Every target is up.
    Up,
    /// Every target is down.
    Down,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not address:port, for example 127.0.0.1:9000"))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(format!("{} is not a loopback address", address.ip()))
    }
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match run(Args::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(message) => {
            // Standard error that is closed leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "onehop-cloud: {message}");
            std::process::ExitCode::from(2)
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    let clock = Clock::system();
    let listen = args.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        format!("cannot listen on {listen}: {error}; choose another by --listen")
    })?;
    let bound = listener
        .local_addr()
        .map_err(|error| format!("cannot tell the address of the listener: {error}"))?;
    let cloud = Cloud::new(
        Config {
            profile: Profile::local(),
            seed: args.seed,
            scale: Scale::new(clock.now(), args.speed),
            ranges: args.ranges,
        },
        clock,
    );
    let driver = Driver::start(cloud.clone());
    let zones: BTreeSet<_> = args.zones.into_iter().collect();
    for (zone, last) in zones.iter().zip(1..) {
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 9, last));
        let node = VirtualNode::new(move |_| args.targets == Targets::Up);
        driver.attach(zone, address, Arc::new(node));
    }
    say(&format!(
        "local cloud on http://{bound} (zones {}), Ctrl-C ends it",
        zones.into_iter().collect::<Vec<_>>().join(", ")
    ));
    let serve = rest::serve_with_control(cloud.clone(), listener);
    tokio::select! {
        served = serve => served.map_err(|error| format!("the API ended: {error}")),
        () = print_events(cloud, args.events) => Ok(()),
        ended = tokio::signal::ctrl_c() => ended.map_err(|error| format!("no signals: {error}")),
    }
}

async fn print_events(cloud: Cloud, wanted: bool) {
    if !wanted {
        std::future::pending::<()>().await;
    }
    let mut turns = cloud.turns();
    let mut since = 0;
    loop {
        turns.borrow_and_update();
        for event in cloud.events_after(since, usize::MAX) {
            since = event.seq;
            if tells_something(&event) {
                say(&event.line());
            }
        }
        if turns.changed().await.is_err() {
            return;
        }
    }
}

/// Probes that find what was known are the most and the least of the log.
fn tells_something(event: &Event) -> bool {
    !matches!(
        event.what,
        What::Probe { .. } | What::DataPathCommitted { .. }
    )
}

// What is printed here is the program's answer.
#[allow(clippy::print_stdout)]
fn say(line: &str) {
    println!("{line}");
}
