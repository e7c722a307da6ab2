//! Ranges of address pools.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use onehop_core::crd::{AddressPool, AddressRange};
use serde_json::json;

fn range(text: &str) -> AddressRange {
    text.parse().unwrap()
}

#[test]
fn a_range_is_a_cidr_or_two_addresses() {
    let cidr = range("198.51.100.0/30");
    assert_eq!(cidr.to_string(), "198.51.100.0-198.51.100.3");
    assert_eq!((cidr.size(), cidr.iter().count()), (4, 4));
    let pair = range("198.51.100.9 - 198.51.100.10");
    let all: Vec<_> = pair.iter().map(|a| a.to_string()).collect();
    assert_eq!(all, ["198.51.100.9", "198.51.100.10"]);
    assert!(pair.contains("198.51.100.10".parse().unwrap()));
    assert!(!pair.contains("198.51.100.11".parse().unwrap()));
    assert_eq!(range("fd00::/64").size(), 1 << 64);
    assert_eq!(range("::/0").size(), u128::MAX);
}

#[test]
fn ranges_overlap_only_within_a_family() {
    assert!(range("198.51.100.0/24").overlaps(range("198.51.100.255-198.51.101.3")));
    assert!(!range("198.51.100.0/24").overlaps(range("198.51.101.0/24")));
    assert!(!range("0.0.0.0/0").overlaps(range("::/0")));
}

#[test]
fn bad_ranges_are_problems_of_the_pool() {
    let pool: AddressPool = serde_json::from_value(json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "AddressPool", "metadata": { "name": "blue" },
        "spec": { "addresses": [
            "198.51.100.0/24", "198.51.100.9-198.51.100.1", "10.0.0.1-fd00::1", "198.51.100.7",
        ] },
    }))
    .unwrap();
    let (ranges, problems) = pool.spec.ranges();
    assert_eq!((ranges.len(), problems.len()), (1, 3));
    assert!(pool.spec.auto_assign && !pool.spec.avoid_buggy_ips);
}

#[test]
fn c20_buggy_addresses_are_skipped_on_request() {
    let mut spec = AddressPool::new(
        "blue",
        serde_json::from_value(json!({ "addresses": [] })).unwrap(),
    )
    .spec;
    let may = |spec: &onehop_core::crd::AddressPoolSpec| {
        ["198.51.100.0", "198.51.100.255", "198.51.100.7"]
            .map(|a| spec.may_give(a.parse().unwrap()))
    };
    assert_eq!(may(&spec), [true, true, true]);
    spec.avoid_buggy_ips = true;
    assert_eq!(may(&spec), [false, false, true]);
}

#[test]
fn c104_sizes_count_each_address_once_and_know_how_many_are_buggy() {
    let texts = [
        "10.0.0.0/24",
        "10.0.0.128-10.0.1.0",
        "fd00::/120",
        "10.9.0.7-10.9.0.8",
    ];
    let merged = AddressRange::merge(texts.map(range).to_vec());
    let sizes: Vec<_> = merged.iter().map(|r| (r.size(), r.edges())).collect();
    assert_eq!(sizes, [(257, 3), (2, 0), (256, 0)], "C-104");
}

#[test]
fn c17_ranges_that_no_service_can_have_are_problems_of_the_pool() {
    let texts = [
        "0.0.0.0/0",
        "127.0.0.1/32",
        "10.0.0.1-224.0.0.1",
        "255.255.255.255/32",
        "::/0",
        "ff02::1/128",
        "223.255.255.255/32",
        "240.0.0.0/4",
        "fe80::/10",
    ];
    let spec = json!({ "addresses": texts });
    let pool = AddressPool::new("blue", serde_json::from_value(spec).unwrap());
    let (ranges, problems) = pool.spec.ranges();
    let refused: Vec<_> = problems.iter().map(|p| p.text.as_str()).collect();
    // 240.0.0.0/4 ends with the broadcast address.
    let expected = [&texts[..6], &texts[7..8]].concat();
    assert_eq!(refused, expected, "C-17");
    assert_eq!(ranges.len(), 2, "C-17");
}
