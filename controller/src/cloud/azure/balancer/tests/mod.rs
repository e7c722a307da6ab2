use proptest::prelude::*;

use super::super::families::stays_for_ipv6;
use super::super::settings::Kind;
use super::super::testkit::*;
use super::*;

fn with(parts: Vec<Part>) -> Changes {
    Changes {
        parts,
        ..Changes::default()
    }
}

fn removed(base: &str) -> Changes {
    Changes {
        removed: [base.to_owned()].into(),
        ..Changes::default()
    }
}

fn applied(mut document: Value, changes: &Changes) -> Value {
    apply(&mut document, &settings(), changes);
    document
}

fn list<'a>(document: &'a Value, kind: &str) -> Vec<&'a str> {
    children(document, kind).iter().map(name).collect()
}

#[test]
fn za46_za104_a_part_comes_and_goes_and_everything_foreign_stays() {
    let part = part(&own(&[80, 443]));
    let there = applied(foreign(), &with(vec![part.clone()]));
    assert!(is_there(&there, &part));
    assert_eq!(
        list(&there, RULES),
        ["aother-TCP-80", "atest1-TCP-80", "atest1-TCP-443"]
    );
    assert_eq!(
        applied(there.clone(), &with(vec![part.clone()])),
        there,
        "ZA-46"
    );
    assert!(has_part(&there, "atest1"));
    let mut gone = applied(there, &removed("atest1"));
    assert!(!has_part(&gone, "atest1"));
    // The shared pool of nodes is of the load balancer and stays for the next Service.
    children_mut(&mut gone, POOLS).retain(|pool| name(pool) != "demo-azure");
    assert_eq!(gone, foreign(), "ZA-104");
}

#[test]
fn az400_az402_lists_that_azure_leaves_out_are_not_made_where_nothing_goes() {
    let bare = json!({"sku": {"name": "Standard"}, "properties": {FRONTENDS: [{"name": "theirs"}], PROBES: null}});
    assert_eq!(applied(bare.clone(), &removed("atest1")), bare, "I4");
    assert_eq!(applied(bare.clone(), &Changes::default()), bare);
}

#[test]
fn az141_an_edited_port_replaces_its_rule_and_probe_at_once() {
    let before = applied(new(&settings()), &with(vec![part(&service(&[80, 443]))]));
    let edited = part(&service(&[81, 443]));
    assert!(!is_there(&before, &edited));
    let after = applied(before, &with(vec![edited.clone()]));
    assert_eq!(list(&after, RULES), ["atest1-TCP-443", "atest1-TCP-81"]);
    assert_eq!(list(&after, PROBES), ["atest1-TCP-443", "atest1-TCP-81"]);
    assert!(is_there(&after, &edited), "AZ-141");
}

#[test]
fn az138_what_nobody_of_us_sets_stays_on_our_own_rules() {
    let part = part(&service(&[80]));
    let mut there = applied(new(&settings()), &with(vec![part.clone()]));
    for (key, value) in [
        ("enableConnectionTracking", json!(true)),
        ("idleTimeoutInMinutes", json!(9)),
    ] {
        children_mut(&mut there, RULES)[0]["properties"][key] = value;
    }
    assert!(
        is_there(&there, &part),
        "AZ-155: idle time is not compared when it is not asked for"
    );
    let edited = super::super::testkit::part(&annotated(
        service(&[80]),
        &[("azure-load-balancer-disable-tcp-reset", "true")],
    ));
    let after = applied(there, &with(vec![edited]));
    let rule = &children(&after, RULES)[0]["properties"];
    assert_eq!(
        (
            &rule["enableConnectionTracking"],
            &rule["idleTimeoutInMinutes"]
        ),
        (&json!(true), &json!(9)),
        "AZ-138"
    );
    assert_eq!(rule["enableTcpReset"], json!(false), "ZA-46");
}

