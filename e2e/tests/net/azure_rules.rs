//! Rules of the network security group on packets (AZ-204, AZ-205): as Azure applies them to what a load balancer sends
//! on, after its translation. Put on each load balancer node as a chain of its own, read off the subscription's document.

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use onehop_e2e::world::World;
use serde_json::Value;
use std::{
    fmt::Write as _,
    process::{Command, Stdio},
};
use tokio::io::AsyncWriteExt;

/// What a tag or prefix list matches in a packet's header; none if no packet of these is it.
fn addresses(side: &str, of: &[String], inside: &[IpNet]) -> Option<String> {
    let inside = set(inside.iter().map(ToString::to_string));
    match of {
        [any] if any == "*" => Some(String::new()),
        [tag] if tag == "Internet" => Some(format!("ip {side} != {inside}")),
        [tag] if tag == "VirtualNetwork" => Some(format!("ip {side} {inside}")),
        // Probes do not come through the load balancer; other tags are nobody here.
        [tag] if tag.parse::<IpNet>().is_err() && tag.parse::<std::net::IpAddr>().is_err() => None,
        many => {
            let four = many.iter().filter(|prefix| !prefix.contains(':')).cloned();
            let four: Vec<String> = four.collect();
            (!four.is_empty()).then(|| format!("ip {side} {}", set(four)))
        }
    }
}

fn set(of: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = of.into_iter().collect();
    format!("{{ {} }}", items.join(", "))
}

/// What is said in the singular or in the plural.
fn list(rule: &Value, one: &str) -> Vec<String> {
    let p = &rule["properties"];
    let many = p[format!("{one}es")]
        .as_array()
        .or(p[format!("{one}s")].as_array());
    let many = many.into_iter().flatten().filter_map(Value::as_str);
    let many: Vec<String> = many.map(str::to_owned).collect();
    match p[one].as_str().filter(|text| !text.is_empty()) {
        Some(one) => vec![one.to_owned()],
        None => many,
    }
}

/// One rule; none if it matches no packet here.
fn line(rule: &Value, inside: &[IpNet]) -> Option<String> {
    let p = &rule["properties"];
    let from = addresses("saddr", &list(rule, "sourceAddressPrefix"), inside)?;
    let to = addresses("daddr", &list(rule, "destinationAddressPrefix"), inside)?;
    let ports = list(rule, "destinationPortRange");
    let any = ports.iter().any(|port| port == "*");
    let at = match p["protocol"].as_str()?.to_lowercase().as_str() {
        "*" if any => String::new(),
        "*" => format!("th dport {}", set(ports)),
        protocol if any => format!("meta l4proto {protocol}"),
        protocol => format!("{protocol} dport {}", set(ports)),
    };
    let verdict = if p["access"] == "Allow" {
        "accept"
    } else {
        "drop"
    };
    Some(format!("{from} {to} {at} {verdict}"))
}

/// The rules in their order, then Azure's own: the network lets itself in, and nobody else comes.
fn ruleset(group: &Value, inside: &[IpNet]) -> String {
    let rules = group["properties"]["securityRules"].as_array();
    let mut rules: Vec<&Value> = rules.into_iter().flatten().collect();
    rules.retain(|rule| rule["properties"]["direction"] == "Inbound");
    rules.sort_by_key(|rule| rule["properties"]["priority"].as_u64());
    let mut text = String::from(
        "table ip security\ndelete table ip security\ntable ip security {\nchain forward {\n\
         type filter hook forward priority 20\nct state established,related accept\n",
    );
    for line in rules.iter().filter_map(|rule| line(rule, inside)) {
        let _ = writeln!(text, "{line}");
    }
    let inside = set(inside.iter().map(ToString::to_string));
    let _ = writeln!(text, "ip saddr {inside} accept\ncounter drop\n}}\n}}");
    text
}

/// Puts the group's rules, as they are now, on every load balancer node; `inside` are the ranges of the virtual network.
pub(crate) async fn enforce(world: &World, inside: &[IpNet]) -> Result<()> {
    let group = world.azure_document("networkSecurityGroups", "nodes")?;
    let text = ruleset(&group.context("there is a security group")?, inside);
    for lb in world.lb_nodes() {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped());
        let mut nft = lb.netns().spawn(command)?;
        let stdin = nft.stdin.take().context("nft reads")?;
        { stdin }.write_all(text.as_bytes()).await?;
        ensure!(nft.wait().await?.success(), "nft takes\n{text}");
    }
    Ok(())
}
