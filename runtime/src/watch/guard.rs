//! An object as it comes from the API server, readable or not. One that cannot be read does not spoil the list or the
//! watch that it is in.
//!
//! kube's own guard builds a tree of every object, copies it and reads the object from the copy, which is most of what a
//! change costs. Here the text is looked through once for its end and then read once.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The object, or what can be said of it.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(pub(super) Result<K, Unreadable>);

/// An object that is not of its kind's form.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    /// What is wrong with it.
    pub(super) error: String,
    /// Its metadata, which could be read.
    pub(super) metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Guarded<K> {
    /// From JSON text only. The server names the type of an event before its object, so that the object is never kept in
    /// another form until the type is known.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object = match serde_json::from_str(text.get()) {
            Ok(object) => Ok(object),
            Err(error) => {
                let meta = serde_json::from_str::<PartialObjectMeta<K>>(text.get());
                Err(Unreadable {
                    error: error.to_string(),
                    metadata: meta.map_err(D::Error::custom)?.metadata,
                })
            }
        };
        Ok(Self(object))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|bad| &bad.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|bad| &mut bad.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    const GOOD: &str = r#"{"kind":"ConfigMap","metadata":{"name":"good"},"data":{"a":"1"}}"#;
    const BAD: &str = r#"{"kind":"ConfigMap","metadata":{"name":"bad","namespace":"n"},"data":7}"#;

    #[test]
    fn i8_a_bad_object_spoils_neither_list_nor_watch() {
        let list = format!(
            r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{}},"items":[{GOOD},{BAD}]}}"#
        );
        let list: ObjectList<Guarded<ConfigMap>> = serde_json::from_str(&list).unwrap();
        let names: Vec<_> = list.items.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["good", "bad"]);
        let data = list.items[0].0.as_ref().unwrap().data.as_ref().unwrap();
        assert_eq!(data["a"], "1");
        let bad = list.items[1].0.as_ref().unwrap_err();
        assert!(bad.error.contains("invalid type"), "{}", bad.error);
        for object in [GOOD, BAD] {
            let event = format!(r#"{{"type":"MODIFIED","object":{object}}}"#);
            let event: WatchEvent<Guarded<ConfigMap>> = serde_json::from_str(&event).unwrap();
            let WatchEvent::Modified(read) = event else {
                unreachable!("the event says so")
            };
            assert_eq!(read.0.is_ok(), object == GOOD);
        }
    }

    #[test]
    fn what_has_no_metadata_is_no_object() {
        let read = serde_json::from_str::<Guarded<ConfigMap>>(r#"{"metadata":7}"#);
        assert!(read.is_err());
    }
}
