use onehop_core::crd::ServiceAllocation;

use super::*;

fn pool(name: &str, priority: u32, ranges: &[&str]) -> Pool {
    Pool::read(&AddressPool::new(
        name,
        AddressPoolSpec {
            addresses: ranges.iter().map(|r| (*r).to_owned()).collect(),
            auto_assign: true,
            avoid_buggy_ips: false,
            service_allocation: Some(ServiceAllocation {
                priority: Some(priority),
                ..ServiceAllocation::default()
            }),
        },
    ))
    .0
}

fn holder(name: &str) -> Holder {
    Holder {
        service: ServiceKey::new("shop", name),
        uid: name.into(),
    }
}

fn one() -> Request {
    Request {
        families: vec![IpFamily::V4],
        ..Request::default()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn c21_pools_by_priority_then_name_and_the_lowest_free_address() {
    let pools = [
        pool("unset", 0, &["10.0.0.0/30"]),
        pool("b", 2, &["10.2.0.9/32", "10.2.0.5-10.2.0.6"]),
        pool("a", 2, &["10.1.0.1/32"]),
    ];
    let mut book = AddressBook::default();
    let given: Vec<_> = (0..8)
        .map(|i| allocate(&one(), &holder(&i.to_string()), &pools, &mut book).unwrap()[0])
        .collect();
    let expected = [
        "10.1.0.1", "10.2.0.5", "10.2.0.6", "10.2.0.9", "10.0.0.0", "10.0.0.1", "10.0.0.2",
        "10.0.0.3",
    ];
    assert_eq!(given, expected.map(ip), "C-21");
    let denied = allocate(&one(), &holder("late"), &pools, &mut book).unwrap_err();
    assert_eq!(
        denied.to_string(),
        "no free IPv4 address in pools: a, b, unset"
    );
}

#[test]
fn c24_what_a_service_holds_stays_when_others_go_and_pools_change() {
    let mut book = AddressBook::default();
    let pools = [pool("a", 1, &["10.0.0.1-10.0.0.9"])];
    allocate(&one(), &holder("x"), &pools, &mut book).unwrap();
    let before = allocate(&one(), &holder("y"), &pools, &mut book).unwrap();
    assert!(book.release(&holder("x").service, &BTreeSet::new()));
    let other = [pool("0", 1, &["10.9.0.1/32"])];
    let after = allocate(&one(), &holder("y"), &other, &mut book).unwrap();
    assert_eq!(
        (before, after),
        (vec![ip("10.0.0.2")], vec![ip("10.0.0.2")]),
        "C-24"
    );
}

#[test]
fn c25_restored_addresses_are_never_given_to_somebody_else() {
    let pools = [pool("a", 1, &["10.0.0.1-10.0.0.3"])];
    let mut book = AddressBook::default();
    book.restore(ip("10.0.0.1"), holder("old")).unwrap();
    let given = allocate(&one(), &holder("new"), &pools, &mut book).unwrap();
    assert_eq!(given, [ip("10.0.0.2")], "C-25");
    assert_eq!(
        book.restore(ip("10.0.0.1"), holder("third")),
        Err(holder("old"))
    );
}

#[test]
fn c22_a_fixed_set_is_given_whole_or_not_at_all_and_a_clash_names_the_holder() {
    let pools = [pool("a", 1, &["10.0.0.1-10.0.0.3"])];
    let mut book = AddressBook::default();
    book.restore(ip("10.0.0.2"), holder("owner")).unwrap();
    let request = |addresses: &[&str]| Request {
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        ..one()
    };
    let both = allocate(
        &request(&["10.0.0.1", "10.0.0.2"]),
        &holder("x"),
        &pools,
        &mut book,
    );
    assert_eq!(
        both.unwrap_err().to_string(),
        "address 10.0.0.2 is held by Service shop/owner"
    );
    assert_eq!(
        book.holder(ip("10.0.0.1")),
        None,
        "C-22: not a part of it either"
    );
    let outside = allocate(&request(&["10.8.0.1"]), &holder("x"), &pools, &mut book);
    assert!(matches!(outside, Err(Denied::NotInPool { .. })));
    let free = allocate(&request(&["10.0.0.3"]), &holder("x"), &pools, &mut book);
    assert_eq!(free, Ok(vec![ip("10.0.0.3")]));
}

#[test]
fn c20_edges_and_auto_assign() {
    let mut edges = pool("a", 1, &["10.0.0.0/24"]);
    edges.spec.avoid_buggy_ips = true;
    let mut book = AddressBook::default();
    let first = allocate(&one(), &holder("x"), &[edges.clone()], &mut book).unwrap();
    assert_eq!(first, [ip("10.0.0.1")], "C-20: avoidBuggyIPs skips .0");
    edges.spec.auto_assign = false;
    let unnamed = allocate(&one(), &holder("y"), &[edges.clone()], &mut book);
    assert!(
        matches!(unnamed, Err(Denied::Exhausted { .. })),
        "C-20: autoAssign false"
    );
    let named = Request {
        pool: Some("a".to_owned()),
        ..one()
    };
    assert_eq!(
        allocate(&named, &holder("y"), &[edges], &mut book),
        Ok(vec![ip("10.0.0.2")])
    );
}
