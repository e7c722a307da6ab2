use onehop_core::service::ServiceSpec;
use proptest::prelude::*;

use super::super::annotations;
use super::super::testkit::*;
use super::*;

fn at() -> Addresses {
    Addresses {
        frontends: vec!["20.0.0.1".parse().unwrap(), "2603::1".parse().unwrap()],
        nodes: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        pods: vec!["10.1.0.7".parse().unwrap()],
    }
}

fn needs(service: &ServiceSpec, at: &Addresses) -> Vec<Demand> {
    let mut spec = resolved(service);
    spec.families.clone_from(&service.families);
    demands(&settings(), &spec, &annotations::of_options(&spec), at)
}

fn group(rules: Vec<Value>) -> Value {
    json!({"id": "/nsg", "properties": {SECURITY_RULES: rules, "unknown": {"a": []}}})
}

fn with(demands: &[Demand], document: &Value) -> Value {
    desired(&settings(), document, demands).unwrap()
}

/// `Allow Tcp Internet -> 20.0.0.1 [80] 500`, in document order.
fn lines(document: &Value) -> Vec<String> {
    let line = |rule: &Value| {
        let p = &rule["properties"];
        let list = |one: &str, many: &str| {
            let all: Vec<_> = p[many]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            p[one].as_str().map_or_else(|| all.join(","), str::to_owned)
        };
        format!(
            "{} {} {} -> {} [{}] {}",
            p["access"].as_str().unwrap(),
            p["protocol"].as_str().unwrap(),
            list("sourceAddressPrefix", "sourceAddressPrefixes"),
            list("destinationAddressPrefix", "destinationAddressPrefixes"),
            list("destinationPortRange", "destinationPortRanges"),
            p["priority"]
        )
    };
    children(document, SECURITY_RULES)
        .iter()
        .map(line)
        .collect()
}

fn both_families(ports: &[u16]) -> ServiceSpec {
    let mut service = own(ports);
    service.families = IpFamily::ALL.to_vec();
    let mut udp = service.ports[0].clone();
    udp.key = onehop_core::id::PortKey::new("udp", Protocol::Udp);
    service.ports.push(udp);
    service
}

#[test]
fn za29_az203_az204_four_rules_in_order() {
    let document = with(&needs(&both_families(&[80]), &at()), &group(vec![]));
    assert_eq!(
        lines(&document),
        [
            "Allow Tcp Internet -> 20.0.0.1 [80] 500",
            "Allow Tcp Internet -> 2603::1 [80] 501",
            "Allow Udp Internet -> 20.0.0.1 [80] 502",
            "Allow Udp Internet -> 2603::1 [80] 503",
        ],
        "ZA-29"
    );
    let first = &children(&document, SECURITY_RULES)[0];
    assert!(
        first["properties"]["destinationPortRanges"].is_array(),
        "AZ-204"
    );
    assert!(
        name(first).ends_with("_allow_IPv4_d39272f7f57ed937951650d93992ad77"),
        "AZ-099"
    );
}

#[test]
fn za30_az205_an_internal_service_without_a_list_needs_no_rule() {
    let internal = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    assert_eq!(needs(&internal, &at()), [], "ZA-30");
    let before = group(vec![
        json!({"name": "theirs", "properties": {"priority": 100}}),
    ]);
    assert!(!differs(&with(&[], &before), &before));
}

#[test]
fn za32_az053_az202_deny_all_stands_behind_the_list() {
    let mut service = annotated(
        both_families(&[80]),
        &[
            ("azure-deny-all-except-load-balancer-source-ranges", "true"),
            (
                "azure-allowed-ip-ranges",
                "30.0.0.0/9,30.128.0.0/9,2604::/16",
            ),
        ],
    );
    service.ports[1].port = 53;
    assert_eq!(
        lines(&with(&needs(&service, &at()), &group(vec![]))),
        [
            "Allow Tcp 30.0.0.0/8 -> 20.0.0.1 [80] 500",
            "Allow Tcp 2604::/16 -> 2603::1 [80] 501",
            "Allow Udp 30.0.0.0/8 -> 20.0.0.1 [53] 502",
            "Allow Udp 2604::/16 -> 2603::1 [53] 503",
            "Deny * * -> 20.0.0.1 [*] 4095",
            "Deny * * -> 2603::1 [*] 4094",
        ],
        "ZA-32, AZ-206"
    );
}

#[test]
fn za34_az052_only_bad_entries_close_the_frontend() {
    let service = annotated(own(&[80]), &[("azure-allowed-ip-ranges", "30.0.0.1/8")]);
    assert_eq!(
        lines(&with(&needs(&service, &at()), &group(vec![]))),
        ["Deny * * -> 20.0.0.1 [*] 4095"],
        "ZA-34, ZI-36"
    );
}

