//! Documents that others write too, through random sequences of our operations: what is not ours stays byte for byte, at
//! every depth, and what others have put into ours stays as long as that (AZ-008, AZ-400, AZ-404, ZA-104).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::annotations;
use super::balancer::{Changes, PoolChange, apply};
use super::document::{
    FRONTENDS, POOLS, PROBES, RULES, SECURITY_RULES, children, children_mut, name,
};
use super::names;
use super::part::Part;
use super::public_ip::{Asker, Release, release};
use super::security::{Addresses, demands, desired};
use super::settings::Settings;
use super::testkit::{annotated, foreign, own, part_of, resolved, settings};

/// Services that come and go.
const SERVICES: u8 = 3;
const LISTS: [&str; 4] = [FRONTENDS, POOLS, PROBES, RULES];

/// One operation of ours.
#[derive(Clone, Debug)]
enum Operation {
    /// A Service has these ports.
    Put(u8, BTreeSet<u16>, bool),
    /// One goes.
    Remove(u8),
    /// Members of the nodes' pool come, go Down and go.
    Members(BTreeSet<u8>, BTreeSet<u8>, BTreeSet<u8>),
}

fn operation() -> impl Strategy<Value = Operation> {
    let octets = || proptest::collection::btree_set(1..6_u8, 0..3);
    let ports = proptest::collection::btree_set(80..86_u16, 1..4);
    prop_oneof![
        4 => (0..SERVICES, ports, any::<bool>()).prop_map(|(n, ports, only)| Operation::Put(n, ports, only)),
        2 => (0..SERVICES).prop_map(Operation::Remove),
        2 => (octets(), octets(), octets()).prop_map(|(up, down, out)| Operation::Members(up, down, out)),
    ]
}

/// Anything that Azure may begin to send.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zA-Z0-9 /_-]{0,8}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let named = proptest::collection::btree_map("[a-z]{1,4}", inner.clone(), 0..3);
        let object = |map: BTreeMap<String, Value>| Value::Object(Map::from_iter(map));
        prop_oneof![
            vec(inner, 0..3).prop_map(Value::from),
            named.prop_map(object)
        ]
    })
}

/// Puts one of these into every object, at every depth.
fn strew(value: &mut Value, more: &mut impl Iterator<Item = Value>) {
    match value {
        Value::Object(map) => {
            for inner in map.values_mut() {
                strew(inner, more);
            }
            map.insert("notOurs".to_owned(), more.next().unwrap_or_default());
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| strew(inner, more)),
        _ => {}
    }
}

fn uid(n: u8) -> String {
    format!("uid{n}")
}

fn key(n: u8) -> ServiceKey {
    ServiceKey::new("default", uid(n).as_str())
}

fn spec(n: u8, ports: &BTreeSet<u16>, only: bool) -> LoadBalancerSpec {
    let ports: Vec<u16> = ports.iter().copied().collect();
    let service = ServiceSpec {
        key: key(n),
        uid: uid(n).as_str().into(),
        ..own(&ports)
    };
    let ranges = [
        ("azure-allowed-ip-ranges", "30.0.0.0/8,31.0.0.0/8"),
        ("azure-deny-all-except-load-balancer-source-ranges", "true"),
    ];
    resolved(&annotated(service, if only { &ranges } else { &[] }))
}

fn part(spec: &LoadBalancerSpec) -> Part {
    let mut part = part_of(spec);
    let id = settings()
        .place
        .public_ip_id(None, &format!("kubernetes-{}", part.base));
    part.frontends[0].wish["properties"]["publicIPAddress"]["id"] = json!(id);
    part
}

/// Whether a child of the load balancer is of one of our Services, or one that they share.
fn is_ours(child: &Value) -> bool {
    let name = name(child);
    let of_service = |n| names::is_of(name, &names::base(&uid(n).as_str().into()));
    let shared = name == "demo-azure" || names::is_node_probe(name, &"demo-azure".into());
    shared || (0..SERVICES).any(of_service)
}

