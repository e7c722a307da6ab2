//! ARM documents as they came, with typed looks into them (AZ-400 to AZ-404). Pure.
//!
//! A document stays the JSON value that Azure sent: what we do not know is neither read nor lost, at any depth, and an
//! empty list stays one. Read-only fields (`provisioningState`, `resourceGuid`, `type`, back-references, `etag`s of
//! children) go back unchanged, in what was there before; nothing of ours has any (AZ-401).

use serde_json::{Map, Value};

/// Where the frontends of a load balancer are.
pub const FRONTENDS: &str = "frontendIPConfigurations";
/// Where its pools are.
pub const POOLS: &str = "backendAddressPools";
/// Where its rules are.
pub const RULES: &str = "loadBalancingRules";
/// Where its probes are.
pub const PROBES: &str = "probes";
/// Where the members of a pool are.
pub const MEMBERS: &str = "loadBalancerBackendAddresses";
/// Where the rules of a network security group are.
pub const SECURITY_RULES: &str = "securityRules";

/// What children of a load balancer refer to a frontend beside its rules.
const BESIDE_RULES: [&str; 3] = ["inboundNatRules", "inboundNatPools", "outboundRules"];

/// The text at a path of keys; empty text counts as absent (AZ-210).
pub fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str().filter(|text| !text.is_empty())
}

/// The value at a path of keys.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The name of a document or child.
pub fn name(value: &Value) -> &str {
    text(value, &["name"]).unwrap_or_default()
}

/// Children of a kind, in `properties`.
pub fn children<'a>(document: &'a Value, kind: &str) -> &'a [Value] {
    at(document, &["properties", kind])
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The child of this name; names have no case (AZ-098).
pub fn child<'a>(document: &'a Value, kind: &str, wanted: &str) -> Option<&'a Value> {
    children(document, kind)
        .iter()
        .find(|child| name(child).eq_ignore_ascii_case(wanted))
}

/// Children of a kind, to be changed; the list is made if it is not there.
pub fn children_mut<'a>(document: &'a mut Value, kind: &str) -> &'a mut Vec<Value> {
    list_mut(
        object_mut(
            object_mut(document)
                .entry("properties")
                .or_insert(Value::Null),
        ),
        kind,
    )
}

/// A list in an object, made if it is not there or is none.
fn list_mut<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let slot = object.entry(key).or_insert(Value::Null);
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    match slot {
        Value::Array(list) => list,
        _ => unreachable!("it was made a list just above"),
    }
}

/// An object, made if it is none.
pub fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object just above"),
    }
}

/// The last part of a resource id.
pub fn last_of_id(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

/// The id that `properties.<key>.id` refers to.
pub fn reference<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    text(value, &["properties", key, "id"])
}

/// Name of what `properties.<key>.id` refers to.
pub fn referred<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    reference(value, key).map(last_of_id)
}

/// Children other than rules that refer to a frontend (AZ-172): their names.
pub fn other_users<'a>(balancer: &'a Value, frontend: &str) -> Vec<&'a str> {
    let uses = |child: &&Value| {
        let one = referred(child, "frontendIPConfiguration");
        let many = at(child, &["properties", FRONTENDS]).and_then(Value::as_array);
        let many = many
            .into_iter()
            .flatten()
            .filter_map(|r| text(r, &["id"]))
            .map(last_of_id);
        one.into_iter()
            .chain(many)
            .any(|name| name.eq_ignore_ascii_case(frontend))
    };
    let others = BESIDE_RULES
        .iter()
        .flat_map(|kind| children(balancer, kind));
    others.filter(uses).map(name).collect()
}

/// The document's `ETag`.
pub fn etag(document: &Value) -> Option<&str> {
    text(document, &["etag"])
}

/// A tag of a document; Azure's tag names have no case.
pub fn tag<'a>(document: &'a Value, wanted: &str) -> Option<&'a str> {
    let tags = document.get("tags")?.as_object()?;
    let found = tags
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(wanted));
    found.and_then(|(_, value)| value.as_str())
}

