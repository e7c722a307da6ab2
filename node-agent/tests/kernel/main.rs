//! The two tables in a real kernel: what `nft` lists of them, and how commits, restarts and failures leave them.
//! Needs root; every test has a network namespace of its own that ends with its thread.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod affinity;
mod agreement;
mod alone;
#[path = "../common/mod.rs"]
mod common;
mod flows;
mod hooks;
mod lab;
mod listing;
mod model;
mod ownership;
mod packets;
mod place;
mod sources;
mod unheard;
mod uplinks;
mod window;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use onehop_core::time::Time;
use onehop_nft::{Batch, Chain, CommitError, Rule, Socket, Table};
use onehop_node_agent::commit::{Features, Kernel, cleanup};
use onehop_node_agent::table::element::{
    Data, Dataplane, ElementChange, Elements, Family, Key, SetId, Verdict,
};
use onehop_node_agent::table::layout::{Options, TABLE, VERSION};
use world::{addr, cluster_ip, in_namespace, nft, options, service};

fn open() -> Kernel {
    open_with(&options(), Features::detect())
}

fn open_with(options: &Options, features: Features) -> Kernel {
    Kernel::open(options, features, Box::new(|| Time::EPOCH)).unwrap()
}

/// What the tables hold. They are free from the moment in which their owner's socket closed (S-267).
fn taken_over(kernel: &mut Kernel) -> Elements {
    let held = kernel.read_back().unwrap();
    held.expect("the tables are free")
}

fn load(kernel: &mut Kernel, wanted: &Elements) {
    let held = taken_over(kernel);
    kernel
        .commit(&ElementChange::between(&held, wanted))
        .unwrap();
}

/// Everything but the owner: objects that are made again get other handles.
fn tables_with_handles() -> String {
    let all = nft(&["-a", "list", "ruleset"]);
    all.lines()
        .filter(|line| !line.contains("flags owner") && !line.starts_with("table"))
        .collect()
}

#[test]
fn s121_a_restart_reads_everything_back_and_changes_nothing() {
    in_namespace(|| {
        let wanted = world::representative();
        let mut first = open();
        load(&mut first, &wanted);
        let before = tables_with_handles();
        drop(first);
        let mut second = open();
        assert_eq!(taken_over(&mut second), wanted);
        // DI-46
        assert!(
            tables_with_handles() == before,
            "handles or content changed"
        );
    });
}

#[test]
fn s132_a_changed_static_part_is_replaced_and_the_elements_stay() {
    in_namespace(|| {
        let wanted = world::representative();
        for spoil in [foreign_chain, missing_rule, foreign_rule_in_a_class] {
            load(&mut open(), &wanted);
            spoil(&mut Socket::open().unwrap());
            let mut kernel = open();
            assert_eq!(taken_over(&mut kernel), wanted);
            let text = nft(&["list", "ruleset"]);
            assert!(
                !text.contains("foreign") && text.contains("jump services"),
                "{text}"
            );
        }
    });
}

#[test]
fn s132_an_older_layout_is_replaced() {
    in_namespace(|| {
        nft(&[
            "add",
            "table",
            "ip",
            TABLE,
            "{ comment \"onehop node agent, layout 0\"; }",
        ]);
        let mut kernel = open();
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
        assert!(nft(&["list", "ruleset"]).contains(VERSION));
    });
}

fn foreign_chain(socket: &mut Socket) {
    let mut batch = Batch::new();
    batch.add_chain(&Table::ip(TABLE), &Chain::regular("foreign"));
    socket.commit(&batch).unwrap();
}

fn missing_rule(socket: &mut Socket) {
    let mut batch = Batch::new();
    batch.flush_chain(&Table::ip(TABLE), "nat-prerouting");
    socket.commit(&batch).unwrap();
}

fn foreign_rule_in_a_class(socket: &mut Socket) {
    let mut batch = Batch::new();
    batch.add_rule(
        &Table::ip(TABLE),
        "n2",
        &Rule::ip().counter().comment("foreign"),
    );
    socket.commit(&batch).unwrap();
}

#[test]
fn s258_a_refused_frontend_is_left_out_whole_and_the_rest_goes_in() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &service("10.96.0.1", &["10.244.1.1"]));
        // The caller's copy is wrong: this frontend has another verdict and slot in the kernel.
        let wrong = service("10.96.0.1", &["10.244.1.7", "10.244.1.8"]);
        let right = service("10.96.0.2", &["10.244.1.2"]);
        let add = wrong
            .iter()
            .chain(&right)
            .map(|(key, data)| (*key, *data))
            .collect();
        let failure = kernel
            .commit(&ElementChange {
                add,
                ..ElementChange::default()
            })
            .unwrap_err();
        let frontend = Key::Frontend(cluster_ip("10.96.0.1"));
        assert!(
            failure
                .refused
                .contains(&(Family::V4, SetId::ServiceIps, frontend)),
            "{failure:?}"
        );
        assert!(
            failure.refused.iter().all(|key| wrong.contains_key(key)),
            "{failure:?}"
        );
        let held = kernel.read_back().unwrap().unwrap();
        assert!(right.iter().all(|(key, data)| held.get(key) == Some(data)));
        let slot = (
            Family::V4,
            SetId::Endpoints,
            Key::FrontendSlot(cluster_ip("10.96.0.1"), 1),
        );
        assert!(
            !held.contains_key(&slot),
            "no part of the refused frontend was committed"
        );
    });
}

