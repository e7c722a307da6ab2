//! Azure takes IPv6 frontends on a load balancer only beside one of IPv4 (AZ-188). Pure.

use std::collections::BTreeSet;

use onehop_core::id::IpFamily;
use serde_json::Value;

use super::document::{
    FRONTENDS, POOLS, PROBES, RULES, children, children_mut, name, reference, text,
};
use super::names;

/// Whether a frontend is of IPv6; `six` are ids of IPv6 public IPs, in lower case.
pub(super) fn is_ipv6(frontend: &Value, six: &BTreeSet<String>) -> bool {
    let private = text(frontend, &["properties", "privateIPAddressVersion"]);
    let public = reference(frontend, "publicIPAddress");
    private.is_some_and(|version| version.eq_ignore_ascii_case(IpFamily::V6.as_str()))
        || public.is_some_and(|id| six.contains(&id.to_ascii_lowercase()))
}

/// Whether these frontends lack the IPv4 one that those of IPv6 need beside them.
fn lacks_ipv4<'a>(
    mut frontends: impl Iterator<Item = &'a Value> + Clone,
    six: &BTreeSet<String>,
) -> bool {
    let any = frontends.clone().next().is_some();
    any && frontends.all(|frontend| is_ipv6(frontend, six))
}

/// AZ-188: the last IPv4 frontend stays, without rules, as long as there are some of IPv6.
pub(super) fn keep_an_ipv4_frontend(
    document: &mut Value,
    before: Vec<Value>,
    six: &BTreeSet<String>,
) {
    if lacks_ipv4(children(document, FRONTENDS).iter(), six) {
        let last = before.into_iter().find(|frontend| !is_ipv6(frontend, six));
        children_mut(document, FRONTENDS).extend(last);
    }
}

/// Whether nothing of a Service is left but the frontend that stays for the sake of those of IPv6 (AZ-188).
pub(super) fn stays_for_ipv6(document: &Value, base: &str, six: &BTreeSet<String>) -> bool {
    let own = |there: &&Value| names::is_of(name(there), base);
    let lists = [RULES, PROBES, POOLS];
    let more = lists
        .iter()
        .any(|list| children(document, list).iter().any(|it| own(&it)));
    !more && last_ipv4(document, base, six)
}

/// Whether the frontends of a Service are the last of IPv4 beside those of IPv6.
pub(super) fn last_ipv4(document: &Value, base: &str, six: &BTreeSet<String>) -> bool {
    let own = |there: &&Value| names::is_of(name(there), base);
    let others = children(document, FRONTENDS).iter().filter(|it| !own(it));
    lacks_ipv4(others, six)
}
