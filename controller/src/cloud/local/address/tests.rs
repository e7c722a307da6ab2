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
    }
}

impl Svc {
    fn key(mut self, key: &str) -> Self {
        self.terms.key = Some(key.to_owned());
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

#[test]
fn c20_selectors_of_namespaces_and_services_and_auto_assign() {
    let of = |allocation: Value| {
        [pool(
            "a",
            &["10.0.0.1/32"],
            json!({ "serviceAllocation": allocation }),
        )]
    };
    let mut web = svc("web");
    web.labels = label("tier", "front");
    web.namespace_labels = label("team", "red");
    let front = json!([{ "matchLabels": { "tier": "front" } }]);
    let back = json!([{ "matchLabels": { "tier": "back" } }]);
    let red =
        json!([{ "matchExpressions": [{ "key": "team", "operator": "In", "values": ["red"] }] }]);
    let table = [
        (json!({}), true),
        (json!({ "namespaces": ["shop", "other"] }), true),
        (json!({ "namespaces": ["other"] }), false),
        (json!({ "namespaceSelectors": red }), true),
        (json!({ "namespaceSelectors": back }), false),
        (
            json!({ "namespaces": ["other"], "namespaceSelectors": red }),
            true,
        ),
        (json!({ "serviceSelectors": front }), true),
        (json!({ "serviceSelectors": back }), false),
        (json!({ "serviceSelectors": [back[0], front[0]] }), true),
        (
            json!({ "namespaces": ["shop"], "serviceSelectors": back }),
            false,
        ),
        (
            json!({ "namespaces": ["other"], "serviceSelectors": front }),
            false,
        ),
    ];
    for (allocation, served) in table {
        let pools = of(allocation.clone());
        for asked in [
            web.clone(),
            web.clone().pool("a"),
            web.clone().fixed(&["10.0.0.1"]),
        ] {
            let placement = asked.place(&pools, &mut AddressBook::default());
            assert_eq!(
                placement.refused.is_none(),
                served,
                "C-20: {allocation} {placement:?}"
            );
        }
    }
    let named_only = [pool("a", &["10.0.0.1/32"], json!({ "autoAssign": false }))];
    let mut book = AddressBook::default();
    let told = web.refused(&named_only, &mut book);
    assert_eq!(
        told, "no AddressPool is for this Service (there are: a)",
        "C-20, C-38"
    );
    assert_eq!(
        web.pool("a").given(&named_only, &mut book),
        ips(&["10.0.0.1"]),
        "C-20"
    );
}

#[test]
fn c20_avoid_buggy_ips_skips_0_and_255_also_when_asked_for() {
    let pools = [pool(
        "a",
        &["10.0.0.254-10.0.1.1"],
        json!({ "avoidBuggyIPs": true }),
    )];
    let mut book = AddressBook::default();
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.254"]),
        "C-20"
    );
    assert_eq!(
        svc("y").given(&pools, &mut book),
        ips(&["10.0.1.1"]),
        "C-20"
    );
    assert_eq!(
        svc("z").refused(&pools, &mut book),
        "no free IPv4 address in pools: a"
    );
    let told = svc("z").fixed(&["10.0.1.0"]).refused(&pools, &mut book);
    assert_eq!(
        told,
        "address 10.0.1.0 is in no pool that may give it (pools: a)"
    );
}

#[test]
fn c21_pools_by_priority_then_name_and_the_lowest_free_address() {
    let mut pools = vec![
        ranked("unset", 0, &["10.0.0.0/30"]),
        ranked("b", 2, &["10.2.0.9/32", "10.2.0.5-10.2.0.6"]),
        ranked("a", 2, &["10.1.0.1/32"]),
        ranked("z", 1, &["10.3.0.1/32"]),
    ];
    let expected = ips(&[
        "10.3.0.1", "10.1.0.1", "10.2.0.5", "10.2.0.6", "10.2.0.9", "10.0.0.0", "10.0.0.1",
        "10.0.0.2", "10.0.0.3",
    ]);
    for _ in 0..pools.len() {
        let mut book = AddressBook::default();
        let given: Vec<_> = (0..9)
            .map(|i| svc(&i.to_string()).given(&pools, &mut book)[0])
            .collect();
        assert_eq!(given, expected, "C-21");
        let told = svc("late").refused(&pools, &mut book);
        assert_eq!(
            told, "no free IPv4 address in pools: z, a, b, unset",
            "C-38"
        );
        pools.rotate_left(1);
    }
}

#[test]
fn c22_a_fixed_set_is_given_whole_or_not_at_all_and_a_clash_names_the_holder() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.3", "fd00::1-fd00::9"])];
    let mut book = AddressBook::default();
    svc("owner").restored("fd00::2", &mut book).unwrap();
    let both = svc("x").families(&BOTH).fixed(&["10.0.0.1", "fd00::2"]);
    let told = both.refused(&pools, &mut book);
    assert_eq!(
        told, "address fd00::2 is held by Service shop/owner",
        "C-22"
    );
    assert_eq!(book.holder(ip("10.0.0.1")), None, "C-22: nor a part of it");
    svc("owner").release(&mut book);
    assert_eq!(
        both.given(&pools, &mut book),
        ips(&["10.0.0.1", "fd00::2"]),
        "C-22, C-23"
    );
    let outside = svc("y").fixed(&["10.8.0.1"]).refused(&pools, &mut book);
    assert_eq!(
        outside,
        "address 10.8.0.1 is in no pool that may give it (pools: a)"
    );
    let family = svc("y").fixed(&["fd00::3"]).refused(&pools, &mut book);
    assert_eq!(
        family,
        "address fd00::3 is of a family that is not in the Service's ipFamilies"
    );
}

