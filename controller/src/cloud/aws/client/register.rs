//! Registration in which each target stands for itself: one that the service does not take keeps no other out
//! (AWS-430), and where there is room for some only, those are registered (AWS-432).

use std::time::Duration;

use super::Client;
use super::error::has_code;
use super::throttle::Family;
use super::turns::turn;
use super::way::Way;
use crate::cloud::aws::model::{RefusedTarget, TargetId};
use crate::cloud::aws::step::AwsStep;
use crate::cloud::{Class, CloudError};
use crate::plan::Effect;

/// How long a refused target is left alone: as long as any retry of members may take (AWS-511).
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// Targets of one call, each with the zone to state.
type Batch = Vec<(TargetId, Option<String>)>;

impl Client {
    pub(super) async fn register(
        &self,
        way: Way<'_>,
        step: &AwsStep,
        arn: &str,
        targets: &[(TargetId, Option<String>)],
    ) -> Result<Effect, CloudError> {
        let mut waiting = vec![targets.to_vec()];
        let mut effect = Effect::AlreadySo;
        self.turn_of(step).await?;
        let mut taken = true;
        while let Some(batch) = waiting.pop() {
            if !std::mem::take(&mut taken) {
                // A part of one that was refused.
                self.throttle.pass(Family::Members, turn(step)).await;
            }
            let error = match self.elb.register(way, arn, &batch).await {
                Ok(()) => {
                    self.store().registered(arn, ids(batch));
                    effect = Effect::Changed;
                    continue;
                }
                Err(error) => error,
            };
            let mut refused = RefusedTarget {
                until: self.clock.now() + LEFT_ALONE,
                no_room: false,
                why: error.answer.clone(),
            };
            let out = match split(error, batch)? {
                Split::Again(mut batches) => {
                    // The first of them comes next.
                    batches.reverse();
                    waiting.append(&mut batches);
                    continue;
                }
                Split::Without(out, rest) => {
                    waiting.extend(Some(rest).filter(|rest| !rest.is_empty()));
                    out
                }
                Split::Full(out) => {
                    refused.no_room = true;
                    out.into_iter().chain(waiting.drain(..).flatten()).collect()
                }
            };
            self.store().refused(arn, ids(out), &refused);
        }
        Ok(effect)
    }
}

fn ids(batch: Batch) -> impl Iterator<Item = TargetId> {
    batch.into_iter().map(|(target, _)| target)
}

/// What to do about a batch that was refused.
#[derive(Debug, PartialEq, Eq)]
enum Split {
    /// Try these.
    Again(Vec<Batch>),
    /// Leave the first ones, try the others.
    Without(Batch, Batch),
    /// There is no room, not even for this one.
    Full(Batch),
}

/// Takes a refused batch apart, or gives the error back where it is about no single target.
fn split(error: CloudError, batch: Batch) -> Result<Split, CloudError> {
    let invalid = has_code(&error, "InvalidTarget");
    if !invalid && error.class != Class::Quota {
        return Err(error);
    }
    if invalid {
        let named = |id: &str| words(&error.answer).any(|word| word == id);
        let (out, rest): (Batch, Batch) = batch.into_iter().partition(|(t, _)| named(&t.id));
        return Ok(match (out.is_empty(), rest.len()) {
            (true, 1) => Split::Without(rest, Batch::new()),
            (true, _) => Split::Again(halves(rest)),
            (false, _) => Split::Without(out, rest),
        });
    }
    Ok(match batch.len() {
        0 | 1 => Split::Full(batch),
        _ => Split::Again(halves(batch)),
    })
}

fn halves(mut batch: Batch) -> Vec<Batch> {
    let second = batch.split_off(batch.len().div_ceil(2));
    vec![batch, second]
}

/// Words of a message that may be ids of machines or addresses.
fn words(message: &str) -> impl Iterator<Item = &str> {
    let of_id = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let words = message.split(move |c| !of_id(c));
    words.map(|word| word.trim_end_matches(['.', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(ids: &[&str]) -> Batch {
        let target = |id: &&str| TargetId {
            id: (*id).to_owned(),
            port: 80,
        };
        ids.iter().map(|id| (target(id), None)).collect()
    }

    fn refused(code: &str, class: Class, message: &str) -> CloudError {
        CloudError::new(class, "register", format!("{code}: {message}"))
    }

    /// Registers as the client does against a service that takes these only; gives those and the count of calls.
    fn carried_out(all: &[&str], refuse: impl Fn(&Batch) -> Option<CloudError>) -> (Batch, usize) {
        let (mut waiting, mut taken, mut calls) = (vec![batch(all)], Batch::new(), 0);
        while let Some(one) = waiting.pop() {
            calls += 1;
            let Some(error) = refuse(&one) else {
                taken.extend(one);
                continue;
            };
            match split(error, one).unwrap() {
                Split::Again(batches) => waiting.extend(batches.into_iter().rev()),
                Split::Without(_, rest) => waiting.extend(Some(rest).filter(|r| !r.is_empty())),
                Split::Full(_) => waiting.clear(),
            }
        }
        (taken, calls)
    }

    const EIGHT: [&str; 8] = ["i-1", "i-2", "i-3", "i-4", "i-5", "i-6", "i-7", "i-8"];

    #[test]
    fn aws430_ai17_targets_that_the_message_names_are_left_out_and_the_rest_is_one_more_call() {
        let (taken, calls) = carried_out(&EIGHT, |one| {
            let bad = one.iter().any(|(t, _)| t.id == "i-2" || t.id == "i-7");
            let message = "The following targets are not in a running state and cannot be registered: 'i-2', 'i-7'";
            bad.then(|| refused("InvalidTarget", Class::WrongInput, message))
        });
        assert_eq!(taken, batch(&["i-1", "i-3", "i-4", "i-5", "i-6", "i-8"]));
        assert_eq!(calls, 2, "AWS-430");
    }

    #[test]
    fn aws430_where_the_message_names_none_of_them_halving_finds_the_one() {
        let (taken, calls) = carried_out(&EIGHT, |one| {
            let bad = one.iter().any(|(t, _)| t.id == "i-6");
            // i-66 is another one.
            bad.then(|| refused("InvalidTarget", Class::WrongInput, "i-66 is not valid."))
        });
        assert_eq!(taken.len(), 7, "AWS-430");
        assert_eq!(calls, 7, "AWS-430");
    }

    #[test]
    fn aws432_ai20_what_fits_is_registered_and_a_full_group_ends_the_search() {
        let room = std::cell::Cell::new(5);
        let (taken, _) = carried_out(&EIGHT, |one| {
            if one.len() > room.get() {
                return Some(refused("TooManyTargets", Class::Quota, "too many"));
            }
            room.set(room.get() - one.len());
            None
        });
        assert_eq!(taken, batch(&EIGHT[..5]), "AWS-432");
        let (taken, calls) = carried_out(&EIGHT, |_| {
            Some(refused("TooManyTargets", Class::Quota, "too many"))
        });
        assert_eq!((taken.len(), calls), (0, 4), "AWS-432");
    }

    #[test]
    fn aws430_an_error_about_no_target_is_the_calls_own() {
        let throttled = refused("ThrottlingException", Class::Throttled, "slow down");
        assert_eq!(split(throttled.clone(), batch(&EIGHT)), Err(throttled));
    }
}
