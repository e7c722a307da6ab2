//! Query parameters.

use std::collections::BTreeMap;

use crate::error::{ApiError, Result};

/// Decoded parameters; of a repeated one the last counts.
#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// A parameter, empty if absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), "true" | "1")
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }

    /// `dryRun=All`.
    pub(crate) fn dry_run(&self) -> bool {
        self.text("dryRun") == "All"
    }
}
