//! Sequences of requests about a few objects of one kind. Everything is drawn from the seed.

use crate::{
    kinds::KindRow,
    patches::{self, Target},
    reads,
    request::{Body, OLD_VERSION, Request, UID, VERSION},
    side::edit,
};
use http::Method;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Requests of one sequence, without its preparation.
const LENGTH: usize = 30;
/// Field managers.
pub(crate) const MANAGERS: [&str; 3] = ["alice", "bob", "carol"];

/// One sequence.
pub(crate) struct Episode<'a> {
    pub(crate) rng: SmallRng,
    pub(crate) kind: &'a KindRow,
    pub(crate) namespace: String,
    names: [String; 2],
    sentinel: u64,
    left: usize,
    /// The one object whose name the server makes; two would come in any order.
    generated: bool,
    queue: VecDeque<Request>,
}

impl<'a> Episode<'a> {
    /// A sequence about a kind drawn by weight, in a namespace of its own.
    pub(crate) fn new(rng: &mut SmallRng, kinds: &'a [KindRow], number: usize) -> Self {
        let namespace = format!("d{number}");
        let kind = kinds
            .choose_weighted(rng, |kind| kind.weight)
            .unwrap_or(&kinds[0]);
        let name = |name: &str| {
            if kind.cluster {
                format!("{namespace}-{name}")
            } else {
                name.to_owned()
            }
        };
        let names = [name("a"), name("b")];
        let mut episode = Self {
            rng: SmallRng::seed_from_u64(rng.random()),
            kind,
            names,
            sentinel: 0,
            left: LENGTH,
            generated: false,
            queue: VecDeque::new(),
            namespace,
        };
        let prepare = episode.preparation();
        episode.queue.extend(prepare);
        episode
    }

    fn preparation(&self) -> Vec<Request> {
        let post = |path: String, body| Request::new(Method::POST, path).with(Body::Json(body));
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        vec![
            post("/api/v1/namespaces".into(), namespace),
            post(
                format!("/api/v1/namespaces/{}/serviceaccounts", self.namespace),
                account,
            ),
            post(self.collection(), self.kind.object(&self.sentinel_name())),
            // From here on watches know where to begin.
            Request::new(Method::GET, self.collection())
                .ask("labelSelector", format!("of={}", self.namespace)),
        ]
    }

    pub(crate) fn collection(&self) -> String {
        self.kind.collection(&self.namespace)
    }

    fn sentinel_name(&self) -> String {
        if self.kind.cluster {
            format!("{}-sentinel", self.namespace)
        } else {
            "sentinel".to_owned()
        }
    }

    /// The sequence's own namespace.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The next request, or none at the end.
    pub(crate) fn next(&mut self) -> Option<Request> {
        if let Some(request) = self.queue.pop_front() {
            return Some(request.within(&self.namespace));
        }
        self.left = self.left.checked_sub(1)?;
        let mut requests = self.draw();
        let first = requests.remove(0);
        self.queue.extend(requests);
        Some(first.within(&self.namespace))
    }

    fn draw(&mut self) -> Vec<Request> {
        let name = if self.rng.random_bool(0.7) {
            self.names[0].clone()
        } else {
            self.names[1].clone()
        };
        let status = self.rng.random_bool(0.2);
        let target = Target {
            path: format!(
                "{}/{name}{}",
                self.collection(),
                if status { "/status" } else { "" }
            ),
            name,
            status,
        };
        let (kind, rng) = (self.kind, &mut self.rng);
        let one = match rng.random_range(0..100) {
            0..16 => self.create(&target),
            16..27 => patches::replace(rng, kind, &target),
            27..34 => patches::merge(rng, kind, &target),
            34..42 => patches::strategic(rng, kind, &target),
            42..49 => patches::json(rng, kind, &target),
            49..66 => patches::apply(rng, kind, &target),
            66..74 => self.delete(&target),
            74..76 => self.delete_collection(),
            76..80 => {
                let collection = self.collection();
                return reads::get(&mut self.rng, &target, &collection);
            }
            80..92 => return reads::list(self),
            92..96 => return self.watch(),
            _ if kind.scale => patches::scale(rng, &target),
            _ => patches::apply(rng, kind, &target),
        };
        vec![self.flavour(one)]
    }

