//! DELETE of one object or a collection: preconditions, grace, finalizers and propagation.

use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use serde_json::Value;

use super::meta;
use crate::error::{ApiError, FieldError, Result};
use crate::hooks::pod;
use crate::kind::{Kind, Trait};
use crate::object::{self, int_at, is_deleting, meta_mut};
use crate::selector::Selector;
use crate::state::{Call, State};

/// Finalizer of foreground deletion.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of orphaning deletion.
pub(crate) const ORPHAN: &str = "orphan";

/// What becomes of dependents (`propagationPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// `metav1.DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) propagation: Option<Propagation>,
    /// Dependents are to go as well, in the old way of saying so: an object that stays for now is told by the code.
    pub(crate) cascades: bool,
}

impl DeleteOptions {
    /// Reads the body of a request.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let dry = &body["dryRun"];
        if dry
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one != "All"))
        {
            return Err(bad_option(FieldError::not_supported(
                "dryRun",
                dry.clone(),
                &["All"],
            )));
        }
        let propagation = match (
            body["propagationPolicy"].as_str(),
            body["orphanDependents"].as_bool(),
        ) {
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (None, None) => None,
            (Some(policy), Some(_)) => {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                let mut problems = vec![FieldError::invalid("propagationPolicy", policy, detail)];
                problems.extend((!POLICIES.contains(&policy)).then(|| bad_policy(policy)));
                return Err(bad_options(&problems));
            }
            (policy, _) => return Err(bad_option(bad_policy(policy.unwrap_or_default()))),
        };
        Ok(Self {
            grace: body["gracePeriodSeconds"]
                .as_i64()
                .map(|grace| if grace < 0 { 1 } else { grace }),
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            propagation,
            cascades: body["orphanDependents"] == false,
        })
    }
}

/// As the message about another one lists them.
const POLICIES: [&str; 4] = ["Foreground", "Background", "Orphan", "nil"];

fn bad_policy(policy: &str) -> FieldError {
    FieldError::not_supported("propagationPolicy", policy, &POLICIES)
}

fn bad_option(error: FieldError) -> ApiError {
    bad_options(&[error])
}

fn bad_options(errors: &[FieldError]) -> ApiError {
    let kind = crate::error::GroupResource::new("meta.k8s.io", "DeleteOptions");
    ApiError::invalid(&kind, "", errors)
}

/// Answer of a deletion.
pub(crate) enum Deleted {
    /// The object is gone.
    Gone(Arc<Value>),
    /// Grace or finalizers keep it.
    Pending(Arc<Value>),
}

impl Deleted {
    /// The body of the answer: the object, or a Status where the kind hides it.
    pub(crate) fn body(&self, kind: &Kind) -> Value {
        match self {
            Self::Gone(object) if !kind.has(Trait::ReturnsDeleted) => {
                meta::deleted_status(kind, object)
            }
            Self::Gone(object) | Self::Pending(object) => meta::encode(kind, object).into_owned(),
        }
    }
}

impl State {
    /// Deletes the object of a call, or marks it.
    pub(crate) fn delete(&mut self, call: &Call, options: &DeleteOptions) -> Result<Deleted> {
        let old = self.fetch(call)?;
        check_preconditions(call, options, &old)?;
        let mut new = Value::clone(&old);
        let grace = if call.kind.has(Trait::Graceful) {
            grace_of(&old, options)
        } else {
            Grace::None
        };
        match grace {
            Grace::Pending => return Ok(Deleted::Pending(old)),
            Grace::For(seconds) => mark(&mut new, &old, call, seconds)?,
            Grace::None => {}
        }
        if !call.kind.has(Trait::NoDependents) {
            settle_finalizers(&mut new, options);
        }
        // A namespace is finalized by its own controller.
        let namespace = call.kind.table == "namespaces"
            && !object::list_at(&new, &["spec", "finalizers"]).is_empty();
        if namespace {
            new["status"]["phase"] = "Terminating".into();
        }
        if grace == Grace::None && (!object::finalizers(&new).is_empty() || namespace) {
            mark(&mut new, &old, call, 0)?;
            let unchanged = new == *old;
            let kept = if unchanged {
                old
            } else {
                self.commit(call, new)
            };
            return Ok(Deleted::Pending(kept));
        }
        if matches!(grace, Grace::For(seconds) if seconds > 0 || !object::finalizers(&new).is_empty())
        {
            let kept = self.commit(call, new);
            return Ok(Deleted::Pending(kept));
        }
        if matches!(grace, Grace::For(_)) {
            // Also one that goes at once is seen marked first.
            let marked = self.commit(call, new);
            if call.dry_run {
                return Ok(Deleted::Gone(marked));
            }
        }
        let last = self
            .purge(call, &call.key())
            .ok_or_else(|| call.not_found())?;
        Ok(Deleted::Gone(last))
    }

