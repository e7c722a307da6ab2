//! Identifiers: one type per kind of name, so that a pod's UID never stands where a Service's should.
//!
//! Used by every other module and by both binaries. Names are shared strings (cheap to clone: a
//! large cluster repeats each node name in tens of thousands of endpoints).

mod network;
mod shared;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::network::{Cidr, Frontend, IpFamily, ParseError, Protocol};

/// Defines a newtype over a shared string which reads and writes as a plain string.
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps the text as it is.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// Wraps the text as it is, in one copy for all that are alike. For names that come again and again.
            pub fn shared(text: impl AsRef<str>) -> Self {
                Self(shared::copy_of(text.as_ref()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new("")
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from(String::deserialize(deserializer)?))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string" })
            }
        }
    };
}

name_type! {
    /// Name of a Node.
    NodeName
}
name_type! {
    /// Name of a port of a Service; empty for the only, unnamed port.
    PortName
}
name_type! {
    /// UID of a Pod. Outlives neither the pod nor its address: a new pod with an old name has a new UID.
    PodUid
}
name_type! {
    /// UID of a Service. Tells a Service from a later one with the same name.
    ServiceUid
}
name_type! {
    /// Identity of one install (K-02): part of every cloud tag set, label and Lease name.
    InstallId
}
name_type! {
    /// A topology zone, as in the label `topology.kubernetes.io/zone`.
    Zone
}

/// Namespace and name of a Service (and of what is named as its Service).
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ServiceKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ServiceKey {
    /// A key from its two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Name and protocol of a port: what ties a port of a Service to the ports of its slices (S-05).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    /// The port's name.
    pub name: PortName,
    /// Its protocol.
    pub protocol: Protocol,
}

impl PortKey {
    /// A key from its two parts.
    pub fn new(name: impl Into<PortName>, protocol: Protocol) -> Self {
        Self {
            name: name.into(),
            protocol,
        }
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.protocol)
    }
}

/// One port of one Service: the unit of endpoint selection and of session affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortKey {
    /// The Service.
    pub service: ServiceKey,
    /// The port.
    pub port: PortKey,
}

impl fmt::Display for ServicePortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.service, self.port)
    }
}
