//! Public IPs and the frontends that hold them. Azure gives a public IP another `ETag` when a frontend takes it or lets it go
//! (AZ-367), so the two are not written at the same time, and those that a load balancer's write has touched are read again
//! with it (AZ-375): no write of ours is ever refused for another one of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::Client;
use crate::cloud::CloudError;
use crate::cloud::azure::document::{FRONTENDS, children, name, reference, text};

/// So many of one resource group are read one by one; more of them with its list.
const ONE_BY_ONE: usize = 3;

/// One writer for each public IP.
#[derive(Debug, Default)]
pub(super) struct Turns {
    all: Mutex<BTreeMap<String, Arc<Turn<()>>>>,
}

/// The right to write one.
pub(super) type MyTurn = OwnedMutexGuard<()>;

impl Turns {
    /// Waits for the turn of one.
    pub(super) async fn of(&self, id: &str) -> MyTurn {
        let turn = {
            // Nothing in here can fail half-way.
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            // Whose turn is nobody's is not remembered.
            all.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(all.entry(id.to_lowercase()).or_default())
        };
        turn.lock_owned().await
    }

    /// Those of several: in one order, so that two who wait for the same never wait for each other.
    pub(super) async fn of_all(&self, ids: &BTreeSet<String>) -> Vec<MyTurn> {
        let mut turns = Vec::new();
        for id in ids {
            turns.push(self.of(id).await);
        }
        turns
    }
}

/// Public IPs that frontends of two states of a load balancer do not hold alike: ids, as they are written there.
pub(super) fn handed(old: Option<&Value>, new: Option<&Value>) -> BTreeSet<String> {
    let held = |document| -> BTreeMap<(String, String), String> {
        let frontends = Option::map_or(document, &[][..], |it| children(it, FRONTENDS));
        let pair = |frontend: &Value| {
            let pip = reference(frontend, "publicIPAddress")?;
            let key = (pip.to_lowercase(), name(frontend).to_lowercase());
            Some((key, pip.to_owned()))
        };
        frontends.iter().filter_map(pair).collect()
    };
    let (old, new) = (held(old), held(new));
    let differ = old.iter().filter(|(key, _)| !new.contains_key(key));
    let differ = differ.chain(new.iter().filter(|(key, _)| !old.contains_key(key)));
    // One name of each, whatever case its holders write it in.
    let ids: BTreeMap<&str, &String> = differ.map(|((pip, _), id)| (pip.as_str(), id)).collect();
    ids.into_values().cloned().collect()
}

impl Client {
    /// Reads public IPs again, whose turns the caller has.
    pub(super) async fn read_again(&self, ids: &BTreeSet<String>) {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for id in ids {
            if let Some((list, _)) = id.rsplit_once('/') {
                groups.entry(list).or_default().push(id);
            }
        }
        for (list, ids) in groups {
            if let Err(error) = self.read_group_again(list, &ids).await {
                tracing::info!(%error, "public IPs are read again with everything else");
                self.store.doubt();
            }
        }
    }

    async fn read_group_again(&self, list: &str, ids: &[&str]) -> Result<(), CloudError> {
        let listed = if ids.len() > ONE_BY_ONE {
            Some(self.arm.list(list, "list public IPs").await?)
        } else {
            None
        };
        for id in ids {
            let is_it =
                |pip: &&Value| text(pip, &["id"]).is_some_and(|it| it.eq_ignore_ascii_case(id));
            let there = match &listed {
                Some(all) => all.iter().find(is_it).cloned(),
                None => self.arm.get(id, "read a public IP again").await?,
            };
            self.store.set_public_ip(id, there, self.clock.now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn balancer(held: &[(&str, &str)]) -> Value {
        let front = |(name, pip): &(&str, &str)| json!({"name": name, "properties": {"publicIPAddress": {"id": pip}}});
        let fronts: Vec<Value> = held.iter().map(front).collect();
        json!({"properties": {FRONTENDS: fronts}})
    }

    #[test]
    fn az367_what_is_taken_let_go_or_handed_over_is_touched_and_nothing_else() {
        let handed = |old: &[_], new: &[_]| -> Vec<String> {
            let (old, new) = (balancer(old), balancer(new));
            handed(Some(&old), Some(&new)).into_iter().collect()
        };
        assert_eq!(handed(&[("f", "/a")], &[("F", "/A")]), [""; 0]);
        assert_eq!(handed(&[], &[("f", "/a")]), ["/a"], "AZ-367: taken");
        assert_eq!(handed(&[("f", "/a")], &[("f", "/b")]), ["/a", "/b"]);
        assert_eq!(
            handed(&[("f", "/a")], &[("g", "/a")]),
            ["/a"],
            "another holder"
        );
    }

    #[tokio::test]
    async fn az100_a_public_ip_has_one_writer_at_a_time() {
        let turns = Turns::default();
        let first = turns.of("/A").await;
        let waits = turns.of("/a");
        tokio::pin!(waits);
        assert!(futures::poll!(&mut waits).is_pending(), "AZ-100");
        drop(turns.of("/b").await);
        drop(first);
        drop(waits.await);
        let _another = turns.of("/c").await;
        assert_eq!(
            turns.all.lock().unwrap().len(),
            1,
            "what nobody writes is forgotten"
        );
    }
}
