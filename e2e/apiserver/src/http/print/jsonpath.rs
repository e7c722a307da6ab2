//! The part of `JSONPath` that columns of custom kinds use: fields, indexes, `[*]` and `[?(@.a=="b")]`.

use serde_json::Value;

/// Values that a path finds.
pub(crate) fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim_start_matches('$');
    while !rest.is_empty() {
        let Some((step, tail)) = next(rest) else {
            return Vec::new();
        };
        found = found
            .into_iter()
            .flat_map(|value| step.apply(value))
            .collect();
        rest = tail;
    }
    found.into_iter().filter(|value| !value.is_null()).collect()
}

enum Step<'p> {
    Field(String),
    Index(usize),
    All,
    Where(&'p str, &'p str),
}

/// The first step of a path and what follows it.
fn next(path: &str) -> Option<(Step<'_>, &str)> {
    if let Some(inside) = path.strip_prefix('[') {
        let end = inside.find(']')?;
        let (inner, tail) = (&inside[..end], &inside[end + 1..]);
        return Some((bracket(inner)?, tail));
    }
    let name = path.strip_prefix('.').unwrap_or(path);
    // A dot in a name is written `\.`.
    let mut end = name.len();
    let mut escaped = false;
    for (at, letter) in name.char_indices() {
        if !escaped && (letter == '.' || letter == '[') {
            end = at;
            break;
        }
        escaped = letter == '\\';
    }
    let field = name[..end].replace("\\.", ".");
    Some((Step::Field(field), &name[end..]))
}

fn bracket(inner: &str) -> Option<Step<'_>> {
    if inner == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inner
        .strip_prefix("?(@.")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let (field, value) = condition.split_once("==")?;
        return Some(Step::Where(field.trim(), unquote(value.trim())));
    }
    if inner.starts_with(['\'', '"']) {
        return Some(Step::Field(unquote(inner).to_owned()));
    }
    inner.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> &str {
    text.trim_matches(['\'', '"'])
}

impl Step<'_> {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => value.get(index).into_iter().collect(),
            Self::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(fields) => fields.values().collect(),
                _ => Vec::new(),
            },
            Self::Where(field, wanted) => {
                let matches =
                    |item: &&Value| item[*field].as_str().is_some_and(|text| text == *wanted);
                value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(matches)
                    .collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_of_columns_are_understood() {
        let object = json!({
            "spec": {"a.b": 1, "list": [{"x": 1}, {"x": 2}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}
        });
        assert_eq!(find(&object, ".spec.list[1].x"), [&json!(2)]);
        assert_eq!(find(&object, ".spec.list[*].x"), [&json!(1), &json!(2)]);
        assert_eq!(find(&object, r".spec.a\.b"), [&json!(1)]);
        assert_eq!(find(&object, ".spec['a.b']"), [&json!(1)]);
        assert_eq!(
            find(&object, ".status.conditions[?(@.type==\"Ready\")].status"),
            [&json!("True")]
        );
        assert!(find(&object, ".spec.none.at.all").is_empty());
    }
}
