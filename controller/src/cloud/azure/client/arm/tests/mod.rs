use super::super::token::Credential;
use super::*;

fn arm() -> Arm {
    let base: Url = "https://arm.example/".parse().unwrap();
    let http = reqwest::Client::new();
    let credential = Credential::Managed { client: None };
    let clock = Clock::fixed(onehop_core::time::Time::from_millis(0));
    let tokens = Tokens::new(http.clone(), base.clone(), &base, credential, clock);
    Arm::new(http, base, tokens, clock)
}

#[test]
fn az378_each_kind_of_resource_is_asked_with_its_pinned_version() {
    let network = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network";
    let kinds = [
        "loadBalancers/a/backendAddressPools/p",
        "publicIPAddresses/a",
        "networkSecurityGroups/a",
        "virtualNetworks/v",
    ];
    for kind in kinds {
        let url = arm().url(&format!("{network}/{kind}"));
        assert_eq!(
            url.query(),
            Some("api-version=2025-05-01"),
            "AZ-378: {kind}"
        );
    }
    let rights = arm().url("/subscriptions/s/providers/Microsoft.Authorization/permissions");
    assert_eq!(rights.query(), Some("api-version=2022-04-01"), "AZ-378");
}

/// AZ-410: neither we nor the crates that we use have the generated client, which loses fields.
#[test]
fn az410_the_generated_client_is_not_among_our_dependencies() {
    let lock = include_str!("../../../../../../../Cargo.lock");
    assert!(
        lock.contains("name = \"onehop-controller\"") && lock.contains("name = \"onehop-core\"")
    );
    assert!(!lock.contains("azure_mgmt_network"), "AZ-410");
}
