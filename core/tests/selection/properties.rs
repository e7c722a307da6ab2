//! The six properties (S-330), for endpoints in any state, with hints of any kind, in any slices.

use onehop_core::endpoint::{Conditions, Endpoint, Hints};
use onehop_core::id::{NodeName, Zone};
use onehop_core::select::{Here, Policies, Selection, Traffic, select};
use onehop_core::service::TrafficPolicy::{Cluster, Local};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select as one_of, subsequence};
use serde_json::Value;

use crate::support::{here, merge, of_port, slice, word};

const NODES: &[&str] = &["n1", "n2", "n3"];
const ZONES: &[&str] = &["a", "b", "c"];

prop_compose! {
    fn endpoints()(
        all in vec((any::<(bool, bool, bool)>(), proptest::option::of(one_of(NODES)), hints(ZONES), hints(NODES)), 0..7),
    ) -> Vec<Endpoint> {
        let numbered = all.into_iter().enumerate();
        numbered.map(|(n, ((ready, serving, terminating), node, zones, nodes))| Endpoint {
            address: format!("10.244.0.{}", n + 1).parse().unwrap(),
            port: 8080,
            nodes: node.map(NodeName::new).into_iter().collect(),
            zone: None,
            hints: Hints {
                zones: zones.into_iter().map(Zone::new).collect(),
                nodes: nodes.into_iter().map(NodeName::new).collect(),
            },
            conditions: Conditions { ready, serving, terminating },
            pod: None,
        }).collect()
    }
}

/// Mostly some, or hints would nearly always be off.
fn hints(names: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    prop_oneof![1 => Just(vec![]), 6 => subsequence(names, 1..=2)]
}

fn policies() -> impl Strategy<Value = Policies> {
    let policy = || one_of(&[Cluster, Local][..]);
    (policy(), proptest::option::of(policy()))
        .prop_map(|(internal, external)| Policies { internal, external })
}

fn heres() -> impl Strategy<Value = Here> {
    proptest::option::of(one_of(ZONES)).prop_map(here)
}

/// Ready, or serving and terminating (S-40).
fn is_usable(endpoint: &Endpoint) -> bool {
    let Conditions {
        ready,
        serving,
        terminating,
    } = endpoint.conditions;
    ready || (serving && terminating)
}

/// Section 4 of the specification, from the endpoints alone.
fn model(
    policies: Policies,
    endpoints: &[Endpoint],
    here: &Here,
    of: Traffic,
) -> Option<&'static str> {
    let policy = match of {
        Traffic::Internal => policies.internal,
        Traffic::ExternalFromOutside => policies.external?,
        Traffic::ExternalFromInside => policies.external.map(|_| Cluster)?,
    };
    let usable: Vec<_> = endpoints.iter().filter(|e| is_usable(e)).collect();
    Some(match policy {
        _ if usable.is_empty() => "reject",
        Cluster => "serve",
        Local if usable.iter().any(|e| e.nodes.contains(&here.node)) => "serve",
        Local => "drop",
    })
}

proptest! {
    #[test]
    fn s330_all_is_the_union_of_both_lists(
        policies in policies(), endpoints in endpoints(), here in heres(),
    ) {
        let selection = select(policies, &endpoints, &here);
        let both = [&selection.cluster, &selection.local].into_iter().flatten().flatten();
        let mut union: Vec<_> = both.copied().collect();
        union.sort_by_key(|e| e.address);
        union.dedup();
        prop_assert_eq!(selection.all(), union);
    }

    #[test]
    fn s330_the_local_list_has_only_local_endpoints(
        policies in policies(), endpoints in endpoints(), here in heres(),
    ) {
        let selection = select(policies, &endpoints, &here);
        prop_assert!(selection.local.iter().flatten().all(|e| e.nodes.contains(&here.node)));
    }

    #[test]
    fn s330_s40_only_ready_or_serving_terminating_endpoints_are_used(
        policies in policies(), endpoints in endpoints(), here in heres(),
    ) {
        prop_assert!(select(policies, &endpoints, &here).all().into_iter().all(is_usable));
    }

    #[test]
    fn s330_with_a_ready_endpoint_the_cluster_list_has_some_and_only_ready_ones(
        policies in policies(), endpoints in endpoints(), here in heres(),
    ) {
        prop_assume!(policies.uses_cluster() && endpoints.iter().any(|e| e.conditions.ready));
        let list = select(policies, &endpoints, &here).cluster.unwrap();
        prop_assert!(!list.is_empty() && list.iter().all(|e| e.conditions.ready));
    }

    #[test]
    fn s330_order_of_slices_and_copies_of_endpoints_change_nothing(
        (slices, shuffled) in slices().prop_flat_map(|s| (Just(s.clone()), Just(s).prop_shuffle())),
        which: Index, copied: Index, policies in policies(), here in heres(),
    ) {
        let plain = merge(&slices);
        let wanted: Selection = select(policies, of_port(&plain), &here);
        for changed in [merge(&shuffled), merge(&with_copy(slices, which, copied))] {
            prop_assert_eq!(&plain, &changed);
            prop_assert_eq!(&wanted, &select(policies, of_port(&changed), &here));
        }
    }

    #[test]
    fn s330_every_kind_of_traffic_has_exactly_one_verdict(
        policies in policies(), endpoints in endpoints(), here in heres(),
    ) {
        let selection = select(policies, &endpoints, &here);
        for traffic in Traffic::ALL {
            let expected = model(policies, &endpoints, &here, traffic);
            prop_assert_eq!(selection.verdict(traffic).map(word), expected, "{:?}", traffic);
        }
    }
}

/// Slices with some endpoints in several of them, in different states.
fn slices() -> impl Strategy<Value = Vec<Value>> {
    const WORDS: &[&str] = &[
        "R L z:a",
        "R z:b",
        "!R L",
        "ST L z:a",
        "ST",
        "R n:n1 z:a",
        "R L n:n2 z:b",
    ];
    let endpoint = (1..6_u8, one_of(WORDS)).prop_map(|(n, words)| format!("e{n} {words}"));
    vec(vec(endpoint, 0..5), 1..4).prop_map(|slices| {
        let numbered = slices.into_iter().enumerate();
        numbered
            .map(|(n, endpoints)| {
                let endpoints: Vec<_> = endpoints.iter().map(String::as_str).collect();
                slice(&format!("web-{n}"), &["x"], &endpoints)
            })
            .collect()
    })
}

/// The slices, with one endpoint of one of them repeated in it.
fn with_copy(mut slices: Vec<Value>, which: Index, copied: Index) -> Vec<Value> {
    let slice = which.index(slices.len());
    let endpoints = slices[slice]["endpoints"].as_array_mut().unwrap();
    if !endpoints.is_empty() {
        let copy = endpoints[copied.index(endpoints.len())].clone();
        endpoints.push(copy);
    }
    slices
}
