//! Where two answers differ, and how that is told.

use crate::{request::Request, side::Seen};
use serde_json::{Value, json};
use std::fmt::Write;

/// Requests before the difference that are told.
const BEFORE: usize = 25;

/// One difference.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// JSON pointer into the body, or `code`, `warnings`.
    pub(crate) at: String,
    pub(crate) ours: Option<Value>,
    pub(crate) theirs: Option<Value>,
}

/// All differences of two answers.
pub(crate) fn differences(ours: &Seen, theirs: &Seen) -> Vec<Difference> {
    let mut found = Vec::new();
    if ours.code != theirs.code {
        let told = |seen: &Seen| Some(json!([seen.code, seen.body["message"]]));
        let (ours, theirs) = (told(ours), told(theirs));
        found.push(Difference {
            at: "code".into(),
            ours,
            theirs,
        });
        return found;
    }
    if ours.warnings != theirs.warnings {
        found.push(Difference {
            at: "warnings".into(),
            ours: Some(ours.warnings.clone().into()),
            theirs: Some(theirs.warnings.clone().into()),
        });
    }
    values("", Some(&ours.body), Some(&theirs.body), &mut found);
    found
}

/// Whether the two servers are in different states from here on, or a known difference hid something that got a name.
pub(crate) fn diverged(ours: &Seen, theirs: &Seen) -> bool {
    let version = |seen: &Seen| seen.body["metadata"]["resourceVersion"].clone();
    ours.code != theirs.code || version(ours) != version(theirs) || ours.named != theirs.named
}

fn values(at: &str, ours: Option<&Value>, theirs: Option<&Value>, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for name in a
                .keys()
                .chain(b.keys().filter(|name| !a.contains_key(*name)))
            {
                values(&format!("{at}/{name}"), a.get(name), b.get(name), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                values(&format!("{at}/{index}"), a.get(index), b.get(index), found);
            }
        }
        (ours, theirs) if ours != theirs => {
            found.push(Difference {
                at: at.to_owned(),
                ours: ours.cloned(),
                theirs: theirs.cloned(),
            });
        }
        _ => {}
    }
}

pub(crate) fn show(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

/// What a difference has in common with others like it, so that each kind is told once.
pub(crate) fn shape(request: &Request, difference: &Difference, namespace: &str) -> String {
    let digits = |text: &str| {
        let text = text.replace(namespace, "");
        text.replace(|c: char| c.is_ascii_digit(), "#")
    };
    let value = |value: &Option<Value>| -> String {
        digits(&show(value.as_ref())).chars().take(110).collect()
    };
    let patch = request.content_type.trim_start_matches("application/");
    format!(
        "{} {} {patch} {} {} | {}",
        digits(&request.path),
        request.method,
        digits(&difference.at),
        value(&difference.ours),
        value(&difference.theirs)
    )
}

/// A difference for people.
pub(crate) fn report(
    before: &[String],
    request: &Request,
    ours: &Seen,
    theirs: &Seen,
    differences: &[Difference],
) -> String {
    let mut text = format!("\n=== {request}\n");
    for line in before.iter().rev().take(BEFORE).rev() {
        let _ = writeln!(text, "    before: {line}");
    }
    for difference in differences.iter().take(12) {
        let (ours, theirs) = (difference.ours.as_ref(), difference.theirs.as_ref());
        let _ = writeln!(
            text,
            "  {}\n    embedded: {}\n    real:     {}",
            difference.at,
            show(ours),
            show(theirs)
        );
    }
    if ours.code != theirs.code {
        let _ = writeln!(text, "  embedded: {}\n  real: {}", ours.body, theirs.body);
    }
    text
}
