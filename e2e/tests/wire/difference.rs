//! What a write adds to a document or changes in it, apart from what it only carries along: that is others' to answer for.

use serde_json::Value;

/// The part of `after` that is not so in `before`, with the way to it; none if there is no such part.
pub(crate) fn added(before: Option<&Value>, after: &Value) -> Option<Value> {
    match (before, after) {
        (Some(before), after) if before == after => None,
        (Some(Value::Object(before)), Value::Object(after)) => {
            let parts = after
                .iter()
                .filter_map(|(key, after)| Some((key.clone(), added(before.get(key), after)?)));
            let part: serde_json::Map<String, Value> = parts.collect();
            (!part.is_empty()).then_some(Value::Object(part))
        }
        (Some(Value::Array(before)), Value::Array(after)) => {
            let items = after.iter().filter_map(|after| {
                added(before.iter().find(|before| is_twin(before, after)), after)
            });
            let items: Vec<Value> = items.collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        (_, after) => Some(after.clone()),
    }
}

/// Whether two items of a list are one: by name, where they have one.
fn is_twin(before: &Value, after: &Value) -> bool {
    match (before.get("name"), after.get("name")) {
        (Some(before), Some(after)) => before == after,
        _ => before == after,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_carried_along_is_no_part_and_what_is_said_is() {
        let before = json!({"unknown": [1], "properties": {
            "list": [{"name": "theirs", "odd": {}}, {"name": "ours", "a": 1}], "plain": ["x"],
        }});
        assert_eq!(added(Some(&before), &before), None);
        let mut after = before.clone();
        after["properties"]["list"][1]["a"] = json!(2);
        after["properties"]["plain"] = json!(["x", "y"]);
        after["properties"]["null"] = json!(null);
        let part = json!({"properties": {"list": [{"a": 2}], "plain": ["y"], "null": null}});
        assert_eq!(added(Some(&before), &after), Some(part));
        assert_eq!(added(None, &before), Some(before));
    }
}