#[test]
fn az051_service_tags_take_the_place_of_the_internet() {
    let service = annotated(
        own(&[80]),
        &[("azure-allowed-service-tags", "Storage,AzureCloud")],
    );
    assert_eq!(
        lines(&with(&needs(&service, &at()), &group(vec![]))),
        [
            "Allow Tcp AzureCloud -> 20.0.0.1 [80] 500",
            "Allow Tcp Storage -> 20.0.0.1 [80] 501"
        ]
    );
    let open = annotated(own(&[80]), &[("azure-allowed-ip-ranges", "0.0.0.0/0")]);
    assert_eq!(
        lines(&with(&needs(&open, &at()), &group(vec![]))),
        ["Allow Tcp 0.0.0.0/0 -> 20.0.0.1 [80] 500"],
        "AZ-205"
    );
}

#[test]
fn za36_az208_az212_two_services_on_one_address_and_the_first_goes() {
    let one = needs(&annotated(own(&[80]), &[]), &at());
    let mut second = own(&[443, 80]);
    second.uid = "test2".into();
    let two = needs(&second, &at());
    let both = with(&[one.clone(), two.clone()].concat(), &group(vec![]));
    assert_eq!(lines(&both).len(), 2);
    let after = with(&two, &both);
    assert_eq!(
        lines(&after),
        ["Allow Tcp Internet -> 20.0.0.1 [443,80] 500"],
        "ZA-36, AZ-091"
    );
    assert_eq!(
        children(&after, SECURITY_RULES)[0],
        children(&both, SECURITY_RULES)[0],
        "AZ-202: keeps its priority"
    );
    assert_eq!(lines(&with(&[], &after)), [""; 0], "none of ours is left");
    let mut other = at();
    other.frontends = vec!["20.0.0.9".parse().unwrap()];
    let shared = with(
        &[one.clone(), needs(&own(&[80]), &other)].concat(),
        &group(vec![]),
    );
    assert_eq!(
        lines(&shared),
        ["Allow Tcp Internet -> 20.0.0.1,20.0.0.9 [80] 500"],
        "AZ-208"
    );
}

#[test]
fn za37_az209_nodes_are_the_destination_where_floating_ip_is_off() {
    let off = ("azure-disable-load-balancer-floating-ip", "true");
    let node = needs(&annotated(own(&[80]), &[off]), &at());
    assert_eq!(
        lines(&with(&node, &group(vec![]))),
        ["Allow Tcp Internet -> 10.0.0.1,10.0.0.2 [10080] 500"],
        "ZA-37"
    );
    let unruled = needs(
        &annotated(
            own(&[80]),
            &[off, ("azure-disable-load-balancer-nsg-rule", "true")],
        ),
        &at(),
    );
    assert_eq!(unruled, [], "ZA-37, AZ-054");
}

#[test]
fn az156_az215_pods_and_the_probes_that_a_deny_all_would_cover() {
    let pod = ("onehop.dev/target", "pod");
    let open = needs(&annotated(own(&[80]), &[pod]), &at());
    assert_eq!(
        lines(&with(&open, &group(vec![]))),
        ["Allow Tcp Internet -> 10.1.0.0/16 [8080] 500"],
        "AZ-215"
    );
    let closed = [
        pod,
        ("azure-deny-all-except-load-balancer-source-ranges", "true"),
        ("azure-allowed-ip-ranges", "30.0.0.0/8"),
    ];
    assert_eq!(
        lines(&with(
            &needs(&annotated(own(&[80]), &closed), &at()),
            &group(vec![])
        )),
        [
            "Allow Tcp AzureLoadBalancer -> 10.1.0.7 [8080] 500",
            "Allow Tcp 30.0.0.0/8 -> 10.1.0.7 [8080] 501",
            "Deny * * -> 10.1.0.7 [*] 4095",
        ],
        "AZ-156"
    );
}

#[test]
fn az201_az202_foreign_rules_stay_and_their_priorities_are_taken() {
    let theirs = vec![
        json!({"name": "k8s-azure-lb_allow_IPv4_x", "properties": {"priority": 500, "direction": "Inbound", "more": [1]}}),
        json!({"name": "out", "properties": {"priority": 501, "direction": "Outbound"}}),
        json!({"name": "onehop-by-hand", "properties": {"priority": 4095, "direction": "Inbound"}}),
    ];
    let before = group(theirs.clone());
    let service = annotated(
        own(&[80]),
        &[("azure-allowed-ip-ranges", "30.0.0.1/8,30.0.0.0/8")],
    );
    let after = with(&needs(&service, &at()), &before);
    let priorities: Vec<_> = children(&after, SECURITY_RULES)
        .iter()
        .map(|rule| priority(rule).unwrap())
        .collect();
    assert_eq!(priorities, [500, 501, 4095, 501, 4094], "AZ-202");
    assert_eq!(with(&[], &after), before, "AZ-008, AZ-201");
}

