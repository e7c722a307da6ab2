//! Problems that users reported of cloud-provider-azure (section 22 of the specification), and the scenario rows that a plan
//! alone can show: what happens here instead.
//!
//! ZI-19 and ZI-49 (several load balancers of one kind) cannot occur: there is one of each kind. ZI-51 needs a real cloud.

use std::collections::BTreeSet;

use onehop_core::id::{IpFamily, PortKey, Protocol};

use super::super::super::names;
use super::super::super::testkit::{foreign, local, made, part, part_of, probe, rule, service};
use super::*;
use crate::cloud::azure::balancer::{is_there, rules_of_pool};
use crate::cloud::azure::part::Part;

fn udp(service: &mut ServiceSpec, port: u16) {
    let mut udp = service.ports[0].clone();
    udp.key = PortKey::new(format!("u{port}").as_str(), Protocol::Udp);
    udp.port = port;
    service.ports.push(udp);
}

fn without_node_ports(mut service: ServiceSpec) -> ServiceSpec {
    service.allocates_node_ports = false;
    for port in &mut service.ports {
        port.node_port = None;
    }
    service
}

/// Names of the probes that its rules use.
fn probes_used(part: &Part) -> BTreeSet<String> {
    let used = part.rules.iter().map(made);
    used.map(|rule| referred(&rule, "probe").unwrap_or("-").to_owned())
        .collect()
}

#[test]
fn zi02_zi03_under_policy_local_every_rule_udp_too_asks_the_services_own_health_port() {
    for of in [own, service] {
        let mut service = local(of(&[80, 443]), 34567);
        udp(&mut service, 53);
        let part = part(&service);
        assert_eq!(part.rules.len(), 3);
        assert_eq!(probes_used(&part), ["atest1-TCP-34567".to_owned()].into());
        assert_eq!(probe(&part, "atest1-TCP-34567"), "Http 34567 /healthz 5x2");
    }
}

#[test]
fn zi04_a_probe_asks_where_an_annotation_says() {
    let at = |value: &str| {
        let key = "service.beta.kubernetes.io/port_80_health-probe_port";
        let part = part(&annotated(service(&[80, 443]), &[(key, value)]));
        probe(&part, "atest1-TCP-80")
    };
    assert_eq!(at("15021"), "Tcp 15021 - 5x2", "a number");
    assert_eq!(at("p443"), "Tcp 10443 - 5x2", "a port's name");
    assert_eq!(at("443"), "Tcp 10443 - 5x2", "a port's number");
}

#[test]
fn zi05_za89_without_node_ports_no_rule_and_no_probe_has_port_0() {
    for (target, mode) in [("vip", TargetMode::Vip), ("pod", TargetMode::Pod)] {
        for policy in ["Cluster", "Local"] {
            let mut service = annotated(own(&[80]), &[("onehop.dev/target", target)]);
            if policy == "Local" {
                service = local(service, 34567);
            }
            let spec = resolved(&without_node_ports(service));
            assert_eq!(spec.ports[0].mode, mode);
            let part = part_of(&spec);
            let children = part.rules.iter().chain(&part.probes).map(made);
            for child in children {
                for key in ["frontendPort", "backendPort", "port"] {
                    let port = child["properties"].get(key);
                    assert!(
                        port.is_none_or(|port| *port != json!(0)),
                        "{target} {child}"
                    );
                }
            }
        }
    }
    let node = annotated(own(&[80]), &[("onehop.dev/target", "node")]);
    let resolution =
        super::super::super::resolve::resolve(&settings(), &without_node_ports(node), None);
    assert_eq!(resolution.refusals[0].reason, "TargetModeImpossible");
}

#[test]
fn zi06_az062_the_threshold_is_written_where_azure_reads_it() {
    let counted = [("azure-load-balancer-health-probe-num-of-probe", "3")];
    let part = part(&annotated(service(&[80]), &counted));
    let properties = &made(&part.probes[0])["properties"];
    assert_eq!(properties["probeThreshold"], json!(3));
    assert!(properties.get("numberOfProbes").is_none());
}

