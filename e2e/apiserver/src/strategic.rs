//! Strategic merge patch: lists merge by key, with the directives that kubectl sends.

use serde_json::{Map, Value};

use crate::shape::{Form, Shape};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// The original with a patch laid over it.
pub(crate) fn merge(shape: &Shape, original: &Value, patch: &Value) -> Result<Value, String> {
    let Value::Object(patch) = patch else {
        return Ok(patch.clone());
    };
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => return Ok(without_directives(patch)),
        Some("delete") => return Ok(Value::Object(Map::new())),
        Some("merge") | None => {}
        Some(other) => return Err(format!("Unknown patch type found: {other}")),
    }
    let mut merged = original.as_object().cloned().unwrap_or_default();
    if let Some(retained) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        merged.retain(|key, _| retained.iter().any(|one| one == key.as_str()));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_FROM) {
            delete_from(&mut merged, list, value);
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        if value.is_null() {
            merged.remove(key);
            continue;
        }
        let order = patch
            .get(&format!("{ORDER}{key}"))
            .and_then(Value::as_array);
        let member = match (merged.get(key), value) {
            (old, Value::Array(items)) => merge_list(shape.field(key), old, items, order)?,
            // With nothing to replace, a patch that is a directive comes to nothing.
            (None, Value::Object(fields)) if fields.contains_key(DIRECTIVE) => continue,
            (old, value) => merge(shape.field(key), old.unwrap_or(&Value::Null), value)?,
        };
        merged.insert(key.clone(), member);
    }
    // An order may come without a patch of the list itself.
    for (key, order) in patch {
        if let Some(list) = key
            .strip_prefix(ORDER)
            .filter(|list| !patch.contains_key(*list))
            && let Some(Value::Array(items)) = merged.get_mut(list)
        {
            let merge_key = merge_key(shape.field(list)).unwrap_or("-");
            let before = items.clone();
            let order = order.as_array().map_or(&[][..], Vec::as_slice);
            reorder(items, order, &before, merge_key);
        }
    }
    Ok(Value::Object(merged))
}

fn without_directives(patch: &Map<String, Value>) -> Value {
    Value::Object(
        patch
            .iter()
            .filter(|(key, _)| !key.starts_with('$'))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    )
}

fn delete_from(merged: &mut Map<String, Value>, list: &str, values: &Value) {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    if let Some(Value::Array(items)) = merged.get_mut(list) {
        items.retain(|item| !values.contains(item));
    }
}

/// Key by which items of a list merge; `-` for scalars.
fn merge_key(shape: &Shape) -> Option<&str> {
    match &shape.form {
        Form::List { merge, .. } => merge.as_deref(),
        _ => None,
    }
}

fn merge_list(
    shape: &Shape,
    original: Option<&Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
) -> Result<Value, String> {
    let Some(key) = merge_key(shape) else {
        return Ok(Value::Array(patch.to_vec()));
    };
    let mut items = original
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let before = items.clone();
    if key == "-" {
        let new: Vec<Value> = patch
            .iter()
            .filter(|item| !items.contains(item))
            .cloned()
            .collect();
        items.extend(new);
    } else {
        merge_items(shape.items().0, &mut items, patch, key)?;
    }
    let order = order.map_or(patch, Vec::as_slice);
    reorder(&mut items, order, &before, key);
    Ok(Value::Array(items))
}

fn merge_items(
    element: &Shape,
    items: &mut Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<(), String> {
    if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
        let kept = patch
            .iter()
            .filter(|item| item.get(DIRECTIVE).is_none())
            .cloned();
        *items = kept.collect();
        return Ok(());
    }
    for change in patch {
        let identity = &change[key];
        if identity.is_null() {
            return Err(format!(
                "map: {change} does not contain declared merge key: {key}"
            ));
        }
        if change[DIRECTIVE] == "delete" {
            items.retain(|item| item[key] != *identity);
            continue;
        }
        match items.iter_mut().find(|item| item[key] == *identity) {
            Some(item) => *item = merge(element, item, change)?,
            None => items.push(merge(element, &Value::Null, change)?),
        }
    }
    Ok(())
}

/// Items that `order` names in its order, between the others in theirs; where the two meet, one of the others comes first
/// only if both were there before and it stood in front (`normalizeElementOrder`).
fn reorder(items: &mut Vec<Value>, order: &[Value], before: &[Value], key: &str) {
    let position = |list: &[Value], item: &Value| {
        list.iter().position(|one| {
            if key == "-" {
                one == item
            } else {
                one[key] == item[key]
            }
        })
    };
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = std::mem::take(items)
        .into_iter()
        .partition(|item| position(order, item).is_some());
    named.sort_by_key(|item| position(order, item));
    others.sort_by_key(|item| position(before, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (Some(other), Some(one)) => position(before, other)
                .zip(position(before, one))
                .is_some_and(|(other, one)| other < one),
            (other, _) => other.is_some(),
        };
        let next = if other_first {
            others.next()
        } else {
            named.next()
        };
        match next {
            Some(item) => items.push(item),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patch_pod(spec: &Value, patch: &Value) -> Value {
        merge(&Shape::built_in("PodSpec"), spec, patch).unwrap()
    }

    #[test]
    fn containers_merge_by_name_and_others_stay() {
        let spec = json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]});
        let patch = json!({"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}]});
        let expected = json!({"containers": [
            {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}, {"name": "b"}
        ]});
        assert_eq!(patch_pod(&spec, &patch), expected);
    }

    #[test]
    fn directives_delete_replace_and_order_items() {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        let delete = json!({"containers": [{"name": "b", "$patch": "delete"}]});
        assert_eq!(
            patch_pod(&spec, &delete),
            json!({"containers": [{"name": "a"}, {"name": "c"}]})
        );
        let replace = json!({"containers": [{"name": "z"}, {"$patch": "replace"}]});
        assert_eq!(
            patch_pod(&spec, &replace),
            json!({"containers": [{"name": "z"}]})
        );
        let order =
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]});
        let names = patch_pod(&spec, &order);
        assert_eq!(
            names,
            json!({"containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]})
        );
    }

    #[test]
    fn a_list_without_merge_key_is_replaced_and_null_removes() {
        let spec = json!({"tolerations": [{"key": "a"}], "nodeName": "n"});
        let patch = json!({"tolerations": [{"key": "b"}], "nodeName": null});
        assert_eq!(
            patch_pod(&spec, &patch),
            json!({"tolerations": [{"key": "b"}]})
        );
    }

    #[test]
    fn retain_keys_drops_the_other_half_of_a_union() {
        let shape = Shape::built_in("DeploymentSpec");
        let old = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
        let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
        assert_eq!(
            merge(&shape, &old, &patch).unwrap(),
            json!({"strategy": {"type": "Recreate"}})
        );
    }

    #[test]
    fn finalizers_merge_as_a_set_and_are_deleted_by_directive() {
        let shape = Shape::built_in("ObjectMeta");
        let old = json!({"finalizers": ["a", "b"]});
        let patch = json!({"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]});
        assert_eq!(
            merge(&shape, &old, &patch).unwrap(),
            json!({"finalizers": ["b", "c"]})
        );
    }
}
