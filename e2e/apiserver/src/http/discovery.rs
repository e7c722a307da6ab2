//! `/api`, `/apis`, `/version` and health.

use bytes::Bytes;
use http::header::ACCEPT;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::route::Route;
use super::{Body, openapi, respond, review};
use crate::error::{ApiError, Result};
use crate::kind::{Kind, Trait};
use crate::kinds::Kinds;
use crate::server::ApiServer;

/// Answers what is no resource.
pub(crate) fn answer(
    server: &ApiServer,
    route: &Route,
    request: &Request<Bytes>,
) -> Result<Response<Body>> {
    if request.method() != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let state = server.state();
    let kinds = &state.kinds;
    let body = match route {
        Route::Health => return Ok(respond::text("ok")),
        Route::Version => version(),
        Route::Root => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/readyz", "/version"]})
        }
        Route::CoreVersions | Route::Groups if wants_aggregated(request) => {
            let core = matches!(route, Route::CoreVersions);
            let body = Bytes::from(aggregated(kinds, core).to_string());
            return Ok(respond::with_type(StatusCode::OK, AGGREGATED, body));
        }
        Route::CoreVersions => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]
        }),
        Route::Groups => {
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(kinds)})
        }
        Route::Group(name) => {
            let group = groups(kinds)
                .into_iter()
                .find(|group| group["name"] == name.as_str());
            let mut group = group.ok_or_else(ApiError::no_such_path)?;
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        Route::OpenApi(name) if name.is_empty() => openapi::index(kinds),
        Route::OpenApi(name) => {
            openapi::document(kinds, name).ok_or_else(ApiError::no_such_path)?
        }
        Route::Resources { group, version } => resources(kinds, group, version)?,
        Route::Resource(_) | Route::Unknown => return Err(ApiError::no_such_path()),
    };
    Ok(respond::json(StatusCode::OK, &body))
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "37", "gitVersion": "v1.37.2", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64"
    })
}

/// Group names in order, with their versions.
fn group_versions(kinds: &Kinds) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let virtual_kinds = review::KINDS
        .iter()
        .map(|kind| (kind.group.to_owned(), kind.version.to_owned()));
    let served = kinds
        .iter()
        .map(|kind| (kind.group.to_string(), kind.version.to_string()));
    for (group, version) in served.chain(virtual_kinds) {
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    for (_, versions) in &mut groups {
        // The newest first: v2 before v1, v1 before v1beta1.
        versions.sort_by_key(|version| std::cmp::Reverse(maturity(version)));
    }
    groups
}

/// Order of versions: stable over beta over alpha, then by number.
fn maturity(version: &str) -> (u8, u32, u32) {
    let rest = version.trim_start_matches('v');
    let (stage, rank) = if rest.contains("alpha") {
        ("alpha", 0)
    } else if rest.contains("beta") {
        ("beta", 1)
    } else {
        ("", 2)
    };
    let (major, minor) = if stage.is_empty() {
        (rest, "0")
    } else {
        rest.split_once(stage).unwrap_or((rest, "0"))
    };
    (rank, major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}

fn groups(kinds: &Kinds) -> Vec<Value> {
    let named = group_versions(kinds)
        .into_iter()
        .filter(|(group, _)| !group.is_empty());
    named
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
                .collect();
            json!({"name": group, "versions": versions, "preferredVersion": versions[0]})
        })
        .collect()
}

fn in_version<'a>(
    kinds: &'a Kinds,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Kind> {
    kinds
        .iter()
        .map(AsRef::as_ref)
        .filter(move |kind| kind.group == group && kind.version == version)
}

fn resources(kinds: &Kinds, group: &str, version: &str) -> Result<Value> {
    let mut list: Vec<Value> = Vec::new();
    for kind in in_version(kinds, group, version) {
        list.push(resource(kind));
        for part in parts(kind) {
            list.push(json!({
                "name": format!("{}/{}", kind.plural, part.name), "singularName": "", "namespaced": kind.namespaced,
                "kind": part.kind, "group": part.group, "version": part.version, "verbs": part.verbs,
            }));
        }
    }
    list.extend(review::KINDS.iter().filter(|kind| kind.group == group && kind.version == version).map(|kind| {
        json!({
            "name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": ["create"]
        })
    }));
    if list.is_empty() {
        return Err(ApiError::no_such_path());
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Ok(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

fn resource(kind: &Kind) -> Value {
    let mut resource = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": VERBS,
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = kind.short_names.clone().into();
    }
    if !kind.categories.is_empty() {
        resource["categories"] = kind.categories.clone().into();
    }
    resource
}

struct PartRow {
    name: &'static str,
    kind: String,
    group: String,
    version: String,
    verbs: &'static [&'static str],
}

fn parts(kind: &Kind) -> Vec<PartRow> {
    let mut parts = Vec::new();
    let mut add = |name, part_kind: &str, (group, version): (&str, &str), verbs| {
        let (kind, group, version) = (part_kind.to_owned(), group.to_owned(), version.to_owned());
        parts.push(PartRow {
            name,
            kind,
            group,
            version,
            verbs,
        });
    };
    let own = (kind.group.as_ref(), kind.version.as_ref());
    if kind.has(Trait::Status) {
        add("status", &kind.kind, own, &["get", "patch", "update"]);
    }
    if kind.has(Trait::Scale) {
        add(
            "scale",
            "Scale",
            ("autoscaling", "v1"),
            &["get", "patch", "update"],
        );
    }
    if kind.table == "pods" {
        add("binding", "Binding", ("", "v1"), &["create"]);
        add("eviction", "Eviction", ("policy", "v1"), &["create"]);
    }
    parts
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn wants_aggregated(request: &Request<Bytes>) -> bool {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2;")
        || accept.contains("v=v2,")
}

/// Everything of a kind of path in one answer (`apidiscovery.k8s.io/v2`).
fn aggregated(kinds: &Kinds, core: bool) -> Value {
    let items: Vec<Value> = group_versions(kinds)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = in_version(kinds, &group, version)
                        .map(aggregated_resource)
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let scope = if kind.namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    let of = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut resource = json!({
        "resource": kind.plural, "responseKind": of(&kind.group, &kind.version, &kind.kind), "scope": scope,
        "singularResource": kind.singular, "verbs": VERBS,
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = kind.short_names.clone().into();
    }
    if !kind.categories.is_empty() {
        resource["categories"] = kind.categories.clone().into();
    }
    let parts: Vec<Value> = parts(kind)
        .into_iter()
        .map(|part| json!({
            "subresource": part.name, "responseKind": of(&part.group, &part.version, &part.kind), "verbs": part.verbs
        }))
        .collect();
    if !parts.is_empty() {
        resource["subresources"] = parts.into();
    }
    resource
}
