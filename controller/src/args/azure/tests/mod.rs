use std::collections::BTreeSet;

use super::*;
use crate::cloud::azure::settings::{Kind, Side};

const FILE: &str = r#"{
    "tenantId": "t", "subscriptionId": "s", "resourceGroup": "MC_Group", "location": "westus", "vnetName": "v",
    "subnetName": "n", "securityGroupName": "nsg", "useManagedIdentityExtension": true, "userAssignedIdentityID": "u",
    "tags": "a=b", "somethingNew": {"x": 1}
}"#;

fn resolve(args: AzureArgs, file: &str) -> Result<AzureConfig, AzureArgsError> {
    let file = parse(Path::new("f"), file.as_bytes()).unwrap();
    let cluster = "demo".to_owned();
    args.resolve_with(
        file,
        "demo-azure".into(),
        (Some(&cluster), NodeProxy::Beside),
        Duration::ZERO,
    )
}

#[test]
fn az450_the_file_is_read_as_json_or_yaml_and_flags_win() {
    let config = resolve(AzureArgs::default(), FILE).unwrap();
    let place = &config.settings.place;
    assert_eq!(
        (place.resource_group.as_str(), place.load_balancer.as_str()),
        ("mc_group", "demo-azure")
    );
    assert_eq!(config.settings.tags["a"], "b");
    assert!(matches!(
        config.access.credential,
        Credential::Managed { client: Some(_) }
    ));
    let yaml = "tenantId: t\nsubscriptionId: s\nresourceGroup: g\nlocation: westus\nvnetName: v\nsubnetName: n\nuseManagedIdentityExtension: true\n";
    let args = AzureArgs {
        azure_vnet: Some("mine".to_owned()),
        ..AzureArgs::default()
    };
    let config = resolve(args, yaml).unwrap();
    assert_eq!(config.settings.place.vnet, "mine");
    assert_eq!(config.settings.place.security_group, None);
}

#[test]
fn az216_the_pods_subnet_may_have_a_security_group_of_its_own() {
    let args = AzureArgs {
        azure_pod_security_group: Some("pods".to_owned()),
        ..AzureArgs::default()
    };
    let place = resolve(args.clone(), FILE).unwrap().settings.place;
    let of = |resource_group: &str| SecurityGroup {
        resource_group: resource_group.to_owned(),
        name: "pods".to_owned(),
    };
    assert_eq!(place.group(Side::Pods), Some(&of("MC_Group")));
    assert_ne!(place.group(Side::Nodes), place.group(Side::Pods));
    let elsewhere = AzureArgs {
        azure_pod_security_group_resource_group: Some("net".to_owned()),
        ..args
    };
    let place = resolve(elsewhere, FILE).unwrap().settings.place;
    assert_eq!(place.group(Side::Pods), Some(&of("net")));
    let none = resolve(AzureArgs::default(), FILE).unwrap().settings.place;
    assert_eq!(none.group(Side::Pods), None);
}

#[test]
fn az456_everything_missing_is_named_at_once() {
    let AzureArgsError::Missing(what) = resolve(AzureArgs::default(), "{}").unwrap_err() else {
        panic!()
    };
    for part in [
        "--azure-resource-group",
        "subscriptionId",
        "--azure-location",
        "vnetName",
        "--azure-subnet",
        "AZURE_CLIENT_ID",
    ] {
        assert!(what.contains(part), "{what}");
    }
}

