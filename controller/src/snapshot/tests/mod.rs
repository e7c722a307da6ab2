mod aws;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use onehop_runtime::watch::Seen;
use serde_json::{Value, json};

use super::*;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn service(extra: Value) -> Service {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local",
            "selector": { "app": "web" }, "clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080 }],
        },
    });
    for (key, value) in extra.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    read(object)
}

fn view(service: &Service) -> ServiceSpec {
    ServiceSpec::read(service).unwrap().0
}

fn pod(n: u8, extra: Value) -> Pod {
    let mut object = json!({
        "metadata": { "name": format!("p{n}"), "namespace": "shop", "uid": format!("uid-{n}") },
        "status": { "podIPs": [{ "ip": format!("10.244.1.{n}") }] },
    });
    for (part, fields) in extra.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            object[part][key] = value.clone();
        }
    }
    read(object)
}

fn dying() -> Value {
    json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30,
    } })
}

/// Endpoints by pod: ready, serving, terminating.
fn slice(endpoints: &[(u8, [bool; 3])]) -> EndpointSlice {
    let endpoint = |(n, [ready, serving, terminating]): &(u8, [bool; 3])| {
        json!({
            "addresses": [format!("10.244.1.{n}")], "nodeName": format!("node-{}", n % 2 + 1),
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
            "targetRef": { "kind": "Pod", "name": format!("p{n}"), "uid": format!("uid-{n}") },
        })
    };
    read(json!({
        "metadata": {
            "name": "web-1", "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    }))
}

fn node(n: u8, spec: Value, labels: Value, ready: &str) -> Node {
    read(json!({
        "metadata": { "name": format!("node-{n}"), "labels": labels },
        "spec": spec,
        "status": {
            "addresses": [{ "type": "InternalIP", "address": format!("10.0.1.{n}") }],
            "conditions": [{ "type": "Ready", "status": ready }],
        },
    }))
}

fn plain(n: u8) -> Node {
    node(n, json!({}), json!({}), "True")
}

fn tainted(n: u8, key: &str) -> Node {
    let spec = json!({ "taints": [{ "key": key, "effect": "NoSchedule" }] });
    node(n, spec, json!({}), "True")
}

/// For our own policy and IPv4.
fn scope(absent: &BTreeSet<NodeName>) -> Scope<'_> {
    Scope {
        families: &[IpFamily::V4],
        policy: MembershipPolicy::ZeroDrop,
        absent,
    }
}

struct Cluster(Index);

impl Cluster {
    fn new(nodes: Vec<Node>, pods: Vec<Pod>, endpoints: &[(u8, [bool; 3])]) -> Self {
        let mut index = Index::default();
        for node in nodes {
            index.on_node(Seen::Applied(node));
        }
        for pod in pods {
            index.on_pod(Seen::Applied(pod));
        }
        index.on_slice(Seen::Applied(slice(endpoints)));
        Self(index)
    }

    fn states(&self, service: &Service) -> (Vec<State>, Vec<State>) {
        let members = members(&self.0, &view(service), scope(&BTreeSet::new()));
        let members = &members.values().next().unwrap();
        let states = |m: &Members| m.list.iter().map(|m| m.state).collect();
        (states(&members.pods), states(&members.nodes))
    }
}

const READY: [bool; 3] = [true, true, false];
const LEAVING: [bool; 3] = [false, true, true];
const SICK: [bool; 3] = [false, false, false];

#[test]
fn endpoints_and_pods_together_tell_the_state() {
    let ended = json!({ "status": { "phase": "Failed" } });
    let pods = vec![
        pod(1, json!({})),
        pod(2, dying()),
        pod(3, ended),
        pod(4, json!({})),
    ];
    let endpoints = [
        (1, READY),
        (2, READY),
        (3, READY),
        (4, SICK),
        (5, READY),
        (6, LEAVING),
    ];
    let cluster = Cluster::new(vec![plain(1), plain(2)], pods, &endpoints);
    let since = "2026-01-01T00:00:10Z".parse().ok();
    let terminating = State::Terminating {
        serving: Serving::Yes,
        since,
    };
    let expected = [
        State::Ready,
        // AWS-414: the pod's deletion mark comes before the endpoint's condition.
        terminating,
        // ZD-77: containers have ended although the endpoint says ready.
        State::Gone,
        State::NotReady,
        // AWS-411: the pod is not known yet.
        State::Ready,
        State::Gone,
    ];
    assert_eq!(
        cluster.states(&service(json!({}))).0,
        expected,
        "AWS-411, AWS-414, ZD-77"
    );
}

/// ZD-24, K-24, ZD-78: whether an agent stands in for a pod that terminates and for one that is gone.
#[test]
fn zd24_k24_zd78_nobody_stands_in_for_a_gone_pod_where_the_agent_is_absent_or_the_node_goes() {
    let object = |status: Value| {
        json!({
            "metadata": { "name": "node-2" },
            "spec": { "installs": { "i": {
                "cluster": { "podCIDRs": [], "nodeCIDRs": [], "tailMaxSeconds": 0, "holdMaxSeconds": 600 },
                "targets": [{
                    "service": { "namespace": "shop", "name": "web", "uid": "u1" }, "portName": "http",
                    "protocol": "TCP", "address": "10.244.1.9", "targetPort": 8080, "podUID": "uid-9",
                    "podName": "p9", "health": "agent", "sources": [], "clientIP": "preserve",
                    "state": "held", "since": "2026-01-01T00:00:00Z",
                }],
            } } },
            "status": status,
        })
    };
    let guards = json!({ "features": ["guard"] });
    let out = tainted(2, onehop_core::node::OUT_OF_SERVICE_TAINT);
    let mut deleted = plain(2);
    deleted.metadata.deletion_timestamp = Some(read(json!("2026-01-01T00:00:00Z")));
    let (yes, no) = (Guard::Present, Guard::Absent);
    let mut rows = vec![
        (plain(2), guards.clone(), false, [yes, yes]),
        (
            node(2, json!({}), json!({}), "False"),
            guards.clone(),
            false,
            [yes, yes],
        ),
        (
            node(2, json!({ "unschedulable": true }), json!({}), "True"),
            guards.clone(),
            false,
            [yes, yes],
        ),
        (plain(2), guards.clone(), true, [no, no]),
        (plain(2), json!({ "features": [] }), false, [no, no]),
        (out, guards.clone(), false, [yes, no]),
        (deleted, guards.clone(), false, [yes, no]),
    ];
    for taint in GOING_TAINTS {
        rows.push((tainted(2, taint), guards.clone(), false, [yes, no]));
    }
    for (node, status, absent, wanted) in rows {
        let row = format!("{node:?} {status} {absent}");
        // Pod 1 is on node-2 and terminates; pod 9 was there.
        let mut cluster = Cluster::new(vec![node], vec![pod(1, dying())], &[(1, LEAVING)]);
        cluster
            .0
            .on_node_targets(Seen::Applied(read(object(status))));
        let absent = absent
            .then(|| NodeName::from("node-2"))
            .into_iter()
            .collect();
        let of = view(&service(json!({})));
        let members = members(&cluster.0, &of, scope(&absent));
        let dying = members.values().next().unwrap().pods.list[0].guard;
        let gone = IpAddr::from([10, 244, 1, 9]);
        let remembered = [(gone, PodUid::from("uid-9"))].into();
        let all = departed(&cluster.0, &of, (&remembered, &[gone].into()), &absent);
        assert_eq!(all[&gone].state, State::Gone);
        assert_eq!([dying, all[&gone].guard], wanted, "{row}");
    }
}

#[test]
fn zd78_what_a_signal_about_a_node_does_to_membership() {
    let cordoned = node(2, json!({ "unschedulable": true }), json!({}), "True");
    let excluded = node(
        2,
        json!({}),
        json!({ onehop_core::node::EXCLUDE_LABEL: "" }),
        "True",
    );
    let rows = [
        (plain(2), State::Ready, State::Ready),
        (
            node(2, json!({}), json!({}), "False"),
            State::Ready,
            State::NotReady,
        ),
        (cordoned, State::Ready, State::Ready),
        (
            tainted(2, "ToBeDeletedByClusterAutoscaler"),
            State::Displaced,
            State::Withdrawn,
        ),
        (
            tainted(2, "karpenter.sh/disrupted"),
            State::Displaced,
            State::Withdrawn,
        ),
        (excluded, State::Ready, State::Withdrawn),
        (
            tainted(2, "node.kubernetes.io/out-of-service"),
            State::Gone,
            State::Gone,
        ),
    ];
    for (node, pod_state, node_state) in rows {
        let row = format!("ZD-78: {node:?}");
        let cluster = Cluster::new(vec![node], vec![pod(1, json!({}))], &[(1, READY)]);
        let states = cluster.states(&service(json!({})));
        assert_eq!(states, (vec![pod_state], vec![node_state]), "{row}");
    }
}

#[test]
fn with_policy_local_every_node_is_a_target_and_as_many_as_have_endpoints_can_be_healthy() {
    let nodes = vec![plain(1), plain(2)];
    let cluster = Cluster::new(nodes, vec![], &[(2, READY), (4, READY), (1, SICK)]);
    let local = service(json!({ "externalTrafficPolicy": "Local" }));
    let members = members(&cluster.0, &view(&local), scope(&BTreeSet::new()));
    let nodes = &members.values().next().unwrap().nodes;
    assert_eq!((nodes.list.len(), nodes.at_most_healthy), (2, Some(1)));
}

#[test]
fn s10_each_family_that_is_asked_for_has_its_targets() {
    let mut node = plain(1);
    let addresses = json!([
        { "type": "InternalIP", "address": "10.0.1.1" },
        { "type": "InternalIP", "address": "fd00:1::1" },
    ]);
    node.status.get_or_insert_default().addresses = Some(read(addresses));
    let mut cluster = Cluster::new(vec![node, plain(2)], vec![], &[(1, READY), (2, READY)]);
    let mut six = slice(&[]);
    six.metadata.name = Some("web-6".to_owned());
    "IPv6".clone_into(&mut six.address_type);
    six.endpoints = read(json!([{
        "addresses": ["fd00:244:1::1"], "nodeName": "node-1", "conditions": { "ready": true },
    }]));
    cluster.0.on_slice(Seen::Applied(six));
    let service = service(json!({
        "clusterIPs": ["10.96.0.9", "fd00:96::9"], "ipFamilies": ["IPv4", "IPv6"],
        "externalTrafficPolicy": "Local",
    }));
    let of = |families: &[IpFamily]| {
        let members = members(
            &cluster.0,
            &view(&service),
            Scope {
                families,
                ..scope(&BTreeSet::new())
            },
        );
        let members = members.into_values().next().unwrap();
        let addresses = |m: &Members| m.list.iter().map(|m| m.key.address.to_string()).collect();
        let (pods, nodes): (Vec<String>, Vec<String>) =
            (addresses(&members.pods), addresses(&members.nodes));
        (pods, nodes, members.vips.at_most_healthy)
    };
    let (pods, nodes, most) = of(&[IpFamily::V4, IpFamily::V6]);
    assert_eq!(pods, ["10.244.1.1", "10.244.1.2", "fd00:244:1::1"], "S-10");
    // A node without an address of a family is no target in it.
    assert_eq!(nodes, ["10.0.1.1", "10.0.1.2", "fd00:1::1"], "S-10");
    assert_eq!(
        most,
        Some(3),
        "two nodes have endpoints of one, one of the other"
    );
    assert_eq!(of(&[IpFamily::V6]).0, ["fd00:244:1::1"]);
}

#[test]
fn zd85_what_became_of_an_address_that_is_no_endpoint_any_more() {
    let pods = vec![pod(1, json!({})), pod(2, dying()), pod(3, json!({}))];
    let cluster = Cluster::new(vec![], pods, &[]);
    let uid = |n: u8| PodUid::from(format!("uid-{n}"));
    let address = |n: u8| IpAddr::from([10, 244, 1, n]);
    // The pod of 3 was another one; that of 4 is gone; 9 was never seen by this process.
    let remembered: Remembered = [
        (address(1), uid(1)),
        (address(2), uid(2)),
        (address(3), PodUid::from("older")),
        (address(4), uid(4)),
    ]
    .into();
    let asked = [1, 2, 3, 4, 9].map(address).into();
    let of = view(&service(json!({})));
    let departed = departed(&cluster.0, &of, (&remembered, &asked), &BTreeSet::new());
    let states: Vec<State> = departed.values().map(|d| d.state).collect();
    assert!(matches!(
        states[1],
        State::Terminating {
            serving: Serving::No,
            ..
        }
    ));
    assert_eq!(
        states[0],
        State::Unexplained,
        "K-33: alive, for a second look"
    );
    assert_eq!(states[2], State::Reused, "ZD-85");
    assert_eq!(states[3..], [State::Gone, State::Gone]);
}

#[test]
fn k04_a_claim_is_lost_only_where_something_of_ours_is_there() {
    let claim = Claim {
        classes: ["onehop.dev/local".to_owned()].into(),
        classless: Classless::Ignore,
        install: "i".into(),
    };
    let standing = |extra: Value, finalizers: Value| {
        let mut service = service(extra);
        service.metadata.finalizers = read(finalizers);
        claim.standing(&view(&service), None)
    };
    let (ours, none) = (json!([SERVICE_FINALIZER]), json!([]));
    assert_eq!(standing(json!({}), none.clone()), Standing::Ours);
    let away = json!({ "type": "ClusterIP", "loadBalancerClass": null });
    assert_eq!(standing(away.clone(), ours), Standing::Leaving, "K-04");
    assert_eq!(standing(away, none.clone()), Standing::Foreign, "K-04");
    let peers = json!({ "loadBalancerClass": "service.k8s.aws/nlb" });
    let finalizer = json!(["service.k8s.aws/resources"]);
    assert_eq!(standing(peers, finalizer), Standing::Foreign, "K-05");
    assert_eq!(
        standing(json!({ "loadBalancerClass": null }), none),
        Standing::Foreign,
        "K-01"
    );
}

/// Every install sets the same finalizer, and sets it before it makes an object.
#[test]
fn c120_k02_k04_what_another_install_has_or_is_about_to_have_is_foreign() {
    let claim = Claim {
        classes: ["onehop.dev/local".to_owned()].into(),
        classless: Classless::Ignore,
        install: "one".into(),
    };
    let of = |spec: &Value, deleted: bool, install: Option<&str>| {
        let mut service = service(spec.clone());
        service.metadata.finalizers = Some(vec![SERVICE_FINALIZER.to_owned()]);
        service.metadata.deletion_timestamp = deleted.then(|| read(json!("2026-01-01T00:00:00Z")));
        let service = view(&service);
        let object: Option<LoadBalancer> = install.map(|install| {
            read(json!({
                "metadata": { "name": "web", "labels": { "onehop.dev/install": install } },
                "spec": {
                    "provider": "local", "class": "any", "serviceUID": service.uid, "scheme": "internet-facing",
                    "families": ["IPv4"], "ports": [],
                    "membership": {
                        "policy": "zero-drop", "floorPercent": 100, "holdMaxSeconds": 600, "tailMaxSeconds": 0,
                        "lateFlows": "forward",
                    },
                },
            }))
        });
        claim.standing(&service, object.as_ref())
    };
    let others = json!({ "loadBalancerClass": "example.com/two" });
    let classless = json!({ "loadBalancerClass": null });
    let away = json!({ "type": "ClusterIP", "loadBalancerClass": null });
    for deleted in [false, true] {
        for spec in [&others, &classless] {
            assert_eq!(of(spec, deleted, None), Standing::Foreign, "{spec}");
            assert_eq!(of(spec, deleted, Some("two")), Standing::Foreign, "{spec}");
            assert_eq!(of(spec, deleted, Some("one")), Standing::Leaving, "{spec}");
        }
        assert_eq!(of(&away, deleted, Some("two")), Standing::Foreign);
        assert_eq!(of(&away, deleted, Some("one")), Standing::Leaving);
        assert_eq!(of(&away, deleted, None), Standing::Leaving, "nobody's else");
    }
    let own = json!({});
    assert_eq!(of(&own, true, None), Standing::Leaving, "before its object");
    assert_eq!(of(&own, true, Some("two")), Standing::Foreign);
}

#[test]
fn aws001_aws004_aws040_aa26_aa27_what_is_claimed_of_services_with_and_without_a_class() {
    let claim = |classless| Claim {
        classes: ["onehop.dev/aws".to_owned()].into(),
        classless,
        install: "i".into(),
    };
    let of = |claim: &Claim, spec: Value, metadata: Value| {
        let mut object = serde_json::to_value(service(spec)).unwrap();
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        claim.standing(&view(&read(object)), None)
    };
    let asks = |kind: &str, target: Option<&str>| {
        let key = |name: &str| format!("service.beta.kubernetes.io/aws-load-balancer-{name}");
        let mut annotations = json!({ key("type"): kind });
        if let Some(target) = target {
            annotations[key("nlb-target-type")] = json!(target);
        }
        json!({ "annotations": annotations })
    };
    let (own, none) = (
        json!({ "loadBalancerClass": "onehop.dev/aws" }),
        json!({ "loadBalancerClass": null }),
    );
    let default = claim(Classless::Ignore);
    let nothing = json!({});
    assert_eq!(of(&default, own.clone(), nothing.clone()), Standing::Ours);
    // AWS-001: the class alone decides where there is one.
    let other = json!({ "loadBalancerClass": "another" });
    let ip = asks("nlb-ip", None);
    let taking = claim(Classless::ByAwsAnnotations(Kinds::LoadBalancer));
    assert_eq!(of(&taking, other, ip.clone()), Standing::Foreign, "AWS-001");
    assert_eq!(of(&default, none.clone(), ip.clone()), Standing::Foreign);
    // AWS-040: without one, annotations that ask for a load balancer.
    let cases = [
        (ip.clone(), Standing::Ours),
        (asks("external", Some("ip")), Standing::Ours),
        (asks("external", Some("instance")), Standing::Ours),
        (asks("external", None), Standing::Foreign),
        (asks("nlb", Some("ip")), Standing::Foreign),
    ];
    for (annotations, wanted) in cases {
        let got = of(&taking, none.clone(), annotations.clone());
        assert_eq!(got, wanted, "AWS-040: {annotations}");
    }
    let node_port = json!({ "type": "NodePort", "loadBalancerClass": null });
    let got = of(&taking, node_port.clone(), ip.clone());
    assert_eq!(got, Standing::Foreign, "AA-27");
    // AWS-006: with the peer's gate off, as it is by default, what has a cluster address may ask too.
    let any = claim(Classless::ByAwsAnnotations(Kinds::Any));
    let cluster_ip = json!({ "type": "ClusterIP", "loadBalancerClass": null });
    for kind in [node_port, cluster_ip] {
        assert_eq!(
            of(&any, kind.clone(), ip.clone()),
            Standing::Ours,
            "AWS-006"
        );
        assert_eq!(of(&any, kind.clone(), json!({})), Standing::Foreign);
        assert_eq!(of(&default, kind, ip.clone()), Standing::Foreign, "AWS-006");
    }
    let alias = json!({ "type": "ExternalName", "clusterIP": null, "loadBalancerClass": null });
    assert_eq!(of(&any, alias, ip), Standing::Foreign, "AWS-006");
    // AWS-005: without the annotations it is torn down, if our finalizer says that there is something.
    let ours = json!({ "finalizers": [SERVICE_FINALIZER] });
    let was = json!({ "type": "NodePort", "loadBalancerClass": null });
    assert_eq!(of(&any, was.clone(), ours), Standing::Leaving, "AWS-005");
    let peers = json!({ "finalizers": ["service.k8s.aws/resources"] });
    assert_eq!(of(&any, was, peers), Standing::Foreign, "AWS-005, K-04");
    // AWS-004: what is deleted is cleaned up, if it was ours.
    let deleted = |finalizers: Value| json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers });
    let ours = deleted(json!([SERVICE_FINALIZER]));
    assert_eq!(of(&default, own.clone(), ours), Standing::Leaving, "AA-26");
    let others = deleted(json!(["another"]));
    assert_eq!(of(&default, own, others), Standing::Foreign, "AWS-004");
}
