//! Differences that stay, each with its reason. Everything else is an error of the embedded server.

use http::Method;
use serde_json::Value;

use crate::{
    compare::{Difference, differences, show},
    request::Request,
    side::Seen,
};

/// A difference that is allowed.
struct Known {
    /// In a few words, for the table.
    what: &'static str,
    /// Why it may stay.
    reason: &'static str,
    /// Whether it explains this one.
    explains: fn(&Request, &Seen, &Seen, &Difference) -> bool,
}

static TABLE: &[Known] = &[
    Known {
        what: "descriptions of table columns",
        reason: "kubectl shows none of them",
        explains: |_, _, _, one| {
            one.at.starts_with("/columnDefinitions/") && one.at.ends_with("/description")
        },
    },
    Known {
        what: "the words of an error about a wrong JSON type",
        reason: "they are of the Go decoder and speak of Go types; code and reason are the same",
        explains: |_, ours, theirs, one| {
            let message = one.at == "/message" || one.at == "/details/causes/0/message";
            message && is_type_error(ours) && is_type_error(theirs)
        },
    },
    Known {
        what: "an empty list is null or []",
        reason: "it depends on whether the real server read it from its cache; clients read both as empty",
        explains: |_, ours, theirs, one| {
            let empty = |seen: &Seen| seen.body["items"].as_array().is_none_or(Vec::is_empty);
            one.at == "/items" && empty(ours) && empty(theirs)
        },
    },
    Known {
        what: "the words about a selector that cannot be read",
        reason: "they are of Go's lexer; both refuse it with 400",
        explains: |_, ours, theirs, one| {
            let told = |seen: &Seen| {
                let message = seen.body["message"].as_str().unwrap_or_default();
                message.contains("unable to parse requirement")
                    || message.contains("expected: ")
                    || message.contains("invalid selector")
            };
            one.at == "/message" && ours.code == 400 && told(ours) && told(theirs)
        },
    },
    Known {
        what: "warnings about fields of Services that have no effect or are old",
        reason: "for people who read kubectl's output; the answer is the same",
        explains: |request, _, _, one| {
            let new = one.theirs.as_ref().and_then(Value::as_array);
            request.path.contains("/services")
                && one.at == "warnings"
                && new.is_some_and(|all| {
                    all.iter()
                        .all(|text| !text.to_string().contains("unknown field"))
                })
        },
    },
    Known {
        what: "which of several wrong fields of a pod, its template, a slice or a node are told, and how",
        reason: "the embedded server checks the parts that scenarios can get wrong; it refuses with the same code",
        explains: |request, ours, theirs, one| {
            let workload = [
                "/pods",
                "/deployments",
                "/replicasets",
                "/endpointslices",
                "/nodes",
            ];
            workload.iter().any(|kind| request.path.contains(kind))
                && ours.code == 422
                && theirs.code == 422
                && (one.at == "/message" || one.at.starts_with("/details/causes"))
        },
    },
    Known {
        what: "the warning about a finalizer without a domain",
        reason: "for people who write custom objects by hand",
        explains: |_, _, _, one| {
            one.at == "warnings"
                && show(one.theirs.as_ref()).contains("prefer a domain-qualified finalizer")
        },
    },
    Known {
        what: "order and number of several problems of a custom object or an event",
        reason: "their validators run in turns; the problems that both name are compared by the single ones",
        explains: |request, ours, theirs, one| {
            let several = |seen: &Seen| {
                seen.body["details"]["causes"]
                    .as_array()
                    .is_some_and(|all| all.len() > 1)
            };
            let kind = request.path.contains("/onehop.dev/") || request.path.contains("/events");
            let words = one.at == "/message" || one.at.starts_with("/details/causes");
            kind && words && ours.code == 422 && (several(ours) || several(theirs))
        },
    },
    Known {
        what: "the time of an apply that changes nothing but ownership",
        reason: "the real server compares typed objects, the embedded one their JSON; the fields owned are the same",
        explains: |_, _, _, one| one.at.contains("/managedFields/") && one.at.ends_with("/time"),
    },
    Known {
        what: "the version after a scale that changes nothing",
        reason: "the real server writes the new owner of the number of replicas",
        explains: |request, _, _, one| {
            request.path.ends_with("/scale") && one.at == "/metadata/resourceVersion"
        },
    },
    Known {
        what: "the key in the message about a UID that does not fit",
        reason: "it is the storage's own; code and reason are the same",
        explains: |_, ours, theirs, one| {
            let storage = |seen: &Seen| {
                let message = seen.body["message"].as_str().unwrap_or_default();
                seen.code == 409 && message.contains("StorageError: invalid object")
            };
            one.at == "/message" && storage(ours) && storage(theirs)
        },
    },
    Known {
        what: "a patch that names a version of an object that is not there",
        reason: "for kinds that may be created by an update the real server answers 409 instead of 404",
        explains: |request, ours, theirs, one| {
            request.method == Method::PATCH
                && one.at == "code"
                && ours.code == 404
                && theirs.code == 409
        },
    },
    Known {
        what: "the status of an object that is not there",
        reason: "for kinds that may be created by an update the real server makes the object, or fails in its checks; nobody writes a status before its object",
        explains: |request, ours, theirs, one| {
            request.path.ends_with("/status")
                && one.at == "code"
                && ours.code == 404
                && theirs.code != 404
        },
    },
    Known {
        what: "the volume with a pod's token",
        reason: "of the admission plugin ServiceAccount; pods of scenarios are no containers and have no volumes",
        explains: |request, _, _, one| {
            request.path.contains("/pods")
                && one.ours.is_none()
                && (one.at.ends_with("/volumes") || one.at.ends_with("/volumeMounts"))
        },
    },
    Known {
        what: "the version after an applied configuration that names an empty list in the metadata of a custom object",
        reason: "the real server stores the empty list, which it does not show",
        explains: |request, _, _, one| {
            request.path.contains("/onehop.dev/")
                && request.content_type.contains("apply")
                && one.at == "/metadata/resourceVersion"
                && request.to_string().contains("\"finalizers\":[]")
        },
    },
    Known {
        what: "the text of 406",
        reason: "the real one lists its own media types, protobuf and CBOR among them, as plain text",
        explains: |_, ours, theirs, _| ours.code == 406 && theirs.code == 406,
    },
];

/// True for an answer that speaks of a value of a wrong type.
fn is_type_error(seen: &Seen) -> bool {
    let message = seen.body["message"].as_str().unwrap_or_default();
    let words = [
        "json: ",
        "failed to create typed patch object",
        "failed to convert new object",
        "no kind",
        "decoding",
        "patch: Invalid value: <object>",
        "unrecognized type",
        "unknown conversion",
        "is unrecognized",
        "cannot convert",
        "does not match the expected API version",
        "parsing time",
        "illegal base64",
        "was undeterminable",
        "does not match the name on the URL",
        "cannot be handled as",
    ];
    words.iter().any(|words| message.contains(words))
}

/// The differences of two answers that the table does not explain.
pub(crate) fn unexplained(request: &Request, ours: &Seen, theirs: &Seen) -> Vec<Difference> {
    let mut all = differences(ours, theirs);
    all.retain(|one| {
        !TABLE
            .iter()
            .any(|known| (known.explains)(request, ours, theirs, one))
    });
    all
}

/// Prints the table.
pub(crate) fn print_table() {
    for known in TABLE {
        println!("known difference: {}: {}", known.what, known.reason);
    }
}