#[test]
fn zi08_za73_a_shared_probe_goes_when_the_last_service_turns_local() {
    let mut cloud = Cloud::default();
    let probes = |cloud: &Cloud| -> Vec<String> {
        let balancer = &cloud.documents.balancers[&Kind::External];
        let probes = children(balancer, super::super::super::document::PROBES);
        probes.iter().map(|probe| name(probe).to_owned()).collect()
    };
    cloud.settle(Some(&intent(&own(&[80]), &[], &[(1, READY)])), NOW);
    assert_eq!(
        probes(&cloud),
        [names::node_probe(&settings().install, 10256)]
    );
    let turned = local(own(&[80]), 34567);
    cloud.settle(Some(&intent(&turned, &[], &[(1, READY)])), NOW);
    assert_eq!(probes(&cloud), ["atest1-TCP-34567"]);
}

#[test]
fn zi11_az234_a_node_that_is_not_ready_stays_a_member_and_its_probe_decides() {
    let mut cloud = Cloud::default();
    let service = own(&[80]);
    cloud.settle(Some(&intent(&service, &[], &[(1, READY), (2, READY)])), NOW);
    let blip = intent(&service, &[], &[(1, State::NotReady), (2, State::NotReady)]);
    assert_eq!(
        cloud.settle(Some(&blip), NOW + Duration::from_mins(5)),
        [""; 0]
    );
}

#[test]
fn za52_za68_az235_a_node_that_is_excluded_leaves_unless_it_is_the_last() {
    let mut cloud = Cloud::default();
    let service = own(&[80]);
    let at = |minutes: u64| NOW + Duration::from_mins(minutes);
    let of = |one, two| intent(&service, &[], &[(1, one), (2, two)]);
    cloud.settle(Some(&of(READY, READY)), NOW);
    cloud.settle(Some(&of(READY, State::Withdrawn)), at(5));
    cloud.settle(Some(&of(READY, State::Withdrawn)), at(60));
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.1"], "ZA-52");
    cloud.settle(Some(&of(State::Withdrawn, State::Withdrawn)), at(70));
    cloud.settle(Some(&of(State::Withdrawn, State::Withdrawn)), at(130));
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.1"], "AZ-235");
    cloud.settle(Some(&of(READY, READY)), at(140));
    assert_eq!(
        cloud.members("demo-azure"),
        ["10.0.0.1", "10.0.0.2"],
        "ZA-68"
    );
}

#[test]
fn zi14_az261_az268_one_address_in_several_slices_is_one_member_with_a_name_of_its_own() {
    let pods = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let mut cloud = Cloud::default();
    let twice = [(7, READY), (7, READY), (8, READY)];
    cloud.settle(Some(&intent(&pods, &twice, &[])), NOW);
    assert_eq!(cloud.members("atest1-pods-1"), ["10.1.0.7", "10.1.0.8"]);
    let balancer = &cloud.documents.balancers[&Kind::External];
    let pool = child(balancer, POOLS, "atest1-pods-1").unwrap();
    let members = children(pool, super::super::super::document::MEMBERS);
    let names: Vec<&str> = members.iter().map(name).collect();
    assert_eq!(names, ["ip-10-1-0-7", "ip-10-1-0-8"], "AZ-096");
}

