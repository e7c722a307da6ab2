//! Whose the tables are: one agent's at a time, and nobody else's while it lives (S-267).

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onehop_node_agent::commit::{Features, cleanup};
use onehop_node_agent::table::element::{Dataplane, Elements};

use crate::world::{in_namespace, nft, options};
use crate::{load, open, open_with, taken_over, world};

#[test]
fn s267_a_second_agent_stays_in_standby_until_the_first_ends() {
    in_namespace(|| {
        for owned_tables in [true, false] {
            let features = Features {
                owned_tables,
                ..Features::detect()
            };
            let mut first = open_with(&options(), features);
            load(&mut first, &world::representative());
            let mut second = open_with(&options(), features);
            assert_eq!(
                second.read_back().unwrap(),
                None,
                "owned tables: {owned_tables}"
            );
            drop(first);
            assert_eq!(
                taken_over(&mut second),
                world::representative(),
                "owned tables: {owned_tables}"
            );
            drop(second);
            cleanup().unwrap();
        }
    });
}

#[test]
fn s267_an_owned_table_survives_a_foreign_flush() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &world::representative());
        nft(&["flush", "ruleset"]);
        // DI-61, S-347
        assert_eq!(kernel.read_back().unwrap(), Some(world::representative()));
    });
}

#[test]
fn s267_cleanup_cannot_take_the_tables_of_a_living_agent() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &Elements::new());
        let error = cleanup().unwrap_err();
        assert!(
            error.to_string().contains("an agent that still runs"),
            "{error}"
        );
    });
}

/// The moment in which the owner's socket closes is the one in which the tables are free. A program that is being started
/// has copies of the descriptors of the thread that starts it until it runs: the tests keep theirs apart, and the agent
/// starts no programs.
#[test]
fn s267_the_tables_are_free_as_soon_as_their_owner_ends_whatever_else_starts_programs() {
    const STARTERS: usize = 4;
    const TIMES: usize = 60;
    let stop = Arc::new(AtomicBool::new(false));
    let starters: Vec<_> = (0..STARTERS)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            })
        })
        .collect();
    in_namespace(|| {
        let wanted = world::service("10.96.0.1", &["10.244.1.1"]);
        load(&mut open(), &wanted);
        for time in 0..TIMES {
            let held = open().read_back().unwrap();
            assert_eq!(held.as_ref(), Some(&wanted), "S-267: time {time}");
        }
        cleanup().unwrap();
    });
    stop.store(true, Ordering::Relaxed);
    for starter in starters {
        starter.join().unwrap();
    }
}