#[test]
fn c22_a_named_pool_is_the_only_one_asked() {
    let pools = [plain("a", &["10.0.0.1/32"]), plain("b", &["10.1.0.1/32"])];
    let mut book = AddressBook::default();
    assert_eq!(
        svc("x").pool("b").given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "C-22"
    );
    let told = svc("y")
        .pool("b")
        .fixed(&["10.0.0.1"])
        .refused(&pools, &mut book);
    assert_eq!(
        told, "address 10.0.0.1 is in no pool that may give it (pools: b)",
        "C-22"
    );
    let told = svc("y").pool("c").refused(&pools, &mut book);
    assert_eq!(told, "there is no AddressPool \"c\"", "C-22");
}

#[test]
fn c24_what_a_service_holds_stays_when_others_go_and_pools_change() {
    let mut book = AddressBook::default();
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    svc("x").given(&pools, &mut book);
    let second = ips(&["10.0.0.2"]);
    assert_eq!(svc("y").given(&pools, &mut book), second);
    svc("x").release(&mut book);
    assert_eq!(svc("y").given(&pools, &mut book), second, "C-24");
    let better = [
        plain("a", &["10.0.0.1-10.0.0.9"]),
        ranked("best", 1, &["10.9.0.1/32"]),
    ];
    assert_eq!(svc("y").given(&better, &mut book), second, "C-24");
    let closed = [pool(
        "a",
        &["10.0.0.0/24"],
        json!({
            "autoAssign": false, "serviceAllocation": { "namespaces": ["other"] },
        }),
    )];
    assert_eq!(svc("y").given(&closed, &mut book), second, "C-24");
}

#[test]
fn c25_restored_addresses_are_never_given_to_somebody_else_and_shared_ones_stay_shared() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.3"])];
    let mut book = AddressBook::default();
    let web = svc("web").key("k");
    let dns = svc("dns").key("k").port(Protocol::Udp, 53);
    web.restored("10.0.0.1", &mut book).unwrap();
    dns.restored("10.0.0.1", &mut book).unwrap();
    let third = svc("third").restored("10.0.0.1", &mut book);
    assert_eq!(
        third,
        Err(web.holder.clone()).or(Err(dns.holder.clone())),
        "C-25"
    );
    assert_eq!(
        svc("new").given(&pools, &mut book),
        ips(&["10.0.0.2"]),
        "C-25"
    );
    for service in [&web, &dns] {
        assert_eq!(service.given(&pools, &mut book), ips(&["10.0.0.1"]), "C-25");
    }
}