#[test]
fn s258_a_removal_of_what_is_gone_is_no_failure() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &service("10.96.0.1", &["10.244.1.1"]));
        let gone = (Family::V4, SetId::ClusterIps, Key::Addr(addr("10.96.9.9")));
        let mut remove: BTreeSet<_> = service("10.96.0.1", &["10.244.1.1"]).into_keys().collect();
        remove.insert(gone);
        kernel
            .commit(&ElementChange {
                remove,
                ..ElementChange::default()
            })
            .unwrap();
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
    });
}

#[test]
fn s124_an_element_of_the_wrong_family_does_not_stop_the_others() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &Elements::new());
        let wrong = (Family::V4, SetId::ClusterIps, Key::Addr(addr("fd00::1")));
        let right = (Family::V4, SetId::ClusterIps, Key::Addr(addr("10.96.0.1")));
        let add = Elements::from([(wrong, None), (right, None)]);
        let failure = kernel
            .commit(&ElementChange {
                add,
                ..ElementChange::default()
            })
            .unwrap_err();
        assert_eq!(failure.refused, BTreeSet::from([wrong]));
        assert!(kernel.read_back().unwrap().unwrap().contains_key(&right));
    });
}

#[test]
fn s133_a_large_load_goes_in_pieces() {
    in_namespace(|| {
        let mut wanted = Elements::new();
        for n in 0..200 {
            let pods = [format!("10.244.1.{n}"), format!("10.244.2.{n}")];
            let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
            wanted.extend(service(&format!("10.96.1.{n}"), &pods));
        }
        // DI-45: a fresh node is loaded in pieces that leave whole frontends. S-245: no piece names what is not there.
        let mut kernel = open().with_batch_limit(8_000);
        load(&mut kernel, &wanted);
        assert_eq!(kernel.read_back().unwrap(), Some(wanted));
    });
}

#[test]
fn s247_a_class_chain_out_of_use_is_deleted_after_a_second() {
    in_namespace(|| {
        let millis = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&millis);
        let now = Box::new(move || Time::from_millis(clock.load(Ordering::Relaxed)));
        let mut kernel = Kernel::open(&options(), Features::detect(), now).unwrap();
        let pods: Vec<String> = (1..=17).map(|last| format!("10.244.1.{last}")).collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let (two, one) = (
            service("10.96.0.1", &pods),
            service("10.96.0.1", &["10.244.1.1"]),
        );
        load(&mut kernel, &two);
        kernel.commit(&ElementChange::between(&two, &one)).unwrap();
        // DI-40
        assert!(kernel.idle().unwrap(), "n17 rests");
        assert!(nft(&["list", "ruleset"]).contains("chain n17"));
        millis.store(1_000, Ordering::Relaxed);
        assert!(!kernel.idle().unwrap(), "nothing rests");
        let text = nft(&["list", "ruleset"]);
        assert!(
            !text.contains("chain n17") && text.contains("chain n16"),
            "S-230: small classes are in store: {text}"
        );
        kernel.commit(&ElementChange::between(&one, &two)).unwrap();
        assert_eq!(kernel.read_back().unwrap(), Some(two));
    });
}

#[test]
fn s122_cleanup_deletes_our_tables_and_nothing_else() {
    in_namespace(|| {
        nft(&["add", "table", "ip", "foreign"]);
        load(&mut open(), &world::representative());
        cleanup().unwrap();
        assert_eq!(nft(&["list", "tables"]).trim(), "table ip foreign");
        cleanup().unwrap();
    });
}

#[test]
fn s135_the_skeleton_is_there_before_any_element() {
    in_namespace(|| {
        let mut kernel = open();
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
        let text = nft(&["list", "ruleset"]);
        for hook in [
            "type nat hook prerouting",
            "type nat hook output",
            "type nat hook postrouting",
        ] {
            let there = text.matches(hook).count();
            assert_eq!(
                there, 2,
                "S-135, ZD-44: {hook} in both families, before any flow"
            );
        }
    });
}