/// Two Services on one public IP; the first moves to another one.
#[test]
fn zi20_az173_a_service_that_leaves_a_shared_address_leaves_it_to_the_others() {
    let pip = |name: &str, address: &str| {
        let id = settings().place.public_ip_id(None, name);
        json!({"id": id, "name": name, "properties": {"ipAddress": address}})
    };
    let given = |service: ServiceSpec, name: &str| annotated(service, &[("azure-pip-name", name)]);
    let mut cloud = Cloud::default();
    cloud.documents.public_ips = vec![pip("one", "20.0.0.1"), pip("two", "20.0.0.2")];
    let nodes = [(1, READY)];
    cloud.settle(Some(&intent(&given(own(&[80]), "one"), &[], &nodes)), NOW);
    let mut second = given(own(&[81]), "one");
    second.uid = "test2".into();
    let spec = resolved(&second);
    let built = build(&settings(), &key(), &spec, &cloud.documents).unwrap();
    assert_eq!(built.part.frontends[0].name, "atest1", "ZI-22, AZ-171");
    cloud.carry_out(&AzureStep::PutPart {
        part: Box::new(built.part),
        members: vec![],
        needs: vec![],
    });
    let moved = intent(&given(own(&[80]), "two"), &[], &nodes);
    cloud.settle(Some(&moved), NOW);
    let balancer = &cloud.documents.balancers[&Kind::External];
    let held = |rule: &str| {
        let rule = child(balancer, RULES, rule).unwrap();
        let front = referred(rule, "frontendIPConfiguration").unwrap();
        let front = child(balancer, FRONTENDS, front).unwrap();
        last_of_id(reference(front, "publicIPAddress").unwrap()).to_owned()
    };
    assert_eq!(
        held("atest2-TCP-81"),
        "one",
        "ZI-20: the other keeps its address"
    );
    assert_eq!(held("atest1-TCP-80"), "two");
    assert_eq!(children(balancer, FRONTENDS).len(), 2);
    assert_eq!(cloud.settle(Some(&moved), NOW), [""; 0], "I4");
    // Once its grace is over it leaves the frontend that the other one uses.
    cloud.settle(Some(&moved), NOW + settings().dns_grace);
    let balancer = &cloud.documents.balancers[&Kind::External];
    let fronts: Vec<&str> = children(balancer, FRONTENDS).iter().map(name).collect();
    assert_eq!(fronts, ["atest1", "atest1-2"], "AZ-174: others use it");
    assert_eq!(children(balancer, RULES).len(), 2);
}

/// A Service that shares the public IP that another one has made.
#[test]
fn za67_az173_az181_a_service_on_anothers_public_ip_never_takes_anything_of_the_other() {
    let mut cloud = Cloud::default();
    let nodes = [(1, READY)];
    cloud.settle(Some(&intent(&own(&[80]), &[], &nodes)), NOW);
    let second = onehop_core::id::ServiceKey::new("default", "test2");
    let pin = [("azure-load-balancer-ipv4", "20.0.0.1")];
    let mut more = intent(&annotated(own(&[81]), &pin), &[], &nodes);
    more.service = second.clone();
    more.uid = "test2".into();
    more.spec.service_uid = "test2".into();
    let look = |cloud: &mut Cloud, roster| Observed {
        service: second.clone(),
        uids: ["test2".into()].into(),
        standing: Arc::new(super::super::super::model::Standing::new(roster)),
        ..cloud.seen(NOW)
    };
    let steps = |cloud: &mut Cloud, intent: Option<&Intent>, roster| {
        let seen = look(cloud, roster);
        let plan = plan(&settings(), &second, intent, &seen, NOW);
        plan.steps().cloned().collect::<Vec<_>>()
    };
    let nobody = super::super::super::model::Roster::default;
    for _ in 0..3 {
        for step in steps(&mut cloud, Some(&more), nobody()) {
            cloud.carry_out(&step);
        }
    }
    let rules = |cloud: &Cloud| -> Vec<String> {
        let balancer = &cloud.documents.balancers[&Kind::External];
        children(balancer, RULES)
            .iter()
            .map(|rule| name(rule).to_owned())
            .collect()
    };
    assert_eq!(rules(&cloud), ["atest1-TCP-80", "atest2-TCP-81"]);
    let kinds: Vec<Kind> = cloud.documents.balancers.keys().copied().collect();
    assert_eq!(kinds, [Kind::External], "AZ-174: where the address lives");
    assert_eq!(steps(&mut cloud, Some(&more), nobody()), [], "I4");
    // The first one moves away: the public IP has its name still, and is the second one's alone.
    let tags = &mut cloud.documents.public_ips[0]["tags"];
    tags[names::TAG_SERVICE] = json!("default/test2");
    let there = roster(&intent(&own(&[80]), &[], &nodes));
    assert_eq!(steps(&mut cloud, Some(&more), there.clone()), [], "AZ-173");
    // And when it goes, it takes its own part only.
    for step in steps(&mut cloud, None, there) {
        cloud.carry_out(&step);
    }
    assert_eq!(rules(&cloud), ["atest1-TCP-80"], "ZA-67");
}

