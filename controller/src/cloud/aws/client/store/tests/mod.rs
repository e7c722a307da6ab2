//! What the store remembers, and when it is to be read again.

use super::*;
use crate::cloud::aws::model::Subnet;

#[test]
fn aws704_attributes_are_read_about_once_an_hour_and_not_all_at_a_time() {
    let mut store = Store::default();
    let arns: Vec<String> = (0..100).map(|n| format!("arn:{n}")).collect();
    let start = Time::from_millis(0);
    let mut reads: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let mut most = 0;
    for minute in 0..180 {
        let now = start + Duration::from_mins(minute);
        let due: Vec<_> = arns
            .iter()
            .filter(|arn| store.attributes_due(arn, now))
            .collect();
        most = most.max(due.len());
        for arn in due {
            reads.entry(arn).or_default().push(now.as_millis());
        }
    }
    assert_eq!(reads.len(), 100, "AWS-704");
    assert!(most <= 20, "AWS-704: {most} in one minute");
    let hour = i64::try_from(ATTRIBUTES.as_millis()).unwrap();
    let apart = reads.values().flat_map(|at| at.windows(2));
    let apart: Vec<i64> = apart.map(|two| two[1] - two[0]).collect();
    assert!(apart.len() >= 100, "AWS-704: {}", apart.len());
    assert!(apart.iter().all(|ms| *ms == hour), "AWS-704");
}

#[test]
fn aws206_a_subnet_that_was_refused_has_no_room_until_the_next_listing() {
    let subnet = |id: &str| {
        let subnet = Subnet {
            id: id.to_owned(),
            zone: "a".to_owned(),
            cidr: None,
            ipv6: Vec::new(),
            free: 100,
            tags: BTreeMap::new(),
            public: None,
        };
        (id.to_owned(), subnet)
    };
    let mut store = Store::default();
    let listing = || Listing {
        network: Network {
            subnets: ["subnet-1", "subnet-2"].map(subnet).into(),
            ..Network::default()
        },
        ..Listing::default()
    };
    let now = Time::from_millis(0);
    store.listed(listing(), now);
    store.subnets_refused("InvalidSubnet: Not enough IP space available in subnet-2");
    let free = |store: &Store, id: &str| store.network.subnets[id].free;
    assert_eq!(
        (free(&store, "subnet-1"), free(&store, "subnet-2")),
        (100, 0),
        "AWS-206"
    );
    assert!(store.listed_at.is_some());
    store.listed(listing(), now);
    assert_eq!(free(&store, "subnet-2"), 100, "AWS-714: a cache is dropped");
    store.subnets_refused("InvalidSubnet: no free addresses");
    assert_eq!(
        store.listed_at, None,
        "AWS-206: which one is found by looking"
    );
}

#[test]
fn aws311_aws310_further_tags_choose_among_several_and_who_is_not_known_is_taken_for_a_machine() {
    let tags = |pairs: &[(&str, &str)]| -> names::Tags {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(pair).collect()
    };
    let cluster = ("kubernetes.io/cluster/c", "owned");
    let security = |id: &str, pairs: &[(&str, &str)]| SecurityGroup {
        id: id.to_owned(),
        name: id.to_owned(),
        tags: tags(pairs),
        rules: BTreeMap::new(),
    };
    let interface = |n: u8, groups: &[&str]| Interface {
        groups: groups.iter().map(|id| (*id).to_owned()).collect(),
        addresses: [[10, 0, 0, n].into()].into(),
        ..Interface::default()
    };
    let mut store = Store::default();
    let listing = Listing {
        security_groups: vec![
            security("sg-a", &[cluster]),
            security("sg-b", &[cluster, ("for", "targets")]),
            security("sg-pod", &[]),
        ],
        interfaces: Some(vec![
            interface(1, &["sg-a", "sg-b"]),
            interface(2, &["sg-pod"]),
        ]),
        ..Listing::default()
    };
    store.listed(listing, Time::from_millis(0));
    let carried = |more: &[(&str, &str)], targets: &[&str]| {
        let (groups, chosen) = store.carried(("c", &tags(more)), targets);
        let ids: Vec<String> = groups.into_iter().map(|group| group.id).collect();
        (ids.join(" "), chosen.len())
    };
    let of = |ids: &str, chosen| (ids.to_owned(), chosen);
    assert_eq!(
        carried(&[], &["10.0.0.1"]),
        of("sg-a", 1),
        "AWS-311: both have the tag"
    );
    let more = [("for", "targets")];
    assert_eq!(
        carried(&more, &["10.0.0.1"]),
        of("sg-b", 0),
        "AWS-311: one has all of them"
    );
    assert_eq!(
        carried(&more, &["10.0.0.2"]),
        of("sg-pod", 0),
        "AWS-310: a pod's own"
    );
    assert_eq!(
        carried(&more, &["10.0.0.2", "10.0.0.3"]),
        of("sg-b sg-pod", 0),
        "AWS-310: one is not known"
    );
    assert_eq!(carried(&[], &[]), of("sg-a", 0), "nobody is registered yet");
}
