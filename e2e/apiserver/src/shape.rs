//! Which fields of an object are structs, maps or keyed lists: what strategic merge and server-side apply need to know.
//!
//! Built-in kinds come from `shapes.txt`, custom ones from their structural schema. A field without a shape is
//! *deduced*: a map is granular, a list is atomic, anything else a scalar.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::Value;

/// Merge rules of one value.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub(crate) form: Form,
    /// Server-side apply replaces the value as a whole.
    pub(crate) atomic: bool,
    /// Strategic merge drops members that the patch's `$retainKeys` does not name.
    pub(crate) retain_keys: bool,
    /// The Go type holds the value even when empty, so that setting something inside does not add the container.
    pub(crate) always_there: bool,
}

/// What a value consists of.
#[derive(Debug, Default)]
pub(crate) enum Form {
    /// Not described.
    #[default]
    Deduced,
    /// Named fields.
    Struct(BTreeMap<String, Arc<Shape>>),
    /// Free keys with elements of one shape.
    Map(Arc<Shape>),
    /// A list.
    List {
        element: Arc<Shape>,
        kind: ListKind,
        merge: Option<String>,
    },
}

/// How the items of a list are told apart (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    /// Keys in the order of the schema, each with its default.
    Keyed(Vec<(String, Option<Value>)>),
}

static DEDUCED: LazyLock<Arc<Shape>> = LazyLock::new(Arc::default);
static BUILT_IN: LazyLock<BuiltIn> = LazyLock::new(|| BuiltIn::parse(include_str!("shapes.txt")));

impl Shape {
    /// The shape of undescribed values.
    pub(crate) fn deduced() -> Arc<Self> {
        DEDUCED.clone()
    }

    /// Shape of a built-in type by its name in `shapes.txt`; deduced if it is not there.
    pub(crate) fn built_in(name: &str) -> Arc<Self> {
        BUILT_IN.shape(name)
    }

    /// Shape of a member of a struct or map.
    pub(crate) fn field(&self, name: &str) -> &Self {
        match &self.form {
            Form::Struct(fields) => fields.get(name).unwrap_or(&DEDUCED),
            Form::Map(element) => element,
            _ => &DEDUCED,
        }
    }

    /// True if the schema names the field, so that it is no free key of a map.
    pub(crate) fn names(&self, field: &str) -> bool {
        matches!(&self.form, Form::Struct(fields) if fields.contains_key(field))
    }

    /// Shape and kind of a list's items.
    pub(crate) fn items(&self) -> (&Self, &ListKind) {
        match &self.form {
            Form::List { element, kind, .. } => (element, kind),
            _ => (&DEDUCED, &ListKind::Atomic),
        }
    }

    /// Shape from a CRD's structural schema. The root's metadata is `ObjectMeta`.
    pub(crate) fn of_schema(schema: &Value) -> Arc<Self> {
        let mut fields = schema_fields(schema);
        fields.insert("metadata".into(), Self::built_in("ObjectMeta"));
        Arc::new(Self {
            form: Form::Struct(fields),
            ..Self::default()
        })
    }
}

fn schema_fields(schema: &Value) -> BTreeMap<String, Arc<Shape>> {
    let properties = schema["properties"].as_object();
    properties
        .into_iter()
        .flatten()
        .map(|(name, field)| (name.clone(), of_schema_field(field)))
        .collect()
}

fn of_schema_field(schema: &Value) -> Arc<Shape> {
    let atomic = schema["x-kubernetes-map-type"] == "atomic";
    let form = if schema["properties"].is_object() {
        Form::Struct(schema_fields(schema))
    } else if schema["additionalProperties"].is_object() {
        Form::Map(of_schema_field(&schema["additionalProperties"]))
    } else if schema["items"].is_object() {
        Form::List {
            element: of_schema_field(&schema["items"]),
            kind: schema_list_kind(schema),
            merge: None,
        }
    } else {
        Form::Deduced
    };
    Arc::new(Shape {
        form,
        atomic,
        ..Shape::default()
    })
}