#[test]
fn zi30_az041_another_subnet_is_one_write_with_an_address_of_it() {
    let of = |subnet: &str| {
        let wishes = [
            ("azure-load-balancer-internal", "true"),
            ("azure-load-balancer-internal-subnet", subnet),
        ];
        intent(&annotated(own(&[80]), &wishes), &[], &[(1, READY)])
    };
    let mut cloud = Cloud::default();
    cloud.settle(Some(&of("old")), NOW);
    give_private(&mut cloud);
    let done = cloud.settle(Some(&of("new")), NOW);
    let writes = done.iter().filter(|step| step.starts_with("write part"));
    assert_eq!(writes.count(), 1, "{done:?}");
    cloud.settle(Some(&of("new")), NOW + settings().dns_grace);
    let balancer = &cloud.documents.balancers[&Kind::Internal];
    let frontends = children(balancer, FRONTENDS);
    assert_eq!(frontends.len(), 1, "AZ-113: after its grace");
    assert_eq!(name(&frontends[0]), "atest1-new");
    assert!(
        reference(&frontends[0], "subnet")
            .unwrap()
            .ends_with("/subnets/new")
    );
    assert!(
        text(&frontends[0], &["properties", "privateIPAddress"]).is_none(),
        "not the one of the old subnet"
    );
}

#[test]
fn za49_az175_a_private_frontend_is_in_all_zones_and_stays_in_those_that_it_has() {
    let of = |subnet: &str| {
        let wishes = [
            ("azure-load-balancer-internal", "true"),
            ("azure-load-balancer-internal-subnet", subnet),
        ];
        intent(&annotated(own(&[80]), &wishes), &[], &[(1, READY)])
    };
    let zones = |cloud: &Cloud| {
        let frontends = children(&cloud.documents.balancers[&Kind::Internal], FRONTENDS);
        frontends.last().unwrap().get("zones").cloned()
    };
    let region = |zones: &[&str]| zones.iter().map(|zone| (*zone).to_owned()).collect();
    let mut cloud = Cloud::default();
    cloud.documents.zones = region(&["1", "2"]);
    cloud.settle(Some(&of("old")), NOW);
    assert_eq!(zones(&cloud), Some(json!(["1", "2"])), "ZA-49: new");
    give_private(&mut cloud);
    // The region gets another one.
    cloud.documents.zones = region(&["1", "2", "3"]);
    assert_eq!(cloud.settle(Some(&of("old")), NOW), [""; 0], "AZ-104");
    cloud.settle(Some(&of("new")), NOW);
    assert_eq!(zones(&cloud), Some(json!(["1", "2"])), "ZA-49: changed");
    // An edge zone, or a region without zones.
    let mut cloud = Cloud::default();
    cloud.settle(Some(&of("old")), NOW);
    assert_eq!(zones(&cloud), None, "ZA-49");
}

#[test]
fn zi34_az135_az311_internal_ipv6_goes_without_floating_ip() {
    let of = |target: &str| {
        let mut six = annotated(
            own(&[80]),
            &[
                ("azure-load-balancer-internal", "true"),
                ("onehop.dev/target", target),
            ],
        );
        six.families = vec![IpFamily::V6];
        super::super::super::resolve::resolve(&settings(), &six, None)
    };
    let node = part_of(&of("node").spec.unwrap());
    assert!(rule(&node, "atest1-TCP-80").contains("80->10080 floating=false"));
    assert_eq!(
        of("vip").refusals[0].reason,
        "TargetModeImpossible",
        "AZ-255"
    );
}

#[test]
fn zi48_az155_what_nobody_asked_for_is_compared_with_nothing() {
    let internal = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    let wanted = intent(&internal, &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&wanted), NOW);
    let balancer = cloud.documents.balancers.get_mut(&Kind::Internal).unwrap();
    for key in [FRONTENDS, RULES] {
        let there =
            &mut super::super::super::document::children_mut(balancer, key)[0]["properties"];
        there["privateIPAllocationMethod"] = json!("Static");
        there["privateIPAddress"] = json!("10.0.4.4");
        there["idleTimeoutInMinutes"] = json!(9);
        // ZI-52, AZ-079: set by hand, and kept.
        there["gatewayLoadBalancer"] = json!({"id": "/gateway"});
    }
    assert_eq!(cloud.settle(Some(&wanted), NOW), [""; 0], "ZI-48");
    let more = annotated(own(&[80, 81]), &[("azure-load-balancer-internal", "true")]);
    cloud.settle(Some(&intent(&more, &[], &[(1, READY)])), NOW);
    let balancer = &cloud.documents.balancers[&Kind::Internal];
    let frontend = &children(balancer, FRONTENDS)[0]["properties"];
    assert_eq!(
        frontend["gatewayLoadBalancer"]["id"],
        json!("/gateway"),
        "ZI-52"
    );
    assert_eq!(
        frontend["privateIPAddress"],
        json!("10.0.4.4"),
        "the address stays"
    );
}

