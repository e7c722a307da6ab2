//! `./e2e/run cloud`: the fake cloud alone, by its own REST API or by AWS's, on a loopback address and without
//! packets. For whoever writes a client of it, wants to see what a controller asks of a cloud, or judges its answers.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use e2e_cloud::aws::{Aws, Machine, Setup, SubnetSetup};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Event, Profile, What};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use ipnet::{IpNet, Ipv4Net};
use onehop_runtime::clock::Clock;
use tokio::net::TcpListener;

/// A local cloud: load balancers, listeners, groups, targets and an event log over REST, in memory.
///
/// No packet is forwarded: the cloud keeps the books, and answers its own probes. Everything is gone
/// when it ends. The API is under /v1, and what no cloud has (faults, edits behind a client's back)
/// is under /control. docs/local-cloud.md explains both with examples. With --api aws it is an AWS
/// account instead: EC2 and ELB (Network Load Balancers) for any AWS client that is given the endpoint.
#[derive(Debug, Parser)]
#[command(bin_name = "./e2e/run cloud", after_help = EXAMPLES)]
struct Args {
    /// Address to listen on; loopback only, since nothing asks who is calling. Port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:9000", value_parser = loopback)]
    listen: SocketAddr,
    /// Whose API it speaks.
    #[arg(long, value_enum, default_value = "local")]
    api: Api,
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

/// An API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// The local cloud's own.
    Local,
    /// EC2 and ELB of AWS.
    Aws,
}

/// The access key of the account of `--api aws`, its secret, and its region.
const KEY: (&str, &str, &str) = (
    "AKIDEXAMPLE",
    "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "eu-central-1",
);

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
            profile: match args.api {
                Api::Local => Profile::local(),
                Api::Aws => Profile::nlb(),
            },
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
    let zones: Vec<String> = zones.into_iter().collect();
    let names = zones.join(", ");
    let cloud_of_api = cloud.clone();
    let serve = async move {
        match args.api {
            Api::Local => {
                say(&format!(
                    "local cloud on http://{bound} (zones {names}), Ctrl-C ends it"
                ));
                rest::serve_with_control(cloud_of_api, listener).await
            }
            Api::Aws => {
                say(&format!(
                    "aws on http://{bound} (zones {names}), Ctrl-C ends it"
                ));
                say(&format!(
                    "  export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={} AWS_DEFAULT_REGION={} AWS_ENDPOINT_URL=http://{bound}",
                    KEY.0, KEY.1, KEY.2
                ));
                Aws::new(cloud_of_api, account(&zones))
                    .serve(listener)
                    .await
            }
        }
    };
    tokio::select! {
        served = serve => served.map_err(|error| format!("the API ended: {error}")),
        () = print_events(cloud, args.events) => Ok(()),
        ended = tokio::signal::ctrl_c() => ended.map_err(|error| format!("no signals: {error}")),
    }
}

/// An account with a VPC, in each zone a subnet and a machine, and the security group of the machines.
fn account(zones: &[String]) -> Setup {
    let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let roles = ["kubernetes.io/role/elb", "kubernetes.io/role/internal-elb"];
    let numbered = || zones.iter().zip(1_u8..);
    let subnet = |(zone, n): (&String, u8)| SubnetSetup {
        id: format!("subnet-{n:017x}"),
        zone: zone.clone(),
        range: Ipv4Net::new_assert(Ipv4Addr::new(10, 0, n, 0), 24),
        tags: roles.map(|role| tag(role, "1")).into(),
    };
    let machine = |(zone, n): (&String, u8)| Machine {
        id: format!("i-{n:017x}"),
        address: Ipv4Addr::new(10, 0, n, 11).into(),
        zone: zone.clone(),
        security_groups: Vec::new(),
    };
    let of_nodes = [tag("kubernetes.io/cluster/e2e", "owned")];
    Setup {
        region: KEY.2.to_owned(),
        keys: [tag(KEY.0, KEY.1)].into(),
        vpc: "vpc-00000000000000001".to_owned(),
        ranges: vec![Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 16).into()],
        subnets: numbered().map(subnet).collect(),
        machines: numbered().map(machine).collect(),
        security_groups: [("sg-00000000000000001".to_owned(), of_nodes.into())].into(),
        addresses: Ipv4Net::new_assert(Ipv4Addr::new(198, 51, 100, 128), 25),
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
