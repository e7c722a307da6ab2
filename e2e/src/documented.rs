//! What `docs/bad-input.md` promises to say, for the tests that hold the programs to it. Included by path where tests of
//! several crates need it.

#![allow(clippy::panic, reason = "for tests only")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included where not all of it is used"
)]

use std::path::PathBuf;

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id, the first column.
    pub id: String,
    /// Where it is said.
    pub place: String,
    /// Reason of the event and of the condition, where there are any.
    pub reason: Option<String>,
    /// The message, word for word; `…` stands for what differs from case to case.
    pub text: String,
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let page = page
        .ancestors()
        .map(|folder| folder.join("docs/bad-input.md"));
    let page = page.filter(|path| path.exists()).last().unwrap_or_default();
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    // The first code span of a cell.
    let quoted = |cell: &str| cell.split('`').nth(1).map(str::to_owned);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [id, _, reason, text, _] = cells[..] else {
            return None;
        };
        Some(Row {
            id: quoted(id)?,
            place: reason.to_owned(),
            reason: quoted(reason),
            text: quoted(text).unwrap_or_default(),
        })
    };
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(row)
        .collect()
}

/// The row of a case.
pub fn row(id: &str) -> Row {
    let found = rows().into_iter().find(|row| row.id == id);
    found.unwrap_or_else(|| panic!("docs/bad-input.md has no row {id}"))
}

/// The message of a case.
pub fn text(id: &str) -> String {
    row(id).text
}

/// Whether what was said is what is promised: `…` matches anything.
pub fn says(id: &str, said: &str) -> bool {
    let promised = text(id);
    let mut rest = said;
    let mut parts = promised.split('…');
    let Some(after) = parts.next().and_then(|first| rest.strip_prefix(first)) else {
        return false;
    };
    rest = after;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty() || promised.ends_with('…')
}
