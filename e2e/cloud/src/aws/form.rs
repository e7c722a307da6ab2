//! Parameters of a call: flat names with dots and numbers, read as lists and maps.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::error::Refusal;

/// The parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let text =
            std::str::from_utf8(body).map_err(|_| Refusal::validation("the body is no text"))?;
        let mut all = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            all.insert(decode(key)?, decode(value)?);
        }
        Ok(Self(all))
    }

    pub(super) fn of(parameters: &[(&str, &str)]) -> Self {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self(parameters.iter().map(pair).collect())
    }

    /// A text, empty if it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A text that is there.
    pub(super) fn maybe(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A text that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<&str, Refusal> {
        let missing = || Refusal::missing(name);
        self.maybe(name)
            .filter(|text| !text.is_empty())
            .ok_or_else(missing)
    }

    /// A number within bounds, if it is there.
    pub(super) fn number<T: FromStr + PartialOrd + std::fmt::Display + Copy>(
        &self,
        name: &str,
        (least, most): (T, T),
    ) -> Result<Option<T>, Refusal> {
        let Some(text) = self.maybe(name) else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        let wrong =
            || Refusal::validation(format!("{name} '{text}' must be from {least} to {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Texts of a list: `name.1`, or `name.member.1` as `ELBv2` has it.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        let entries = self.entries(name);
        entries.iter().filter_map(|stem| self.maybe(stem)).collect()
    }

    /// Stems of a list's entries, in order.
    pub(super) fn entries(&self, name: &str) -> Vec<String> {
        let stems = [format!("{name}.member."), format!("{name}.")];
        let stem = stems
            .into_iter()
            .find(|stem| self.0.keys().any(|key| key.starts_with(stem)));
        let Some(stem) = stem else { return Vec::new() };
        let numbers: std::collections::BTreeSet<u32> = self
            .0
            .keys()
            .filter_map(|key| key.strip_prefix(&stem)?.split('.').next()?.parse().ok())
            .collect();
        numbers.into_iter().map(|n| format!("{stem}{n}")).collect()
    }

    /// A list of keys and values.
    pub(super) fn pairs(&self, name: &str) -> BTreeMap<String, String> {
        let entries = self.entries(name).into_iter();
        let pair = |stem: String| {
            let text = |part: &str| self.text(&format!("{stem}.{part}")).to_owned();
            (text("Key"), text("Value"))
        };
        entries.map(pair).collect()
    }
}

fn decode(text: &str) -> Result<String, Refusal> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'+' => plain.push(b' '),
            b'%' => {
                let code = text
                    .get(at + 1..at + 3)
                    .and_then(|hex| u8::from_str_radix(hex, 16).ok());
                plain.push(code.ok_or_else(|| Refusal::validation("a broken percent code"))?);
                at += 2;
            }
            byte => plain.push(*byte),
        }
        at += 1;
    }
    String::from_utf8(plain).map_err(|_| Refusal::validation("a value is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_services_are_read_in_the_order_of_their_numbers() {
        let form = Form::read(
            b"A.member.2=b%2Fc&A.member.1=x+y&B.1=p&T.member.1.Key=k&T.member.1.Value=v",
        )
        .unwrap();
        assert_eq!(form.list("A"), ["x y", "b/c"]);
        assert_eq!(form.list("B"), ["p"]);
        assert_eq!(
            form.pairs("T"),
            BTreeMap::from([("k".to_owned(), "v".to_owned())])
        );
        assert!(form.need("C").is_err() && form.number::<u16>("B.1", (1, 2)).is_err());
    }
}
