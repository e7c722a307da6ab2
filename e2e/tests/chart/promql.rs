//! What a PromQL expression asks for: metrics and labels. Enough of the grammar for what the chart's alerts and
//! dashboards say; whatever it does not know counts as a metric, and so fails loudly.

use std::collections::BTreeSet;

/// A metric and the labels that are asked of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) metric: String,
    pub(crate) labels: BTreeSet<String>,
    /// `label` and the value that it must equal.
    pub(crate) equal: BTreeSet<(String, String)>,
}

/// All uses of an expression. Labels by which it groups are asked of each of its metrics.
pub(crate) fn uses(expression: &str) -> Vec<Use> {
    let mut found: Vec<Use> = Vec::new();
    let mut grouped = BTreeSet::new();
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        if c == '[' {
            rest = after(rest, ']');
        } else if c == '"' {
            rest = after(&rest[1..], '"');
        } else if is_word(c) && !c.is_ascii_digit() {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, next) = rest.split_at(end);
            rest = next.trim_start();
            if matches!(word, "by" | "without" | "on" | "ignoring") && rest.starts_with('(') {
                let list = rest[1..].split(')').next().unwrap_or_default();
                grouped.extend(list.split(',').map(|label| label.trim().to_owned()));
                rest = after(rest, ')');
            } else if rest.starts_with('(')
                || matches!(
                    word,
                    "by" | "and" | "or" | "unless" | "bool" | "sum" | "max" | "min"
                )
            {
                // A function, an operator, or an aggregation whose `by` comes first.
            } else {
                let (labels, equal, next) = matchers(rest);
                rest = next;
                found.push(Use {
                    metric: word.to_owned(),
                    labels,
                    equal,
                });
            }
        } else if is_word(c) {
            // A number, maybe with a unit.
            let end = rest.find(|c| !is_word(c) && c != '.').unwrap_or(rest.len());
            rest = &rest[end..];
        } else {
            rest = &rest[c.len_utf8()..];
        }
    }
    for one in &mut found {
        one.labels.extend(grouped.iter().cloned());
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, after)| after)
}

type Matchers<'a> = (BTreeSet<String>, BTreeSet<(String, String)>, &'a str);

/// The matchers in braces, if any follow, and what comes after them.
fn matchers(text: &str) -> Matchers<'_> {
    let (mut labels, mut equal) = (BTreeSet::new(), BTreeSet::new());
    let Some(inside) = text.strip_prefix('{') else {
        return (labels, equal, text);
    };
    let mut rest = inside.trim_start();
    while !rest.is_empty() && !rest.starts_with('}') {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (label, next) = rest.split_at(end);
        let (operator, next) = next.split_once('"').unwrap_or((next, ""));
        let (value, next) = next.split_once('"').unwrap_or((next, ""));
        labels.insert(label.to_owned());
        if operator.trim() == "=" {
            equal.insert((label.to_owned(), value.to_owned()));
        }
        rest = next.trim_start().trim_start_matches(',').trim_start();
    }
    (labels, equal, rest.strip_prefix('}').unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn metrics_and_labels_are_found() {
        let expression =
            r#"sum by (lane) (rate(a_total{x="1",y=~"b, c"}[5m])) * 60 >= 1 and absent(b == 1)"#;
        let found = uses(expression);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].metric, "a_total");
        assert_eq!(found[0].labels, set(&["lane", "x", "y"]));
        assert_eq!(found[0].equal, [("x".to_owned(), "1".to_owned())].into());
        assert_eq!(
            (found[1].metric.as_str(), &found[1].labels),
            ("b", &set(&["lane"]))
        );
    }
}
