//! GET of a collection: selectors, pages and versions.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kind::Kind;
use crate::object;
use crate::selector::Selector;
use crate::state::State;
use crate::store::Compacted;

/// Query of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListOptions {
    pub(crate) selector: Selector,
    /// Zero for no limit.
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) version: String,
    pub(crate) version_match: String,
}

/// One page.
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Value>>,
    pub(crate) version: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<usize>,
}

/// What a continue token carries.
struct Token {
    version: u64,
    /// First key of the next page.
    start: String,
}

impl Token {
    fn encode(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.version, "start": self.start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(text: &str) -> Result<Self> {
        let bad = |why: &str| ApiError::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| bad(&error.to_string()))?;
        let token: Value =
            serde_json::from_slice(&bytes).map_err(|error| bad(&error.to_string()))?;
        if token["v"] != "meta.k8s.io/v1" {
            return Err(bad("server does not recognize this encoded version"));
        }
        match (token["rv"].as_u64(), token["start"].as_str()) {
            (Some(version), Some(start)) => Ok(Self {
                version,
                start: start.to_owned(),
            }),
            _ => Err(bad("incorrect encoded start resourceVersion")),
        }
    }
}

impl State {
    /// One page of a collection. All pages show the version of the first.
    pub(crate) fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<Page> {
        let current = self.store.version();
        let (version, start) = if options.continue_token.is_empty() {
            (self.version_to_list(options)?, String::new())
        } else {
            let token = Token::decode(&options.continue_token)?;
            (token.version, token.start)
        };
        let matching = |(_, object): &(&str, &Arc<Value>)| options.selector.matches(object);
        let prefix = if namespace.is_empty() {
            String::new()
        } else {
            format!("{namespace}/")
        };
        let past;
        let mut found: Vec<(&str, &Arc<Value>)> = if version == current {
            let all = self.store.list(&kind.table, namespace);
            all.map(|object| ("", object)).collect()
        } else {
            past = self
                .store
                .at(&kind.table, version)
                .map_err(|compacted| expired(options, version, &compacted))?;
            past.iter()
                .filter(|(key, _)| key.starts_with(&prefix))
                .map(|(key, object)| (key.as_str(), object))
                .collect()
        };
        found.retain(|(_, object)| start.is_empty() || object::key_of(object) >= start);
        // A full page ends the search, so what follows it may hold nothing that matches.
        // The cache that answers for version 0 knows no pages.
        let limit = if options.limit > 0 && options.version != "0" {
            options.limit
        } else {
            usize::MAX
        };
        let mut matches = (0..found.len()).filter(|at| matching(&found[*at]));
        let last = matches.nth(limit - 1);
        let end = last.map_or(found.len(), |last| last + 1);
        let rest = found.len() - end;
        let next = found.get(end).map(|(_, object)| object::key_of(object));
        found.truncate(end);
        found.retain(|entry| matching(entry));
        let items = found
            .into_iter()
            .map(|(_, object)| object.clone())
            .collect();
        let single = options.continue_token.is_empty() && options.selector.is_of_one_name();
        let next = next.filter(|_| !single);
        let continue_token = next.map(|start| Token { version, start }.encode());
        // With a selector the server does not know what is left.
        let remaining = (rest > 0 && options.selector.is_empty()).then_some(rest);
        Ok(Page {
            items,
            version,
            continue_token,
            remaining,
        })
    }

    fn version_to_list(&self, options: &ListOptions) -> Result<u64> {
        let current = self.store.version();
        if options.version.is_empty() || options.version == "0" {
            return Ok(current);
        }
        let asked: u64 = options.version.parse().map_err(|_| {
            ApiError::bad_request(format!("invalid resource version: resourceVersion: Invalid value: {0:?}: strconv.ParseUint: parsing {0:?}: invalid syntax", options.version.as_str()))
        })?;
        if asked > current {
            return Err(too_large(asked, current));
        }
        // Before `resourceVersionMatch` existed a page asked for by version was exact.
        let exact = options.version_match == "Exact"
            || (options.version_match.is_empty() && options.limit > 0);
        Ok(if exact { asked } else { current })
    }
}

/// 504 of a version that does not exist yet.
pub(crate) fn too_large(asked: u64, current: u64) -> ApiError {
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let mut error = ApiError::injected(http::StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
    error.details = json!({
        "retryAfterSeconds": 1,
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    });
    error
}

impl ListOptions {
    /// Refuses what does not go together.
    pub(crate) fn check(&self) -> Result<()> {
        check_options(self)
    }
}

fn check_options(options: &ListOptions) -> Result<()> {
    let kind = GroupResource::new("meta.k8s.io", "ListOptions");
    let refuse = |detail: &str| {
        let error = FieldError::forbidden("resourceVersionMatch", detail);
        Err(ApiError::invalid(&kind, "", &[error]))
    };
    if !options.version_match.is_empty() {
        if options.version.is_empty() {
            return refuse("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !options.continue_token.is_empty() {
            return refuse("resourceVersionMatch is forbidden when continue is provided");
        }
        if !["Exact", "NotOlderThan"].contains(&options.version_match.as_str()) {
            let allowed = ["Exact", "NotOlderThan", ""];
            let error = FieldError::not_supported(
                "resourceVersionMatch",
                options.version_match.as_str(),
                &allowed,
            );
            return Err(ApiError::invalid(&kind, "", &[error]));
        }
        if options.version_match == "Exact" && options.version == "0" {
            return refuse("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if !options.continue_token.is_empty() && !options.version.is_empty() && options.version != "0" {
        return Err(ApiError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    Ok(())
}

fn expired(options: &ListOptions, version: u64, compacted: &Compacted) -> ApiError {
    if options.continue_token.is_empty() {
        return ApiError::expired(format!(
            "The resourceVersion for the provided list is too old. ({version}, {})",
            compacted.oldest
        ));
    }
    ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )
}
