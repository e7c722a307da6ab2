//! A kind of object: names, scope and what is special about it. One row per kind; nothing else knows the list.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::alloc::Allocations;
use crate::error::{ApiError, FieldError, GroupResource};
use crate::schema::Schema;
use crate::shape::Shape;

/// What a kind does that others don't.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trait {
    /// Has the status subresource; the main resource can't write status.
    Status,
    /// Has the scale subresource.
    Scale,
    /// `metadata.generation` counts changes of what the user asks for.
    Generation,
    /// PUT creates a missing object.
    CreateOnUpdate,
    /// Updates need a resourceVersion.
    ConditionalUpdate,
    /// Delete answers with the object, not with a Status.
    ReturnsDeleted,
    /// Status given at creation is kept.
    KeepsStatusOnCreate,
    /// Name is a DNS label.
    LabelName,
    /// Name may hold what a path segment may.
    PathName,
    /// Nothing depends on it, so no propagation policy applies.
    NoDependents,
    /// Deleted pods wait for their kubelet.
    Graceful,
}

/// Behaviour of a kind beyond the generic machinery.
pub(crate) struct Hooks {
    /// Fills defaults of an object just decoded.
    pub(crate) default: fn(&mut Value),
    /// Clears and allocates fields; `old` is there on update.
    pub(crate) prepare: fn(&mut Allocations, &mut Value, Option<&Value>) -> Result<(), ApiError>,
    /// Checks an object that is ready to be stored.
    pub(crate) validate: fn(&Value, Option<&Value>) -> Vec<FieldError>,
    /// Checks a new status.
    pub(crate) validate_status: fn(&Value, &Value) -> Vec<FieldError>,
    /// Selectable fields besides name and namespace.
    pub(crate) fields: &'static [&'static str],
    /// Reads the object as its Go type would be and gives what that knows of it (nothing where there is no type); an
    /// error says which field has a wrong type.
    pub(crate) decode: fn(&Value) -> Result<Option<Value>, serde_json::Error>,
    /// Scalars that the Go type shows even when nobody set them.
    pub(crate) zero: fn(&mut Value),
}

impl Hooks {
    /// A kind without any behaviour of its own.
    pub(crate) const PLAIN: Self = Self {
        default: |_| (),
        prepare: |_, _, _| Ok(()),
        validate: |_, _| Vec::new(),
        validate_status: |_, _| Vec::new(),
        fields: &[],
        decode: |_| Ok(None),
        zero: |_| (),
    };
}

/// Where scale finds its numbers in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    pub(crate) spec: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

/// How a version of a kind is kept under another version's shape.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) to_stored: fn(Value) -> Value,
    pub(crate) from_stored: fn(Value) -> Value,
}

/// One served kind in one version.
#[allow(
    clippy::struct_field_names,
    reason = "the API's own words: `kind`, `listKind`"
)]
pub(crate) struct Kind {
    pub(crate) group: Cow<'static, str>,
    pub(crate) version: Cow<'static, str>,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) list_kind: Cow<'static, str>,
    pub(crate) plural: Cow<'static, str>,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) traits: Vec<Trait>,
    pub(crate) hooks: &'static Hooks,
    pub(crate) shape: Arc<Shape>,
    /// Structural schema of a custom kind.
    pub(crate) schema: Option<Arc<Schema>>,
    pub(crate) scale: Option<ScalePaths>,
    /// Table in the store; versions of one kind share it.
    pub(crate) table: String,
    pub(crate) conversion: Option<Conversion>,
}

impl Kind {
    /// `group/version`, or the version alone for core.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Plural and group, as errors name the resource.
    pub(crate) fn resource(&self) -> GroupResource {
        GroupResource::new(self.group.to_string(), self.plural.to_string())
    }

    /// Kind and group, as validation errors name it.
    pub(crate) fn group_kind(&self) -> GroupResource {
        GroupResource::new(self.group.to_string(), self.kind.to_string())
    }

    pub(crate) fn has(&self, what: Trait) -> bool {
        self.traits.contains(&what)
    }

    /// True for a kind made by a `CustomResourceDefinition`.
    pub(crate) fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    /// Name of the table of a resource.
    pub(crate) fn table_name(group: &str, plural: &str) -> String {
        GroupResource::new(group, plural).to_string()
    }
}

/// A row of the table of built-in kinds.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) short: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) traits: &'static [Trait],
    pub(crate) hooks: &'static Hooks,
    pub(crate) shape: &'static str,
    pub(crate) stored: Option<(&'static str, Conversion)>,
}

impl Row {
    /// A namespaced kind.
    pub(crate) const fn namespaced(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        let (short, traits) = (&[], &[]);
        let hooks = &Hooks::PLAIN;
        Self {
            group,
            version,
            kind,
            plural,
            short,
            namespaced: true,
            traits,
            hooks,
            shape: kind,
            stored: None,
        }
    }

    /// A cluster-scoped kind.
    pub(crate) const fn cluster(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        let mut row = Self::namespaced(group, version, kind, plural);
        row.namespaced = false;
        row
    }

    pub(crate) const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short = names;
        self
    }

    pub(crate) const fn traits(mut self, traits: &'static [Trait]) -> Self {
        self.traits = traits;
        self
    }

    pub(crate) const fn hooks(mut self, hooks: &'static Hooks) -> Self {
        self.hooks = hooks;
        self
    }

    pub(crate) const fn shape(mut self, name: &'static str) -> Self {
        self.shape = name;
        self
    }

    pub(crate) const fn stored_as(mut self, table: &'static str, conversion: Conversion) -> Self {
        self.stored = Some((table, conversion));
        self
    }

    /// The kind that the row describes.
    pub(crate) fn build(&self) -> Kind {
        let table = self.stored.map_or_else(
            || Kind::table_name(self.group, self.plural),
            |(table, _)| table.into(),
        );
        let scale = self.traits.contains(&Trait::Scale).then(|| ScalePaths {
            spec: ".spec.replicas".into(),
            status: ".status.replicas".into(),
            selector: None,
        });
        let in_all = [
            "pods",
            "services",
            "deployments",
            "replicasets",
            "daemonsets",
            "statefulsets",
        ];
        Kind {
            group: self.group.into(),
            version: self.version.into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind).into(),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase(),
            short_names: self.short.iter().map(ToString::to_string).collect(),
            categories: in_all
                .contains(&self.plural)
                .then(|| "all".to_owned())
                .into_iter()
                .collect(),
            namespaced: self.namespaced,
            traits: self.traits.to_vec(),
            hooks: self.hooks,
            shape: Shape::built_in(self.shape),
            schema: None,
            scale,
            table,
            conversion: self.stored.map(|(_, conversion)| conversion),
        }
    }
}