#[test]
fn za47_az172_a_frontend_that_others_use_is_not_taken_away() {
    let part = part(&service(&[80]));
    let mut there = applied(new(&settings()), &with(vec![part]));
    let id = settings()
        .place
        .child_id(Kind::External, FRONTENDS, "atest1");
    let uses = [
        (
            "outboundRules",
            json!({"name": "out", "properties": {FRONTENDS: [{"id": id}]}}),
        ),
        (
            "inboundNatRules",
            json!({"name": "nat", "properties": {"frontendIPConfiguration": {"id": id}}}),
        ),
        (
            RULES,
            json!({"name": "foreign", "properties": {"frontendIPConfiguration": {"id": id}}}),
        ),
    ];
    for (list_name, child) in uses {
        let mut used = there.clone();
        children_mut(&mut used, list_name).push(child);
        let after = applied(used, &removed("atest1"));
        assert_eq!(list(&after, FRONTENDS), ["atest1"], "ZA-47: {list_name}");
        assert!(!has_part(&after, "atest1"), "AZ-173: it is the others' now");
    }
    there = applied(there, &removed("atest1"));
    assert!(is_empty(&there), "AZ-082");
}

#[test]
fn za26_az150_a_shared_probe_stays_while_a_rule_refers_to_it() {
    let one = part(&own(&[80]));
    let mut other = own(&[81]);
    other.uid = "test2".into();
    let other = part(&other);
    let there = applied(new(&settings()), &with(vec![one, other]));
    assert_eq!(list(&there, PROBES).len(), 1, "ZA-26");
    let there = applied(there, &removed("atest1"));
    assert_eq!(list(&there, PROBES).len(), 1, "AZ-150");
    let there = applied(there, &removed("atest2"));
    assert!(list(&there, PROBES).is_empty(), "AZ-150");
}

#[test]
fn za67_az170_az171_services_that_share_an_address_share_the_frontend() {
    let one = part(&own(&[80]));
    let spec = {
        let mut other = own(&[81]);
        other.uid = "test2".into();
        resolved(&other)
    };
    let wishes = super::super::annotations::of_options(&spec);
    let makings = super::super::part::Makings {
        spec: &spec,
        wishes: &wishes,
        left_to_others: &[],
        former: &[],
        zones: &[],
    };
    let id = settings().place.public_ip_id(None, "kubernetes-atest1");
    let public = super::super::part::Address::Public { id };
    let two = Part::new(&settings(), makings, |_| {
        (public.clone(), Some("atest1".to_owned()))
    });
    let there = applied(new(&settings()), &with(vec![one, two.clone()]));
    assert_eq!(list(&there, FRONTENDS), ["atest1"], "AZ-171");
    let there = applied(there, &removed("atest1"));
    assert_eq!(list(&there, FRONTENDS), ["atest1"], "AZ-173");
    assert!(is_there(&there, &two), "ZA-67");
    assert!(
        is_empty(&applied(there, &removed("atest2"))),
        "nobody is left"
    );
}

#[test]
fn az115_a_port_that_somebody_else_has_on_the_frontend_is_a_conflict() {
    let part = part(&service(&[80]));
    let id = settings()
        .place
        .child_id(Kind::External, FRONTENDS, "ATEST1");
    let mut there = new(&settings());
    let theirs = json!({"name": "nat", "properties": {"frontendIPConfiguration": {"id": id}, "frontendPort": 80, "protocol": "tcp"}});
    children_mut(&mut there, "inboundNatRules").push(theirs);
    let why = conflict(&there, &part).unwrap();
    assert!(
        why.message.contains("nat") && why.message.contains("atest1-TCP-80"),
        "{}",
        why.message
    );
    assert_eq!(conflict(&foreign(), &part), None);
}