#[test]
fn s254_a_refusal_names_operation_and_element() {
    in_namespace(|| {
        let mut kernel = open_with(
            &options(),
            Features {
                owned_tables: false,
                ..Features::detect()
            },
        );
        load(&mut kernel, &service("10.96.0.1", &["10.244.1.1"]));
        let table = Table::ip(TABLE);
        let element = |ip: &str| {
            SetId::ClusterIps
                .encode_key(Family::V4, &Key::Addr(addr(ip)))
                .unwrap()
        };
        let mut batch = Batch::new();
        batch.add_elements(&table, "cluster-ips", [element("10.96.0.9")]);
        batch.del_elements(
            &table,
            "cluster-ips",
            ["10.96.0.1", "10.96.0.8"].map(element),
        );
        batch.del_chain(&table, "no-such-chain");
        let Err(CommitError::Refused(failed)) = Socket::open().unwrap().commit(&batch) else {
            panic!("refused")
        };
        let places: Vec<_> = failed
            .iter()
            .map(|op| (op.op, op.element, op.errno))
            .collect();
        assert_eq!(
            places,
            [(1, Some(1), libc::ENOENT), (2, None, libc::ENOENT)]
        );
    });
}

#[test]
fn s227_a_changed_verdict_replaces_the_old_one() {
    in_namespace(|| {
        let mut kernel = open();
        let key = (
            Family::V4,
            SetId::NoEndpointServices,
            Key::Frontend(cluster_ip("10.96.0.1")),
        );
        let with = |verdict| Elements::from([(key, Some(Data::Verdict(verdict)))]);
        load(&mut kernel, &with(Verdict::Drop));
        kernel
            .commit(&ElementChange::between(
                &with(Verdict::Drop),
                &with(Verdict::Reject),
            ))
            .unwrap();
        assert_eq!(kernel.read_back().unwrap(), Some(with(Verdict::Reject)));
    });
}

#[test]
fn s255_where_tables_cannot_be_owned_a_foreign_change_is_noticed_before_the_next_commit() {
    in_namespace(|| {
        let mut kernel = open_with(
            &options(),
            Features {
                owned_tables: false,
                ..Features::detect()
            },
        );
        let (one, two) = (
            service("10.96.0.1", &["10.244.1.1"]),
            service("10.96.0.2", &["10.244.1.2"]),
        );
        load(&mut kernel, &one);
        // S-255: to another table it does not matter.
        nft(&["add", "table", "ip", "foreign"]);
        kernel
            .commit(&ElementChange {
                add: two.clone(),
                ..ElementChange::default()
            })
            .unwrap();
        nft(&["delete", "table", "ip", TABLE]);
        let remove = two.keys().copied().collect();
        let failure = kernel
            .commit(&ElementChange {
                remove,
                ..ElementChange::default()
            })
            .unwrap_err();
        assert_eq!(
            failure.refused,
            BTreeSet::new(),
            "S-130: read back: {failure}"
        );
        assert_eq!(
            kernel.read_back().unwrap(),
            Some(Elements::new()),
            "S-135: the skeleton is there again"
        );
        kernel
            .commit(&ElementChange {
                add: one,
                ..ElementChange::default()
            })
            .unwrap();
    });
}

/// The time until which an element lives.
fn end(data: Option<&Data>) -> Option<Time> {
    match data {
        Some(Data::Timed(_, until) | Data::Until(until)) => Some(*until),
        _ => None,
    }
}

#[test]
fn zd54_guards_carry_their_end_into_the_kernel_and_a_restart_reads_it_back() {
    in_namespace(|| {
        let wanted = world::guarded();
        load(&mut open(), &wanted);
        let held = taken_over(&mut open());
        assert_eq!(held.len(), wanted.len());
        for (key, data) in &wanted {
            let read = held.get(key).expect("every element is there").as_ref();
            let Some(until) = end(data.as_ref()) else {
                assert_eq!(read, data.as_ref(), "{key:?}");
                continue;
            };
            let left = end(read).expect("a life time");
            // The clock of these tests stands still while the kernel's goes on.
            let near = until.since(left) < Duration::from_mins(1);
            assert!(left <= until && near, "{key:?}: {left} against {until}");
        }
    });
}

#[test]
fn s268_a_removal_of_what_has_expired_is_no_failure() {
    in_namespace(|| {
        let mut kernel = open();
        let soon = |data: &Option<Data>| match data {
            Some(Data::Timed(verdict, _)) => Some(Data::Timed(*verdict, Time::from_millis(1))),
            Some(Data::Until(_)) => Some(Data::Until(Time::from_millis(1))),
            other => *other,
        };
        let guarded = world::guarded();
        let short: Elements = guarded.iter().map(|(k, d)| (*k, soon(d))).collect();
        load(&mut kernel, &short);
        let deadline = Instant::now() + Duration::from_secs(30);
        while nft(&["list", "ruleset"]).contains("expires") {
            assert!(
                Instant::now() < deadline,
                "the kernel takes them out by itself"
            );
        }
        let all = ElementChange::between(&short, &Elements::new());
        kernel.commit(&all).expect("S-268");
        assert_eq!(kernel.read_back().unwrap(), Some(Elements::new()));
    });
}
