//! The objects, their versions and a bounded history: what etcd and the watch cache are to the real server.
//!
//! Only this module assigns resource versions. It knows nothing of kinds; a table is one resource.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::object;

/// One write. `new` is absent for a removal, `old` for a creation.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) table: Arc<str>,
    pub(crate) key: String,
    pub(crate) old: Option<Arc<Value>>,
    pub(crate) new: Option<Arc<Value>>,
}

impl Change {
    /// The last known state of the object.
    pub(crate) fn object(&self) -> &Value {
        self.new
            .as_ref()
            .or(self.old.as_ref())
            .map_or(&Value::Null, Arc::as_ref)
    }
}

/// The history no longer reaches back to the version asked for; `oldest` is the first that is left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub(crate) oldest: u64,
}

struct Table {
    name: Arc<str>,
    objects: BTreeMap<String, Arc<Value>>,
    log: VecDeque<Arc<Change>>,
    /// Version of the newest change that has left the log.
    compacted: u64,
    signal: watch::Sender<u64>,
}

/// All tables.
pub(crate) struct Store {
    version: u64,
    tables: BTreeMap<String, Table>,
    history: usize,
    subscribers: Vec<mpsc::UnboundedSender<Arc<Change>>>,
}

/// Objects of a table by key.
pub(crate) type Objects = BTreeMap<String, Arc<Value>>;

impl Store {
    /// An empty store that remembers `history` changes per table.
    pub(crate) fn new(history: usize) -> Self {
        Self {
            version: 1,
            tables: BTreeMap::new(),
            history,
            subscribers: Vec::new(),
        }
    }

