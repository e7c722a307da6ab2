//! How pools stand.

use serde_json::json;

use super::*;

#[test]
fn c28_of_overlapping_pools_the_newest_is_in_conflict_and_gives_nothing_new() {
    let old = born(ranked("z-old", 2, &["10.0.0.1-10.0.0.2"]), 1);
    let new = born(ranked("a-new", 1, &["10.0.0.2-10.0.0.9"]), 2);
    let newest = born(plain("b-newest", &["10.0.0.9/32"]), 3);
    let pools = [newest, new, old];
    let mut book = AddressBook::default();
    svc("held").restored("10.0.0.5", &mut book).unwrap();
    assert_eq!(
        svc("held").given(&pools, &mut book),
        ips(&["10.0.0.5"]),
        "C-28, C-24"
    );
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.1"]),
        "C-28: despite its priority"
    );
    let told = svc("y").pool("a-new").refused(&pools, &mut book);
    assert_eq!(
        told,
        "AddressPool \"a-new\" gives no address: it overlaps the older pool \"z-old\""
    );
    let statuses = Pools::read(&pools).statuses(&book);
    let conflicts = ["z-old", "a-new", "b-newest"].map(|name| statuses[name].conflict.as_deref());
    assert_eq!(conflicts, [None, Some("z-old"), None], "C-28");
    assert_eq!(
        (statuses["a-new"].assigned, statuses["a-new"].available),
        (1, 0),
        "C-104"
    );
}

#[test]
fn c104_pool_status_counts_what_is_assigned_and_what_is_left() {
    let pools = [
        pool(
            "a",
            &["10.0.0.0/24", "10.0.0.128/25"],
            json!({ "avoidBuggyIPs": true }),
        ),
        plain("six", &["fd00::/8"]),
    ];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    let statuses = Pools::read(&pools).statuses(&book);
    assert_eq!(
        (statuses["a"].assigned, statuses["a"].available),
        (1, 253),
        "C-104"
    );
    assert_eq!(
        (statuses["six"].assigned, statuses["six"].available),
        (0, i64::MAX),
        "C-104"
    );
}

#[test]
fn c17_what_of_a_pool_cannot_be_read_is_left_out_and_said_in_its_status() {
    let selectors = json!([
        { "matchExpressions": [{ "key": "team", "operator": "Near", "values": ["red"] }] },
        { "matchLabels": { "team": "blue" } },
    ]);
    let extra = json!({ "serviceAllocation": { "namespaceSelectors": selectors } });
    let ranges = ["10.0.0.9-10.0.0.1", "10.1.0.1/32", "web", "10.2.0.0/33"];
    let pools = [pool("a", &ranges, extra)];
    let mut book = AddressBook::default();
    let mut blue = svc("blue");
    blue.namespace_labels = label("team", "blue");
    assert_eq!(
        blue.given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "C-17: the rest serves"
    );
    assert!(
        svc("red").place(&pools, &mut book).refused.is_some(),
        "C-17: selects nothing"
    );
    let status = &Pools::read(&pools).statuses(&book)["a"];
    assert_eq!(status.problems.len(), 4, "C-17: {:?}", status.problems);
    assert!(
        status.problems[0].contains("10.0.0.9-10.0.0.1"),
        "C-17: {:?}",
        status.problems
    );
    assert!(
        status.problems[3].starts_with("serviceAllocation.namespaceSelectors: "),
        "{:?}",
        status.problems
    );
}

#[test]
fn c110_size_and_use_of_pools_by_family() {
    let pools = [
        born(plain("a", &["10.0.0.0/24", "fd00::/126"]), 1),
        born(plain("b", &["10.0.0.128-10.0.1.0"]), 2),
    ];
    let mut book = AddressBook::default();
    svc("x").families(&BOTH).given(&pools, &mut book);
    svc("held").restored("192.0.2.1", &mut book).unwrap();
    let by_family = Pools::read(&pools).in_use(&book);
    assert_eq!(by_family[&IpFamily::V4], (257, 1), "C-110");
    assert_eq!(by_family[&IpFamily::V6], (4, 1), "C-110");
}
