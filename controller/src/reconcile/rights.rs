//! Rights in the cloud that are missing: said at start, and looked for again until none is (AWS-844). Never fatal: what
//! still works goes on.

use std::time::Duration;

use onehop_runtime::events::{Occurrence, Severity};

use super::{Reconciler, lock};
use crate::metrics::Right;
use crate::plan::{MissingRight, Notice, Provider};

/// Between two checks while one is missing.
const AGAIN: Duration = Duration::from_mins(5);

impl<P: Provider> Reconciler<P> {
    /// Checks rights until none is missing.
    pub(super) async fn keep_rights(&self) {
        loop {
            let missing = self.provider.missing_rights().await;
            self.tell_of_rights(&missing);
            if missing.is_empty() {
                return;
            }
            self.clock.sleep(AGAIN).await;
        }
    }

    fn tell_of_rights(&self, missing: &[MissingRight]) {
        let before = std::mem::replace(&mut *lock(&self.rights), missing.to_vec());
        let gauge = |right: &MissingRight| {
            let action = right.action.clone();
            self.measures
                .missing_rights
                .get_or_create(&Right { action })
                .clone()
        };
        for right in &before {
            gauge(right).set(0);
        }
        for right in missing {
            gauge(right).set(1);
        }
        if before == missing {
            return;
        }
        for right in missing {
            tracing::error!(
                action = right.action,
                answer = right.answer,
                "a right is missing"
            );
        }
        if let Some(about) = self.install.clone().filter(|_| !missing.is_empty()) {
            self.events.publish(Occurrence {
                about,
                severity: Severity::Warning,
                reason: "RightMissing",
                message: said(missing),
            });
        }
    }

    /// What the condition of every Service says of them.
    pub(super) fn rights_notice(&self) -> Option<Notice> {
        let missing = lock(&self.rights);
        (!missing.is_empty() && self.provider.rights_concern_all()).then(|| Notice {
            reason: "RightMissing",
            message: said(&missing),
            degrades: true,
        })
    }
}

fn said(missing: &[MissingRight]) -> String {
    let all: Vec<_> = missing.iter().map(|right| right.action.as_str()).collect();
    format!(
        "the cloud refuses {}: add it to the rights of the controller; what needs none of this goes on",
        all.join(", ")
    )
}