    /// What any write may have: a manager, a dry run, an unknown field under one of the ways to treat it.
    fn flavour(&mut self, mut request: Request) -> Request {
        if request.method == Method::GET || request.method == Method::DELETE {
            return request;
        }
        let rng = &mut self.rng;
        if !request.has("fieldManager") && rng.random_bool(0.5) {
            let manager = MANAGERS.choose(rng).copied().unwrap_or("alice");
            request = request.ask("fieldManager", manager);
        }
        if rng.random_bool(0.06) {
            request = request.ask(
                "dryRun",
                *["All", "All", "Some"].choose(rng).unwrap_or(&"All"),
            );
        }
        if rng.random_bool(0.12) {
            let way = *["Strict", "Strict", "Warn", "Ignore", "Bogus"]
                .choose(rng)
                .unwrap_or(&"Strict");
            request = request.ask("fieldValidation", way);
            if let Body::Json(body @ Value::Object(_)) | Body::Yaml(body @ Value::Object(_)) =
                &mut request.body
            {
                let at = *["/bogus", "/metadata/bogus", "/spec/bogus"]
                    .choose(rng)
                    .unwrap_or(&"/bogus");
                edit(body, at, Some(json!(1)));
            }
        }
        request
    }

    fn create(&mut self, target: &Target) -> Request {
        let rng = &mut self.rng;
        let mut body = self.kind.object(&target.name);
        for _ in 0..rng.random_range(0..4) {
            let (at, value) = self.kind.field(rng, false);
            edit(&mut body, &at, Some(value));
        }
        if !self.generated && rng.random_bool(0.08) {
            self.generated = true;
            edit(&mut body, "/metadata/name", None);
            edit(&mut body, "/metadata/generateName", Some("gen-".into()));
        }
        let odd = match rng.random_range(0..40) {
            0 => Some(("/metadata/resourceVersion", json!("5"))),
            1 => Some(("/metadata/name", json!("Not A Name"))),
            2 => Some(("/metadata/namespace", json!("elsewhere"))),
            3 if !self.kind.root.contains("onehop") => Some(("/kind", json!("Other"))),
            4 => Some(("/apiVersion", json!("example.com/v1"))),
            5 => Some((
                "/metadata/uid",
                json!("11111111-2222-3333-4444-555555555555"),
            )),
            6 => Some(("/metadata/generation", json!(7))),
            7 => Some(("/metadata/labels", json!({"bad key!": "x"}))),
            8 => Some(("/metadata/deletionTimestamp", json!("2020-01-01T00:00:00Z"))),
            9 => Some(("/status", json!({"bogus": 1}))),
            _ => None,
        };
        if let Some((at, value)) = odd {
            edit(&mut body, at, Some(value));
        }
        let body = if rng.random_bool(0.12) {
            Body::Yaml(body)
        } else {
            Body::Json(body)
        };
        Request::new(Method::POST, self.collection()).with(body)
    }

    fn delete(&mut self, target: &Target) -> Request {
        let rng = &mut self.rng;
        let mut request = Request::new(Method::DELETE, target.path.trim_end_matches("/status"));
        if rng.random_bool(0.6) {
            let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            let mut maybe = |at: &str, chance: f64, values: &[Value]| {
                if rng.random_bool(chance) {
                    edit(&mut options, at, values.choose(rng).cloned());
                }
            };
            maybe(
                "/preconditions/uid",
                0.3,
                &[
                    json!(UID),
                    json!(UID),
                    json!("11111111-2222-3333-4444-555555555555"),
                ],
            );
            maybe(
                "/preconditions/resourceVersion",
                0.3,
                &[json!(VERSION), json!(OLD_VERSION)],
            );
            maybe(
                "/propagationPolicy",
                0.4,
                &[
                    json!("Background"),
                    json!("Foreground"),
                    json!("Orphan"),
                    json!("Sideways"),
                ],
            );
            maybe("/gracePeriodSeconds", 0.2, &[json!(0), json!(5), json!(-1)]);
            maybe("/orphanDependents", 0.05, &[json!(true), json!(false)]);
            maybe("/dryRun", 0.1, &[json!(["All"])]);
            request = request.with(Body::Json(options));
        } else if rng.random_bool(0.3) {
            request = request.ask(
                "propagationPolicy",
                *["Foreground", "Background", "Orphan"]
                    .choose(rng)
                    .unwrap_or(&"Orphan"),
            );
        }
        request
    }

    fn delete_collection(&mut self) -> Request {
        let only = reads::own(self);
        Request::new(Method::DELETE, self.collection()).ask("labelSelector", only)
    }

    /// A write to the sentinel, then a watch from the last list's version up to it.
    fn watch(&mut self) -> Vec<Request> {
        self.sentinel += 1;
        let name = self.sentinel_name();
        // Applied, since it may have been deleted with the others.
        let mut mark = self.kind.object(&name);
        mark["metadata"]["annotations"]["sentinel"] = self.sentinel.to_string().into();
        let mut touch = Request::new(Method::PATCH, format!("{}/{name}", self.collection()))
            .with(Body::Json(mark))
            .ask("fieldManager", "sentinel")
            .ask("force", "true");
        touch.content_type = "application/apply-patch+yaml";
        vec![touch, reads::watch(self, self.sentinel)]
    }
}