/// The load balancer without what is ours, as it would be sent.
fn rest(balancer: &Value) -> String {
    let mut balancer = balancer.clone();
    for list in LISTS {
        children_mut(&mut balancer, list).retain(|child| !is_ours(child));
    }
    balancer.to_string()
}

/// What others have put into ours, by list and name.
fn marks(balancer: &Value) -> BTreeMap<(&'static str, String), Value> {
    let of_list = |list: &'static str| {
        let ours = children(balancer, list)
            .iter()
            .filter(|child| is_ours(child));
        ours.map(move |child| {
            (
                (list, name(child).to_owned()),
                child["properties"]["notOurs"].clone(),
            )
        })
    };
    LISTS.into_iter().flat_map(of_list).collect()
}

fn changes(of: &Operation) -> Changes {
    let node = |n: &u8| IpAddr::from([10, 0, 0, *n]);
    match of {
        Operation::Put(n, ports, only) => Changes {
            parts: vec![part(&spec(*n, ports, *only))],
            ..Changes::default()
        },
        Operation::Remove(n) => Changes {
            removed: [names::base(&uid(*n).as_str().into())].into(),
            ..Changes::default()
        },
        Operation::Members(up, down, out) => Changes {
            members: vec![PoolChange {
                pool: "demo-azure".to_owned(),
                up: up.iter().map(|n| (format!("node-{n}"), node(n))).collect(),
                down: down.iter().map(node).collect(),
                out: out.iter().map(node).collect(),
            }],
            ..Changes::default()
        },
    }
}

/// The security group without what is ours.
fn others(group: &Value) -> String {
    let mut group = group.clone();
    let rules = children_mut(&mut group, SECURITY_RULES);
    rules.retain(|rule| !name(rule).starts_with("onehop-"));
    group.to_string()
}

fn group_of_others() -> Value {
    let rule = |name: &str, priority: u32| {
        json!({"name": name, "properties": {"priority": priority, "direction": "Inbound", "access": "Allow",
            "protocol": "*", "sourceAddressPrefix": "", "sourceAddressPrefixes": [],
            "destinationApplicationSecurityGroups": [{"id": "/asg"}], "destinationPortRange": "*"}})
    };
    json!({"location": "westus", "properties": {"securityRules": [
        rule("theirs", 100), rule("k8s-azure-lb_allow_IPv4_abc", 500), rule("onehopper", 501),
    ], "defaultSecurityRules": [rule("AllowVnetInBound", 65000)], "subnets": []}})
}