#[test]
fn c26_the_users_own_change_moves_an_assignment_and_the_old_address_is_free_once_the_cloud_let_go()
{
    let pools = [
        plain("a", &["10.0.0.1/32"]),
        plain("b", &["10.1.0.1-10.1.0.2"]),
    ];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    let moved = svc("x").pool("b");
    assert_eq!(
        moved.given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "C-26: requested pool"
    );
    let told = svc("y").pool("a").refused(&pools, &mut book);
    assert_eq!(
        told, "no free IPv4 address in pools: a",
        "C-33: the cloud may still have it"
    );
    assert_eq!(book.confirm(&moved.holder), ips(&["10.0.0.1"]));
    assert!(book.take_news().1, "C-23: waiters hear of it");
    assert_eq!(
        svc("y").pool("a").given(&pools, &mut book),
        ips(&["10.0.0.1"]),
        "C-34"
    );
    let fixed = svc("x").fixed(&["10.1.0.2"]);
    assert_eq!(
        fixed.given(&pools, &mut book),
        ips(&["10.1.0.2"]),
        "C-26: requested address"
    );
    let taken = svc("x").fixed(&["10.0.0.1"]).place(&pools, &mut book);
    assert_eq!(
        taken.addresses,
        ips(&["10.1.0.2"]),
        "C-08: refused, it keeps what it has"
    );
    assert!(taken.refused.is_some());
}

#[test]
fn c27_an_address_that_left_every_pool_is_kept_marked_and_given_to_nobody_else() {
    let before = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let after = [plain("a", &["10.0.0.2/32"])];
    for asked in [svc("x"), svc("x").pool("a"), svc("x").fixed(&["10.0.0.1"])] {
        let mut book = AddressBook::default();
        asked.given(&before, &mut book);
        let kept = asked.place(&after, &mut book);
        assert_eq!(kept.refused, None, "C-27");
        assert_eq!(kept.orphaned, ips(&["10.0.0.1"]), "C-27");
        let status = &Pools::read(&after).statuses(&book)["a"];
        assert_eq!(status.orphaned, ["10.0.0.1"], "C-27: pool status");
        assert_eq!((status.assigned, status.available), (0, 1), "C-104");
        let told = svc("y").fixed(&["10.0.0.1"]).refused(&before, &mut book);
        assert_eq!(told, "address 10.0.0.1 is held by Service shop/x", "C-27");
        // Also once another pool has it, and no pool at all.
        let elsewhere = [plain("a", &["10.0.0.2/32"]), plain("c", &["10.0.0.1/32"])];
        assert_eq!(
            asked.given(&elsewhere, &mut book),
            ips(&["10.0.0.1"]),
            "C-24"
        );
        assert_eq!(
            asked.place(&[], &mut book).addresses,
            ips(&["10.0.0.1"]),
            "C-27"
        );
        let moved = svc("x").fixed(&["10.0.0.2"]).given(&after, &mut book);
        assert_eq!(
            moved,
            ips(&["10.0.0.2"]),
            "C-27: an explicit migration moves it"
        );
    }
}

#[test]
fn c27_a_pool_that_is_being_deleted_gives_nothing_new_and_keeps_its_services() {
    let mut pools = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    pools[0] = born(pools[0].clone(), 1);
    pools[0].metadata.deletion_timestamp = pools[0].metadata.creation_timestamp.clone();
    let kept = svc("x").place(&pools, &mut book);
    assert_eq!((kept.refused, kept.orphaned), (None, vec![]), "C-27");
    let told = svc("y").pool("a").refused(&pools, &mut book);
    assert_eq!(
        told, "AddressPool \"a\" gives no address: it is being deleted",
        "C-27"
    );
}

