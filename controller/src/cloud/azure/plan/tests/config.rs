//! What the cloud config and labels of nodes decide.

use super::*;
use crate::cloud::azure::balancer::{is_there, may_go};
use crate::cloud::azure::document::{PROBES, RULES, children_mut, tag};
use crate::cloud::azure::names;
use crate::cloud::azure::public_ip::keeper;
use crate::cloud::azure::resolve::{Flavour, resolve};
use crate::cloud::azure::settings::Layout;
use crate::cloud::azure::testkit::{local, part_of, probe, rule, service};
use crate::plan::Machine;
use crate::plan::custody::PeerServices;

const READY: State = State::Ready;

/// Members of the nodes' pool for nodes with these labels, by the plan of a first pass.
fn members_with(settings: &Settings, labels: &[(u8, &str, &str)]) -> Vec<String> {
    let mut intent = intent(&own(&[80]), &[], &[(1, READY), (2, READY), (3, READY)]);
    let machine = |(n, key, value): &(u8, &str, &str)| {
        let machine = Machine {
            labels: [((*key).to_owned(), (*value).to_owned())].into(),
            ..Machine::default()
        };
        (IpAddr::from([10, 0, 0, *n]), machine)
    };
    intent.machines = Arc::new(labels.iter().map(machine).collect());
    let mut cloud = Cloud::default();
    let pip = json!({"id": settings.place.public_ip_id(None, "kubernetes-atest1"), "name": "kubernetes-atest1",
        "tags": {names::TAG_INSTALL: "demo-azure", names::TAG_GENERATION: "1", names::TAG_SERVICE: "default/test1"},
        "properties": {"ipAddress": "20.0.0.1"}});
    cloud.documents.public_ips.push(pip);
    let seen = cloud.seen(NOW);
    let plan = plan(settings, &key(), Some(&intent), &seen, NOW);
    let parts = plan.steps().filter_map(|step| match step {
        AzureStep::PutPart { members, .. } => Some(members.clone()),
        _ => None,
    });
    let up = parts.flatten().flat_map(|change| change.up);
    let up: BTreeSet<String> = up.map(|(_, address)| address.to_string()).collect();
    up.into_iter().collect()
}

#[test]
fn az037_az233_nodes_that_are_never_members_say_so_by_their_labels() {
    let here = |group: Option<&str>| Settings {
        place: super::super::super::settings::Place {
            node_resource_group: group.map(str::to_owned),
            ..settings().place
        },
        ..settings()
    };
    let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let managed = "kubernetes.azure.com/managed";
    let group = "kubernetes.azure.com/resource-group";
    let plane = "node-role.kubernetes.io/control-plane";
    let rows = [
        (managed, "False", false),
        (managed, "true", true),
        (group, "other", false),
        (group, "MC_demo", true),
        (plane, "", false),
        ("agentpool", "one", true),
    ];
    for (label, value, stays) in rows {
        let found = members_with(&here(Some("mc_DEMO")), &[(2, label, value)]);
        let expected: Vec<&str> = all
            .into_iter()
            .filter(|it| stays || *it != "10.0.0.2")
            .collect();
        assert_eq!(found, expected, "AZ-037: {label}={value}");
    }
    let masters = Settings {
        exclude_control_plane: false,
        ..settings()
    };
    assert_eq!(
        members_with(&masters, &[(2, plane, "")]),
        all,
        "AZ-233: excludeMasterFromStandardLB"
    );
}

#[test]
fn az236_az012_pools_that_others_fill_get_no_member_of_ours() {
    let others = Settings {
        others_pools: [Kind::External].into(),
        ..settings()
    };
    assert_eq!(members_with(&others, &[]), [""; 0], "AZ-236");
}

#[test]
fn az239_az012_a_pool_of_network_interfaces_is_left_alone_and_that_is_told() {
    let mut cloud = Cloud::default();
    let two = intent(&own(&[80]), &[], &[(1, READY), (2, READY)]);
    cloud.settle(Some(&two), NOW);
    let balancer = cloud.documents.balancers.get_mut(&Kind::External).unwrap();
    let pool = &mut children_mut(balancer, POOLS)[0]["properties"];
    pool["backendIPConfigurations"] = json!([{"id": "/nic/1"}, {"id": "/nic/2"}]);
    // As Azure shows them: without an address.
    pool["loadBalancerBackendAddresses"] = json!([{"name": "nic-1"}, {"name": "nic-2"}]);
    let before = pool.clone();
    let three = intent(&own(&[80]), &[], &[(1, READY), (2, READY), (3, READY)]);
    assert_eq!(cloud.settle(Some(&three), NOW), [""; 0], "AZ-012");
    let balancer = &cloud.documents.balancers[&Kind::External];
    assert_eq!(children(balancer, POOLS)[0]["properties"], before, "AZ-012");
    let outcome = outcome::outcome(&settings(), &three, &cloud.seen(NOW), NOW);
    let counts = outcome.ports.values().map(|it| (it.registered, it.healthy));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [(2, 2)],
        "AZ-012: it has targets"
    );
    let told = outcome
        .notices
        .iter()
        .find(|it| it.reason == "PoolOfNetworkInterfaces");
    let message = &told.expect("AZ-239").message;
    assert!(
        message.contains("2 network interfaces") && message.contains("nodeIP"),
        "{message}"
    );
}

