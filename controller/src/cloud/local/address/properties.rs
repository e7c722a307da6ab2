//! Random Services and pools: an address never has two users that may not share it, what is valid never
//! moves, and the order of what comes in decides nothing.

use std::collections::BTreeMap;

use onehop_core::crd::AddressPool;
use onehop_core::id::Protocol;
use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Clone, Debug)]
struct Svc {
    fixed: Option<u8>,
    pool: Option<u8>,
    key: Option<u8>,
    port: u16,
}

#[derive(Clone, Debug)]
enum Op {
    /// A Service comes or changes.
    Put(u8, Svc),
    /// A Service goes.
    Remove(u8),
    /// The cloud has what one was given.
    Confirm(u8),
    /// A pool comes, changes or goes: its first address and how many.
    Pool(u8, Option<(u8, u8)>),
    /// The process starts again and reads what is there.
    Restart,
}

fn service() -> impl Strategy<Value = Svc> {
    let fixed = prop::option::weighted(0.3, 0..16_u8);
    let pool = prop::option::weighted(0.3, 0..3_u8);
    let key = prop::option::weighted(0.6, 0..2_u8);
    (fixed, pool, key, 0..3_u16).prop_map(|(fixed, pool, key, port)| Svc {
        fixed,
        pool,
        key,
        port,
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..6_u8, service()).prop_map(|(n, s)| Op::Put(n, s)),
        1 => (0..6_u8).prop_map(Op::Remove),
        3 => (0..6_u8).prop_map(Op::Confirm),
        2 => (0..3_u8, prop::option::weighted(0.8, (0..14_u8, 1..6_u8))).prop_map(|(n, p)| Op::Pool(n, p)),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..80)
}

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn holder(n: u8) -> Holder {
    Holder {
        service: ServiceKey::new("shop", format!("s{n}")),
        uid: format!("u{n}").into(),
    }
}

impl Svc {
    fn request(&self) -> Request {
        Request {
            families: vec![IpFamily::V4],
            addresses: self.fixed.map(address).into_iter().collect(),
            pool: self.pool.map(|n| format!("p{n}")),
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            key: self.key.map(|n| SharingKey {
                name: n.to_string(),
                scope: Scope::Namespace,
            }),
            partners: Partners::Own,
            ports: [(Protocol::Tcp, self.port)].into(),
            backends: Backends::Any,
        }
    }
}

fn object(n: u8, first: u8, count: u8) -> AddressPool {
    let (first, last) = (address(first), address(first + count - 1));
    let spec = json!({ "addresses": [format!("{first}-{last}")] });
    AddressPool::new(&format!("p{n}"), serde_json::from_value(spec).unwrap())
}

fn place(n: u8, asked: &Svc, pools: &Pools, book: &mut AddressBook) -> Placement {
    let none = Labels::new();
    let ask = Ask {
        holder: &holder(n),
        customer: Customer {
            namespace: "shop",
            namespace_labels: &none,
            labels: &none,
        },
        request: &asked.request(),
        terms: &asked.terms(),
        policy: &Policy::default(),
    };
    allocate(ask, pools, book)
}

/// The cloud as the controller leaves it: what each Service was given last and has been confirmed or not.
#[derive(Clone, Debug, Default)]
struct World {
    pools: BTreeMap<u8, AddressPool>,
    wanted: BTreeMap<u8, Svc>,
    /// What is carried out for each: its wish and its addresses.
    live: BTreeMap<u8, (Svc, Vec<IpAddr>)>,
    book: AddressBook,
}

impl World {
    fn pools(&self) -> Pools {
        Pools::read(self.pools.values())
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(n, service) => {
                self.wanted.insert(*n, service.clone());
            }
            Op::Remove(n) => {
                self.wanted.remove(n);
                self.live.remove(n);
                self.book.release(&holder(*n).service, &[].into());
            }
            Op::Confirm(n) => {
                self.book.confirm(&holder(*n));
            }
            Op::Pool(n, None) => {
                self.pools.remove(n);
            }
            Op::Pool(n, Some((first, count))) => {
                self.pools.insert(*n, object(*n, *first, *count));
            }
            Op::Restart => self.restart(),
        }
        let pools = self.pools();
        for (n, asked) in &self.wanted {
            let before = self.live.get(n).cloned();
            let placement = place(*n, asked, &pools, &mut self.book);
            if let Some((last, held)) = &before {
                let same = last.fixed == asked.fixed && last.pool == asked.pool;
                if same || placement.refused.is_some() {
                    assert_eq!(
                        &placement.addresses, held,
                        "C-24: s{n} was moved by no wish of its own"
                    );
                }
            }
            if placement.refused.is_none() {
                self.live.insert(*n, (asked.clone(), placement.addresses));
            }
        }
    }

    fn restart(&mut self) {
        self.book = AddressBook::default();
        for (n, (service, held)) in &self.live {
            for address in held {
                let known = (&service.terms(), Some(&service.request()));
                let restored = self
                    .book
                    .restore(*address, holder(*n), Source::Cloud, known);
                assert_eq!(restored, Ok(()), "C-25");
            }
        }
    }

    fn check(&self) {
        for (n, (a, mine)) in &self.live {
            for (m, (b, theirs)) in self.live.range(n + 1..) {
                for address in mine.iter().filter(|address| theirs.contains(address)) {
                    let apart = a.port != b.port;
                    let keys = a.key.is_some() && b.key.is_some();
                    assert!(
                        apart && keys,
                        "C-29, C-33: {address} of s{n} {a:?} and s{m} {b:?}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn c24_c25_c29_c33_no_two_owners_and_nothing_valid_moves(ops in ops()) {
        let mut world = World::default();
        for op in &ops {
            world.apply(op);
            world.check();
        }
    }

    #[test]
    fn c21_the_order_of_pools_and_of_what_is_restored_decides_nothing(
        ops in ops(), service in service(), turn in 0..6_usize,
    ) {
        let mut world = World::default();
        for op in &ops {
            world.apply(op);
        }
        world.restart();
        let mut other = world.clone();
        let mut objects: Vec<_> = world.pools.values().cloned().collect();
        objects.reverse();
        let pools = Pools::read(&objects);
        other.book = AddressBook::default();
        let mut live: Vec<_> = world.live.iter().collect();
        let turn = turn.min(live.len().saturating_sub(1));
        live.rotate_left(turn);
        for (n, (of, held)) in live {
            for address in held {
                let known = (&of.terms(), Some(&of.request()));
                other.book.restore(*address, holder(*n), Source::Cloud, known).unwrap();
            }
        }
        let one = place(9, &service, &world.pools(), &mut world.book);
        let two = place(9, &service, &pools, &mut other.book);
        prop_assert_eq!(one, two, "C-21");
    }
}
