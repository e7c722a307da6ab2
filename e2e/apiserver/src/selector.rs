//! Label and field selectors of list and watch.

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::kind::Kind;
use crate::object::{at, label};
use crate::verbs::meta;

/// What a list or watch asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Above(String, i64),
    Below(String, i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    field: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Whether the two query parameters can be read at all.
    pub(crate) fn check_syntax(labels: &str, fields: &str) -> Result<()> {
        parse_labels(labels)?;
        parse_fields(fields).map(drop)
    }

    /// Parses the two query parameters for a kind.
    pub(crate) fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self> {
        let fields = parse_fields(fields)?;
        fields
            .iter()
            .try_for_each(|term| check_field(kind, &term.field))?;
        Ok(Self {
            labels: parse_labels(labels)?,
            fields,
        })
    }

    /// The selector of an object: a `metav1.LabelSelector`. An invalid operator matches nothing.
    pub(crate) fn of_label_selector(selector: &Value) -> Self {
        let equal = selector["matchLabels"].as_object().into_iter().flatten();
        let mut labels: Vec<Requirement> = equal
            .map(|(key, value)| {
                Requirement::In(
                    key.clone(),
                    vec![value.as_str().unwrap_or_default().to_owned()],
                )
            })
            .collect();
        for term in selector["matchExpressions"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let key = term["key"].as_str().unwrap_or_default().to_owned();
            let values = term["values"].as_array().into_iter().flatten();
            let values = values
                .filter_map(|value| value.as_str().map(str::to_owned))
                .collect();
            labels.push(match term["operator"].as_str() {
                Some("In") => Requirement::In(key, values),
                Some("NotIn") => Requirement::NotIn(key, values),
                Some("Exists") => Requirement::Exists(key),
                Some("DoesNotExist") => Requirement::Absent(key),
                _ => Requirement::In(key, Vec::new()),
            });
        }
        Self {
            labels,
            fields: Vec::new(),
        }
    }

    /// The selector of a Service: labels that must be equal.
    pub(crate) fn of_map(labels: &Value) -> Self {
        Self::of_label_selector(&serde_json::json!({ "matchLabels": labels }))
    }

    /// True if it asks for one object by its name, which the real server reads without listing.
    pub(crate) fn is_of_one_name(&self) -> bool {
        self.fields
            .iter()
            .any(|term| term.equal && term.field == "metadata.name")
    }

    /// True if everything matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|term| term.matches(object))
            && self
                .fields
                .iter()
                .all(|term| (field_value(object, &term.field) == term.value) == term.equal)
    }
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let number = |key: &str| label(object, key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists(key) => label(object, key).is_some(),
            Self::Absent(key) => label(object, key).is_none(),
            Self::In(key, values) => {
                label(object, key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            Self::NotIn(key, values) => {
                label(object, key).is_none_or(|value| !values.iter().any(|one| one == value))
            }
            Self::Above(key, limit) => number(key).is_some_and(|value| value > *limit),
            Self::Below(key, limit) => number(key).is_some_and(|value| value < *limit),
        }
    }
}

