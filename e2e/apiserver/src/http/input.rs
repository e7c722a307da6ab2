//! What a request says: options, manager and body.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use serde_json::{Value, json};

use super::handle::Context;
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::state::{Call, Part};
use crate::verbs::delete::DeleteOptions;
use crate::verbs::strict::FieldValidation;

impl Context<'_> {
    pub(super) fn call(&self, part: Part) -> Result<Call> {
        Ok(Call {
            kind: self.kind.clone(),
            namespace: self.path.namespace.clone(),
            name: self.path.name.clone(),
            part,
            manager: self.manager()?,
            dry_run: self.query.dry_run(),
            validation: match self.query.text("fieldValidation") {
                "Ignore" => FieldValidation::Ignore,
                "Strict" => FieldValidation::Strict,
                _ => FieldValidation::Warn,
            },
            now: self.server.clock().now(),
        })
    }

    /// Field manager: as told, else the client's name.
    pub(super) fn manager(&self) -> Result<String> {
        let told = self.query.text("fieldManager");
        if told.len() > 128 {
            let error = FieldError::new(
                crate::error::Problem::TooLong,
                "fieldManager",
                "",
                "may not be more than 128 bytes",
            );
            return Err(ApiError::invalid(
                &GroupResource::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        if !told.is_empty() {
            return Ok(told.to_owned());
        }
        let agent = self
            .request
            .headers()
            .get(USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
            .unwrap_or_default();
        let name = agent.split('/').next().unwrap_or_default();
        Ok(if name.is_empty() {
            "unknown".to_owned()
        } else {
            name.chars().take(128).collect()
        })
    }

    pub(super) fn body(&self) -> Result<Value> {
        match self.content_type() {
            "" | "application/json" | "*/*" => parse(self.request.body()),
            "application/yaml" => parse_yaml(self.request.body()),
            _ => Err(ApiError::unsupported_media_type(
                "application/json, application/yaml",
            )),
        }
    }

    /// Refuses options of a write that are not of its kind's (`CreateOptions` and so on).
    pub(super) fn check_options(&self, kind: &str) -> Result<()> {
        let mut errors = Vec::new();
        let dry = self.query.text("dryRun");
        if !["", "All"].contains(&dry) {
            errors.push(FieldError::not_supported("dryRun", json!([dry]), &["All"]));
        }
        let way = self.query.text("fieldValidation");
        let ways = ["", "Ignore", "Strict", "Warn"];
        if !ways.contains(&way) {
            errors.push(FieldError::not_supported("fieldValidation", way, &ways));
        }
        if errors.is_empty() {
            return Ok(());
        }
        let kind = GroupResource::new("meta.k8s.io", kind);
        Err(ApiError::invalid(&kind, "", &errors))
    }

    pub(super) fn content_type(&self) -> &str {
        let header = self
            .request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        header
            .and_then(|header| header.split(';').next())
            .unwrap_or_default()
            .trim()
    }

    pub(super) fn delete_options(&self) -> Result<DeleteOptions> {
        let mut body = if self.request.body().is_empty() {
            json!({})
        } else {
            parse(self.request.body())?
        };
        for name in ["propagationPolicy", "gracePeriodSeconds"] {
            let told = self.query.text(name);
            if !told.is_empty() {
                body[name] = told
                    .parse::<i64>()
                    .map_or_else(|_| told.into(), Value::from);
            }
        }
        DeleteOptions::parse(&body)
    }

    pub(super) fn delete_call(&self) -> Result<Call> {
        let mut call = self.call(Part::Main)?;
        let body: Value = serde_json::from_slice(self.request.body()).unwrap_or_default();
        call.dry_run |= body["dryRun"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == "All"));
        Ok(call)
    }
}

/// JSON or YAML; the first is a form of the second, but much faster to read.
pub(super) fn parse_yaml(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body).or_else(|_| {
        serde_saphyr::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))
    })
}

pub(super) fn parse(body: &Bytes) -> Result<Value> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type json): {error}"
        ))
    })
}