/// Lays wished fields over what is there: objects are merged key by key, everything else is replaced. Fields that the
/// wish does not name stay as they are; what it names with null goes.
pub fn lay_over(there: &mut Value, wish: &Value) {
    match wish {
        Value::Object(wish) => {
            let there = object_mut(there);
            for (key, value) in wish {
                if value.is_null() {
                    there.remove(key);
                } else {
                    lay_over(there.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        other => there.clone_from(other),
    }
}

/// Whether everything that the wish names is there as wished: the semantic difference of AZ-155. Text is compared
/// without regard to case, since Azure gives ids and enumerations back in its own.
pub fn has(there: Option<&Value>, wish: &Value) -> bool {
    match (there, wish) {
        (Some(Value::Object(there)), Value::Object(wish)) => {
            wish.iter().all(|(key, value)| has(there.get(key), value))
        }
        (Some(Value::String(there)), Value::String(wish)) => there.eq_ignore_ascii_case(wish),
        (Some(Value::Array(there)), Value::Array(wish)) => {
            there.len() == wish.len()
                && there
                    .iter()
                    .zip(wish)
                    .all(|(there, wish)| has(Some(there), wish))
        }
        // What is false unless it is said is left out by Azure.
        (None, Value::Bool(false) | Value::Null) => true,
        // Empty text and an empty list count as absent (AZ-210).
        (Some(Value::String(there)), Value::Null) => there.is_empty(),
        (Some(Value::Array(there)), Value::Null) => there.is_empty(),
        (there, wish) => there == Some(wish),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn az400_az402_what_is_not_ours_stays_and_empty_lists_stay_lists() {
        let mut there = json!({
            "sku": {"name": "Standard", "new": [1, {"x": null}]},
            "properties": {"probes": [], "scope": "Public", "loadBalancingRules": [{"name": "R", "properties": {"a": 1, "enableConnectionTracking": true}}]},
        });
        let before = there.clone();
        lay_over(&mut there, &json!({"properties": {"probes": []}}));
        assert_eq!(there, before, "AZ-402");
        let rule = &mut children_mut(&mut there, RULES)[0];
        lay_over(rule, &json!({"properties": {"a": 2}}));
        assert_eq!(
            children(&there, RULES)[0],
            json!({"name": "R", "properties": {"a": 2, "enableConnectionTracking": true}}),
            "AZ-138"
        );
        assert_eq!(there["sku"], before["sku"], "AZ-400");
    }

    #[test]
    fn az155_az210_only_what_was_asked_is_compared_and_case_is_not() {
        let there = json!({"properties": {"protocol": "tcp", "port": 80, "extra": true, "id": {"id": "/A/b"}}});
        assert!(has(
            Some(&there),
            &json!({"properties": {"protocol": "Tcp", "id": {"id": "/a/B"}}})
        ));
        assert!(has(
            Some(&there),
            &json!({"properties": {"enableTcpReset": false}})
        ));
        assert!(!has(Some(&there), &json!({"properties": {"port": 81}})));
        assert!(!has(
            Some(&there),
            &json!({"properties": {"enableTcpReset": true}})
        ));
        assert!(!has(None, &json!({})));
        // AZ-210: what Azure gives back empty is absent.
        let empty = json!({"prefix": "", "prefixes": []});
        assert!(
            has(Some(&empty), &json!({"prefix": null, "prefixes": null})),
            "AZ-210"
        );
        assert_eq!(text(&empty, &["prefix"]), None, "AZ-210");
    }

    #[test]
    fn az172_users_of_a_frontend_beside_its_rules() {
        let balancer = json!({"properties": {
            "inboundNatPools": [{"name": "pool", "properties": {"frontendIPConfiguration": {"id": "/x/frontendIPConfigurations/F"}}}],
            "outboundRules": [{"name": "out", "properties": {"frontendIPConfigurations": [{"id": "/x/f"}]}}],
        }});
        assert_eq!(other_users(&balancer, "f"), ["pool", "out"]);
        assert!(other_users(&balancer, "g").is_empty());
    }
}
