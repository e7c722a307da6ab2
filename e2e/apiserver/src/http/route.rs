//! From a path to what it names.

use percent_encoding::percent_decode_str;

/// A collection, an object, or a part of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) part: String,
}

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/healthz`, `/readyz`, `/livez` and what is below them.
    Health,
    Version,
    /// `/openapi/v3` and one of its documents.
    OpenApi(String),
    /// `/`: list of paths.
    Root,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/v1` or `/apis/<group>/<version>`.
    Resources {
        group: String,
        version: String,
    },
    Resource(ResourcePath),
    Unknown,
}

impl Route {
    pub(crate) fn parse(path: &str) -> Self {
        let parts: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [] => Self::Root,
            ["healthz" | "readyz" | "livez", ..] => Self::Health,
            ["version"] => Self::Version,
            ["openapi", "v3", document @ ..] => Self::OpenApi(document.join("/")),
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources {
                group: String::new(),
                version: (*version).to_owned(),
            },
            ["apis", group, version] => Self::Resources {
                group: (*group).to_owned(),
                version: (*version).to_owned(),
            },
            ["api", version, rest @ ..] => resource("", version, rest),
            ["apis", group, version, rest @ ..] => resource(group, version, rest),
            _ => Self::Unknown,
        }
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Route {
    // A namespace's own parts look like resources in it.
    let own = |part: &str| group.is_empty() && matches!(part, "status" | "finalize");
    let (namespace, rest) = match rest {
        ["namespaces", _] => ("", rest),
        ["namespaces", _, part] if own(part) => ("", rest),
        ["namespaces", namespace, rest @ ..] => (*namespace, rest),
        _ => ("", rest),
    };
    let (plural, name, part) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, part] => (*plural, *name, *part),
        _ => return Route::Unknown,
    };
    Route::Resource(ResourcePath {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        plural: plural.to_owned(),
        name: name.to_owned(),
        part: part.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> [String; 6] {
        let Route::Resource(found) = Route::parse(path) else {
            panic!("{path} is a resource")
        };
        [
            found.group,
            found.version,
            found.namespace,
            found.plural,
            found.name,
            found.part,
        ]
    }

    #[test]
    fn namespaces_are_resources_and_scopes() {
        assert_eq!(
            path("/api/v1/namespaces"),
            ["", "v1", "", "namespaces", "", ""]
        );
        assert_eq!(
            path("/api/v1/namespaces/a"),
            ["", "v1", "", "namespaces", "a", ""]
        );
        assert_eq!(
            path("/api/v1/namespaces/a/status"),
            ["", "v1", "", "namespaces", "a", "status"]
        );
        assert_eq!(
            path("/api/v1/namespaces/a/pods/b/log"),
            ["", "v1", "a", "pods", "b", "log"]
        );
        assert_eq!(
            path("/apis/g/v2/namespaces/a/things"),
            ["g", "v2", "a", "things", "", ""]
        );
        assert_eq!(
            path("/apis/g/v2/things/x%2Fy"),
            ["g", "v2", "", "things", "x/y", ""]
        );
    }
}
