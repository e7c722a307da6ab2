//! Reading single values: words, numbers, lists, maps (AWS-031 to AWS-033). Collects problems and notes
//! which keys were used; never stops at the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use super::keys::PREFIX;
use super::{Hint, Problem};

/// A reader over one Service's annotations.
pub(super) struct Reader<'a> {
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) problems: Vec<Problem>,
    pub(super) hints: Vec<Hint>,
    /// Keys that were read, without their prefix.
    pub(super) used: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(annotations: &'a BTreeMap<String, String>) -> Self {
        Self {
            annotations,
            problems: Vec::new(),
            hints: Vec::new(),
            used: BTreeSet::new(),
        }
    }

    /// Notes a problem of a key without its prefix.
    pub(super) fn problem(&mut self, key: &str, value: &str, allowed: impl Into<String>) {
        let key = if key.starts_with("onehop.dev/") || key.starts_with("spec.") {
            key.to_owned()
        } else {
            format!("{PREFIX}{key}")
        };
        self.problems.push(Problem {
            key,
            value: value.to_owned(),
            allowed: allowed.into(),
        });
    }

    pub(super) fn text(&mut self, key: &str) -> Option<&'a str> {
        let value = self.annotations.get(&format!("{PREFIX}{key}"))?;
        self.used.insert(key.to_owned());
        Some(value.trim())
    }

    pub(super) fn bool(&mut self, key: &str) -> Option<bool> {
        let value = self.text(key)?;
        let read = boolean(value);
        if read.is_none() {
            self.problem(
                key,
                value,
                "true or false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)",
            );
        }
        read
    }

    pub(super) fn number<T: FromStr>(&mut self, key: &str) -> Option<T> {
        let value = self.text(key)?;
        let read = value.parse().ok();
        if read.is_none() {
            self.problem(key, value, "a whole number");
        }
        read
    }

    pub(super) fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == value);
        if found.is_none() {
            let list: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problem(key, value, format!("one of {}", list.join(", ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    pub(super) fn list(&mut self, key: &str) -> Vec<String> {
        self.text(key).map(list).unwrap_or_default()
    }

    pub(super) fn parsed<T: FromStr>(&mut self, key: &str, what: &str) -> Vec<T>
    where
        T::Err: Display,
    {
        let mut all = Vec::new();
        for entry in self.list(key) {
            match entry.parse() {
                Ok(value) => all.push(value),
                Err(error) => self.problem(key, &entry, format!("{what}: {error}")),
            }
        }
        all
    }

    pub(super) fn map(&mut self, key: &str) -> BTreeMap<String, String> {
        let Some(value) = self.text(key) else {
            return BTreeMap::new();
        };
        map(value).unwrap_or_else(|entry| {
            self.problem(
                key,
                &entry,
                "k=v pairs with commas; a comma in a value as \\,",
            );
            BTreeMap::new()
        })
    }

    /// Keys that begin with `stem.`, with what follows.
    pub(super) fn suffixes(&self, stem: &str) -> Vec<String> {
        let stem = format!("{PREFIX}{stem}.");
        let keys = self.annotations.keys();
        keys.filter_map(|key| Some(key.strip_prefix(&stem)?.to_owned()))
            .collect()
    }
}

/// AWS-031: exactly these spellings.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// AWS-031: commas, trimmed, empties dropped.
pub(super) fn list(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// AWS-031: `k=v,k=v`, a backslash escapes a comma. The error is the entry that is none.
fn map(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut entries = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, entries.last_mut()) {
            ('\\', Some(entry)) if chars.peek() == Some(&',') => {
                chars.next();
                entry.push(',');
            }
            (',', _) => entries.push(String::new()),
            (c, Some(entry)) => entry.push(c),
            (_, None) => {}
        }
    }
    let entries = entries.iter().map(|entry| entry.trim());
    entries
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(entry.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws031_lists_maps_and_booleans() {
        assert_eq!(list(" a, b ,,c"), ["a", "b", "c"]);
        let read = map(r"a=1, b = x\,y ,c=").unwrap();
        let expected = [("a", "1"), ("b", "x,y"), ("c", "")];
        assert_eq!(
            read,
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
        assert_eq!(map("a=1,b"), Err("b".to_owned()));
        for word in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(boolean(word), Some(true));
        }
        for word in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(boolean(word), Some(false));
        }
        for word in ["yes", "on", "tRUE", ""] {
            assert_eq!(boolean(word), None);
        }
    }
}
