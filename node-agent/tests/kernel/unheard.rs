//! Large changes are committed while nobody of the agent listens to notifications, and nothing of others is missed by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onehop_nft::{Batch, Event, Events, Socket, Table};
use onehop_node_agent::commit::Features;
use onehop_node_agent::table::element::{Dataplane, ElementChange, Elements};

use crate::world::{self, in_namespace, nft, options};
use crate::{load, open, open_with, taken_over};

/// Services enough for a large batch.
fn many(of: u8) -> Elements {
    let one = |n: u8| {
        let pods = [1, 2, 3, 4].map(|pod| format!("10.244.{pod}.{n}"));
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        world::service(&format!("10.96.{of}.{n}"), &pods)
    };
    (0..=u8::MAX).flat_map(one).collect()
}

fn told(events: &mut Events) -> Vec<Event> {
    std::iter::from_fn(|| events.poll().unwrap()).collect()
}

fn add(elements: &Elements) -> ElementChange {
    ElementChange::between(&Elements::new(), elements)
}

#[test]
fn s133_s260_own_commits_are_not_told_to_the_agents_listeners_and_those_of_others_are() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &Elements::new());
        let mut events = Events::open().unwrap();
        kernel.spare(events.ears());
        kernel.commit(&add(&many(1))).unwrap();
        assert_eq!(told(&mut events), [], "nobody else did anything");
        let one = world::service("10.96.9.1", &["10.244.9.1"]);
        kernel.commit(&add(&one)).unwrap();
        assert_eq!(told(&mut events), [], "S-260: nobody wakes for it");
        let mut other = Socket::open().unwrap();
        let mut batch = Batch::new();
        batch.add_table(&Table::ip("foreign"), 0, None);
        other.commit(&batch).unwrap();
        let heard = told(&mut events);
        assert!(
            matches!(heard.last(), Some(Event::Committed { port_id, .. }) if *port_id == other.port_id()),
            "{heard:?}"
        );
    });
}

#[test]
fn s260_what_others_commit_meanwhile_is_heard_or_said_to_be_lost() {
    in_namespace(|| {
        let mut kernel = open();
        load(&mut kernel, &Elements::new());
        let mut events = Events::open().unwrap();
        kernel.spare(events.ears());
        let stop = Arc::new(AtomicBool::new(false));
        let others = {
            let (stop, mut socket) = (Arc::clone(&stop), Socket::open().unwrap());
            std::thread::spawn(move || {
                let mut made = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let mut batch = Batch::new();
                    batch.add_table(&Table::ip("foreign"), 0, None);
                    batch.del_table(&Table::ip("foreign"));
                    socket.commit(&batch).unwrap();
                    made += 1;
                }
                made
            })
        };
        let (mut heard, mut lost) = (0, false);
        for of in 0..8 {
            kernel.commit(&add(&many(of))).unwrap_or_else(|_| {
                // Hairpin pairs are the same ones each time.
                panic!("the kernel takes it")
            });
            for event in told(&mut events) {
                lost |= event == Event::Lost;
                let foreign = |event: &Event| matches!(event, Event::Committed { .. });
                heard += u32::from(foreign(&event));
            }
        }
        stop.store(true, Ordering::Relaxed);
        let made = others.join().unwrap();
        for event in told(&mut events) {
            lost |= event == Event::Lost;
            heard += u32::from(matches!(event, Event::Committed { .. }));
        }
        assert!(lost || heard == made, "{heard} of {made} were heard");
    });
}

#[test]
fn s255_after_a_large_load_a_foreign_change_is_noticed_where_tables_cannot_be_owned() {
    in_namespace(|| {
        let features = Features {
            owned_tables: false,
            ..Features::detect()
        };
        let mut kernel = open_with(&options(), features);
        load(&mut kernel, &many(1));
        let one = world::service("10.96.9.1", &["10.244.9.1"]);
        kernel.commit(&add(&one)).expect("no one else was there");
        kernel.commit(&add(&many(2))).expect("and again");
        nft(&["delete", "table", "ip", "onehop"]);
        let failure = kernel.commit(&add(&many(3))).unwrap_err();
        assert!(failure.refused.is_empty(), "S-130: read back: {failure}");
        assert_eq!(taken_over(&mut kernel), Elements::new());
    });
}
