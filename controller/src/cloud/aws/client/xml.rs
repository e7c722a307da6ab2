//! Reading XML answers of the EC2 API: small, bounded, without entities beyond the five of the standard
//! (AWS-907). Unknown elements are there and simply not asked for.

use std::collections::BTreeMap;

/// Largest answer that is read, in bytes.
const LARGEST: usize = 32 << 20;
/// Deepest nesting.
const DEEPEST: usize = 32;

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its text, trimmed.
    pub text: String,
    /// Its children by name, each name in order.
    pub children: BTreeMap<String, Vec<Element>>,
}

/// Why an answer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("XML that cannot be read at byte {at}: {what}")]
pub struct XmlError {
    at: usize,
    what: &'static str,
}

impl Element {
    /// The first child of this name.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.get(name)?.first()
    }

    /// The text of a child, empty if there is none.
    pub fn text_of(&self, name: &str) -> &str {
        self.child(name).map_or("", |child| &child.text)
    }

    /// The entries of a list: `<name><item>…</item></name>`.
    pub fn items(&self, name: &str) -> impl Iterator<Item = &Self> {
        let list = self.child(name).and_then(|list| list.children.get("item"));
        list.into_iter().flatten()
    }
}

/// Reads a document; gives its root's name and the root.
pub fn read(text: &str) -> Result<(String, Element), XmlError> {
    if text.len() > LARGEST {
        return Err(XmlError {
            at: LARGEST,
            what: "it is too large",
        });
    }
    let mut reader = Reader { text, at: 0 };
    let mut open: Vec<(String, Element)> = Vec::new();
    loop {
        let rest = &reader.text[reader.at..];
        let Some(start) = rest.find('<') else {
            return Err(reader.wrong("it ends before its root does"));
        };
        if let Some((_, element)) = open.last_mut() {
            element.text.push_str(&unescape(&rest[..start]));
        }
        reader.at += start;
        match reader.tag()? {
            Tag::Other => {}
            Tag::Open(_) if open.len() >= DEEPEST => return Err(reader.wrong("it is too deep")),
            Tag::Open(name) => open.push((name, Element::default())),
            Tag::Empty(name) => match open.last_mut() {
                Some((_, parent)) => parent
                    .children
                    .entry(name)
                    .or_default()
                    .push(Element::default()),
                None => return Ok((name, Element::default())),
            },
            Tag::Close(name) => {
                let Some((opened, mut element)) = open.pop().filter(|(opened, _)| *opened == name)
                else {
                    return Err(reader.wrong("a tag closes that is not open"));
                };
                let trimmed = element.text.trim().to_owned();
                element.text = trimmed;
                match open.last_mut() {
                    Some((_, parent)) => parent.children.entry(opened).or_default().push(element),
                    None => return Ok((opened, element)),
                }
            }
        }
    }
}

enum Tag {
    Open(String),
    Close(String),
    Empty(String),
    Other,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    const fn wrong(&self, what: &'static str) -> XmlError {
        XmlError { at: self.at, what }
    }

    /// Reads one tag, from its `<` on.
    fn tag(&mut self) -> Result<Tag, XmlError> {
        let rest = &self.text[self.at..];
        for (begin, end) in [("<!--", "-->"), ("<?", "?>")] {
            if rest.starts_with(begin) {
                let length = rest
                    .find(end)
                    .ok_or_else(|| self.wrong("a comment does not end"))?;
                self.at += length + end.len();
                return Ok(Tag::Other);
            }
        }
        if rest.starts_with("<!") {
            return Err(self.wrong("declarations are not read"));
        }
        let end = rest
            .find('>')
            .ok_or_else(|| self.wrong("a tag does not end"))?;
        let inner = &rest[1..end];
        self.at += end + 1;
        let name = |text: &str| {
            text.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        Ok(match (inner.strip_prefix('/'), inner.strip_suffix('/')) {
            (Some(closed), _) => Tag::Close(name(closed)),
            (None, Some(empty)) => Tag::Empty(name(empty)),
            (None, None) => Tag::Open(name(inner)),
        })
    }
}

fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let mut plain = text.to_owned();
    let named = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ];
    for (entity, character) in named {
        plain = plain.replace(entity, character);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws907_elements_lists_and_texts_are_read_and_unknown_ones_do_no_harm() {
        let text = r#"<?xml version="1.0"?><R xmlns="http://x/"><!-- c --><a>1 &amp; 2</a>
            <set><item><b>x</b></item><item><b/></item></set><new><deep>?</deep></new></R>"#;
        let (name, root) = read(text).unwrap();
        assert_eq!((name.as_str(), root.text_of("a")), ("R", "1 & 2"));
        let items: Vec<_> = root.items("set").map(|item| item.text_of("b")).collect();
        assert_eq!(items, ["x", ""]);
        assert_eq!(root.text_of("missing"), "");
    }

    #[test]
    fn aws907_what_is_broken_too_deep_or_declares_entities_is_an_error() {
        let deep = "<a>".repeat(DEEPEST + 1);
        for text in [
            "",
            "<a>",
            "<a></b>",
            "<!DOCTYPE x><a/>",
            deep.as_str(),
            "<a",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