#[test]
fn az236_az185_az142_az233_keys_of_the_file_about_pools_tags_and_probes() {
    let with = |keys: &str| {
        let file = FILE.replacen('{', &format!("{{{keys},"), 1);
        resolve(AzureArgs::default(), &file).unwrap().settings
    };
    let plain = resolve(AzureArgs::default(), FILE).unwrap().settings;
    assert_eq!(plain.shared_probe, None);
    assert_eq!(plain.system_tags, None);
    assert!(plain.exclude_control_plane, "AZ-233");
    let pools = |word: &str| {
        let key = format!(r#""preConfiguredBackendPoolLoadBalancerTypes": "{word}""#);
        with(&key).others_pools
    };
    assert_eq!(pools("all"), Kind::ALL.into(), "AZ-236");
    assert_eq!(pools("Internal"), [Kind::Internal].into());
    assert_eq!(pools("external"), [Kind::External].into());
    assert_eq!(pools(""), BTreeSet::new());
    let shared = with(r#""clusterServiceLoadBalancerHealthProbeMode": "Shared""#);
    assert_eq!(
        shared.shared_probe,
        Some((10256, "/healthz".to_owned())),
        "AZ-142"
    );
    let other = with(
        r#""clusterServiceLoadBalancerHealthProbeMode": "shared", "clusterServiceSharedLoadBalancerHealthProbePort": 1,
           "clusterServiceSharedLoadBalancerHealthProbePath": "/x""#,
    );
    assert_eq!(other.shared_probe, Some((1, "/x".to_owned())));
    let own = with(r#""clusterServiceLoadBalancerHealthProbeMode": "servicenodeport""#);
    assert_eq!(own.shared_probe, None);
    let tags = with(r#""systemTags": "a, b", "excludeMasterFromStandardLB": false"#);
    assert_eq!(
        tags.system_tags,
        Some(["a".to_owned(), "b".to_owned()].into()),
        "AZ-185"
    );
    assert!(!tags.exclude_control_plane);
}

#[test]
fn az014_az017_nothing_is_taken_over_before_the_peer_is_said_to_be_off() {
    let chosen = || Selection::read(&["shop".to_owned()]).unwrap();
    let told = |disabled| {
        let args = AzureArgs {
            azure_service_controller_disabled: disabled,
            azure_share_load_balancer: true,
            azure_node_resource_group: Some("mc_demo".to_owned()),
            ..AzureArgs::default()
        };
        let config = resolve(args, FILE).unwrap();
        config.taking((chosen(), Selection::default()))
    };
    assert_eq!(told(false).unwrap_err(), AzureArgsError::PeerActs, "AZ-014");
    let settings = told(true).unwrap().settings;
    assert_eq!(settings.take_over.peer, PeerServices::Off);
    assert_eq!(settings.take_over.of, chosen());
    assert_eq!(settings.layout, Layout::Shared, "AZ-017");
    let place = settings.place;
    assert!(place.is_under_lease("/subscriptions/s/resourceGroups/MC_Demo/providers/x"));
    assert!(!place.is_under_lease(&place.vnet_id()), "AZ-009");
}

#[test]
fn az451_the_environment_comes_before_the_file() {
    let args = AzureArgs {
        azure_tenant_id: Some("t2".to_owned()),
        azure_client_id: Some("c2".to_owned()),
        azure_federated_token_file: Some("/token".into()),
        ..AzureArgs::default()
    };
    let config = resolve(args, FILE).unwrap();
    assert!(
        matches!(config.access.credential, Credential::Workload { tenant, .. } if tenant == "t2")
    );
}

#[test]
fn az452_an_application_shows_a_secret_or_a_certificate() {
    let of = |keys: &str| {
        let file = FILE.replacen('{', &format!("{{{keys},"), 1);
        resolve(AzureArgs::default(), &file)
    };
    let certificate = r#""aadClientId": "c", "aadClientCertPath": "/cert.pem""#;
    let credential = of(certificate).unwrap().access.credential;
    assert!(
        matches!(credential, Credential::Certificate { file, .. } if file == Path::new("/cert.pem"))
    );
    let both = format!(r#"{certificate}, "aadClientSecret": "s""#);
    let credential = of(&both).unwrap().access.credential;
    assert!(matches!(credential, Credential::Secret { secret, .. } if secret == "s"));
    // Only what has no password can be read.
    let said = of(&format!(r#"{certificate}, "aadClientCertPassword": "p""#)).unwrap_err();
    assert!(said.to_string().contains("openssl pkcs12"), "{said}");
}

#[test]
fn az351_az455_what_is_not_served_is_said_at_start() {
    for key in [
        r#""serviceGatewayEnabled": true"#,
        r#""loadBalancerSku": "Basic""#,
    ] {
        let file = FILE.replacen('{', &format!("{{{key},"), 1);
        assert!(
            matches!(
                resolve(AzureArgs::default(), &file),
                Err(AzureArgsError::Unsupported(_))
            ),
            "{key}"
        );
    }
}

#[test]
fn az239_az012_pools_of_interfaces_are_told_at_start_where_the_clusters_load_balancer_is_shared() {
    let notes = |kind: Option<&str>, share| {
        let key =
            kind.map(|kind| format!(r#""loadBalancerBackendPoolConfigurationType": "{kind}","#));
        let file = FILE.replacen('{', &format!("{{{}", key.unwrap_or_default()), 1);
        let args = AzureArgs {
            azure_share_load_balancer: share,
            ..AzureArgs::default()
        };
        resolve(args, &file).unwrap().notes
    };
    for (kind, share, told) in [
        (None, true, true),
        (Some("nodeIPConfiguration"), true, true),
        (Some("NodeIP"), true, false),
        (Some("nodeIPConfiguration"), false, false),
    ] {
        let notes = notes(kind, share);
        assert_eq!(
            notes.len(),
            usize::from(told),
            "AZ-239: {kind:?}: {notes:?}"
        );
        assert!(
            notes.iter().all(|it| it.contains("never written")),
            "{notes:?}"
        );
    }
}

#[test]
fn az015_az016_az454_values_alone_are_enough_and_give_the_layout_of_a_managed_cluster() {
    let said = |text: &str| Some(text.to_owned());
    let args = AzureArgs {
        azure_subscription_id: said("s"),
        azure_location: said("westus"),
        azure_resource_group: said("edge"),
        azure_load_balancer: said("edge-lb"),
        azure_vnet: said("v"),
        azure_subnet: said("n"),
        azure_security_group: said("nsg"),
        azure_node_resource_group: said("MC_x"),
        azure_pod_prefixes: vec!["10.1.0.0/16".parse().unwrap()],
        azure_pool_size: 7,
        azure_dns_grace_seconds: 60,
        azure_tenant_id: said("t"),
        azure_client_id: said("c"),
        azure_federated_token_file: Some("token".into()),
        ..AzureArgs::default()
    };
    // Keys of ours in azure.json are nobody's (AZ-454).
    let file = r#"{"poolSize": 9, "dnsGraceSeconds": 9, "podPrefixes": "10.9.0.0/16"}"#;
    let settings = resolve(args, file).unwrap().settings;
    assert_eq!(
        (settings.pool_size, settings.dns_grace),
        (7, Duration::from_mins(1)),
        "AZ-454"
    );
    assert_eq!(
        settings.pod_prefixes,
        ["10.1.0.0/16".parse().unwrap()],
        "AZ-454"
    );
    assert_eq!(settings.layout, Layout::Own, "AZ-015");
    assert_eq!(settings.take_over.peer, PeerServices::MayAct, "AZ-015");
    for kind in [Kind::External, Kind::Internal] {
        let id = settings.place.balancer_id(kind);
        assert!(id.contains("/resourceGroups/edge/"), "AZ-016: {id}");
        assert!(!settings.place.is_under_lease(&id), "AZ-016: {id}");
    }
}

#[test]
fn az408_az407_endpoint_authority_and_ca_are_what_is_said() {
    let plain = resolve(AzureArgs::default(), FILE).unwrap().access;
    assert_eq!(
        plain.endpoint.as_str(),
        "https://management.azure.com/",
        "AZ-407"
    );
    assert_eq!(
        plain.authority.as_str(),
        "https://login.microsoftonline.com/"
    );
    assert_eq!(plain.ca, None);
    let file = FILE.replace(
        "\"tenantId\"",
        "\"resourceManagerEndpoint\": \"https://arm.example/\", \"tenantId\"",
    );
    let told = resolve(AzureArgs::default(), &file).unwrap().access;
    assert_eq!(told.endpoint.as_str(), "https://arm.example/", "AZ-408");
    let ca = std::env::temp_dir().join(format!("onehop-azure-ca-{}", std::process::id()));
    std::fs::write(&ca, "pem").unwrap();
    let args = AzureArgs {
        azure_endpoint: Some("https://flag.example/".parse().unwrap()),
        azure_authority: Some("https://login.example/".parse().unwrap()),
        azure_ca_file: Some(ca.clone()),
        ..AzureArgs::default()
    };
    let access = resolve(args, &file).unwrap().access;
    std::fs::remove_file(&ca).unwrap();
    assert_eq!(
        access.endpoint.as_str(),
        "https://flag.example/",
        "AZ-408: before the file"
    );
    assert_eq!(
        access.authority.as_str(),
        "https://login.example/",
        "AZ-408"
    );
    assert_eq!(access.ca.as_deref(), Some(b"pem".as_slice()), "AZ-408");
}
