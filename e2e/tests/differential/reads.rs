//! Reads: one object, lists with selectors, pages and versions, and watches.

use crate::{
    generate::Episode,
    patches::Target,
    request::{Answer, CONTINUE, MARK, Request},
};
use http::Method;
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

fn draw<'a>(rng: &mut SmallRng, words: &[&'a str]) -> &'a str {
    words.choose(rng).copied().unwrap_or_default()
}

/// Before what a cache may answer: two lists, the second of which waits until the cache knows what the first one does.
fn catch_up(collection: &str) -> Vec<Request> {
    // None of them is needed: the version counts.
    let list = Request::new(Method::GET, collection).ask("labelSelector", "of=nothing");
    let waits = list.clone().ask("resourceVersion", MARK);
    vec![list, waits.ask("resourceVersionMatch", "NotOlderThan")]
}

/// Whether a cache may answer, which may be behind.
fn may_be_cached(request: &Request) -> bool {
    let exact = ("resourceVersionMatch", "Exact".to_owned());
    request.has("resourceVersion") && !request.query.contains(&exact)
}

/// GET of an object.
pub(crate) fn get(rng: &mut SmallRng, target: &Target, collection: &str) -> Vec<Request> {
    let mut request = Request::new(Method::GET, target.path.as_str());
    request.accept = draw(
        rng,
        &[
            "application/json",
            "application/json",
            TABLE,
            METADATA,
            "text/html",
        ],
    );
    request = match rng.random_range(0..8) {
        0 => request.ask("resourceVersion", MARK),
        1 => request.ask("resourceVersion", "0"),
        // Events have no cache, and another code for this.
        2 if !target.path.contains("/events") => request.ask("resourceVersion", "nonsense"),
        _ => request,
    };
    let mut all = Vec::new();
    if may_be_cached(&request) {
        all = catch_up(collection);
    }
    all.push(request);
    all
}

/// A selector of this sequence's objects alone. Cluster-scoped kinds share their collection with other sequences and
/// with the servers themselves.
pub(crate) fn own(episode: &mut Episode<'_>) -> String {
    let selectors = [
        "app=x",
        "app!=x,mine",
        "app in (x,z)",
        "!app,mine",
        "app notin (x),mine",
        "app,mine",
        "app==z",
        "mine",
    ];
    let selector = draw(&mut episode.rng, &selectors);
    if episode.kind.cluster {
        format!("{selector},of={}", episode.namespace)
    } else {
        selector.to_owned()
    }
}

/// GET of a collection; a page is followed by the next.
pub(crate) fn list(episode: &mut Episode<'_>) -> Vec<Request> {
    let mut request = Request::new(Method::GET, episode.collection());
    let labels = own(episode);
    let kind = episode.kind;
    let rng = &mut episode.rng;
    if kind.cluster || rng.random_bool(0.5) {
        request = request.ask("labelSelector", labels);
    } else if rng.random_bool(0.15) {
        request = request.ask(
            "labelSelector",
            draw(
                rng,
                &[
                    "a b",
                    "=x",
                    "app in x",
                    "a/b/c=d",
                    "app=Not Good",
                    "app>1",
                    "app in ()",
                ],
            ),
        );
    }
    if rng.random_bool(0.4) {
        let common = [
            "metadata.name=a",
            "metadata.name!=a",
            "metadata.namespace=default",
            "spec.bogus=1",
            "metadata.name",
            "metadata.name==b",
        ];
        let own = kind
            .selectors
            .choose(rng)
            .cloned()
            .filter(|_| rng.random_bool(0.6));
        let selector = own.unwrap_or_else(|| draw(rng, &common).to_owned());
        request = request.ask("fieldSelector", selector);
    }
    request.accept = draw(
        rng,
        &["application/json", "application/json", TABLE, METADATA_LIST],
    );
    match rng.random_range(0..12) {
        0 => request = request.ask("resourceVersion", "0"),
        1 => {
            request = request
                .ask("resourceVersion", MARK)
                .ask("resourceVersionMatch", "NotOlderThan");
        }
        2 => {
            request = request
                .ask("resourceVersion", MARK)
                .ask("resourceVersionMatch", "Exact");
        }
        3 => request = request.ask("resourceVersionMatch", "Exact"),
        5 => {
            request = request
                .ask("resourceVersion", MARK)
                .ask("resourceVersionMatch", "Roughly");
        }
        6 => {
            request = request
                .ask("resourceVersion", "0")
                .ask("resourceVersionMatch", "Exact");
        }
        7 => request = request.ask("resourceVersion", MARK),
        _ => {}
    }
    // With a version, a cache may answer that knows no pages.
    if may_be_cached(&request) {
        let mut all = catch_up(&request.path);
        all.push(request);
        return all;
    }
    if request.has("resourceVersion") || !rng.random_bool(0.35) {
        return vec![request];
    }
    let page = request.clone().ask("limit", "1");
    if page.has("resourceVersionMatch") {
        return vec![page];
    }
    let next = page.clone().ask("continue", CONTINUE);
    vec![page, next.clone(), next]
}

/// A watch from the version of the last list, which ends at the sentinel.
pub(crate) fn watch(episode: &mut Episode<'_>, sentinel: u64) -> Request {
    let mut request = Request::new(Method::GET, episode.collection()).ask("watch", "true");
    let (kind, namespace) = (episode.kind, episode.namespace.clone());
    let rng = &mut episode.rng;
    if kind.cluster {
        request = request.ask("labelSelector", format!("of={namespace}"));
    } else if rng.random_bool(0.4) {
        // The sentinel has to be among them.
        request = request.ask(
            "labelSelector",
            draw(rng, &["mine", "app!=z", "app notin (z)"]),
        );
    }
    // Version 0, or none, is answered from a cache that may be behind: what it shows first depends on when.
    request = request.ask("resourceVersion", MARK);
    request.accept = draw(rng, &["application/json", "application/json", METADATA]);
    request.answer = Answer::Events { sentinel };
    request.ask("timeoutSeconds", "60")
}