#[test]
fn zi35_az206_many_ranges_are_one_rule_and_neighbours_are_joined() {
    let many: Vec<String> = (0..100).map(|n| format!("30.0.{}.0/24", n * 2)).collect();
    let ranges = |list: &str| {
        let service = annotated(own(&[80]), &[("azure-allowed-ip-ranges", list)]);
        let group = with(&needs(&service, &at()), &group(vec![]));
        let rules = children(&group, SECURITY_RULES).to_vec();
        assert_eq!(rules.len(), 1, "ZI-35");
        rules[0]["properties"].clone()
    };
    let rule = ranges(&many.join(","));
    assert_eq!(rule["sourceAddressPrefixes"].as_array().unwrap().len(), 100);
    let joined = ranges("30.0.0.0/24,30.0.1.0/24,30.0.1.128/25");
    assert_eq!(
        joined["sourceAddressPrefix"],
        json!("30.0.0.0/23"),
        "AZ-206"
    );
}

#[test]
fn az211_limits_are_checked_before_the_put() {
    let many: Vec<String> = (0..70)
        .flat_map(|a| (0..70).map(move |b| format!("30.{a}.{}.0/24", b * 2)))
        .collect();
    let service = annotated(own(&[80]), &[("azure-allowed-ip-ranges", &many.join(","))]);
    let why = desired(&settings(), &group(vec![]), &needs(&service, &at())).unwrap_err();
    assert_eq!(why.reason, "LimitReached");
    assert!(
        why.message.contains("4900") && why.message.contains("4000"),
        "{}",
        why.message
    );
}

#[test]
fn az214_nothing_differs_the_second_time() {
    let needs = needs(&both_families(&[80, 443]), &at());
    let once = with(&needs, &group(vec![]));
    let mut stored = once.clone();
    // As Azure gives it back: what is absent as empty, words in its own case.
    for rule in children_mut(&mut stored, SECURITY_RULES) {
        rule["properties"]["sourceAddressPrefixes"] = json!([]);
        rule["properties"]["destinationAddressPrefix"] = json!("");
        rule["properties"]["provisioningState"] = json!("Succeeded");
        rule["properties"]["protocol"] = json!(
            rule["properties"]["protocol"]
                .as_str()
                .unwrap()
                .to_uppercase()
        );
    }
    assert!(!differs(&with(&needs, &stored), &stored), "AZ-104");
}

#[test]
fn az400_az402_a_group_without_a_list_of_rules_is_left_so_where_none_is_needed() {
    let bare = json!({"id": "/nsg", "properties": {"defaultSecurityRules": []}});
    assert_eq!(with(&[], &bare), bare, "I4");
}

proptest! {
    #[test]
    fn zi37_az404_za104_whatever_services_ask_for_foreign_rules_stay_as_they_were(
        asked in prop::collection::vec(prop::collection::vec((1_u16..6, 0_usize..4), 0..5), 1..8)
    ) {
        let mut document = group(vec![
            json!({"name": "k8s-azure-lb_allow_IPv4_x", "properties": {"priority": 502, "direction": "Inbound", "more": [1]}}),
            json!({"name": "out", "properties": {"priority": 501, "direction": "Outbound", "x": {"y": []}}}),
            json!({"name": "ONEHOP-by-hand", "properties": {"priority": 4095, "direction": "Inbound"}}),
            // Named as ours, and not in our band: not ours (AZ-201).
            json!({"name": format!("{}allow_IPv4_x", names::security_rule_prefix(&settings().install, Flavour::Own)), "properties": {"priority": 120}}),
        ]);
        sprinkle(&mut document, 0);
        let before = document.clone();
        let shapes: [&[(&str, &str)]; 4] = [
            &[],
            &[("azure-allowed-ip-ranges", "30.0.0.0/8,31.0.0.0/9")],
            &[("azure-allowed-service-tags", "Storage"), ("azure-deny-all-except-load-balancer-source-ranges", "true")],
            &[("onehop.dev/target", "pod")],
        ];
        for services in asked {
            let of = |(ports, shape): &(u16, usize)| {
                let ports: Vec<u16> = (0..*ports).map(|n| 80 + n).collect();
                needs(&annotated(own(&ports), shapes[*shape]), &at())
            };
            let demands: Vec<Demand> = services.iter().flat_map(of).collect();
            document = with(&demands, &document);
            let mut foreign = document.clone();
            children_mut(&mut foreign, SECURITY_RULES).retain(|rule| !is_ours(rule, &settings()));
            prop_assert_eq!(&foreign, &before);
            prop_assert!(!differs(&with(&demands, &document), &document), "I4");
        }
        prop_assert_eq!(with(&[], &document), before, "AZ-212");
    }
}
