//! Which address a Service is given, and what it is told when it gets none.

use serde_json::{Value, json};

use super::*;

#[test]
fn c20_selectors_of_namespaces_and_services_and_auto_assign() {
    let of = |allocation: Value| {
        [pool(
            "a",
            &["10.0.0.1/32"],
            json!({ "serviceAllocation": allocation }),
        )]
    };
    let mut web = svc("web");
    web.labels = label("tier", "front");
    web.namespace_labels = label("team", "red");
    let front = json!([{ "matchLabels": { "tier": "front" } }]);
    let back = json!([{ "matchLabels": { "tier": "back" } }]);
    let red =
        json!([{ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["red"] }] }]);
    let table = [
        (json!({}), true),
        (json!({ "namespaces": ["shop", "other"] }), true),
        (json!({ "namespaces": ["other"] }), false),
        (json!({ "namespaceSelectors": red }), true),
        (json!({ "namespaceSelectors": back }), false),
        (
            json!({ "namespaces": ["other"], "namespaceSelectors": red }),
            true,
        ),
        (json!({ "serviceSelectors": front }), true),
        (json!({ "serviceSelectors": back }), false),
        (json!({ "serviceSelectors": [back[0], front[0]] }), true),
        (
            json!({ "namespaces": ["shop"], "serviceSelectors": back }),
            false,
        ),
        (
            json!({ "namespaces": ["other"], "serviceSelectors": front }),
            false,
        ),
    ];
    for (allocation, served) in table {
        let pools = of(allocation.clone());
        for asked in [
            web.clone(),
            web.clone().pool("a"),
            web.clone().fixed(&["10.0.0.1"]),
        ] {
            let placement = asked.place(&pools, &mut AddressBook::default());
            assert_eq!(
                placement.refused.is_none(),
                served,
                "C-20: {allocation} {placement:?}"
            );
        }
    }
    let named_only = [pool("a", &["10.0.0.1/32"], json!({ "autoAssign": false }))];
    let mut book = AddressBook::default();
    let told = web.refused(&named_only, &mut book);
    assert_eq!(
        told, "no AddressPool is for this Service (there are: a)",
        "C-20, C-38"
    );
    assert_eq!(
        web.pool("a").given(&named_only, &mut book),
        ips(&["10.0.0.1"]),
        "C-20"
    );
}

#[test]
fn c20_avoid_buggy_ips_skips_0_and_255_also_when_asked_for() {
    let pools = [pool(
        "a",
        &["10.0.0.254-10.0.1.1"],
        json!({ "avoidBuggyIPs": true }),
    )];
    let mut book = AddressBook::default();
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.254"]),
        "C-20"
    );
    assert_eq!(
        svc("y").given(&pools, &mut book),
        ips(&["10.0.1.1"]),
        "C-20"
    );
    assert_eq!(
        svc("z").refused(&pools, &mut book),
        "no free IPv4 address in pools: a"
    );
    let told = svc("z").fixed(&["10.0.1.0"]).refused(&pools, &mut book);
    assert_eq!(
        told,
        "address 10.0.1.0 is in no pool that may give it (pools: a)"
    );
}

#[test]
fn c21_pools_by_priority_then_name_and_the_lowest_free_address() {
    let mut pools = vec![
        ranked("unset", 0, &["10.0.0.0/30"]),
        ranked("b", 2, &["10.2.0.9/32", "10.2.0.5-10.2.0.6"]),
        ranked("a", 2, &["10.1.0.1/32"]),
        ranked("z", 1, &["10.3.0.1/32"]),
    ];
    let expected = ips(&[
        "10.3.0.1", "10.1.0.1", "10.2.0.5", "10.2.0.6", "10.2.0.9", "10.0.0.0", "10.0.0.1",
        "10.0.0.2", "10.0.0.3",
    ]);
    for _ in 0..pools.len() {
        let mut book = AddressBook::default();
        let given: Vec<_> = (0..9)
            .map(|i| svc(&i.to_string()).given(&pools, &mut book)[0])
            .collect();
        assert_eq!(given, expected, "C-21");
        let told = svc("late").refused(&pools, &mut book);
        assert_eq!(
            told, "no free IPv4 address in pools: z, a, b, unset",
            "C-38"
        );
        pools.rotate_left(1);
    }
}

