//! What a world leaves behind when it fails: topology, rules, routes and connections of each namespace, packets counted
//! at each hop, what the router dropped, objects, and all event logs on one time axis. Written while the world still
//! stands.

use super::Journal;
use crate::controlplane::Dump;
use e2e_cloud::Cloud;
use e2e_fabric::{Netns, Router};
use e2e_kubelet::PodPlaces;
use serde_json::{Value, json};
use std::{fmt::Write, io, path::Path, process::Command, sync::Arc};

/// Where a report's parts come from.
pub(super) struct Sources {
    pub(super) cloud: Cloud,
    pub(super) journal: Arc<Journal>,
    pub(super) objects: Dump,
    pub(super) namespaces: Vec<Netns>,
    pub(super) router: Router,
    /// What stands where, a line each.
    pub(super) topology: String,
    pub(super) pods: Vec<PodPlaces>,
}

/// What is asked in every namespace. A judge that is not installed leaves its own message instead.
const QUESTIONS: [(&str, &[&str]); 6] = [
    ("addresses", &["ip", "address"]),
    ("rules", &["ip", "rule"]),
    ("routes", &["ip", "route", "show", "table", "all"]),
    ("neighbours", &["ip", "neighbour"]),
    ("ruleset", &["nft", "list", "ruleset"]),
    ("conntrack", &["conntrack", "-L"]),
];

impl Sources {
    /// Writes all files into `folder`.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let mut guide = "enter a namespace while its world lives:\n".to_owned();
        let mut hops =
            "namespace interface packets-in packets-out dropped-in dropped-out\n".to_owned();
        let pods = self.pods.iter().flat_map(PodPlaces::all);
        // Those with the node's own network are there already.
        let known = |netns: &Netns| self.namespaces.iter().any(|n| n.name() == netns.name());
        let pods = pods.map(|(_, netns)| netns).filter(|netns| !known(netns));
        for netns in self.namespaces.iter().cloned().chain(pods) {
            let netns = &netns;
            let name = netns.name();
            hops += &packets(netns);
            // Writing to a String cannot fail.
            let _ = writeln!(guide, "  ip netns exec {name} bash");
            let place = folder.join("namespaces").join(name);
            std::fs::create_dir_all(&place)?;
            for (file, command) in QUESTIONS {
                std::fs::write(place.join(file), ask(netns, command))?;
            }
        }
        std::fs::write(folder.join("README"), guide)?;
        std::fs::write(folder.join("hops"), hops)?;
        std::fs::write(folder.join("topology"), self.topology())?;
        std::fs::write(folder.join("drops.jsonl"), self.drops())?;
        std::fs::write(folder.join("objects.json"), self.objects.objects())?;
        std::fs::write(folder.join("timeline.jsonl"), self.timeline())
    }

    /// What stands where, and by which port of the router each address is reached: nodes, pods, load balancers.
    fn topology(&self) -> String {
        let routes = ask(self.router.netns(), &["ip", "route"]);
        format!(
            "{}\naddresses by port of the router:\n{routes}",
            self.topology
        )
    }

    fn drops(&self) -> String {
        let lines = self.router.drops().into_iter();
        lines.map(|drop| json!(drop).to_string() + "\n").collect()
    }

    /// The cloud's events and the kubelets' in the order of their time.
    fn timeline(&self) -> String {
        let cloud = self.cloud.events_after(0, usize::MAX).into_iter();
        let cloud = cloud.map(|e| (e.wall_time, json!({"source": "cloud", "event": *e})));
        let pods = self.journal.events().into_iter();
        let pods = pods.map(|e| (e.at, json!({"source": "kubelet", "event": e})));
        let mut lines: Vec<(_, Value)> = cloud.chain(pods).collect();
        lines.sort_by_key(|(at, _)| *at);
        lines.iter().fold(String::new(), |mut text, (at, line)| {
            let _ = writeln!(text, "{{\"at\":\"{at}\",{}", &line.to_string()[1..]);
            text
        })
    }
}

/// The packets of each interface of a namespace, a line each.
fn packets(netns: &Netns) -> String {
    // The thread's own view: /proc/self is the main thread's, which lives elsewhere.
    let text = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
    let line = |line: &str| {
        let (interface, counts) = line.split_once(':')?;
        let counts: Vec<&str> = counts.split_whitespace().collect();
        // bytes packets errs drop fifo frame compressed multicast, first received, then sent.
        let [received, lost, sent, unsent] = [1, 3, 9, 11].map(|at| counts.get(at).copied());
        let interface = interface.trim();
        let name = netns.name();
        Some(format!(
            "{name} {interface} {} {} {} {}\n",
            received?, sent?, lost?, unsent?
        ))
    };
    text.unwrap_or_default().lines().filter_map(line).collect()
}

fn ask(netns: &Netns, command: &'static [&str]) -> String {
    let answer = netns.run(move || {
        let (program, args) = command.split_first()?;
        Some(Command::new(program).args(args).output())
    });
    match answer {
        Some(Ok(output)) => {
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        }
        Some(Err(error)) => format!("{}: {error}\n", command.join(" ")),
        None => String::new(),
    }
}