#[test]
fn c28_of_overlapping_pools_the_newest_is_in_conflict_and_gives_nothing_new() {
    let old = born(ranked("z-old", 2, &["10.0.0.1-10.0.0.2"]), 1);
    let new = born(ranked("a-new", 1, &["10.0.0.2-10.0.0.9"]), 2);
    let newest = born(plain("b-newest", &["10.0.0.9/32"]), 3);
    let pools = [newest, new, old];
    let mut book = AddressBook::default();
    svc("held").restored("10.0.0.5", &mut book).unwrap();
    assert_eq!(
        svc("held").given(&pools, &mut book),
        ips(&["10.0.0.5"]),
        "C-28, C-24"
    );
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.1"]),
        "C-28: despite its priority"
    );
    let told = svc("y").pool("a-new").refused(&pools, &mut book);
    assert_eq!(
        told,
        "AddressPool \"a-new\" gives no address: it overlaps the older pool \"z-old\""
    );
    let statuses = Pools::read(&pools).statuses(&book);
    let conflicts = ["z-old", "a-new", "b-newest"].map(|name| statuses[name].conflict.as_deref());
    assert_eq!(conflicts, [None, Some("z-old"), None], "C-28");
    assert_eq!(
        (statuses["a-new"].assigned, statuses["a-new"].available),
        (1, 0),
        "C-104"
    );
}

#[test]
fn c29_sharing_needs_one_key_disjoint_ports_and_policies_that_agree() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    let first = svc("a").key("k");
    let udp = || svc("b").key("k").port(Protocol::Udp, 80);
    let shared = ips(&["10.0.0.1"]);
    let table = [
        (first.clone(), udp(), None),
        (
            first.clone(),
            svc("b").key("k").port(Protocol::Tcp, 81),
            None,
        ),
        (first.clone(), svc("b").key("k"), Some("both use TCP/80")),
        (
            first.clone(),
            udp().key("other"),
            Some("is held by Service shop/a"),
        ),
        (
            first.clone(),
            svc("b").port(Protocol::Udp, 80),
            Some("is held by Service shop/a"),
        ),
        (svc("a"), udp(), Some("is held by Service shop/a")),
        (
            first.clone().local("x"),
            udp(),
            Some("with externalTrafficPolicy Local"),
        ),
        (
            first.clone().local("x"),
            udp().local("y"),
            Some("with externalTrafficPolicy Local"),
        ),
        (first.clone().local("x"), udp().local("x"), None),
        (
            first.clone(),
            udp().namespace("other"),
            Some("of two namespaces"),
        ),
    ];
    for (first, second, clash) in table {
        let mut book = AddressBook::default();
        assert_eq!(first.given(&pools, &mut book), shared);
        // Not asked for by address: shared where it may be, else an address of its own.
        let own = second.given(&pools, &mut book.clone());
        assert_eq!(own == shared, clash.is_none(), "C-29, C-30: {clash:?}");
        let asked = second.clone().fixed(&["10.0.0.1"]).place(&pools, &mut book);
        match (clash, asked.refused) {
            (None, refused) => assert_eq!(refused, None, "C-29"),
            (Some(clash), refused) => {
                let told = refused.unwrap().to_string();
                assert!(told.contains(clash), "C-29, C-30: {told}");
                assert!(told.contains("shop/a"), "C-29: names the other one: {told}");
            }
        }
    }
}