#[test]
fn za26_az011_az142_az140_one_probe_of_all_cluster_services_of_the_peers_class() {
    let shared = Settings {
        shared_probe: Some((10256, "/healthz".to_owned())),
        ..settings()
    };
    let spec = |service: &ServiceSpec| {
        let resolution = resolve(&shared, service, None);
        assert_eq!(resolution.refusals, []);
        resolution.spec.unwrap()
    };
    let both = part_of(&spec(&service(&[80, 81])));
    assert_eq!(both.probes.len(), 1, "ZA-26");
    let name = "cluster-service-shared-health-probe";
    assert_eq!(probe(&both, name), "Http 10256 /healthz 5x2", "ZA-26");
    for port in [80, 81] {
        let said = rule(&both, &format!("atest1-TCP-{port}"));
        assert!(said.ends_with(&format!("probe={name}")), "ZA-26: {said}");
    }
    let mut without = annotated(service(&[80]), &[("onehop.dev/target", "vip")]);
    without.allocates_node_ports = false;
    without.ports[0].node_port = None;
    assert_eq!(spec(&without).ports[0].mode, TargetMode::Vip, "AZ-140");
    let of_local = part_of(&spec(&local(service(&[80]), 34567)));
    assert_eq!(
        probe(&of_local, "atest1-TCP-34567"),
        "Http 34567 /healthz 5x2",
        "ZA-73"
    );
    // AZ-011: it goes with the last rule of whoever, where the peer is off; beside the peer it is not ours to take.
    let mut balancer = new(&settings());
    let lay = |parts| Changes {
        parts,
        ..Changes::default()
    };
    apply(&mut balancer, &settings(), &lay(vec![both.clone()]));
    let mut theirs = children(&balancer, RULES)[0].clone();
    theirs["name"] = json!("aother-TCP-80");
    super::super::super::document::children_mut(&mut balancer, RULES).push(theirs);
    let gone = Changes {
        removed: ["atest1".to_owned()].into(),
        ..Changes::default()
    };
    let mut off = settings();
    off.take_over.peer = PeerServices::Off;
    let has_it = |balancer: &Value| child(balancer, PROBES, name).is_some();
    let mut kept = balancer.clone();
    apply(&mut kept, &off, &gone);
    assert!(has_it(&kept), "AZ-150: another rule refers to it");
    super::super::super::document::children_mut(&mut kept, RULES).clear();
    let mut beside = kept.clone();
    apply(&mut beside, &settings(), &Changes::default());
    assert!(has_it(&beside), "AZ-011");
    apply(&mut kept, &off, &Changes::default());
    assert!(!has_it(&kept), "ZI-08");
}

#[test]
fn az185_tags_of_the_configuration_are_merged_and_obsolete_ones_go_where_it_says_so() {
    let mut settings = settings();
    settings.tags.insert("team".to_owned(), "net".to_owned());
    let spec = resolved(&own(&[80]));
    let wishes = super::super::super::annotations::of_options(&spec);
    let service = key();
    let asker = super::super::super::public_ip::Asker {
        service: &service,
        spec: &spec,
        wishes: &wishes,
        zones: &[],
    };
    let pip = json!({"id": settings.place.public_ip_id(None, "kubernetes-atest1"), "name": "kubernetes-atest1",
        "tags": {names::TAG_INSTALL: "demo-azure", names::TAG_GENERATION: "1", names::TAG_SERVICE: "default/test1",
            "old": "x", "Cost": "7", "TEAM": "net"},
        "properties": {"ipAddress": "20.0.0.1"}});
    let written = |settings: &Settings, pip: &Value| {
        let all = std::slice::from_ref(pip);
        let it = asker.public_ip(settings, all, onehop_core::id::IpFamily::V4);
        it.unwrap().write
    };
    let mut lacks = pip.clone();
    lacks["tags"].as_object_mut().unwrap().remove("TEAM");
    let merged = written(&settings, &lacks).unwrap();
    assert_eq!(merged["tags"]["team"], json!("net"), "AZ-185");
    assert_eq!(merged["tags"]["old"], json!("x"), "AZ-185: it stays");
    settings.system_tags = Some(["cost".to_owned()].into());
    let cleared = written(&settings, &merged).unwrap();
    for (key, stays) in [
        ("old", false),
        ("Cost", true),
        ("team", true),
        (names::TAG_INSTALL, true),
        (names::TAG_SERVICE, true),
    ] {
        assert_eq!(tag(&cleared, key).is_some(), stays, "AZ-185: {key}");
    }
    assert_eq!(written(&settings, &cleared), None, "AZ-104");
    let mut balancer = new(&super::settings());
    apply(&mut balancer, &settings, &Changes::default());
    assert_eq!(tag(&balancer, "team"), Some("net"), "AZ-185");
}

