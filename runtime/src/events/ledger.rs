//! What has been published and how often: decides which occurrences are written.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use onehop_core::time::Time;

use super::Occurrence;

/// Shortest time between two writes of one Event object.
const REPEAT: Duration = Duration::from_mins(1);
/// Silence after which a repeat counts from one again; the API server keeps an Event for an hour.
const FORGET: Duration = Duration::from_hours(1);
/// Writes about one object that may come at once, and the time that gives one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(30);
/// Keys and objects that are remembered.
const REMEMBERED: usize = 4096;

/// One Event object's identity. The same in every process, so that a restart finds the old object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) u64);

impl Key {
    pub(super) fn of(occurrence: &Occurrence) -> Self {
        let about = &occurrence.about;
        let mut hasher = DefaultHasher::new();
        (&about.uid, &about.kind, &about.namespace, &about.name).hash(&mut hasher);
        (occurrence.severity, occurrence.reason, &occurrence.message).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What has been published, and how often.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: HashMap<Key, Entry>,
    buckets: HashMap<Option<String>, Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) first: Time,
    pub(super) last: Time,
    written: Time,
    pub(super) count: u32,
}

/// Tokens for writes about one object.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    refilled: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Write the object.
    Write(Entry),
    /// Written a moment ago: the count goes out with a later repeat.
    Later,
    /// There were too many about this object.
    TooMany,
}

impl Ledger {
    /// Takes note of an occurrence and says whether to write.
    pub(super) fn note(&mut self, key: Key, about: &ObjectReference, now: Time) -> Verdict {
        self.make_room(now);
        let known = self
            .entries
            .get(&key)
            .filter(|e| now.since(e.last) < FORGET)
            .copied();
        let entry = match known {
            Some(entry) => {
                let entry = Entry {
                    last: now,
                    count: entry.count.saturating_add(1),
                    ..entry
                };
                self.entries.insert(key, entry);
                if now.since(entry.written) < REPEAT {
                    return Verdict::Later;
                }
                entry
            }
            None => Entry {
                first: now,
                last: now,
                written: now,
                count: 1,
            },
        };
        if !self.take_token(about, now) {
            return Verdict::TooMany;
        }
        let entry = Entry {
            written: now,
            ..entry
        };
        self.entries.insert(key, entry);
        Verdict::Write(entry)
    }

    /// The write failed: the next repeat is written at once.
    pub(super) fn forget(&mut self, key: Key) {
        self.entries.remove(&key);
    }

    fn take_token(&mut self, about: &ObjectReference, now: Time) -> bool {
        let full = Bucket {
            tokens: BURST,
            refilled: now,
        };
        let bucket = self.buckets.entry(about.uid.clone()).or_insert(full);
        let earned = now.since(bucket.refilled).as_secs() / REFILL.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            bucket.tokens = bucket.tokens.saturating_add(earned).min(BURST);
            bucket.refilled = now;
        }
        let allowed = bucket.tokens > 0;
        bucket.tokens = bucket.tokens.saturating_sub(1);
        allowed
    }

    /// Drops what is old, or everything if that is not enough: a flood must not grow the memory.
    fn make_room(&mut self, now: Time) {
        if self.entries.len() >= REMEMBERED {
            self.entries.retain(|_, e| now.since(e.last) < REPEAT);
            if self.entries.len() >= REMEMBERED {
                self.entries.clear();
            }
        }
        if self.buckets.len() >= REMEMBERED {
            self.buckets
                .retain(|_, b| now.since(b.refilled) < REFILL * BURST);
            if self.buckets.len() >= REMEMBERED {
                self.buckets.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Severity, about_service};
    use super::*;
    use onehop_core::id::ServiceKey;

    fn occurrence(message: &str) -> Occurrence {
        Occurrence {
            about: about_service(&ServiceKey::new("shop", "web"), &"u1".into()),
            severity: Severity::Warning,
            reason: "SyncLoadBalancerFailed",
            message: message.to_owned(),
        }
    }

    fn note(ledger: &mut Ledger, message: &str, seconds: u64) -> Verdict {
        let occurrence = occurrence(message);
        let now = Time::EPOCH + Duration::from_secs(seconds);
        ledger.note(Key::of(&occurrence), &occurrence.about, now)
    }

    #[test]
    fn az475_a_repeat_raises_the_count_of_one_object_at_most_once_a_minute() {
        let mut ledger = Ledger::default();
        let Verdict::Write(first) = note(&mut ledger, "a", 0) else {
            panic!()
        };
        assert_eq!(first.count, 1);
        assert_eq!(note(&mut ledger, "a", 10), Verdict::Later);
        assert_eq!(note(&mut ledger, "a", 59), Verdict::Later);
        let Verdict::Write(again) = note(&mut ledger, "a", 60) else {
            panic!()
        };
        assert_eq!((again.count, again.first), (4, first.first));
        assert!(matches!(
            note(&mut ledger, "b", 60),
            Verdict::Write(Entry { count: 1, .. })
        ));
    }

    #[test]
    fn after_an_hour_of_silence_counting_begins_anew() {
        let mut ledger = Ledger::default();
        note(&mut ledger, "a", 0);
        assert!(matches!(
            note(&mut ledger, "a", 3600),
            Verdict::Write(Entry { count: 1, .. })
        ));
    }

    #[test]
    fn az475_a_flood_about_one_object_is_bounded() {
        let mut ledger = Ledger::default();
        let verdicts = (0..100).map(|n| note(&mut ledger, &format!("message {n}"), 0));
        let written = verdicts.filter(|v| matches!(v, Verdict::Write(_))).count();
        assert_eq!(written, BURST as usize);
        assert!(matches!(
            note(&mut ledger, "later", REFILL.as_secs()),
            Verdict::Write(_)
        ));
        assert_eq!(
            note(&mut ledger, "too soon", REFILL.as_secs()),
            Verdict::TooMany
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut ledger = Ledger::default();
        for n in 0..3 * REMEMBERED {
            let mut occurrence = occurrence(&n.to_string());
            occurrence.about.uid = Some(n.to_string());
            ledger.note(Key::of(&occurrence), &occurrence.about, Time::EPOCH);
        }
        assert!(ledger.entries.len() <= REMEMBERED && ledger.buckets.len() <= REMEMBERED);
    }
}
