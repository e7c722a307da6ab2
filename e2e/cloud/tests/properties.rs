//! Random operations on the local profile against a small reference model.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use common::{Sim, target, tcp_group};
use e2e_cloud::engine::{Lag, Profile, TargetState, What};
use onehop_core::time::Time;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Register(u8),
    Deregister(u8),
    Up(u8),
    Down(u8),
    Wait(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (1..5_u8).prop_map(Op::Register),
        (1..5_u8).prop_map(Op::Deregister),
        (1..5_u8).prop_map(Op::Up),
        (1..5_u8).prop_map(Op::Down),
        (0..7_000_u64).prop_map(Op::Wait),
    ];
    prop::collection::vec(op, 1..60)
}

/// What the local profile promises, in its simplest form.
#[derive(Default)]
struct Model {
    registered: BTreeSet<SocketAddr>,
    draining: BTreeMap<SocketAddr, Time>,
}

impl Model {
    fn apply(&mut self, sim: &mut Sim, group: &e2e_cloud::engine::GroupId, op: &Op) {
        match *op {
            Op::Register(at) => {
                sim.register(group, &[target(at)]);
                self.draining.remove(&target(at));
                self.registered.insert(target(at));
            }
            Op::Deregister(at) => {
                sim.deregister(group, target(at));
                if self.registered.remove(&target(at)) {
                    self.draining
                        .insert(target(at), sim.now + Duration::from_secs(10));
                }
            }
            Op::Up(at) => {
                sim.up.insert(target(at));
            }
            Op::Down(at) => {
                sim.up.remove(&target(at));
            }
            Op::Wait(millis) => sim.run_for(Duration::from_millis(millis)),
        }
        self.draining.retain(|_, until| *until > sim.now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn local_sends_new_flows_to_healthy_registered_targets_only(ops in ops()) {
        let mut sim = Sim::local();
        let (_, group) = sim.balanced_group(tcp_group("web"));
        let mut model = Model::default();
        for op in &ops {
            model.apply(&mut sim, &group, op);
            let listed = sim.engine.targets(sim.now, &group, &[]).unwrap();
            let in_state = |wanted: TargetState| -> BTreeSet<_> {
                listed.iter().filter(|t| t.state == wanted).map(|t| t.target).collect()
            };
            let path = sim.front();
            let chosen: BTreeSet<_> = path.targets.iter().copied().collect();
            prop_assert_eq!(chosen.len(), path.targets.len(), "a target twice");
            prop_assert_eq!(&chosen, &in_state(TargetState::Healthy));
            prop_assert!(chosen.is_subset(&model.registered));
            let draining: BTreeSet<_> = model.draining.keys().copied().collect();
            prop_assert_eq!(&in_state(TargetState::Draining), &draining);
            // Flows go on to what is registered or drains, and to nothing else.
            let kept: BTreeSet<_> = model.registered.union(&draining).copied().collect();
            prop_assert_eq!(&path.established, &kept);
            prop_assert!(sim.engine.next_event().is_none_or(|next| next > sim.now));
        }
    }

    #[test]
    fn whatever_happens_the_log_is_repeatable_and_its_numbers_and_times_only_grow(
        ops in ops(), seed in 0..1000_u64,
    ) {
        let run = || {
            let mut profile = Profile::local();
            profile.lags.registration = Lag::Uniform(Duration::ZERO, Duration::from_secs(9));
            profile.lags.deregistration_tail = Lag::Uniform(Duration::ZERO, Duration::from_secs(30));
            profile.lags.unhealthy_tail = Lag::Uniform(Duration::ZERO, Duration::from_secs(9));
            profile.lags.verdict_skew = Lag::Uniform(Duration::ZERO, Duration::from_secs(2));
            let mut sim = Sim::new(profile, seed, &["a", "b"]);
            let (_, group) = sim.balanced_group(tcp_group("web"));
            let mut model = Model::default();
            for op in &ops {
                model.apply(&mut sim, &group, op);
                // A tail outlives the drain time, so a chosen target may be unlisted; but its flows stay.
                for node in sim.nodes.clone() {
                    let path = sim.front_at(node, e2e_cloud::engine::Protocol::Tcp);
                    assert!(path.targets.iter().all(|at| path.established.contains(at)));
                }
            }
            sim
        };
        let (one, two) = (run(), run());
        // FC-05
        prop_assert_eq!(one.engine.log().json_lines(), two.engine.log().json_lines());
        let events: Vec<_> = one.engine.log().after(0).collect();
        for pair in events.windows(2) {
            prop_assert!(pair[0].seq + 1 == pair[1].seq && pair[0].cloud_time <= pair[1].cloud_time);
        }
        for event in &events {
            prop_assert!(event.cause.is_none_or(|cause| cause < event.seq));
        }
        // Each tail that started ends, was made shorter, or still runs.
        let started = events.iter().filter(|e| matches!(e.what, What::TailStarted { .. })).count();
        let ended = events.iter().filter(|e| matches!(e.what, What::TailEnded { .. })).count();
        prop_assert!(ended <= started);
    }
}
