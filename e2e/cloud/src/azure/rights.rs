//! Who may do what: the caller's role, what is taken from it, and deny assignments (AZ-231, AZ-381, AZ-496).

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::check;
use super::error::Refusal;
use super::resources::{Answer, Ask, Subscription, Target};

impl Subscription {
    /// A missing action is named.
    pub(super) fn allowed(&self, ask: &Ask, target: &Target) -> Result<(), Refusal> {
        let verb = match ask.method {
            Method::GET => "read",
            Method::DELETE => "delete",
            _ => "write",
        };
        let kind = match &target.child {
            None => target.kind.clone(),
            Some((list, _)) => format!("{}/{list}", target.kind),
        };
        let mut needed = vec![format!("Microsoft.Network/{kind}/{verb}")];
        if ask.method == Method::PUT {
            needed.extend(check::joins(&ask.body).into_iter().map(str::to_owned));
        }
        needed
            .iter()
            .try_for_each(|action| self.may(action, &target.id))
    }

    pub(super) fn may(&self, action: &str, scope: &str) -> Result<(), Refusal> {
        let listed = self.setup.actions.as_ref();
        let taken = self.faults.denied.iter().any(|denied| denied == action);
        if taken || listed.is_some_and(|listed| !listed.contains(action)) {
            let message = format!(
                "The client does not have authorization to perform action '{action}' over scope '{scope}'."
            );
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "AuthorizationFailed",
                message,
            ));
        }
        let mut denials = self.faults.deny_assignments.iter();
        let denies = |(at, pattern): &&(String, String)| {
            scope.to_lowercase().starts_with(&at.to_lowercase())
                && action.ends_with(pattern.trim_start_matches('*'))
        };
        if denials.any(|denial| denies(&denial)) {
            let message = format!(
                "The client has permission to perform action '{action}' on scope '{scope}', however the access is denied \
                 because of the deny assignment with name 'lockdown'."
            );
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "DenyAssignmentAuthorizationFailed",
                message,
            ));
        }
        Ok(())
    }

    /// What a caller reads of its own rights at a scope (AZ-019).
    pub(super) fn rights(&mut self, scope: &str, list: &str) -> Result<Answer, Refusal> {
        self.may(&format!("Microsoft.Authorization/{list}/read"), scope)?;
        self.injected(list)?;
        let all = || vec!["*".to_owned()];
        let entries = match list {
            "permissions" => {
                let actions = self.setup.actions.as_ref();
                let actions = actions.map_or_else(all, |actions| actions.iter().cloned().collect());
                vec![json!({"actions": actions, "notActions": self.faults.denied})]
            }
            "denyAssignments" => {
                let here = self
                    .faults
                    .deny_assignments
                    .iter()
                    .filter(|(at, _)| scope.to_lowercase().starts_with(&at.to_lowercase()));
                let entry = |(_, pattern): &(String, String)| {
                    let permissions = [json!({"actions": [pattern], "notActions": []})];
                    json!({"properties": {"denyAssignmentName": "lockdown", "permissions": permissions}})
                };
                here.map(entry).collect::<Vec<Value>>()
            }
            _ => return Err(Refusal::not_found(list)),
        };
        Ok(Answer::of(StatusCode::OK, json!({ "value": entries })))
    }
}