#[test]
fn az188_az430_what_azure_takes_is_checked_before_the_write() {
    let none = BTreeSet::new();
    let plain = part(&service(&[80]));
    assert_eq!(room(None, &plain, &none), None);
    let many: Vec<Value> = (0..600).map(|n| json!({"name": format!("f{n}")})).collect();
    let full = json!({"properties": {FRONTENDS: many}});
    let why = room(Some(&full), &plain, &none).unwrap();
    assert!(
        why.message.contains("601") && why.message.contains("600"),
        "AZ-448: {}",
        why.message
    );
    let mut six = service(&[80]);
    six.uid = "six".into();
    six.families = vec![onehop_core::id::IpFamily::V6];
    let six = part(&six);
    assert_eq!(
        room(None, &six, &none).unwrap().reason,
        "IPv6WithoutIPv4",
        "ZA-90"
    );
    let with_four = applied(new(&settings()), &with(vec![plain]));
    assert_eq!(
        room(Some(&with_four), &six, &none),
        None,
        "AZ-188: by itself"
    );
}

#[test]
fn az188_az312_the_last_ipv4_frontend_stays_as_long_as_there_are_some_of_ipv6() {
    let four = part(&service(&[80]));
    let mut spec = resolved(&service(&[80]));
    spec.service_uid = "six".into();
    spec.families = vec![IpFamily::V6];
    let mut six = part_of(&spec);
    let id = settings().place.public_ip_id(None, "kubernetes-asix");
    six.frontends[0].wish["properties"]["publicIPAddress"]["id"] = json!(id);
    let of_six: BTreeSet<String> = [id.to_lowercase()].into();
    let both = Changes {
        six: of_six.clone(),
        ..with(vec![four, six.clone()])
    };
    let there = applied(new(&settings()), &both);
    assert_eq!(room(Some(&there), &six, &of_six), None, "AZ-188");
    let less = |base: &str| Changes {
        six: of_six.clone(),
        ..removed(base)
    };
    let without = applied(there.clone(), &less("atest1"));
    assert_eq!(list(&without, FRONTENDS), ["asix", "atest1"], "AZ-188");
    assert_eq!(list(&without, RULES), ["asix-TCP-80"]);
    assert!(stays_for_ipv6(&without, "atest1", &of_six));
    assert!(
        !stays_for_ipv6(&there, "atest1", &of_six),
        "its rules go first"
    );
    assert!(!stays_for_ipv6(&without, "asix", &of_six));
    let last = applied(without, &less("asix"));
    assert!(!stays_for_ipv6(&last, "atest1", &of_six));
    assert!(is_empty(&applied(last, &less("atest1"))), "AZ-312");
}

#[test]
fn az017_az082_of_a_load_balancer_that_is_shared_nothing_of_ours_is_left_and_it_stays() {
    let shared = Settings {
        layout: Layout::Shared,
        ..settings()
    };
    let mut other = foreign();
    assert!(is_ours(&other, &shared) && !is_ours(&other, &settings()));
    assert!(!may_go(&other, &shared), "AZ-082");
    other["tags"] = json!({"onehop-install": "another"});
    assert!(!is_ours(&other, &shared), "AZ-099");
    let part = part(&own(&[80]));
    let mut there = foreign();
    apply(&mut there, &shared, &with(vec![part]));
    assert!(list(&there, POOLS).contains(&"demo-azure"));
    apply(&mut there, &shared, &removed("atest1"));
    assert_eq!(there, foreign(), "AZ-008: byte for byte");
}