/// True if an object has every one of these labels; what a Service's selector asks.
pub(crate) fn has_labels(object: &Value, wanted: &Value) -> bool {
    wanted.as_object().is_some_and(|wanted| {
        wanted
            .iter()
            .all(|(key, value)| object["metadata"]["labels"][key] == *value)
    })
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    for (position, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
        .into_iter()
        .map(str::trim)
        .filter(|term| !term.is_empty())
        .collect()
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>> {
    let terms = split_terms(text);
    let parsed = terms.into_iter().map(parse_requirement);
    parsed.map(|one| one.and_then(valid)).collect()
}

fn parse_requirement(term: &str) -> Result<Requirement> {
    let fail = || ApiError::bad_request(format!("unable to parse requirement: found '{term}'"));
    if let Some(key) = term.strip_prefix('!') {
        return checked(key.trim())
            .map(Requirement::Absent)
            .ok_or_else(fail);
    }
    if let Some(open) = term.find('(') {
        let values = term[open + 1..].strip_suffix(')').ok_or_else(fail)?;
        let values = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = term[..open].split_whitespace();
        let (key, operator) = (words.next().and_then(checked), words.next());
        return match (key, operator, words.next()) {
            (Some(key), Some("in"), None) => Ok(Requirement::In(key, values)),
            (Some(key), Some("notin"), None) => Ok(Requirement::NotIn(key, values)),
            _ => Err(fail()),
        };
    }
    for (operator, build) in operators() {
        if let Some((key, value)) = term.split_once(operator) {
            let key = checked(key.trim()).ok_or_else(fail)?;
            return build(key, value.trim()).ok_or_else(fail);
        }
    }
    checked(term).map(Requirement::Exists).ok_or_else(fail)
}

/// Keys and values have to be those of labels.
fn valid(requirement: Requirement) -> Result<Requirement> {
    let refuse = |at: &str, text: &str, problem: &str| {
        ApiError::bad_request(format!(
            "unable to parse requirement: {at}: Invalid value: {text:?}: {problem}"
        ))
    };
    let (key, values): (&String, &[String]) = match &requirement {
        Requirement::In(key, values) | Requirement::NotIn(key, values) => (key, values),
        Requirement::Exists(key)
        | Requirement::Absent(key)
        | Requirement::Above(key, _)
        | Requirement::Below(key, _) => (key, &[]),
    };
    if let Some(problem) = meta::key_problem(key) {
        return Err(refuse("<nil>", key, &problem));
    }
    for (index, value) in values.iter().enumerate() {
        if let Some(problem) = meta::label_value_problem(value) {
            return Err(refuse(&format!("values[{index}][{key}]"), value, &problem));
        }
    }
    Ok(requirement)
}

type Build = fn(String, &str) -> Option<Requirement>;

fn operators() -> [(&'static str, Build); 5] {
    [
        ("!=", |key, value| {
            Some(Requirement::NotIn(key, vec![value.to_owned()]))
        }),
        ("==", |key, value| {
            Some(Requirement::In(key, vec![value.to_owned()]))
        }),
        ("=", |key, value| {
            Some(Requirement::In(key, vec![value.to_owned()]))
        }),
        (">", |key, value| {
            value
                .parse()
                .ok()
                .map(|limit| Requirement::Above(key, limit))
        }),
        ("<", |key, value| {
            value
                .parse()
                .ok()
                .map(|limit| Requirement::Below(key, limit))
        }),
    ]
}

/// A label key without spaces.
fn checked(key: &str) -> Option<String> {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    (!key.is_empty() && key.chars().all(legal)).then(|| key.to_owned())
}

fn parse_fields(text: &str) -> Result<Vec<FieldTerm>> {
    let terms = text.split(',').filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) =
                term.split_once("==").or_else(|| term.split_once('='))
            {
                (field, value, true)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                )));
            };
            Ok(FieldTerm {
                field: field.to_owned(),
                value: value.to_owned(),
                equal,
            })
        })
        .collect()
}

fn check_field(kind: &Kind, field: &str) -> Result<()> {
    let known = ["metadata.name", "metadata.namespace"];
    let custom = || {
        kind.schema
            .as_ref()
            .is_some_and(|schema| schema.selectable.iter().any(|one| one == field))
    };
    // Kinds without conversion of their own for field labels; see `AddFieldLabelConversionFunc`.
    let plain = !kind.is_custom() && (kind.hooks.fields.is_empty() || kind.group == "apps");
    let placeless = !plain && !kind.namespaced && field == "metadata.namespace";
    if known.contains(&field) && !placeless || kind.hooks.fields.contains(&field) || custom() {
        return Ok(());
    }
    Err(ApiError::bad_request(if plain {
        format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    } else {
        format!("field label not supported: {field}")
    }))
}

/// The text that a selector compares with; the zero value of the field's type where it is absent.
fn field_value(object: &Value, field: &str) -> String {
    let path: Vec<&str> = field.split('.').collect();
    match at(object, &path) {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        _ => match field {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" => "0".to_owned(),
            "reportingComponent" => object["reportingComponent"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            "source" => {
                let source = object["source"]["component"]
                    .as_str()
                    .filter(|source| !source.is_empty());
                source
                    .or(object["reportingComponent"].as_str())
                    .unwrap_or_default()
                    .to_owned()
            }
            "name" => object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(selector: &str) -> bool {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front", "n": "5"}}});
        Selector {
            labels: parse_labels(selector).unwrap(),
            fields: vec![],
        }
        .matches(&object)
    }

    #[test]
    fn label_selectors_of_every_form_match_as_documented() {
        for yes in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=db",
            "x!=y",
            "!x",
            "app in (web, db)",
            "app notin (db)",
            "x notin (y)",
            "n>4",
            "n<6",
            "app,tier in (front),!x",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in [
            "x",
            "app=db",
            "app!=web",
            "!app",
            "app in (db)",
            "app notin (web)",
            "n>5",
            "n<5",
            "app=web,x",
        ] {
            assert!(!matches(no), "{no}");
        }
    }

    #[test]
    fn a_malformed_label_selector_is_refused() {
        for bad in ["a b", "a in b", "a in (b", "=x", "!"] {
            assert!(parse_labels(bad).is_err(), "{bad}");
        }
    }
}
