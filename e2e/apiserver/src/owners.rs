//! Who depends on whom: objects by the UIDs in their ownerReferences.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::object::list_at;

/// Table and key of an object.
pub(crate) type Place = (String, String);

/// Index that follows every write.
#[derive(Default)]
pub(crate) struct Owners {
    dependents: BTreeMap<String, BTreeSet<Place>>,
}

impl Owners {
    /// Objects that name an owner's UID.
    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Takes over a write.
    pub(crate) fn follow(
        &mut self,
        table: &str,
        key: &str,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let place = (table.to_owned(), key.to_owned());
        for uid in old.into_iter().flat_map(uids) {
            if let Some(places) = self.dependents.get_mut(uid) {
                places.remove(&place);
                if places.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
        for uid in new.into_iter().flat_map(uids) {
            self.dependents
                .entry(uid.to_owned())
                .or_default()
                .insert(place.clone());
        }
    }
}

fn uids(object: &Value) -> impl Iterator<Item = &str> {
    list_at(object, &["metadata", "ownerReferences"])
        .iter()
        .filter_map(|owner| owner["uid"].as_str())
}