#[test]
fn az232_az261_members_are_keyed_by_their_address() {
    let address = |n: u8| IpAddr::from([10, 0, 0, n]);
    let up = |n: u8| (format!("node-{n}"), address(n));
    let change = |up, down, out| PoolChange {
        pool: "pool".to_owned(),
        up,
        down,
        out,
    };
    let mut pool = new_pool(&settings(), "pool");
    change_pool(
        &mut pool,
        &settings(),
        &change(vec![up(1), up(2), up(1)], vec![], vec![]),
    );
    assert_eq!(
        children(&pool, MEMBERS).len(),
        2,
        "duplicates are collapsed"
    );
    children_mut(&mut pool, MEMBERS)[0]["properties"]["unknown"] = json!(1);
    change_pool(
        &mut pool,
        &settings(),
        &change(vec![up(3)], vec![address(1)], vec![address(2)]),
    );
    let members = children(&pool, MEMBERS);
    assert_eq!(
        members[0],
        json!({"name": "node-1", "properties": {"ipAddress": "10.0.0.1", "adminState": "Down", "unknown": 1}}),
        "AZ-291"
    );
    assert_eq!(members[1]["name"], json!("node-3"));
    change_pool(&mut pool, &settings(), &change(vec![up(1)], vec![], vec![]));
    assert!(!is_down(&children(&pool, MEMBERS)[0]), "Up again");
    assert_eq!(
        pool["properties"]["virtualNetwork"]["id"],
        json!(settings().place.vnet_id()),
        "ZI-17, AZ-230"
    );
}

#[test]
fn az266_a_pool_takes_no_more_members_than_azure_does() {
    let mut small = settings();
    small.pool_size = 2;
    let up = (1..=3)
        .map(|n| (format!("n{n}"), IpAddr::from([10, 0, 0, n])))
        .collect();
    let mut pool = new_pool(&small, "pool");
    change_pool(
        &mut pool,
        &small,
        &PoolChange {
            pool: "pool".to_owned(),
            up,
            ..PoolChange::default()
        },
    );
    assert_eq!(children(&pool, MEMBERS).len(), 2);
}

#[test]
fn a_switch_to_a_pool_that_is_not_used_leaves_the_old_one_until_it_is_told() {
    let nodes = part(&annotated(own(&[80]), &[("onehop.dev/target", "pod")]));
    let there = applied(new(&settings()), &with(vec![nodes]));
    let vip = part(&own(&[80]));
    let there = applied(there, &with(vec![vip]));
    assert_eq!(
        list(&there, POOLS),
        ["atest1-pods-1", "demo-azure"],
        "AZ-253"
    );
    let over = |name: &str| Changes {
        pools: [name.to_owned()].into(),
        ..Changes::default()
    };
    assert_eq!(
        list(&applied(there.clone(), &over("atest1-pods-1")), POOLS),
        ["demo-azure"]
    );
    assert_eq!(
        list(&applied(there, &over("demo-azure")), POOLS).len(),
        2,
        "in use"
    );
}

/// What is not ours: everything but the children of two Services, shared probes and pools of ours.
fn theirs(document: &Value) -> Value {
    let mut document = document.clone();
    for kind in [FRONTENDS, POOLS, RULES, PROBES] {
        children_mut(&mut document, kind).retain(|child| {
            let name = name(child);
            let ours = names::is_of(name, "atest1") || names::is_of(name, "atest2");
            !ours && name != "demo-azure" && !names::is_node_probe(name, &settings().install)
        });
    }
    document
}

proptest! {
    #[test]
    fn az404_za104_random_operations_leave_what_we_do_not_know_as_it_was(
        operations in prop::collection::vec((0_u8..2, prop::option::of((1_u16..4, any::<bool>()))), 1..12)
    ) {
        let mut document = foreign();
        sprinkle(&mut document, 0);
        let before = theirs(&document);
        for (which, wish) in operations {
            let uid = format!("test{}", which + 1);
            let changes = match wish {
                None => removed(&format!("a{uid}")),
                Some((ports, pods)) => {
                    let ports: Vec<u16> = (0..ports).map(|n| 80 + n).collect();
                    let mut service = annotated(own(&ports), &[("onehop.dev/target", if pods { "pod" } else { "vip" })]);
                    service.uid = uid.as_str().into();
                    with(vec![part(&service)])
                }
            };
            apply(&mut document, &settings(), &changes);
        }
        prop_assert_eq!(theirs(&document), before);
    }
}
