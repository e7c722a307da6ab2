//! What every API call has in common: it is counted, logged with its answer (FC-102), and creates
//! are repeatable by their idempotency key (FC-97: an answer may be lost after the change was made).

use std::collections::BTreeMap;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use super::faults::Effect;
use super::log::{Seq, What};
use super::{ApiError, Engine};

/// Kinds of API calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each name says what it does")]
pub enum Operation {
    CreateLoadBalancer,
    GetLoadBalancer,
    ListLoadBalancers,
    UpdateLoadBalancer,
    DeleteLoadBalancer,
    PutListener,
    GetListener,
    DeleteListener,
    CreateGroup,
    GetGroup,
    ListGroups,
    UpdateGroup,
    DeleteGroup,
    RegisterTargets,
    DeregisterTargets,
    GetTargets,
}

impl Operation {
    /// Whether the call can change something.
    pub const fn is_write(self) -> bool {
        !matches!(
            self,
            Self::GetLoadBalancer
                | Self::ListLoadBalancers
                | Self::GetListener
                | Self::GetGroup
                | Self::ListGroups
                | Self::GetTargets
        )
    }
}

/// Idempotency keys of creates, by operation. A key lives as long as the object that it made.
#[derive(Debug, Default)]
pub(super) struct Keys(BTreeMap<(Operation, String), Made>);

#[derive(Debug)]
struct Made {
    request: String,
    id: String,
}

impl Keys {
    /// The object that this key has made before, if any.
    pub(super) fn find(
        &self,
        key: &str,
        operation: Operation,
        request: &impl Serialize,
    ) -> Result<Option<&str>, ApiError> {
        match self.0.get(&(operation, key.to_owned())) {
            None => Ok(None),
            Some(made) if made.request == text(request) => Ok(Some(&made.id)),
            Some(_) => Err(ApiError::KeyReused {
                key: key.to_owned(),
            }),
        }
    }

    /// Remembers what a key has made.
    pub(super) fn remember(
        &mut self,
        key: &str,
        operation: Operation,
        request: &impl Serialize,
        id: &str,
    ) {
        let made = Made {
            request: text(request),
            id: id.to_owned(),
        };
        self.0.insert((operation, key.to_owned()), made);
    }

    /// Forgets the key of an object that is gone.
    pub(super) fn forget(&mut self, id: &str) {
        self.0.retain(|_, made| made.id != id);
    }
}

fn text(request: &impl Serialize) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

impl Engine {
    /// Runs one call at `now`: what is due comes first, then the call with its log lines, then what
    /// the call made due. `run` gets the number of the call's event as cause for its own and returns
    /// the answer with the id of the object that it is about.
    pub(super) fn call<T>(
        &mut self,
        now: Time,
        operation: Operation,
        subject: &str,
        run: impl FnOnce(&mut Self, Seq) -> Result<(T, String), ApiError>,
    ) -> Result<T, ApiError> {
        self.advance(now);
        *self.calls.entry(operation).or_default() += 1;
        let what = What::ApiCall {
            operation,
            subject: subject.to_owned(),
        };
        let seq = self.log.push(self.now, None, what);
        let admitted = self.admit(operation, seq);
        let effect = admitted.as_ref().ok().copied().flatten();
        self.faults.under_way = effect;
        let answer = admitted.and_then(|_| run(self, seq));
        if answer.is_ok() && operation.is_write() {
            self.note_change();
        }
        let (result, subject) = match &answer {
            Ok((_, id)) if effect == Some(Effect::LostAfter) => ("connection_lost", id.clone()),
            Ok((_, id)) => ("ok", id.clone()),
            Err(error) => (error.code(), subject.to_owned()),
        };
        self.log.push(
            self.now,
            Some(seq),
            What::ApiAnswer {
                operation,
                result,
                subject,
            },
        );
        self.advance(now);
        if answer.is_ok() && effect == Some(Effect::LostAfter) {
            return Err(ApiError::ConnectionLost { operation });
        }
        answer.map(|(value, _)| value)
    }
}
