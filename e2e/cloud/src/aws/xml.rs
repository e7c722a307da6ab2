//! Writing answers.

/// Text with what XML keeps for itself escaped.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// `<name>text</name>`.
pub(super) fn el(name: &str, text: impl std::fmt::Display) -> String {
    format!("<{name}>{}</{name}>", escape(&text.to_string()))
}

/// `<name>inner</name>`, where `inner` is XML already.
pub(super) fn wrap(name: &str, inner: impl AsRef<str>) -> String {
    format!("<{name}>{}</{name}>", inner.as_ref())
}

/// A list of `ELBv2`: `<name><member>…</member></name>`.
pub(super) fn members(name: &str, entries: impl Iterator<Item = String>) -> String {
    let inner: String = entries.map(|entry| wrap("member", entry)).collect();
    wrap(name, inner)
}

/// A list of EC2: `<name><item>…</item></name>`.
pub(super) fn items(name: &str, entries: impl Iterator<Item = String>) -> String {
    let inner: String = entries.map(|entry| wrap("item", entry)).collect();
    wrap(name, inner)
}

/// Key and value, as attributes and tags of `ELBv2` are written.
pub(super) fn pair(key: &str, value: &str) -> String {
    el("Key", key) + &el("Value", value)
}
