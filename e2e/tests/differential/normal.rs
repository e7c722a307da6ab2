//! The common form of answers: what a server chooses freely is replaced by a word that says whether it is the same as
//! before, so that "unchanged" and "changed" still differ.

use e2e_fabric::Fabric;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, net::IpAddr};

/// Node ports that are given out at random; below, only those that were asked for.
const RANDOM_PORTS: std::ops::Range<u16> = 30086..32768;

/// Words given so far, by what they stand for.
#[derive(Default)]
pub(crate) struct Names {
    words: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Names {
    fn word(&mut self, kind: &'static str, value: &str) -> String {
        if let Some(word) = self.words.get(value) {
            return word.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let word = format!("<{kind} {count}>");
        self.words.insert(value.to_owned(), word.clone());
        word
    }

    /// How many were given, by what they stand for.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.counts.clone()
    }

    /// An answer in common form.
    pub(crate) fn common(&mut self, body: &Value) -> Value {
        let mut body = body.clone();
        for object in objects(&mut body) {
            if let Some(list) = object
                .pointer_mut("/metadata/managedFields")
                .and_then(Value::as_array_mut)
            {
                // Their order depends on the second in which each was written.
                list.sort_by_key(|entry| {
                    ["manager", "operation", "subresource", "apiVersion"]
                        .map(|field| entry[field].to_string())
                });
            }
        }
        blank_ages(&mut body);
        order_causes(&mut body);
        let list = body.get("items").is_some() || body.get("rows").is_some();
        self.walk("", &mut body, list);
        body
    }

    fn walk(&mut self, name: &str, value: &mut Value, list_meta: bool) {
        match value {
            Value::Object(fields) => self.fields(name, fields, list_meta),
            Value::Array(items) => {
                for item in items {
                    self.walk(name, item, false);
                }
            }
            Value::String(text) => {
                if let Some(word) = self.text(name, text) {
                    *value = word.into();
                }
            }
            Value::Number(number) if name == "nodePort" || name == "healthCheckNodePort" => {
                let port = number.to_string();
                if is_random_port(&port) {
                    *value = self.word("port", &port).into();
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, name: &str, fields: &mut Map<String, Value>, list: bool) {
        // A fixed order, so that the same words are given on both sides.
        let mut keys: Vec<String> = fields.keys().cloned().collect();
        keys.sort();
        for key in keys {
            let Some(field) = fields.get_mut(&key) else {
                continue;
            };
            if name == "metadata" && key == "resourceVersion" {
                if let Some(version) = field.as_str() {
                    // Of a list: whatever was written last, also by the server itself.
                    *field = if list {
                        "<list version>".into()
                    } else {
                        self.word("version", version).into()
                    };
                }
                continue;
            }
            self.walk(&key, field, list && key == "metadata");
        }
    }

    fn text(&mut self, name: &str, text: &str) -> Option<String> {
        match name {
            "creationTimestamp" | "deletionTimestamp" | "time" => text
                .parse::<jiff::Timestamp>()
                .ok()
                .map(|_| "<time>".to_owned()),
            "continue" => Some("<token>".to_owned()),
            "message" => {
                let short = ordered_json(&without_object(text));
                let named = self.sentence(&short);
                named.or_else(|| (short != text).then_some(short))
            }
            _ if is_random_address(text) => Some(self.word("address", text)),
            _ => self.sentence(text),
        }
    }

    /// UIDs, generated names and, where it speaks of them, versions inside a text.
    fn sentence(&mut self, text: &str) -> Option<String> {
        let mut out = String::new();
        let mut rest = text;
        let versions = [
            "esourceVersion in",
            "esource version",
            "resourceVersion for",
        ]
        .iter()
        .any(|word| text.contains(word));
        while let Some(first) = rest.chars().next() {
            let inside = out.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '.');
            let run = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            let run = rest[..run.unwrap_or(rest.len())].trim_end_matches('.');
            if !inside && is_random_address(run) {
                out += &self.word("address", run);
                rest = &rest[run.len()..];
            } else if !inside && is_random_port(run) && rest[run.len()..].starts_with('/') {
                out += &self.word("port", run);
                rest = &rest[run.len()..];
            } else if let Some(uid) = rest.get(..36).filter(|part| is_uid(part)) {
                out += &self.word("uid", uid);
                rest = &rest[36..];
            } else if let Some(name) = rest.get(..9).filter(|part| part.starts_with("gen-")) {
                out += &self.word("name", name);
                rest = &rest[9..];
            } else if versions && first.is_ascii_digit() {
                out += "<version>";
                rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            } else {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        (out != text).then_some(out)
    }
}

/// A message that shows a whole object, in an order of its own, without it.
fn without_object(text: &str) -> String {
    let begin = text.find("Invalid value: \"{");
    match (begin, text.rfind("}\": ")) {
        (Some(begin), Some(end)) if begin < end => {
            let (before, after) = (&text[..begin], &text[end + 4..]);
            format!("{before}Invalid value: <object>: {after}")
        }
        _ => text.to_owned(),
    }
}

/// A message with the JSON after `value: ` in the order of its names: Go prints structs in the order of their fields.
fn ordered_json(text: &str) -> String {
    let Some(begin) = text
        .match_indices("value: ")
        .map(|(at, word)| at + word.len())
        .find(|at| text[*at..].starts_with(['{', '[']))
    else {
        return text.to_owned();
    };
    let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let Some(Ok(value)) = values.next() else {
        return text.to_owned();
    };
    let end = begin + values.byte_offset();
    let rest = ordered_json(&text[end..]);
    format!("{}{value}{rest}", &text[..begin])
}

/// A cluster address that was given out at random; the first 256 are those that were asked for. A dry run gives none out
/// and shows the first.
fn is_random_address(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            matches!(address.octets(), [10, 96, third, last] if third != 0 || last == 0)
        }
        Ok(IpAddr::V6(address)) => Fabric::SERVICE_CIDR6.contains(&address),
        Err(_) => false,
    }
}

fn is_random_port(text: &str) -> bool {
    text.parse().is_ok_and(|port| RANDOM_PORTS.contains(&port))
}

fn is_uid(text: &str) -> bool {
    text.char_indices().all(|(index, c)| {
        if [8, 13, 18, 23].contains(&index) {
            c == '-'
        } else {
            c.is_ascii_hexdigit()
        }
    })
}

/// The objects of an answer: itself, a list's items or a watch's.
fn objects(body: &mut Value) -> Vec<&mut Value> {
    if body.is_array() {
        let events = body.as_array_mut().into_iter().flatten();
        return events.filter_map(|event| event.get_mut("object")).collect();
    }
    for (list, inner) in [("items", None), ("rows", Some("object"))] {
        if body.get(list).is_some() {
            let items = body[list].as_array_mut().into_iter().flatten();
            return items
                .filter_map(|item| match inner {
                    Some(inner) => item.get_mut(inner),
                    None => Some(item),
                })
                .collect();
        }
    }
    vec![body]
}

/// Conflicts and wrong labels come in the order of a Go map, and a problem of a custom object is told once for each of its
/// validators.
fn order_causes(body: &mut Value) {
    order_problems(body);
    let conflict = body["reason"] == "Conflict";
    if let Some(causes) = body
        .pointer_mut("/details/causes")
        .and_then(Value::as_array_mut)
    {
        causes.sort_by_key(ToString::to_string);
        let mut seen = Vec::new();
        causes.retain(|cause| {
            let new = !seen.contains(cause);
            seen.push(cause.clone());
            new
        });
    }
    if let Some(Value::String(message)) = body.get_mut("message").filter(|_| conflict) {
        // The first manager stands behind the count.
        let text = message.replacen(" conflicts: ", " conflicts:\n", 1);
        let mut lines: Vec<&str> = text.split('\n').collect();
        lines.sort_unstable();
        *message = lines.join("\n");
    }
}

/// A message that lists the causes and nothing else lists them in the order of their words.
fn order_problems(body: &mut Value) {
    let causes = body.pointer("/details/causes").and_then(Value::as_array);
    let mut problems = Vec::new();
    for cause in causes.into_iter().flatten() {
        let (Some(field), Some(message)) = (cause["field"].as_str(), cause["message"].as_str())
        else {
            return;
        };
        let problem = format!("{field}: {message}");
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    let Some(Value::String(message)) = body.get_mut("message") else {
        return;
    };
    let listed = format!("[{}]", problems.join(", "));
    if let Some(before) = message.strip_suffix(&listed) {
        problems.sort();
        *message = format!("{before}[{}]", problems.join(", "));
    }
}

/// How long ago something was is not the same on both sides.
fn blank_ages(body: &mut Value) {
    let columns = body["columnDefinitions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ages: Vec<usize> = columns
        .iter()
        .enumerate()
        .filter(|(_, column)| {
            ["Age", "AGE", "Last Seen", "First Seen"]
                .iter()
                .any(|name| column["name"] == *name)
        })
        .map(|(index, _)| index)
        .collect();
    for row in body
        .get_mut("rows")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        for index in &ages {
            if let Some(cell) = row.get_mut("cells").and_then(|cells| cells.get_mut(*index)) {
                *cell = "<age>".into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn invalid(message: &str, causes: &[&str]) -> Value {
        let causes: Vec<Value> = causes
            .iter()
            .map(|words| json!({"field": "metadata.labels", "message": words, "reason": "FieldValueInvalid"}))
            .collect();
        json!({"reason": "Invalid", "message": message, "details": {"causes": causes}})
    }

    #[test]
    fn problems_in_another_order_are_the_same_and_other_problems_are_not() {
        let [one, two] = [
            invalid(
                "a is invalid: [metadata.labels: x, y, metadata.labels: z]",
                &["x, y", "z"],
            ),
            invalid(
                "a is invalid: [metadata.labels: z, metadata.labels: x, y]",
                &["z", "x, y"],
            ),
        ];
        let common = |body: &Value| Names::default().common(body);
        assert_eq!(common(&one), common(&two));
        let other = invalid(
            "a is invalid: [metadata.labels: z, metadata.labels: x]",
            &["z", "x"],
        );
        assert_ne!(common(&one), common(&other));
    }
}
