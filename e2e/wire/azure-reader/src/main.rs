//! Reads load balancers, public IPs and security groups of a resource group with the types of `azure_mgmt_network`, and
//! prints in JSON what `azure_clients.py reads` prints with those of Azure's Python package.
//!
//! Arguments: endpoint, subscription, resource group. The token comes from the environment. With `carry` as the only one it
//! prints what is left of a load balancer's document, read from standard input, once it was in those types.

use std::sync::Arc;

use anyhow::{Context, Result};
use azure_core::auth::{AccessToken, TokenCredential};
use azure_mgmt_network::package_2024_03::models::{
    LoadBalancer, NetworkSecurityGroup, PublicIpAddress,
};
use azure_mgmt_network::package_2024_03::Client;
use futures::TryStreamExt;
use serde_json::{Map, Value, json};

#[derive(Debug)]
struct Given(String);

#[async_trait::async_trait]
impl TokenCredential for Given {
    async fn get_token(&self, _scopes: &[&str]) -> azure_core::Result<AccessToken> {
        let expires = time::OffsetDateTime::now_utc() + time::Duration::hours(1);
        Ok(AccessToken::new(self.0.clone(), expires))
    }

    async fn clear_cache(&self) -> azure_core::Result<()> {
        Ok(())
    }
}

/// Items of a list by their name, each in short.
fn named<T: serde::Serialize>(items: &[T], short: impl Fn(&Value) -> Value) -> Result<Value> {
    let mut all = Map::new();
    for item in items {
        let item = serde_json::to_value(item)?;
        let name = item["name"].as_str().context("it has a name")?.to_owned();
        all.insert(name, short(&item["properties"]));
    }
    Ok(Value::Object(all))
}

fn balancer(it: &LoadBalancer) -> Result<Value> {
    let properties = it.properties.as_ref().context("it has properties")?;
    let member = |member: &Value| member["properties"]["ipAddress"].clone();
    let members = |pool: &Value| {
        let members = pool["loadBalancerBackendAddresses"].as_array();
        members.into_iter().flatten().map(member).collect()
    };
    let frontends = properties.frontend_ip_configurations.iter();
    Ok(json!({
        "frontends": frontends.map(|it| it.name.clone()).collect::<Vec<_>>(),
        "pools": named(&properties.backend_address_pools, members)?,
        "probes": named(&properties.probes, |p| json!([p["protocol"], p["port"], p["requestPath"]]))?,
        "rules": named(&properties.load_balancing_rules, |r| {
            json!([r["protocol"], r["frontendPort"], r["backendPort"], r["enableFloatingIP"].as_bool().unwrap_or_default()])
        })?,
    }))
}

fn balancers(all: &[LoadBalancer]) -> Result<Value> {
    let mut found = Map::new();
    for it in all {
        let name = it.resource.name.clone().context("it has a name")?;
        found.insert(name, balancer(it)?);
    }
    Ok(Value::Object(found))
}

fn addresses(all: &[PublicIpAddress]) -> Result<Value> {
    named(all, |pip| pip["ipAddress"].clone())
}

fn rules(all: &[NetworkSecurityGroup]) -> Result<Value> {
    let rules = all.iter().filter_map(|it| it.properties.clone());
    let rules: Vec<_> = rules.flat_map(|it| it.security_rules).collect();
    named(&rules, |rule| {
        let many = rule["destinationPortRanges"].as_array().cloned();
        let ports = many.filter(|many| !many.is_empty());
        let ports = ports.unwrap_or_else(|| vec![rule["destinationPortRange"].clone()]);
        json!([rule["access"], rule["protocol"], ports])
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["carry"] {
        let read: LoadBalancer = serde_json::from_reader(std::io::stdin())?;
        println!("{}", serde_json::to_string(&read)?);
        return Ok(());
    }
    let [endpoint, subscription, group] = arguments.as_slice() else {
        anyhow::bail!("arguments: endpoint, subscription, resource group");
    };
    let token = std::env::var("AZURE_TOKEN").context("AZURE_TOKEN")?;
    let endpoint: azure_core::Url = endpoint.parse()?;
    let client = Client::builder(Arc::new(Given(token)))
        .endpoint(endpoint)
        .build()?;
    let list = client.load_balancers_client().list(group, subscription);
    let pages: Vec<_> = list.into_stream().try_collect().await?;
    let all: Vec<_> = pages.into_iter().flat_map(|page| page.value).collect();
    let list = client.public_ip_addresses_client().list(group, subscription);
    let pages: Vec<_> = list.into_stream().try_collect().await?;
    let pips: Vec<_> = pages.into_iter().flat_map(|page| page.value).collect();
    let list = client
        .network_security_groups_client()
        .list(group, subscription);
    let pages: Vec<_> = list.into_stream().try_collect().await?;
    let groups: Vec<_> = pages.into_iter().flat_map(|page| page.value).collect();
    let read = json!({
        "balancers": balancers(&all)?, "public_ips": addresses(&pips)?, "rules": rules(&groups)?,
    });
    println!("{read}");
    Ok(())
}
