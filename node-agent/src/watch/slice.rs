//! An `EndpointSlice` as the watch delivers it: read straight from the text, with no more of it than a proxy asks for.
//! Slices are by far most of what an agent reads, and a change of one endpoint brings a whole one.

use std::borrow::Cow;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use onehop_core::endpoint::{Slice, SliceProblem, SliceText};
use serde::{Deserialize, Deserializer};

/// A slice, read.
#[derive(Clone, Debug)]
pub(super) struct SliceObject {
    /// Name, namespace and version only.
    meta: Box<ObjectMeta>,
    read: Result<(Slice, Vec<SliceProblem>), SliceProblem>,
}

impl SliceObject {
    /// The slice, with the problems of parts that were left out.
    pub(super) fn read(&self) -> Result<&(Slice, Vec<SliceProblem>), &SliceProblem> {
        self.read.as_ref()
    }
}

impl<'de> Deserialize<'de> for SliceObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = SliceText::deserialize(deserializer)?;
        let meta = ObjectMeta {
            name: Some(text.name().to_owned()),
            namespace: Some(text.namespace().to_owned()),
            resource_version: text.resource_version().map(str::to_owned),
            ..ObjectMeta::default()
        };
        Ok(Self {
            meta: Box::new(meta),
            read: text.read(),
        })
    }
}

impl Resource for SliceObject {
    type DynamicType = ();
    type Scope = <EndpointSlice as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        EndpointSlice::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        EndpointSlice::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        EndpointSlice::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        EndpointSlice::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::{Value, json};

    use super::*;

    /// The same slice, by way of the whole object.
    fn whole(text: &str) -> Result<(Slice, Vec<SliceProblem>), SliceProblem> {
        Slice::read(&serde_json::from_str::<EndpointSlice>(text).unwrap())
    }

    fn full() -> Value {
        json!({
            "metadata": {
                "name": "s-1", "namespace": "default", "resourceVersion": "7", "uid": "u", "generation": 3,
                "labels": {"kubernetes.io/service-name": "s", "other": "x"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:endpoints": {}}}],
            },
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": ["10.244.0.1", "10.244.0.9"], "nodeName": "n\"1", "zone": "a", "hostname": "h",
                    "conditions": {"ready": false, "serving": true, "terminating": true},
                    "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}, {"name": "n2"}]},
                    "targetRef": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "p-uid"},
                },
                {"addresses": ["10.244.0.2"], "conditions": null, "nodeName": "", "hints": {}, "targetRef": null},
                {"addresses": ["fd00::1"]},
                {"addresses": []},
            ],
            "ports": [
                {"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "x"},
                {"name": "", "port": 53, "protocol": "UDP"},
                {"name": "none", "port": null},
                {"port": 1},
            ],
        })
    }

    #[test]
    fn what_is_read_of_a_slice_is_what_the_whole_object_says() {
        let mut all = vec![full()];
        for (path, value) in [
            ("/metadata/labels", Value::Null),
            ("/metadata/annotations", Value::Null),
            ("/addressType", json!("FQDN")),
            ("/addressType", json!("IPv6")),
            ("/endpoints", Value::Null),
            ("/ports", Value::Null),
        ] {
            let mut other = full();
            *other.pointer_mut(path).unwrap() = value;
            all.push(other);
        }
        for object in all {
            let text = object.to_string();
            let read: SliceObject = serde_json::from_str(&text).unwrap();
            assert_eq!(read.read, whole(&text), "{text}");
            assert_eq!(read.meta.name.as_deref(), Some("s-1"));
            assert_eq!(read.meta.namespace.as_deref(), Some("default"));
            assert_eq!(read.meta.resource_version.as_deref(), Some("7"));
        }
    }

    #[test]
    fn i8_what_has_no_form_of_a_slice_is_not_read() {
        for (path, value) in [
            ("/metadata", json!(7)),
            ("/endpoints", json!({})),
            ("/endpoints/0/addresses", json!("10.244.0.1")),
            ("/ports/0/port", json!("http")),
        ] {
            let mut object = full();
            *object.pointer_mut(path).unwrap() = value;
            let text = object.to_string();
            assert!(
                serde_json::from_str::<SliceObject>(&text).is_err(),
                "{text}"
            );
        }
    }
}