fn schema_list_kind(schema: &Value) -> ListKind {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListKind::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let keyed = keys
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(|key| {
                    let default = &schema["items"]["properties"][key]["default"];
                    (
                        key.to_owned(),
                        (!default.is_null()).then(|| default.clone()),
                    )
                });
            ListKind::Keyed(keyed.collect())
        }
        _ => ListKind::Atomic,
    }
}

/// The parsed table; shapes are built on first use, since types are nested and shared.
struct BuiltIn {
    lines: BTreeMap<&'static str, Vec<(&'static str, &'static str)>>,
    built: Mutex<BTreeMap<String, Arc<Shape>>>,
}

impl BuiltIn {
    fn parse(text: &'static str) -> Self {
        let mut lines: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut current = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.trim_start().split_once(": ") {
                Some((field, rule)) => lines.entry(current).or_default().push((field, rule)),
                None => current = line,
            }
        }
        Self {
            lines,
            built: Mutex::default(),
        }
    }

    fn shape(&self, name: &str) -> Arc<Shape> {
        if let Some(shape) = self.cache().get(name) {
            return shape.clone();
        }
        let Some(lines) = self.lines.get(name) else {
            return Shape::deduced();
        };
        let fields = lines
            .iter()
            .map(|(field, rule)| ((*field).to_owned(), self.field(rule)))
            .collect();
        let shape = Arc::new(Shape {
            form: Form::Struct(fields),
            ..Shape::default()
        });
        self.cache().insert(name.to_owned(), shape.clone());
        shape
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Shape>>> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses a rule such as `list ServicePort keys=port,protocol=TCP merge=port`.
    fn field(&self, rule: &str) -> Arc<Shape> {
        let mut words = rule.split(' ');
        let form = words.next().unwrap_or_default();
        let mut shape = Shape::default();
        let mut element = Shape::deduced();
        let mut kind = ListKind::Atomic;
        let mut merge = None;
        let mut name = "";
        for word in words {
            match word.split_once('=') {
                _ if word == "atomic" => shape.atomic = true,
                _ if word == "set" => kind = ListKind::Set,
                _ if word == "itemsAtomic" => {}
                _ if word == "retainKeys" => shape.retain_keys = true,
                _ if word == "always" => shape.always_there = true,
                _ if word.starts_with("keys=") => kind = ListKind::Keyed(parse_keys(&word[5..])),
                Some(("merge", key)) => merge = Some(key.to_owned()),
                _ => {
                    name = word;
                    element = self.shape(word);
                }
            }
        }
        if rule.split(' ').any(|word| word == "itemsAtomic") {
            element = Arc::new(Shape {
                form: Form::Struct(self.fields(name)),
                atomic: true,
                ..Shape::default()
            });
        }
        shape.form = match form {
            "list" => Form::List {
                element,
                kind,
                merge,
            },
            "map" => Form::Map(element),
            // The shared shape of the type, with this field's own flags.
            _ => Form::Struct(self.fields(name)),
        };
        Arc::new(shape)
    }

    fn fields(&self, name: &str) -> BTreeMap<String, Arc<Shape>> {
        match &self.shape(name).form {
            Form::Struct(fields) => fields.clone(),
            _ => BTreeMap::new(),
        }
    }
}

fn parse_keys(keys: &str) -> Vec<(String, Option<Value>)> {
    let one = |key: &str| match key.split_once('=') {
        Some((key, default)) => (key.to_owned(), Some(default.into())),
        None => (key.to_owned(), None),
    };
    keys.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ports_are_keyed_by_port_and_protocol_and_merged_by_port() {
        let service = Shape::built_in("Service");
        let Form::List { kind, merge, .. } = &service.field("spec").field("ports").form else {
            panic!("ports is a list")
        };
        let keys = vec![
            ("port".to_owned(), None),
            ("protocol".to_owned(), Some("TCP".into())),
        ];
        assert_eq!(kind, &ListKind::Keyed(keys));
        assert_eq!(merge.as_deref(), Some("port"));
    }

    #[test]
    fn shapes_reach_through_pod_templates() {
        let spec = Shape::built_in("Deployment");
        let containers = spec
            .field("spec")
            .field("template")
            .field("spec")
            .field("containers");
        assert!(containers.items().0.names("env"));
        assert!(spec.field("spec").field("selector").atomic);
        assert!(spec.field("spec").field("strategy").retain_keys);
    }
}
