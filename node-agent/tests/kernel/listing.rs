//! The whole of both tables as `nft` shows it (S-202, S-204).

use onehop_node_agent::commit::Features;

use crate::world::{guarded, in_namespace, nft, options, representative};
use crate::{load, open_with};

fn list(beside: bool) -> String {
    let options = onehop_node_agent::table::layout::Options {
        beside_kube_proxy: beside,
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..options()
    };
    let mut kernel = open_with(&options, Features::detect());
    let mut all = representative();
    all.extend(guarded());
    load(&mut kernel, &all);
    nft(&["-j", "list", "ruleset"]);
    assert_eq!(
        nft(&["list", "tables"]),
        "table ip onehop\ntable ip6 onehop\n"
    );
    // The owner's program name differs from run to run, and so does what is left of a life time.
    let steady = |line: &str| {
        let line = line.split(" # progname").next().unwrap_or(line);
        let mut words = line.split(' ').peekable();
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            if word == "expires" {
                let end = words.next().unwrap_or_default();
                kept.extend(end.ends_with(',').then_some(","));
            } else {
                kept.push(word);
            }
        }
        kept.join(" ") + "\n"
    };
    nft(&["list", "ruleset"]).lines().map(steady).collect()
}

#[test]
fn s202_a_populated_ruleset_is_listable() {
    in_namespace(|| insta::assert_snapshot!("beside", list(true)));
}

#[test]
fn s128_s26_alone_the_checks_stand_at_0_and_the_service_range_is_closed() {
    in_namespace(|| {
        let (beside, alone) = (list(true), list(false));
        let new = |line: &&str| !beside.contains(*line);
        let added: Vec<&str> = alone.lines().filter(new).map(str::trim).collect();
        assert_eq!(
            added,
            [
                "ip daddr @other-cluster-ips return",
                "ip daddr 10.96.0.0/16 drop",
                "type filter hook input priority filter; policy accept;",
                "type filter hook forward priority filter; policy accept;",
                "type filter hook output priority filter; policy accept;",
                "type filter hook input priority filter; policy accept;",
                "type filter hook forward priority filter; policy accept;",
                "type filter hook output priority filter; policy accept;",
            ]
        );
        assert!(
            beside.contains("hook forward priority -115;")
                && beside.contains("hook output priority -95;")
        );
    });
}