    /// The version of the last write.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    fn table(&mut self, name: &str) -> &mut Table {
        self.tables.entry(name.to_owned()).or_insert_with(|| Table {
            name: name.into(),
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            compacted: 0,
            signal: watch::Sender::new(0),
        })
    }

    pub(crate) fn get(&self, table: &str, key: &str) -> Option<&Arc<Value>> {
        self.tables.get(table)?.objects.get(key)
    }

    /// Objects of a table, of one namespace or (empty) of all.
    pub(crate) fn list<'a>(
        &'a self,
        table: &str,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Arc<Value>> + use<'a> {
        let (prefix, end) = if namespace.is_empty() {
            (String::new(), None)
        } else {
            (format!("{namespace}/"), Some(format!("{namespace}0")))
        };
        let objects = self.tables.get(table).map(|table| &table.objects);
        // '0' follows '/', so the range holds exactly the keys of the namespace.
        objects
            .into_iter()
            .flat_map(move |objects| {
                objects.range(prefix.clone()..).take_while({
                    let end = end.clone();
                    move |(key, _)| end.as_ref().is_none_or(|end| *key < end)
                })
            })
            .map(|(_, object)| object)
    }

    /// The table as it was at a version: the present with later changes undone.
    pub(crate) fn at(&self, table: &str, version: u64) -> Result<Objects, Compacted> {
        let Some(table) = self.tables.get(table) else {
            return Ok(Objects::new());
        };
        let mut objects = table.objects.clone();
        for change in table.since(version)?.rev() {
            match &change.old {
                Some(old) => objects.insert(change.key.clone(), old.clone()),
                None => objects.remove(&change.key),
            };
        }
        Ok(objects)
    }

    /// Changes of a table after a version, oldest first.
    pub(crate) fn since(&self, table: &str, version: u64) -> Result<Vec<Arc<Change>>, Compacted> {
        match self.tables.get(table) {
            Some(table) => Ok(table.since(version)?.cloned().collect()),
            None => Ok(Vec::new()),
        }
    }

    /// Tells of every write to a table by its version.
    pub(crate) fn signal(&mut self, table: &str) -> watch::Receiver<u64> {
        self.table(table).signal.subscribe()
    }

    /// Every later change of every table, in order.
    pub(crate) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Arc<Change>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.push(sender);
        receiver
    }

    /// Everything there is, as if it had just been created.
    pub(crate) fn snapshot(&self) -> Vec<Change> {
        let tables = self.tables.values();
        tables
            .flat_map(|table| {
                table.objects.iter().map(|(key, object)| Change {
                    version: self.version,
                    table: table.name.clone(),
                    key: key.clone(),
                    old: None,
                    new: Some(object.clone()),
                })
            })
            .collect()
    }

    /// Stores an object under its key and gives it the next version.
    pub(crate) fn put(&mut self, table: &str, mut object: Value) -> Arc<Value> {
        self.version += 1;
        let version = self.version;
        object::meta_mut(&mut object).insert("resourceVersion".into(), version.to_string().into());
        let key = object::key_of(&object);
        let object = Arc::new(object);
        let row = self.table(table);
        let old = row.objects.insert(key.clone(), object.clone());
        self.record(table, key, old, Some(object.clone()));
        object
    }

    /// Removes an object; the answer is its last state with the version of the removal.
    pub(crate) fn remove(&mut self, table: &str, key: &str) -> Option<Arc<Value>> {
        let old = self.table(table).objects.remove(key)?;
        self.version += 1;
        let mut last = Value::clone(&old);
        object::meta_mut(&mut last)
            .insert("resourceVersion".into(), self.version.to_string().into());
        let last = Arc::new(last);
        self.record(table, key.to_owned(), Some(old), None);
        Some(last)
    }

    fn record(
        &mut self,
        table: &str,
        key: String,
        old: Option<Arc<Value>>,
        new: Option<Arc<Value>>,
    ) {
        let (version, history) = (self.version, self.history);
        let row = self.table(table);
        let change = Arc::new(Change {
            version,
            table: row.name.clone(),
            key,
            old,
            new,
        });
        row.log.push_back(change.clone());
        while row.log.len() > history {
            row.compacted = row
                .log
                .pop_front()
                .map_or(row.compacted, |dropped| dropped.version);
        }
        row.signal.send_replace(version);
        self.subscribers
            .retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }

    /// Forgets the whole history: every older version is gone from now on.
    pub(crate) fn compact(&mut self) {
        let version = self.version;
        for table in self.tables.values_mut() {
            table.log.clear();
            table.compacted = version;
            // Watchers that are behind learn it at once.
            table.signal.send_replace(version);
        }
    }
}

impl Table {
    fn since(
        &self,
        version: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Arc<Change>>, Compacted> {
        if version < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let start = self.log.partition_point(|change| change.version <= version);
        Ok(self.log.range(start..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, value: u32) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name}, "value": value})
    }

    #[test]
    fn a_past_version_is_the_present_with_later_changes_undone() {
        let mut store = Store::new(10);
        store.put("t", object("a", 1));
        let first = store.version();
        store.put("t", object("a", 2));
        store.put("t", object("b", 1));
        store.remove("t", "ns/a");
        let then = store.at("t", first).unwrap();
        assert_eq!(then.keys().collect::<Vec<_>>(), ["ns/a"]);
        assert_eq!(then["ns/a"]["value"], 1);
    }

    #[test]
    fn a_version_older_than_the_history_is_refused() {
        let mut store = Store::new(2);
        let start = store.version();
        for value in 0..3 {
            store.put("t", object("a", value));
        }
        assert!(store.since("t", start).is_err());
        assert_eq!(store.since("t", start + 1).unwrap().len(), 2);
    }

    #[test]
    fn a_namespace_is_listed_without_its_namesakes() {
        let mut store = Store::new(2);
        for namespace in ["a", "a-b", "ab"] {
            store.put(
                "t",
                json!({"metadata": {"namespace": namespace, "name": "x"}}),
            );
        }
        assert_eq!(store.list("t", "a").count(), 1);
        assert_eq!(store.list("t", "").count(), 3);
    }
}
