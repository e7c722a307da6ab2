//! What the caller may do (FC-99b): an IAM policy document, of which actions, and conditions on request
//! and resource tags as far as they name a tag's presence, are understood.

use std::collections::BTreeSet;

use serde_json::Value;

use super::error::Refusal;
use super::form::Form;

/// Rights of the caller.
#[derive(Clone, Debug, Default)]
pub enum Rights {
    /// Everything.
    #[default]
    All,
    /// These actions, `elasticloadbalancing:CreateListener` and so on.
    Only(BTreeSet<String>),
}

impl Rights {
    /// Those of a policy document: every action that some statement allows.
    pub fn of_policy(policy: &Value) -> Self {
        let statements = policy["Statement"].as_array().cloned().unwrap_or_default();
        let allowed = statements.iter().filter(|s| s["Effect"] == "Allow");
        let actions = allowed.flat_map(|statement| match &statement["Action"] {
            Value::Array(all) => all
                .iter()
                .filter_map(|a| a.as_str().map(str::to_owned))
                .collect(),
            Value::String(one) => vec![one.clone()],
            _ => Vec::new(),
        });
        Self::Only(actions.collect())
    }

    pub(super) fn check(&self, service: &str, action: &str, form: &Form) -> Result<(), Refusal> {
        let Self::Only(allowed) = self else {
            return Ok(());
        };
        let denied = |action: &str| {
            let code = if service == "ec2" {
                "UnauthorizedOperation"
            } else {
                "AccessDenied"
            };
            let message = format!("User is not authorized to perform: {action}");
            Err(Refusal::new(code, message))
        };
        let asked = format!("{service}:{action}");
        if !allowed.contains(&asked) {
            return denied(&asked);
        }
        // Tags in a create are an action of their own in EC2.
        let tags = format!("{service}:CreateTags");
        let with_tags = service == "ec2" && !form.entries("TagSpecification").is_empty();
        if with_tags && !allowed.contains(&tags) {
            return denied(&tags);
        }
        Ok(())
    }
}