/// The public IP that is shared, without its list of Services.
fn without_list(pip: &Value) -> String {
    let mut pip = pip.clone();
    pip["tags"][names::TAG_SERVICE] = json!("");
    pip.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn az404_az008_za104_zi39_a_load_balancer_with_anything_in_it_keeps_everything_of_others(
        operations in vec(operation(), 1..24),
        more in vec(anything(), 24),
    ) {
        let mut more = more.into_iter().cycle();
        let mut there = foreign();
        strew(&mut there, &mut more);
        let before = rest(&there);
        let settings: Settings = settings();
        for operation in &operations {
            // What Azure adds to ours before it gives it back.
            for list in LISTS {
                for child in children_mut(&mut there, list).iter_mut().filter(|child| is_ours(child)) {
                    if child["properties"].get("notOurs").is_none() {
                        strew(child, &mut more);
                    }
                }
            }
            let marked = marks(&there);
            apply(&mut there, &settings, &changes(operation));
            prop_assert_eq!(rest(&there), before.clone(), "AZ-008: {:?}", operation);
            for (of, mark) in marks(&there) {
                if let Some(was) = marked.get(&of) {
                    prop_assert_eq!(&mark, was, "AZ-400: {:?} of {:?}", of, operation);
                }
            }
            // Members are set Up by whoever has seen them Down; everything else is done once, and then it is done.
            if !matches!(operation, Operation::Members(..)) {
                let again = there.clone();
                apply(&mut there, &settings, &changes(operation));
                prop_assert_eq!(&there, &again, "AZ-104: {:?}", operation);
            }
        }
        for n in 0..SERVICES {
            apply(&mut there, &settings, &changes(&Operation::Remove(n)));
        }
        prop_assert_eq!(rest(&there), before);
        let ours = |list| children(&there, list).iter().filter(|child| is_ours(child)).count();
        let left: Vec<usize> = [FRONTENDS, PROBES, RULES].into_iter().map(ours).collect();
        prop_assert_eq!(left, vec![0, 0, 0], "nothing of ours is left");
    }

    #[test]
    fn az404_az008_az212_a_security_group_with_anything_in_it_keeps_every_rule_of_others(
        operations in vec(operation(), 1..24),
        more in vec(anything(), 24),
    ) {
        let mut more = more.into_iter().cycle();
        let mut there = group_of_others();
        strew(&mut there, &mut more);
        let (before, settings) = (others(&there), settings());
        let mut live: BTreeMap<u8, LoadBalancerSpec> = BTreeMap::new();
        for operation in &operations {
            match operation {
                Operation::Put(n, ports, only) => drop(live.insert(*n, spec(*n, ports, *only))),
                Operation::Remove(n) => drop(live.remove(n)),
                Operation::Members(..) => {}
            }
            let wanted: Vec<_> = live.iter().flat_map(|(n, spec)| {
                let at = Addresses { frontends: vec![IpAddr::from([20, 0, 0, *n])], ..Addresses::default() };
                demands(&settings, spec, &annotations::of_options(spec), &at)
            }).collect();
            there = desired(&settings, &there, &wanted).unwrap();
            prop_assert_eq!(others(&there), before.clone(), "AZ-008: {:?}", operation);
            prop_assert_eq!(&desired(&settings, &there, &wanted).unwrap(), &there, "AZ-104");
        }
        there = desired(&settings, &there, &[]).unwrap();
        prop_assert_eq!(others(&there), there.to_string(), "AZ-212: no rule of ours is left");
    }

    #[test]
    fn az404_az181_a_public_ip_with_anything_in_it_changes_its_list_and_nothing_else(
        turns in vec((0..SERVICES, any::<bool>()), 1..24),
        more in vec(anything(), 24),
    ) {
        let settings = settings();
        let mut pip = json!({
            "id": settings.place.public_ip_id(None, "shared"), "name": "shared", "sku": {"name": "Standard"},
            "tags": {names::TAG_INSTALL: "demo-azure", names::TAG_SERVICE: "other/web", "team": "net"},
            "properties": {"ipAddress": "20.0.0.9", "publicIPAddressVersion": "IPv4", "ddosSettings": {"x": []}},
        });
        let mut more = more.into_iter().cycle();
        strew(&mut pip["properties"], &mut more);
        let before = without_list(&pip);
        for (n, joins) in turns {
            if joins {
                let mut spec = spec(n, &[80].into(), false);
                let named = annotated(ServiceSpec { key: key(n), uid: uid(n).as_str().into(), ..own(&[80]) }, &[("azure-pip-name", "shared")]);
                spec.options = resolved(&named).options;
                let (service, wishes) = (key(n), annotations::of_options(&spec));
                let asker = Asker { service: &service, spec: &spec, wishes: &wishes, zones: &[] };
                let it = asker.public_ip(&settings, std::slice::from_ref(&pip), onehop_core::id::IpFamily::V4).unwrap();
                pip = it.write.unwrap_or(pip);
            } else {
                match release(&settings, &pip, &key(n)) {
                    Release::Keep(document) => pip = document,
                    Release::Nothing => {}
                    Release::Delete => prop_assert!(false, "AZ-181: another Service is in its list"),
                }
            }
            prop_assert_eq!(without_list(&pip), before.clone());
        }
    }
}