#[test]
fn az094_az180_az081_the_peers_names_and_tags_are_ours_to_write_only_where_it_is_off() {
    let (mut off, beside) = (settings(), settings());
    off.take_over.peer = PeerServices::Off;
    off.layout = Layout::Shared;
    assert_eq!(beside.naming(None), Flavour::Own, "AZ-010");
    assert_eq!(off.naming(None), Flavour::Peer);
    assert_eq!(off.naming(Some("onehop.dev/azure")), Flavour::Own, "AZ-099");
    let pip =
        |service: &str, cluster: &str| json!({"tags": {service: "a/b", cluster: "Kubernetes"}});
    for (service, cluster) in [
        ("k8s-azure-service", "k8s-azure-cluster-name"),
        ("service", "kubernetes-cluster-name"),
    ] {
        let pip = pip(service, cluster);
        assert_eq!(keeper(&off, &pip), Some(Flavour::Peer), "AZ-094");
        assert_eq!(keeper(&beside, &pip), None, "AZ-180: it is the peer's");
    }
    let none = json!({"tags": {"service": "a/b"}});
    assert_eq!(keeper(&off, &none), None, "AZ-180: of which cluster?");
    let other = json!({"tags": {"service": "a/b", "k8s-azure-cluster-name": "other"}});
    assert_eq!(keeper(&off, &other), None, "AZ-180");
    let users = json!({"tags": {"team": "net"}});
    assert_eq!(keeper(&off, &users), None, "AZ-180: a user's");
    // A new one of the peer's class is made as the peer makes it.
    let spec = resolved(&service(&[80]));
    let wishes = super::super::super::annotations::of_options(&spec);
    let of = key();
    let asker = super::super::super::public_ip::Asker {
        service: &of,
        spec: &spec,
        wishes: &wishes,
        zones: &[],
    };
    let made = asker.public_ip(&off, &[], onehop_core::id::IpFamily::V4);
    let made = made.unwrap().write.unwrap();
    assert_eq!(
        made["tags"],
        json!({"k8s-azure-service": "default/test1", "k8s-azure-cluster-name": "kubernetes"}),
        "AZ-094"
    );
    let mut shared = json!({"properties": {}});
    apply(
        &mut shared,
        &off,
        &Changes {
            parts: vec![part_of(&spec)],
            ..Changes::default()
        },
    );
    assert!(is_there(&shared, &part_of(&spec)) && may_go(&shared, &off));
    assert!(shared.get("tags").is_none(), "AZ-014: no tag of ours");
}

#[test]
fn az213_az201_az010_rules_of_the_peer_hold_what_its_services_have_and_nothing_else() {
    use crate::cloud::azure::document::{SECURITY_RULES, children_mut};
    use crate::cloud::azure::security::{Addresses, demands, desired};
    let (mut off, beside) = (settings(), settings());
    off.take_over.peer = PeerServices::Off;
    let name_of = "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77";
    let rule = |name: &str, to: &[&str]| {
        json!({"name": name, "properties": {"priority": 500, "direction": "Inbound", "access": "Allow", "protocol": "Tcp",
            "sourcePortRange": "*", "sourceAddressPrefix": "Internet", "destinationAddressPrefixes": to,
            "destinationPortRanges": ["80"]}})
    };
    let mut group =
        json!({"properties": {SECURITY_RULES: [rule(name_of, &["20.0.0.7", "20.0.0.1"])]}});
    let foreign = json!({"name": "k8s-azure-lb_mine", "properties": {"priority": 120}});
    children_mut(&mut group, SECURITY_RULES).push(foreign);
    let spec = resolved(&service(&[80]));
    let wanted = |settings: &Settings, octets: &[u8]| -> Vec<_> {
        let at = |n: &u8| Addresses {
            frontends: vec![IpAddr::from([20, 0, 0, *n])],
            ..Addresses::default()
        };
        let wishes = super::super::super::annotations::of_options(&spec);
        let all = octets.iter().map(at);
        all.flat_map(|at| demands(settings, &spec, &wishes, &at))
            .collect()
    };
    let same = desired(&off, &group, &wanted(&off, &[1, 7])).unwrap();
    assert_eq!(same, group, "AZ-014: in whatever order the peer has them");
    let healed = desired(&off, &group, &wanted(&off, &[1])).unwrap();
    let rule_of = |group: &Value| children(group, SECURITY_RULES)[0].clone();
    assert_eq!(
        rule_of(&healed)["properties"]["destinationAddressPrefixes"],
        json!(["20.0.0.1"]),
        "AZ-213: leaks heal"
    );
    assert_eq!(
        rule_of(&healed)["properties"]["priority"],
        json!(500),
        "AZ-202"
    );
    let none = desired(&off, &group, &[]).unwrap();
    assert_eq!(
        children(&none, SECURITY_RULES).len(),
        1,
        "AZ-201: out of the band it is nobody of ours"
    );
    assert_eq!(
        desired(&beside, &group, &[]).unwrap(),
        group,
        "AZ-010: beside the peer"
    );
    let ours = desired(&beside, &group, &wanted(&beside, &[1])).unwrap();
    assert_eq!(
        rule_of(&ours),
        rule_of(&group),
        "AZ-010: each by its own names"
    );
}
