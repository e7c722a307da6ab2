use super::*;

const UID_A: &str = "bdca2bd0-bfc6-449a-88a3-03451f05f18c";
const UID_B: &str = "2dc098f0-ae33-4378-af7b-83e2a0424495";

fn settings() -> Settings {
    Settings::new("my-install".into(), "my-cluster")
}

fn with<T>(flavour: Flavour, key: (&str, &str), uid: &str, of: impl Fn(&Namer<'_>) -> T) -> T {
    let (settings, service) = (settings(), ServiceKey::new(key.0, key.1));
    of(&Namer {
        settings: &settings,
        flavour,
        service: &service,
        uid: &uid.into(),
    })
}

const fn hash(port: u16, target: TargetType, check: CheckProtocol) -> GroupHash {
    GroupHash {
        port,
        service_port: 80,
        target,
        protocol: GroupProtocol::Tcp,
        check,
        check_port: None,
        interval: 10,
    }
}

#[test]
fn aws100_aws101_aws102_aws103_the_peers_names_are_matched_byte_for_byte() {
    use CheckProtocol::{Http, Tcp};
    let tls = ("default", "nlb-ip-svc-tls");
    let local = ("app", "traffic-local");
    let peer = Flavour::Peer;
    let lb = with(peer, tls, UID_A, |n| n.balancer(Scheme::Internal, 1));
    assert_eq!(lb, "k8s-default-nlbipsvc-6b0ba8ff70");
    let lb = with(peer, local, UID_B, |n| {
        n.balancer(Scheme::InternetFacing, 1)
    });
    assert_eq!(lb, "k8s-app-trafficl-2af705447d");
    let group = with(peer, tls, UID_A, |n| {
        n.group(&hash(80, TargetType::Ip, Tcp), 1)
    });
    assert_eq!(group, "k8s-default-nlbipsvc-d4818dcd51");
    let of = hash(31223, TargetType::Instance, Http);
    let group = with(peer, local, UID_B, |n| n.group(&of, 1));
    assert_eq!(group, "k8s-app-trafficl-d2b8571b2f");
    let managed = |key, uid| with(peer, key, uid, |n| [n.managed_group()].concat());
    let sg = managed(tls, UID_A);
    assert_eq!(sg, "k8s-default-nlbipsvc-1da4b78715");
    let sg = managed(local, UID_B);
    assert_eq!(sg, "k8s-app-trafficl-7b81fc143c");
}

#[test]
fn aws104_aws330_names_of_the_two_backend_groups() {
    assert_eq!(
        peer_backend_group("my-cluster"),
        format!("k8s-traffic-my-cluster-{}", &sha("my-cluster")[..10])
    );
    let long = "x".repeat(240);
    let name = backend_group(&long.as_str().into());
    assert_eq!(
        name,
        format!("onehop-backend-{}-{}", &long[..200], &sha(&long)[..10])
    );
    assert!(name.len() <= 255, "EC2's limit");
}

fn sha(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digits: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

#[test]
fn aws107_generation_one_adds_nothing_and_later_ones_differ() {
    let tls = ("default", "nlb-ip-svc-tls");
    let name = |generation| {
        with(Flavour::Peer, tls, UID_A, |n| {
            n.balancer(Scheme::Internal, generation)
        })
    };
    assert_eq!(name(1), "k8s-default-nlbipsvc-6b0ba8ff70");
    let second = sha(&format!("my-cluster{UID_A}internal2"));
    assert_eq!(name(2), format!("k8s-default-nlbipsvc-{}", &second[..10]));
    let tags = |generation| {
        let of = |n: &Namer<'_>| n.tracking_tags(LOAD_BALANCER, generation);
        with(Flavour::Own, tls, UID_A, of)
    };
    assert_eq!(tags(1).get(GENERATION), None);
    assert_eq!(tags(2)[GENERATION], "2");
}

#[test]
fn aws108_our_own_names_never_meet_the_peers_or_another_installs() {
    let key = ("default", "nlb-ip-svc-tls");
    let own = with(Flavour::Own, key, UID_A, |n| {
        n.balancer(Scheme::Internal, 1)
    });
    let expected = sha(&format!("my-install{UID_A}internal"));
    assert_eq!(own, format!("oh-default-nlbipsvc-{}", &expected[..10]));
    assert!(own.len() <= 32);
    let group = |check_port| {
        let of = GroupHash {
            check_port,
            ..hash(80, TargetType::Ip, CheckProtocol::Http)
        };
        with(Flavour::Own, key, UID_A, |n| n.group(&of, 1))
    };
    assert_ne!(group(None), group(Some(10290)), "the check's port goes in");
}

#[test]
fn aws110_tags_tell_install_service_and_resource_and_on_the_peers_stacks_its_own_too() {
    let key = ("shop", "web");
    let tags = with(Flavour::Own, key, "u1", |n| {
        n.tracking_tags(&n.group_resource(80), 1)
    });
    let expected = [
        (CLUSTER, "my-cluster"),
        (INSTALL, "my-install"),
        (RESOURCE, "shop/web:80"),
        (SERVICE, "shop/web"),
        (SERVICE_UID, "u1"),
    ];
    let expected: Tags = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(tags, expected);
    let peer = with(Flavour::Peer, key, "u1", |n| {
        n.tracking_tags(LOAD_BALANCER, 1)
    });
    assert_eq!(peer[PEER_CLUSTER], "my-cluster");
    assert_eq!(peer[PEER_STACK], "shop/web");
    assert_eq!(peer[PEER_RESOURCE], "LoadBalancer");
}

#[test]
fn aws106_descriptions_of_managed_groups() {
    let of = |flavour| managed_description(&settings(), flavour);
    assert_eq!(
        of(Flavour::Peer),
        "[k8s] Managed SecurityGroup for LoadBalancer"
    );
    assert!(of(Flavour::Own).starts_with("onehop: ") && of(Flavour::Own).contains("my-install"));
}
