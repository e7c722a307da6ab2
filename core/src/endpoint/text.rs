//! An `EndpointSlice` as it lies in the API server's text: what a proxy reads of it, borrowed, and nothing else. A change
//! of one endpoint carries all endpoints of its slice, most of which is about things that no proxy asks for.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use k8s_openapi::api::discovery::v1::{self as api, EndpointSlice};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::SERVICE_NAME_LABEL;

/// Annotation with the time of the change that a slice follows.
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A text, borrowed unless it has escapes.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// One slice.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceText<'a> {
    #[serde(borrow)]
    metadata: MetaText<'a>,
    pub(super) address_type: Option<Text<'a>>,
    pub(super) endpoints: Option<Vec<EndpointText<'a>>>,
    pub(super) ports: Option<Vec<PortText<'a>>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaText<'a> {
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    name: Option<Text<'a>>,
    resource_version: Option<Text<'a>>,
    labels: Option<LabelsText<'a>>,
    annotations: Option<AnnotationsText<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
struct LabelsText<'a> {
    #[serde(borrow, rename = "kubernetes.io/service-name")]
    service: Option<Text<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
struct AnnotationsText<'a> {
    #[serde(borrow, rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    triggered: Option<Text<'a>>,
}

/// One endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointText<'a> {
    #[serde(borrow)]
    pub(super) addresses: Option<FirstText<'a>>,
    pub(super) conditions: Option<ConditionsText>,
    pub(super) node_name: Option<Text<'a>>,
    pub(super) zone: Option<Text<'a>>,
    pub(super) hints: Option<HintsText<'a>>,
    pub(super) target_ref: Option<RefText<'a>>,
}

/// The first of a list of texts; the others are no business of a proxy (S-05).
#[derive(Clone, Debug)]
pub(super) struct FirstText<'a> {
    pub(super) first: Option<Text<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ConditionsText {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HintsText<'a> {
    #[serde(borrow)]
    pub(super) for_zones: Option<Vec<NameText<'a>>>,
    pub(super) for_nodes: Option<Vec<NameText<'a>>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct NameText<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct RefText<'a> {
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    pub(super) uid: Option<Text<'a>>,
    pub(super) name: Option<Text<'a>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PortText<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    pub(super) port: Option<i32>,
    pub(super) protocol: Option<Text<'a>>,
}

impl<'a> SliceText<'a> {
    /// What a proxy reads of an object.
    pub fn of(slice: &'a EndpointSlice) -> Self {
        let meta = &slice.metadata;
        let labels = meta.labels.as_ref();
        let annotations = meta.annotations.as_ref();
        Self {
            metadata: MetaText {
                namespace: some(meta.namespace.as_ref()),
                name: some(meta.name.as_ref()),
                resource_version: some(meta.resource_version.as_ref()),
                labels: labels.map(|all| LabelsText {
                    service: all.get(SERVICE_NAME_LABEL).map(|text| borrowed(text)),
                }),
                annotations: annotations.map(|all| AnnotationsText {
                    triggered: all.get(TRIGGER_ANNOTATION).map(|text| borrowed(text)),
                }),
            },
            address_type: Some(borrowed(&slice.address_type)),
            endpoints: Some(slice.endpoints.iter().map(EndpointText::of).collect()),
            ports: slice
                .ports
                .as_ref()
                .map(|all| all.iter().map(PortText::of).collect()),
        }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its version, by which a watch goes on.
    pub fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    pub(super) fn service(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.service.as_deref()
    }

    pub(super) fn triggered(&self) -> Option<&str> {
        self.metadata.annotations.as_ref()?.triggered.as_deref()
    }
}

impl<'a> EndpointText<'a> {
    fn of(endpoint: &'a api::Endpoint) -> Self {
        let names = |name: &'a String| NameText {
            name: Some(borrowed(name)),
        };
        Self {
            addresses: Some(FirstText {
                first: endpoint.addresses.first().map(|text| borrowed(text)),
            }),
            conditions: endpoint.conditions.as_ref().map(|of| ConditionsText {
                ready: of.ready,
                serving: of.serving,
                terminating: of.terminating,
            }),
            node_name: some(endpoint.node_name.as_ref()),
            zone: some(endpoint.zone.as_ref()),
            hints: endpoint.hints.as_ref().map(|of| HintsText {
                for_zones: of
                    .for_zones
                    .as_ref()
                    .map(|all| all.iter().map(|zone| names(&zone.name)).collect()),
                for_nodes: of
                    .for_nodes
                    .as_ref()
                    .map(|all| all.iter().map(|node| names(&node.name)).collect()),
            }),
            target_ref: endpoint.target_ref.as_ref().map(|of| RefText {
                kind: some(of.kind.as_ref()),
                uid: some(of.uid.as_ref()),
                name: some(of.name.as_ref()),
            }),
        }
    }
}

impl<'a> PortText<'a> {
    fn of(port: &'a api::EndpointPort) -> Self {
        Self {
            name: some(port.name.as_ref()),
            port: port.port,
            protocol: some(port.protocol.as_ref()),
        }
    }
}

fn borrowed(text: &str) -> Text<'_> {
    Text(Cow::Borrowed(text))
}

fn some(text: Option<&String>) -> Option<Text<'_>> {
    text.map(|text| borrowed(text))
}

impl<'de: 'a, 'a> Deserialize<'de> for FirstText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(First)
    }
}

struct First;

impl<'de> Visitor<'de> for First {
    type Value = FirstText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let first = seq.next_element()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstText { first })
    }
}