    /// Deletes every object that a selector matches; the answer lists them.
    pub(crate) fn delete_collection(
        &mut self,
        call: &Call,
        options: &DeleteOptions,
        selector: &Selector,
    ) -> Result<Vec<Arc<Value>>> {
        let objects: Vec<Arc<Value>> = self
            .store
            .list(&call.kind.table, &call.namespace)
            .filter(|object| selector.matches(object))
            .cloned()
            .collect();
        for object in &objects {
            let one = Call {
                namespace: object::namespace(object).to_owned(),
                name: object::name(object).to_owned(),
                ..call.clone()
            };
            self.delete(&one, options)?;
        }
        Ok(objects)
    }
}

fn check_preconditions(call: &Call, options: &DeleteOptions, old: &Value) -> Result<()> {
    // The real server names the kind here, not the resource.
    let resource = call.kind.group_kind();
    if let Some(uid) = options
        .uid
        .as_deref()
        .filter(|uid| *uid != object::uid(old))
    {
        let found = object::uid(old);
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict(&resource, &call.name, why));
    }
    if let Some(version) = options
        .version
        .as_deref()
        .filter(|version| *version != object::version(old))
    {
        let found = object::version(old);
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({found}). The object might have been modified"
        );
        return Err(ApiError::conflict(&resource, &call.name, why));
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grace {
    /// No graceful deletion.
    None,
    /// Already on its way, and the new wish is no shorter.
    Pending,
    /// This long from now.
    For(i64),
}

fn grace_of(pod: &Value, options: &DeleteOptions) -> Grace {
    if is_deleting(pod) {
        let current = int_at(pod, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
        return match options.grace {
            _ if current == 0 => Grace::None,
            Some(wish) if wish < current => Grace::For(wish),
            _ => Grace::Pending,
        };
    }
    Grace::For(pod::grace_period(pod, options.grace))
}

/// Sets the deletion mark. A second one may only bring the time forward.
fn mark(new: &mut Value, old: &Value, call: &Call, grace: i64) -> Result<()> {
    let now = call.now.whole_seconds();
    let mut grace = grace;
    let after = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let deadline = if is_deleting(old) {
        let stamp = object::str_at(old, &["metadata", "deletionTimestamp"]);
        let before: Time = stamp.parse().map_err(ApiError::internal)?;
        let current = int_at(old, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
        let moved = before - after(current) + after(grace);
        if moved < now && call.kind.has(Trait::Graceful) && grace > 0 {
            grace = 1;
        }
        if call.kind.has(Trait::Graceful) {
            moved.max(now)
        } else {
            before.min(now)
        }
    } else {
        if let Some(generation) =
            int_at(old, &["metadata", "generation"]).filter(|generation| *generation > 0)
        {
            meta_mut(new).insert("generation".into(), (generation + 1).into());
        }
        now + after(grace)
    };
    let meta = meta_mut(new);
    meta.insert("deletionTimestamp".into(), deadline.to_string().into());
    meta.insert("deletionGracePeriodSeconds".into(), grace.into());
    Ok(())
}

/// Adds or removes the finalizers of the garbage collector.
fn settle_finalizers(object: &mut Value, options: &DeleteOptions) {
    let mut finalizers = object::finalizers(object);
    let wanted = match options.propagation {
        Some(propagation) => propagation,
        None if finalizers.iter().any(|one| one == ORPHAN) => Propagation::Orphan,
        None if finalizers.iter().any(|one| one == FOREGROUND) => Propagation::Foreground,
        None => Propagation::Background,
    };
    finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
    match wanted {
        Propagation::Orphan => finalizers.push(ORPHAN.into()),
        Propagation::Foreground => finalizers.push(FOREGROUND.into()),
        Propagation::Background => {}
    }
    object::set_finalizers(object, &finalizers);
}
