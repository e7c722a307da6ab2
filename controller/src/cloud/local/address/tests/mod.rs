//! Tests of the choice, by what they show.

mod choice;
mod keeping;
mod pools;
mod sharing;

use onehop_core::crd::{AddressPool, AddressPoolSpec};
use onehop_core::id::Protocol;
use serde_json::{Value, json};

use super::*;

const ONE: [IpFamily; 1] = [IpFamily::V4];
const BOTH: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// A pool; `extra` goes into its spec.
fn pool(name: &str, ranges: &[&str], extra: Value) -> AddressPool {
    let mut spec = json!({ "addresses": ranges });
    if let Value::Object(fields) = extra {
        for (key, value) in fields {
            spec[key] = value;
        }
    }
    AddressPool::new(
        name,
        serde_json::from_value::<AddressPoolSpec>(spec).unwrap(),
    )
}

fn plain(name: &str, ranges: &[&str]) -> AddressPool {
    pool(name, ranges, json!({}))
}

fn ranked(name: &str, priority: u32, ranges: &[&str]) -> AddressPool {
    pool(
        name,
        ranges,
        json!({ "serviceAllocation": { "priority": priority } }),
    )
}

fn born(mut pool: AddressPool, second: i64) -> AddressPool {
    let time = onehop_core::time::Time::from_millis(second * 1000);
    pool.metadata.creation_timestamp = Some(time.into());
    pool
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// A Service that asks.
#[derive(Clone)]
struct Svc {
    holder: Holder,
    labels: Labels,
    namespace_labels: Labels,
    request: Request,
    terms: Terms,
    policy: Policy,
}

fn svc(name: &str) -> Svc {
    Svc {
        holder: Holder {
            service: ServiceKey::new("shop", name),
            uid: name.into(),
        },
        labels: Labels::new(),
        namespace_labels: Labels::new(),
        request: Request {
            families: ONE.to_vec(),
            ..Request::default()
        },
        terms: Terms {
            ports: [(Protocol::Tcp, 80)].into(),
            ..Terms::default()
        },
        policy: Policy::default(),
    }
}

impl Svc {
    fn key(mut self, key: &str) -> Self {
        self.terms.key = Some(SharingKey {
            name: key.to_owned(),
            scope: Scope::Namespace,
        });
        self
    }

    /// Agrees to share with these namespaces, and may.
    fn across(mut self, namespaces: &str) -> Self {
        self.terms.partners = Partners::parse(namespaces);
        if let Some(key) = &mut self.terms.key {
            key.scope = Scope::Across;
        }
        self.policy.across_namespaces = Sharing::Allowed;
        self
    }

    fn allowed(mut self, pools: &[&str]) -> Self {
        self.policy.name = "red".to_owned();
        self.policy.address_pools = Some(pools.iter().map(|p| (*p).to_owned()).collect());
        self
    }

    fn port(mut self, protocol: Protocol, port: u16) -> Self {
        self.terms.ports = [(protocol, port)].into();
        self
    }

    fn local(mut self, app: &str) -> Self {
        self.terms.backends = Backends::Local([("app".to_owned(), app.to_owned())].into());
        self
    }

    fn fixed(mut self, addresses: &[&str]) -> Self {
        self.request.addresses = ips(addresses);
        self
    }

    fn pool(mut self, pool: &str) -> Self {
        self.request.pool = Some(pool.to_owned());
        self
    }

    fn families(mut self, families: &[IpFamily]) -> Self {
        self.request.families = families.to_vec();
        self
    }

    fn namespace(mut self, name: &str) -> Self {
        self.holder.service.namespace = name.to_owned();
        self
    }

    fn place(&self, pools: &[AddressPool], book: &mut AddressBook) -> Placement {
        let ask = Ask {
            holder: &self.holder,
            customer: Customer {
                namespace: &self.holder.service.namespace,
                namespace_labels: &self.namespace_labels,
                labels: &self.labels,
            },
            request: &self.request,
            terms: &self.terms,
            policy: &self.policy,
        };
        allocate(ask, &Pools::read(pools), book)
    }

    /// What it is given; fails the test if it is refused.
    fn given(&self, pools: &[AddressPool], book: &mut AddressBook) -> Vec<IpAddr> {
        let placement = self.place(pools, book);
        assert_eq!(placement.refused, None, "{}", self.holder.service);
        placement.addresses
    }

    /// What it is told; fails the test if it is not refused.
    fn refused(&self, pools: &[AddressPool], book: &mut AddressBook) -> String {
        self.place(pools, book).refused.unwrap().to_string()
    }

    fn restored(&self, address: &str, book: &mut AddressBook) -> Result<(), Holder> {
        let known = (&self.terms, Some(&self.request));
        book.restore(ip(address), self.holder.clone(), Source::Status, known)
    }

    fn release(&self, book: &mut AddressBook) {
        assert!(book.release(&self.holder.service, &[].into()));
    }
}

fn label(key: &str, value: &str) -> Labels {
    [(key.to_owned(), value.to_owned())].into()
}