#[test]
fn c22_l19_a_fixed_set_is_given_whole_or_not_at_all_and_a_clash_names_the_holder() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.3", "fd00::1-fd00::9"])];
    let mut book = AddressBook::default();
    svc("owner").restored("fd00::2", &mut book).unwrap();
    let both = svc("x").families(&BOTH).fixed(&["10.0.0.1", "fd00::2"]);
    let told = both.refused(&pools, &mut book);
    assert_eq!(
        told, "address fd00::2 is held by Service shop/owner",
        "C-22"
    );
    assert_eq!(book.holder(ip("10.0.0.1")), None, "C-22: nor a part of it");
    svc("owner").release(&mut book);
    assert_eq!(
        both.given(&pools, &mut book),
        ips(&["10.0.0.1", "fd00::2"]),
        "C-22, C-23"
    );
    let outside = svc("y").fixed(&["10.8.0.1"]).refused(&pools, &mut book);
    assert_eq!(
        outside,
        "address 10.8.0.1 is in no pool that may give it (pools: a)"
    );
    let family = svc("y").fixed(&["fd00::3"]).refused(&pools, &mut book);
    assert_eq!(
        family,
        "address fd00::3 is of a family that is not in the Service's ipFamilies"
    );
}

#[test]
fn c22_l08_a_named_pool_is_the_only_one_asked() {
    let pools = [plain("a", &["10.0.0.1/32"]), plain("b", &["10.1.0.1/32"])];
    let mut book = AddressBook::default();
    assert_eq!(
        svc("x").pool("b").given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "C-22"
    );
    let told = svc("y")
        .pool("b")
        .fixed(&["10.0.0.1"])
        .refused(&pools, &mut book);
    assert_eq!(
        told, "address 10.0.0.1 is in no pool that may give it (pools: b)",
        "C-22"
    );
    let told = svc("y").pool("c").refused(&pools, &mut book);
    assert_eq!(told, "there is no AddressPool \"c\"", "C-22");
}

#[test]
fn k60_c122_a_policy_limits_the_pools_and_a_refusal_names_it() {
    let pools = [
        plain("gold", &["10.0.0.1/32"]),
        plain("silver", &["10.1.0.1/32"]),
    ];
    let mut book = AddressBook::default();
    let red = || svc("x").allowed(&["silver"]);
    assert_eq!(
        red().given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "K-60: the better pool is not for it"
    );
    let table = [
        (
            red().pool("gold"),
            "AddressPool \"gold\" is refused by policy \"red\", which allows AddressPool silver",
        ),
        (
            red().fixed(&["10.0.0.1"]),
            "address 10.0.0.1 of AddressPool \"gold\" is refused by policy \"red\", which allows AddressPool silver",
        ),
        (
            svc("x").allowed(&[]).pool("gold"),
            "AddressPool \"gold\" is refused by policy \"red\", which allows no AddressPool",
        ),
    ];
    for (asked, told) in table {
        let placement = asked.place(&pools, &mut book);
        assert_eq!(
            placement.addresses,
            ips(&["10.1.0.1"]),
            "C-122: it keeps what it has"
        );
        assert_eq!(placement.refused.unwrap().to_string(), told, "K-60");
    }
    let told = svc("new").allowed(&[]).refused(&pools, &mut book);
    assert_eq!(
        told, "AddressPool gold, silver is refused by policy \"red\", which allows no AddressPool",
        "K-60"
    );
    let nowhere = red().fixed(&["10.8.0.1"]).refused(&pools, &mut book);
    assert_eq!(
        nowhere,
        "address 10.8.0.1 is in no pool that may give it (pools: silver)"
    );
}

#[test]
fn k60_a_newer_policy_moves_nothing_and_refuses_what_is_asked_for_by_name() {
    let pools = [
        plain("gold", &["10.0.0.1-10.0.0.2"]),
        plain("silver", &["10.1.0.1/32"]),
    ];
    let mut book = AddressBook::default();
    let (named, any) = (svc("named").pool("gold"), svc("any"));
    named.given(&pools, &mut book);
    any.given(&pools, &mut book);
    let held = any.clone().allowed(&["silver"]).given(&pools, &mut book);
    assert_eq!(held, ips(&["10.0.0.2"]), "C-24, K-60");
    let placement = named.allowed(&["silver"]).place(&pools, &mut book);
    assert_eq!(placement.addresses, ips(&["10.0.0.1"]), "C-24");
    assert!(
        matches!(placement.refused, Some(Denied::Policy { .. })),
        "K-60"
    );
}

#[test]
fn ct19_a_whole_block_without_its_first_and_last_address() {
    let pools = [pool(
        "a",
        &["10.0.0.0/24"],
        json!({ "avoidBuggyIPs": true }),
    )];
    let mut book = AddressBook::default();
    let given: Vec<_> = (0..254)
        .flat_map(|n| svc(&n.to_string()).given(&pools, &mut book))
        .collect();
    let buggy = [ip("10.0.0.0"), ip("10.0.0.255")];
    assert!(
        buggy.iter().all(|address| !given.contains(address)),
        "C-T19"
    );
    assert_eq!(
        svc("late").refused(&pools, &mut book),
        "no free IPv4 address in pools: a"
    );
}