#[test]
fn za82_za84_a_service_comes_before_its_pods_and_its_ports_come_and_go_in_one_write_each() {
    let of = |ports: &[u16], pods: &[(u8, State)]| {
        let service = annotated(own(ports), &[("onehop.dev/target", "pod")]);
        intent(&service, pods, &[])
    };
    let mut cloud = Cloud::default();
    cloud.settle(Some(&of(&[80], &[])), NOW);
    assert_eq!(cloud.members("atest1-pods-1"), [""; 0]);
    let balancer = &cloud.documents.balancers[&Kind::External];
    assert_eq!(children(balancer, RULES).len(), 1, "ZA-84, AZ-269");
    let done = cloud.settle(Some(&of(&[80], &[(1, READY)])), NOW);
    assert_eq!(
        done,
        ["pool atest1-pods-1 of External: 1 up, 0 down, 0 out"]
    );
    for ports in [&[80, 81][..], &[81]] {
        let wanted = of(ports, &[(1, READY)]);
        let before = cloud.documents.balancers[&Kind::External].clone();
        let done = cloud.settle(Some(&wanted), NOW);
        let writes = done.iter().filter(|step| step.starts_with("write part"));
        assert_eq!(writes.count(), 1, "ZA-82: {done:?}");
        let after = &cloud.documents.balancers[&Kind::External];
        let stays = |rule: &&Value| name(rule) == "atest1-TCP-81" || name(rule) == "atest1-TCP-80";
        for rule in children(after, RULES).iter().filter(stays) {
            let old = child(&before, RULES, name(rule));
            assert!(
                old.is_none_or(|old| old == rule),
                "ZA-82: the others are untouched"
            );
        }
    }
}

#[test]
fn za87_two_services_on_the_same_pods_have_pools_of_their_own() {
    let pods = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let mut other = annotated(own(&[81]), &[("onehop.dev/target", "pod")]);
    other.uid = "test2".into();
    let (one, two) = (part(&pods), part(&other));
    let mut document = new(&settings());
    let changes = Changes {
        parts: vec![one.clone(), two.clone()],
        ..Changes::default()
    };
    apply(&mut document, &settings(), &changes);
    assert!(is_there(&document, &one) && is_there(&document, &two));
    assert_ne!(one.pools[0].name, two.pools[0].name);
    for pool in [&one.pools[0].name, &two.pools[0].name] {
        assert_eq!(
            rules_of_pool(&document, pool),
            (true, true),
            "AZ-262, AZ-290"
        );
    }
}

#[test]
fn zi12_az237_az265_the_outbound_pool_and_its_rules_are_nobody_of_ours_business() {
    let mut document = foreign();
    let changes = Changes {
        parts: vec![part(&annotated(
            own(&[80]),
            &[("onehop.dev/target", "pod")],
        ))],
        ..Changes::default()
    };
    let of = |document: &Value| {
        let outbound = children(document, "outboundRules").to_vec();
        (
            outbound,
            child(document, POOLS, "aksOutboundBackendPool").cloned(),
        )
    };
    let before = of(&document);
    apply(&mut document, &settings(), &changes);
    assert_eq!(of(&document), before);
    let rule = child(&document, RULES, "atest1-TCP-80").unwrap();
    assert_eq!(
        rule["properties"]["disableOutboundSnat"],
        json!(true),
        "AZ-131"
    );
}

#[test]
fn zi42_az231_no_call_of_the_compute_api_is_in_the_role() {
    let role: Value = include_str!("../../../../../../charts/onehop/files/azure-role.json")
        .parse()
        .unwrap();
    let actions = role["Actions"].as_array().unwrap();
    assert!(!actions.is_empty());
    let compute = actions
        .iter()
        .filter(|it| it.as_str().unwrap().starts_with("Microsoft.Compute"));
    assert_eq!(compute.count(), 0);
}
