//! Hooks that exist only while something needs them: what no packet needs costs no packet anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use onehop_core::time::Time;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::table::element::{Dataplane, ElementChange, Elements};

use crate::load;
use crate::world::{guarded, in_namespace, nft, options, representative, service};

const ON_DEMAND: [&str; 7] = [
    "restore-output",
    "restore-prerouting",
    "guard-dead",
    "guard-refusals",
    "affinity-forward",
    "affinity-input",
    "affinity-output",
];

/// The base chains of the family IPv4.
fn hooks() -> Vec<String> {
    let text = nft(&["list", "table", "ip", "onehop"]);
    let mut chain = "";
    let mut hooks = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {");
        } else if line.starts_with("type ") && line.contains(" hook ") {
            hooks.push(chain.to_owned());
        }
    }
    hooks
}

/// A flow of a Service without affinity on a node with one uplink and without targets meets, beside NAT with its first
/// packet, one rule where it comes in and one where it is passed on, as it does with kube-proxy (section 12.5).
#[test]
fn ordinary_flows_pass_the_checks_of_new_connections_and_nothing_else() {
    in_namespace(|| {
        let mut kernel = crate::open();
        load(&mut kernel, &service("10.96.0.1", &["10.244.1.1"]));
        let mut hooks = hooks();
        hooks.sort();
        assert_eq!(
            hooks,
            [
                "filter-forward",
                "filter-input",
                "filter-output",
                "filter-output-pre-dnat",
                "filter-prerouting-pre-dnat",
                "nat-output",
                "nat-postrouting",
                "nat-prerouting",
            ]
        );
    });
}

/// With the first element that needs one a hook comes, in one transaction with it; with the last one it goes. A restart
/// and a change of the layout find what is needed by themselves.
#[test]
fn s402_s405_s414_s237_hooks_come_and_go_with_what_needs_them() {
    in_namespace(|| {
        let millis = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&millis);
        let open = || {
            let clock = Arc::clone(&clock);
            let now = Box::new(move || Time::from_millis(clock.load(Ordering::Relaxed)));
            Kernel::open(&options(), Features::detect(), now).unwrap()
        };
        let demanded = || {
            let mut there = hooks();
            there.retain(|name| ON_DEMAND.contains(&name.as_str()));
            there.sort();
            there
        };
        let mut all = representative();
        all.extend(guarded());
        let mut kernel = open();
        load(&mut kernel, &all);
        let mut expected = ON_DEMAND;
        expected.sort_unstable();
        assert_eq!(demanded(), expected);
        // After a restart they are known, so the last element still takes them along.
        drop(kernel);
        let mut kernel = open();
        let held = kernel.read_back().unwrap().unwrap();
        // What is left of a life time differs.
        assert!(held.keys().eq(all.keys()));
        assert_eq!(demanded(), expected, "a restart changes none");
        kernel
            .commit(&ElementChange::between(&all, &Elements::new()))
            .unwrap();
        // Each second at the latest one goes that others needed.
        while kernel.idle().unwrap() {
            millis.fetch_add(1_000, Ordering::Relaxed);
        }
        assert_eq!(demanded(), [""; 0], "none is needed");
        kernel
            .commit(&ElementChange::between(&Elements::new(), &all))
            .unwrap();
        assert_eq!(demanded(), expected, "and again");
        // One that somebody else deleted is made again.
        drop(kernel);
        nft(&["delete", "chain", "ip", "onehop", "affinity-input"]);
        let mut kernel = open();
        let held = kernel.read_back().unwrap().unwrap();
        assert!(held.keys().eq(all.keys()));
        assert_eq!(demanded(), expected);
    });
}
