//! Somebody else writes the same documents (AZ-366, AZ-370, AZ-405): nobody loses anything.

use std::time::Duration;

use reqwest::{Client, Method, StatusCode, header};
use serde_json::{Value, json};

use crate::world::{World, foreign_rules};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zi39_az108_az366_az370_a_second_writer_loses_nothing_and_we_plan_anew() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    let balancer = world.balancer().unwrap()["id"].as_str().unwrap().to_owned();
    let theirs = json!({"name": "theirs", "properties": {"protocol": "Tcp", "port": 1, "intervalInSeconds": 5, "probeThreshold": 2, "mystery": {"a": []}}});
    world.azure.edit(&balancer, |document| {
        document["properties"]["scope"] = json!("Public");
        document["properties"]["probes"]
            .as_array_mut()
            .unwrap()
            .push(theirs.clone());
    });
    let group = world
        .place
        .security_group_id(world.place.security_group.as_ref().unwrap());
    world.azure.edit(&group, |document| {
        let mut rule = foreign_rules()[0].clone();
        rule["name"] = json!("late");
        rule["properties"]["priority"] = json!(101);
        document["properties"]["securityRules"]
            .as_array_mut()
            .unwrap()
            .push(rule);
    });
    world.vip("other").await;
    world.has_address("other").await;
    let after = world.balancer().unwrap();
    assert_eq!(after["properties"]["scope"], json!("Public"), "AZ-400");
    let kept = after["properties"]["probes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|probe| probe["name"] == "theirs")
        .unwrap();
    assert_eq!(kept["properties"]["mystery"], json!({"a": []}), "ZI-39");
    assert!(
        world
            .security_rules()
            .iter()
            .any(|rule| rule["name"] == "late"),
        "ZI-39"
    );
    let statuses = world.write_statuses();
    assert!(
        statuses.contains(&412),
        "they were in the way: {statuses:?}"
    );
}

/// Whether the foreign client says which state it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// `If-Match`, and again after 412.
    Etag,
    /// None: what came between its reading and its writing is overwritten.
    None,
}

/// A program that is not ours, over HTTP as everybody.
#[derive(Clone)]
pub(crate) struct Foreign {
    http: Client,
    url: String,
    token: String,
}

impl Foreign {
    pub(crate) async fn new(world: &World) -> Self {
        let http = Client::new();
        let url = world.url.trim_end_matches('/').to_owned();
        let token = http
            .post(format!("{url}/tenant/oauth2/v2.0/token"))
            .body("client_id=client&client_secret=secret&scope=x%2F.default");
        let token: Value = token.send().await.unwrap().json().await.unwrap();
        let token = token["access_token"].as_str().unwrap().to_owned();
        Self { http, url, token }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        id: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        let url = format!("{}{id}?api-version=2025-05-01", self.url);
        let mut request = self.http.request(method, url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
            if let Some(etag) = body["etag"].as_str() {
                request = request.header(header::IF_MATCH, etag);
            }
        }
        let answer = request.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    /// Adds an item to a list of a document, taking its time between reading and writing.
    async fn add(&self, world: &World, id: &str, list: &str, (item, care): (&Value, Care)) {
        loop {
            let (status, mut document) = self.send(Method::GET, id, None).await;
            if status == StatusCode::OK {
                let items = document["properties"][list].as_array_mut().unwrap();
                items.push(item.clone());
                if care == Care::None {
                    document.as_object_mut().unwrap().remove("etag");
                }
                world.quiet(Duration::from_millis(150)).await;
                let (status, _) = self.send(Method::PUT, id, Some(&document)).await;
                if status.is_success() {
                    return;
                }
            }
            world.quiet(Duration::from_millis(50)).await;
        }
    }
}

/// What the foreign program adds to the load balancer and to the security group, the n-th time.
pub(crate) fn theirs(n: u32) -> (Value, Value) {
    let probe = json!({"name": format!("theirs-{n}"), "mystery": [{"n": n}], "properties": {
        "protocol": "Tcp", "port": 1000 + n, "intervalInSeconds": 5, "probeThreshold": 2, "odd": {"a": []},
    }});
    let mut rule = foreign_rules()[0].clone();
    rule["name"] = json!(format!("theirs-{n}"));
    rule["properties"]["priority"] = json!(110 + n);
    (probe, rule)
}

/// Whether everything of the item is in the list as it was sent, whatever the server has added.
fn kept(list: &[Value], item: &Value) -> bool {
    let named = list.iter().find(|there| there["name"] == item["name"]);
    named.is_some_and(|there| {
        let whole = |there: &Value, sent: &Value| {
            sent.as_object()
                .unwrap()
                .iter()
                .all(|(key, value)| key == "properties" || &there[key] == value)
        };
        let properties = item["properties"].as_object().unwrap();
        whole(there, item)
            && properties
                .iter()
                .all(|(key, value)| &there["properties"][key] == value)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn zi40_zi39_az008_a_program_that_writes_the_same_documents_all_the_time_loses_nothing_and_makes_us_lose_nothing()
 {
    const TIMES: u32 = 24;
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("stays").await;
    world.has_address("stays").await;
    let balancer = world.balancer().unwrap()["id"].as_str().unwrap().to_owned();
    let group = world
        .place
        .security_group_id(world.place.security_group.as_ref().unwrap());
    let foreign = Foreign::new(&world).await;
    for n in 0..TIMES {
        let care = if n % 2 == 0 { Care::Etag } else { Care::None };
        let (probe, rule) = theirs(n);
        let come = format!("web-{n}");
        let ours = async {
            world.vip(&come).await;
            if n % 3 == 2 {
                world.delete(&format!("web-{}", n - 2)).await;
            }
        };
        tokio::join!(
            ours,
            foreign.add(&world, &balancer, "probes", (&probe, care)),
            foreign.add(&world, &group, "securityRules", (&rule, care)),
        );
    }
    let left: Vec<String> = (0..TIMES)
        .filter(|n| n % 3 != 0)
        .map(|n| format!("web-{n}"))
        .collect();
    for name in &left {
        world.has_address(name).await;
    }
    let rules = |world: &World| {
        let balancer = world.balancer().unwrap();
        balancer["properties"]["loadBalancingRules"]
            .as_array()
            .unwrap()
            .len()
    };
    let pips = |world: &World| world.azure.ids("publicIPAddresses").len();
    world
        .eventually(
            "what was overwritten is there again, and nothing else",
            async |w| {
                let destinations = w
                    .security_rules()
                    .iter()
                    .filter_map(|rule| {
                        rule["properties"]["destinationAddressPrefixes"]
                            .as_array()
                            .map(Vec::len)
                    })
                    .sum::<usize>();
                (rules(w), pips(w), destinations)
                    == (left.len() + 1, left.len() + 1, left.len() + 1)
            },
        )
        .await;
    let there = world.balancer().unwrap();
    let (probes, group_rules) = (
        there["properties"]["probes"].as_array().unwrap(),
        world.security_rules(),
    );
    for n in 0..TIMES {
        let (probe, rule) = theirs(n);
        assert!(kept(probes, &probe), "ZI-39: {probe} {probes:#?}");
        assert!(kept(&group_rules, &rule), "ZI-39: {rule}");
    }
    let statuses = world.write_statuses();
    assert!(
        statuses.contains(&412),
        "they were in each other's way: {statuses:?}"
    );
}
