//! A Service whose rules are switched to another pool (AZ-253): as long as they use the old one, the security group lets in
//! what that needs too. Pure.

use std::collections::BTreeSet;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use serde_json::Value;

use super::document::{RULES, at, child, referred};
use super::names;
use super::part::{Child, Part};

/// How a Service is reached until its rules are switched.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Former {
    /// What it asks for, with the modes and ports that the rules have.
    pub(super) spec: LoadBalancerSpec,
    /// The pools that they use.
    pub(super) pools: BTreeSet<String>,
}

/// The pool that a rule uses, where that is another one than it should be, or used in another way.
pub(super) fn other_pool<'a>(balancer: &'a Value, wish: &Child) -> Option<&'a str> {
    let there = child(balancer, RULES, &wish.name)?;
    let (old, new) = (
        referred(there, "backendAddressPool")?,
        referred(&wish.wish, "backendAddressPool")?,
    );
    let same = old.eq_ignore_ascii_case(new) && floats(there) == floats(&wish.wish);
    (!same).then_some(old)
}

fn floats(rule: &Value) -> bool {
    let floating = at(rule, &["properties", "enableFloatingIP"]);
    floating.and_then(Value::as_bool).unwrap_or_default()
}

/// What is there in place of what a part wants; none where every rule uses the pool that it should.
pub(super) fn former(balancer: &Value, part: &Part, spec: &LoadBalancerSpec) -> Option<Former> {
    let mut former = Former {
        spec: spec.clone(),
        pools: BTreeSet::new(),
    };
    former.spec.ports.clear();
    for wish in &part.rules {
        let Some(pool) = other_pool(balancer, wish) else {
            continue;
        };
        let rule = child(balancer, RULES, &wish.name)?;
        let number = |key: &str| {
            let number = at(rule, &["properties", key]).and_then(Value::as_u64);
            number.and_then(|number| u16::try_from(number).ok())
        };
        let frontend = number("frontendPort");
        let mut ports = spec.ports.iter();
        let Some(port) = ports.find(|port| Some(port.port) == frontend) else {
            continue;
        };
        let mode = match (floats(rule), names::is_of(pool, &part.base)) {
            (true, _) => TargetMode::Vip,
            (_, true) => TargetMode::Pod,
            (_, false) => TargetMode::Node,
        };
        let mut port = port.clone();
        port.mode = mode;
        port.target_port = number("backendPort").filter(|_| mode == TargetMode::Pod);
        port.node_port = number("backendPort").filter(|_| mode == TargetMode::Node);
        former.spec.ports.push(port);
        former.pools.insert(pool.to_ascii_lowercase());
    }
    (!former.pools.is_empty()).then_some(former)
}