#[test]
fn c29_c37_every_change_of_one_that_shares_is_looked_at_again() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    let mut book = AddressBook::default();
    let (web, dns) = (svc("a").key("k"), svc("b").key("k").port(Protocol::Udp, 53));
    web.given(&pools, &mut book);
    dns.given(&pools, &mut book);
    let changes = [
        (dns.clone().port(Protocol::Tcp, 80), "both use TCP/80"),
        (dns.clone().key("other"), "no sharing key in common"),
        (dns.clone().local("x"), "with externalTrafficPolicy Local"),
    ];
    for (changed, clash) in changes {
        let placement = changed.place(&pools, &mut book);
        assert_eq!(
            placement.addresses,
            ips(&["10.0.0.1"]),
            "C-29: what it has stays"
        );
        let told = placement.refused.unwrap().to_string();
        let both = told.contains("both Service shop/b and Service shop/a");
        assert!(told.contains(clash) && both, "C-29: {told}");
        assert_eq!(
            web.place(&pools, &mut book).refused,
            None,
            "C-24: the other one is not blamed"
        );
    }
    assert_eq!(
        dns.clone()
            .port(Protocol::Udp, 54)
            .place(&pools, &mut book)
            .refused,
        None,
        "C-37"
    );
    // The port is the other's once the cloud has let it go.
    let wide = web.clone().port(Protocol::Udp, 53);
    assert!(
        wide.place(&pools, &mut book).refused.is_some(),
        "C-33, C-37"
    );
    book.confirm(&dns.holder);
    assert_eq!(wide.place(&pools, &mut book).refused, None, "C-37");
}

#[test]
fn c12_c29_all_that_share_can_change_to_another_key() {
    let pools = [plain("a", &["10.0.0.1/32"])];
    let mut book = AddressBook::default();
    let service = |name, port| svc(name).key("old").port(Protocol::Tcp, port);
    let all = [service("a", 1), service("b", 2), service("c", 3)];
    for service in &all {
        service.given(&pools, &mut book);
    }
    let new = all.clone().map(|service| service.key("new"));
    assert!(new[0].place(&pools, &mut book).refused.is_some(), "C-29");
    assert!(new[1].place(&pools, &mut book).refused.is_some(), "C-29");
    book.take_news();
    assert_eq!(new[2].place(&pools, &mut book).refused, None, "C-12");
    let stirred: Vec<_> = book.take_news().0.into_iter().map(|key| key.name).collect();
    assert_eq!(stirred, ["a", "b"], "C-12: the others are looked at again");
    for service in &new {
        assert_eq!(service.place(&pools, &mut book).refused, None, "C-12");
    }
}

#[test]
fn c31_a_second_family_is_added_and_the_valid_one_kept() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9", "fd00::1-fd00::9"])];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    svc("y").given(&pools, &mut book);
    let dual = svc("y").families(&BOTH).given(&pools, &mut book);
    assert_eq!(dual, ips(&["10.0.0.2", "fd00::1"]), "C-31: added and kept");
    svc("x").release(&mut book);
    let six = svc("y").families(&[IpFamily::V6]).given(&pools, &mut book);
    assert_eq!(
        six,
        ips(&["fd00::1"]),
        "C-31: the one that is still valid stays"
    );
}

#[test]
fn c33_addresses_of_others_are_in_the_one_index() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let mut book = AddressBook::default();
    book.set_foreign([(ip("10.0.0.1"), ServiceKey::new("peer", "p"))].into());
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.2"]),
        "C-33"
    );
    let told = svc("y").fixed(&["10.0.0.1"]).refused(&pools, &mut book);
    assert_eq!(told, "address 10.0.0.1 is held by Service peer/p", "C-33");
    book.set_foreign([].into());
    assert!(book.take_news().1, "C-23");
}

#[test]
fn c104_pool_status_counts_what_is_assigned_and_what_is_left() {
    let pools = [
        pool(
            "a",
            &["10.0.0.0/24", "10.0.0.128/25"],
            json!({ "avoidBuggyIPs": true }),
        ),
        plain("six", &["fd00::/8"]),
    ];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    let statuses = Pools::read(&pools).statuses(&book);
    assert_eq!(
        (statuses["a"].assigned, statuses["a"].available),
        (1, 253),
        "C-104"
    );
    assert_eq!(
        (statuses["six"].assigned, statuses["six"].available),
        (0, i64::MAX),
        "C-104"
    );
}
