//! Azure's own client against the fake: over TLS with an authority of its own and a token (AZ-490, AZ-494, AZ-500).

use std::net::Ipv4Addr;
use std::path::PathBuf;

use e2e_apiserver::pki::Authority;
use e2e_cloud::azure::{Certificate, Faults};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::azure::World;
use crate::{annotations, python};

/// A door of the fake for clients that speak TLS only.
struct Door {
    endpoint: String,
    ca: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        // What is left is a certificate that nobody trusts any more.
        let _ = std::fs::remove_file(&self.ca);
    }
}

async fn door(world: &World) -> Door {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let authority = Authority::new().unwrap();
    let issued = authority.server(&[address.ip().to_string()]).unwrap();
    let certificate = Certificate {
        certificate: issued.certificate_pem(),
        key: issued.key_pem(),
    };
    let name = format!("onehop-wire-{}-{}.pem", std::process::id(), address.port());
    let ca = std::env::temp_dir().join(name);
    std::fs::write(&ca, authority.pem()).unwrap();
    tokio::spawn(world.azure.clone().serve_tls(listener, certificate));
    let endpoint = format!("https://{address}/");
    Door { endpoint, ca }
}

/// Runs one case of the script; gives what it prints.
pub(crate) async fn case(world: &World, name: &'static str) -> String {
    let door = door(world).await;
    let mut command = python("azure_clients.py");
    command
        .arg(name)
        .env("AZURE_ENDPOINT", &door.endpoint)
        .env("AZURE_CA", &door.ca);
    // The fake answers on this runtime meanwhile.
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && printed.ends_with(&format!("{name}: ok\n")),
        "{name}: {printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az364_az500_it_creates_reads_updates_and_deletes_every_kind_of_resource() {
    case(&World::start().await, "life").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az373_az500_it_turns_the_pages() {
    case(&World::start().await, "pages").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az400_az500_what_it_does_not_know_it_brings_back() {
    case(&World::start().await, "unknown").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az365_az371_az376_az500_it_meets_challenge_throttling_and_an_operation_that_fails_later() {
    let world = World::start().await;
    world.azure.set_faults(Faults {
        challenge: true,
        ..Faults::default()
    });
    case(&world, "challenged").await;
    world.azure.set_faults(Faults {
        refuse: vec![("publicIPAddresses".to_owned(), 429, "TooManyRequests")],
        ..Faults::default()
    });
    case(&world, "throttled").await;
    world.azure.set_faults(Faults {
        fail_operation: vec![("publicIPAddresses".to_owned(), "PublicIPCountLimitReached")],
        ..Faults::default()
    });
    case(&world, "failed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az500_it_reads_what_the_controller_made() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let vip = ("onehop.dev/target", "vip");
    world.service("web", json!({}), annotations(&[vip])).await;
    let address = world.has_address("web").await;
    let printed = case(&world, "reads").await;
    let read: Value = printed.lines().next().unwrap().parse().unwrap();
    let balancer = &read["balancers"]["lb"];
    assert_eq!(
        balancer["pools"],
        json!({"demo-azure": ["10.0.1.1", "10.0.1.2"]})
    );
    let values = |of: &Value| -> Vec<Value> { of.as_object().unwrap().values().cloned().collect() };
    assert_eq!(values(&balancer["rules"]), [json!(["Tcp", 80, 80, true])]);
    assert_eq!(
        values(&balancer["probes"]),
        [json!(["Http", 10256, "/healthz"])],
        "ZA-111"
    );
    assert_eq!(values(&read["public_ips"]), [json!(address)]);
    let ours = values(&read["rules"]);
    assert!(
        ours.contains(&json!(["Allow", "Tcp", ["80"]])),
        "what may come in: {ours:?}"
    );
}

/// The reader that is built from `azure_mgmt_network`, a crate that was not written here.
pub(crate) const READER: &str = "ONEHOP_AZURE_READER";

async fn token(world: &World) -> String {
    let asked = reqwest::Client::new()
        .post(format!("{}tenant/oauth2/v2.0/token", world.url))
        .body("client_id=client&client_secret=secret&scope=x%2F.default");
    let text = asked.send().await.unwrap().text().await.unwrap();
    let answer: Value = text.parse().unwrap();
    answer["access_token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az411_az505_a_third_reader_with_types_of_its_own_reads_the_same() {
    let reader = std::env::var(READER)
        .unwrap_or_else(|_| panic!("{READER} names no reader: run ./e2e/run test wire"));
    let world = World::start().await;
    let _controller = world.controller().await;
    world.endpoints("pods", &[1, 2]).await;
    let vip = ("onehop.dev/target", "vip");
    let internal = annotations(&[vip, ("load-balancer-internal", "true")]);
    let closed = annotations(&[vip, ("allowed-ip-ranges", "30.0.0.0/8,31.0.0.0/8")]);
    let services = [
        ("web", annotations(&[vip])),
        ("pods", json!({})),
        ("inside", internal),
        ("closed", closed),
    ];
    for (name, annotations) in services {
        world.service(name, json!({}), annotations).await;
        world.has_address(name).await;
    }
    let printed = case(&world, "reads").await;
    let first: Value = printed.lines().next().unwrap().parse().unwrap();
    let mut command = std::process::Command::new(reader);
    command
        .args([&world.url, "sub", "rg"])
        .env("AZURE_TOKEN", token(&world).await);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let second: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(second["balancers"].as_object().unwrap().len(), 2);
    assert_eq!(second["public_ips"].as_object().unwrap().len(), 3);
    assert_eq!(second, first, "AZ-505: with two sets of types one reading");
}
