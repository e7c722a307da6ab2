//! The Services that a proxy has to carry, made by hand: no pods, no controller, only what a proxy reads.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

use crate::world::Objects;

/// The Service that is asked. Last in any order by name.
pub(super) const ASKED: &str = "zz-asked";
/// Address of its load balancer.
pub(super) const BALANCER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 77);
/// First address of endpoints that nobody has.
const FIRST: u32 = u32::from_be_bytes([172, 16, 0, 0]);
/// Objects that are written at a time.
const AT_ONCE: usize = 32;

/// Name of a Service of the load, and of its slice.
fn name(index: u32) -> String {
    format!("load-{index:05}")
}

/// An address of the load; `version` gives others for the same endpoint.
fn address(index: u32, endpoints: u32, endpoint: u32, version: u32) -> Ipv4Addr {
    // Of the last endpoint only, so that each change is of one.
    let other = if endpoint + 1 == endpoints {
        version % 2
    } else {
        0
    };
    Ipv4Addr::from(FIRST + index * (endpoints + 1) + endpoint + other)
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    })
}

fn slice(name: &str, addresses: &[Ipv4Addr], port: u16) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Creates `services` Services with their endpoints.
pub(super) async fn create(objects: &Objects, services: u32, endpoints: u32) -> Result<()> {
    let make = async |index: u32| {
        let name = name(index);
        objects.create(service(&name)).await?;
        let addresses: Vec<Ipv4Addr> = (0..endpoints)
            .map(|endpoint| address(index, endpoints, endpoint, 0))
            .collect();
        objects.create(slice(&name, &addresses, 8080)).await?;
        anyhow::Ok(())
    };
    stream::iter(0..services)
        .map(make)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Creates the Service that is asked, with one endpoint: by its ClusterIP, by a node port and by the address of a load
/// balancer that nobody makes.
pub(super) async fn create_asked(objects: &Objects, to: Ipv4Addr, port: u16) -> Result<()> {
    let mut asked = service(ASKED);
    asked["spec"]["type"] = json!("LoadBalancer");
    asked["spec"]["loadBalancerClass"] = json!("bench.example/none");
    objects.create(asked).await?;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}});
    let services = objects.api::<Service>();
    let merge = Patch::Merge(status);
    services
        .patch_status(ASKED, &PatchParams::default(), &merge)
        .await?;
    objects.create(slice(ASKED, &[to], port)).await?;
    Ok(())
}

/// Gives the asked Service another endpoint.
pub(super) async fn point(objects: &Objects, to: Ipv4Addr) -> Result<()> {
    patch(objects, ASKED, &[to]).await
}

/// Changes one endpoint of one Service of the load.
pub(super) async fn change(
    objects: &Objects,
    index: u32,
    endpoints: u32,
    version: u32,
) -> Result<()> {
    let addresses: Vec<Ipv4Addr> = (0..endpoints)
        .map(|endpoint| address(index, endpoints, endpoint, version))
        .collect();
    patch(objects, &name(index), &addresses).await
}

async fn patch(objects: &Objects, name: &str, addresses: &[Ipv4Addr]) -> Result<()> {
    let endpoints = slice(name, addresses, 0)["endpoints"].take();
    let patch = Patch::Merge(json!({"endpoints": endpoints}));
    let slices = objects.api::<EndpointSlice>();
    slices.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_endpoints_share_an_address_whatever_changed() {
        let mut seen = BTreeSet::new();
        for index in 0..50 {
            for endpoint in 0..10 {
                assert!(seen.insert(address(index, 10, endpoint, 0)));
            }
            assert!(seen.insert(address(index, 10, 9, 1)), "the changed one");
        }
    }
}
