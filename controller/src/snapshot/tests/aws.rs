//! Candidates as aws.md section 9 has them: half-ready endpoints, and nodes of which nothing is heard.

use super::*;

/// States under a policy: of pods, and of nodes.
fn states(cluster: &Cluster, policy: MembershipPolicy) -> (Vec<State>, Vec<State>) {
    let absent = BTreeSet::new();
    let scope = Scope {
        policy,
        ..scope(&absent)
    };
    let members = members(&cluster.0, &view(&service(json!({}))), scope);
    let members = members.into_values().next().unwrap();
    let states = |m: &Members| m.list.iter().map(|m| m.state).collect();
    (states(&members.pods), states(&members.nodes))
}

/// A pod whose containers are ready.
fn containers_ready(n: u8) -> Pod {
    let condition = json!({
        "type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    pod(n, json!({ "status": { "conditions": [condition] } }))
}

#[test]
fn aa49_aws412_which_endpoints_are_candidates_under_the_peers_timing() {
    let nodes = || vec![node(1, json!({}), json!({}), "Unknown"), plain(2)];
    // Pods with odd numbers are on node 2, which is ready, the others on node 1, of which nothing is heard.
    let pods = vec![
        pod(1, json!({})),
        containers_ready(3),
        pod(5, dying()),
        pod(7, json!({})),
        pod(2, json!({})),
    ];
    // In the order of their addresses.
    let endpoints = [(1, READY), (2, READY), (3, SICK), (5, LEAVING), (7, SICK)];
    let cluster = Cluster::new(nodes(), pods.clone(), &endpoints);
    let (of, _) = states(&cluster, MembershipPolicy::Compat);
    assert_eq!(of[0], State::Ready, "AA-49: ready");
    assert_eq!(of[1], State::NotReady, "AA-49: fail-open only");
    assert_eq!(of[2], State::Ready, "AA-49: its containers are");
    assert!(matches!(of[3], State::Terminating { .. }), "AA-49: out");
    assert_eq!(of[4], State::NotReady, "AWS-412: its containers are not");
    let (of, _) = states(&cluster, MembershipPolicy::ZeroDrop);
    assert_eq!(of[2], State::NotReady, "AWS-412: only with a gate");
    // With nothing else the one of which nothing is heard is good enough.
    let alone = Cluster::new(nodes(), pods, &[(2, READY), (7, SICK)]);
    for policy in [MembershipPolicy::Compat, MembershipPolicy::ZeroDrop] {
        assert_eq!(states(&alone, policy).0[0], State::Ready, "AA-49, AWS-412");
    }
    // AA-49: `ready` that is not said counts.
    let mut unsaid = slice(&[(1, READY)]);
    unsaid.endpoints[0].conditions = None;
    let mut cluster = Cluster::new(nodes(), vec![pod(1, json!({}))], &[]);
    cluster.0.on_slice(Seen::Applied(unsaid));
    assert_eq!(
        states(&cluster, MembershipPolicy::Compat).0,
        [State::Ready],
        "AA-49: ready nil"
    );
}

#[test]
fn aws401_aws402_nodes_are_ready_ones_or_failing_those_the_ones_of_which_nothing_is_heard() {
    let with = |second: &str| {
        let nodes = vec![
            node(1, json!({}), json!({}), "Unknown"),
            node(2, json!({ "unschedulable": true }), json!({}), second),
            node(3, json!({}), json!({}), "False"),
        ];
        states(&Cluster::new(nodes, vec![], &[]), MembershipPolicy::Compat).1
    };
    let expected = [State::NotReady, State::Ready, State::NotReady];
    assert_eq!(with("True"), expected, "AWS-401: cordoned or not");
    let expected = [State::Ready, State::NotReady, State::NotReady];
    assert_eq!(with("False"), expected, "AWS-401: fail-open");
    // A change that concerns nobody's suitability changes nothing.
    let plain_one = Cluster::new(vec![plain(1)], vec![], &[]);
    let labelled = node(1, json!({}), json!({ "team": "a" }), "True");
    let labelled = Cluster::new(vec![labelled], vec![], &[]);
    let of = |cluster| states(cluster, MembershipPolicy::ZeroDrop);
    assert_eq!(of(&plain_one), of(&labelled), "AWS-402");
}

#[test]
fn aws416_endpoint_ports_are_matched_by_name_and_protocol() {
    let two = service(json!({ "ports": [
        { "name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053 },
        { "name": "dns-tcp", "port": 53, "protocol": "TCP", "nodePort": 30053 },
    ] }));
    let mut both = slice(&[(1, READY)]);
    both.ports = Some(read(json!([
        { "name": "dns-tcp", "port": 8054, "protocol": "TCP" },
        { "name": "dns", "port": 8053, "protocol": "UDP" },
    ])));
    let mut cluster = Cluster::new(vec![plain(1)], vec![pod(1, json!({}))], &[]);
    cluster.0.on_slice(Seen::Applied(both));
    let members = members(&cluster.0, &view(&two), scope(&BTreeSet::new()));
    let ports: Vec<_> = members
        .iter()
        .map(|(key, of)| (key.name.to_string(), of.pods.list[0].key.port))
        .collect();
    let expected = [("dns-tcp".to_owned(), 8054), ("dns".to_owned(), 8053)];
    assert_eq!(
        ports.into_iter().collect::<BTreeSet<_>>(),
        expected.into(),
        "AWS-416: the first one with the number is not enough"
    );
}
