//! A plan may end after any step, and always converges.

use proptest::prelude::*;

use super::model::{Cloud, converged};
use super::*;

/// What the Service wants next.
fn wish() -> impl Strategy<Value = Option<Intent>> {
    let mode = prop_oneof![
        Just(TargetMode::Node),
        Just(TargetMode::Vip),
        Just(TargetMode::Pod)
    ];
    let state = prop_oneof![
        4 => Just(State::Ready),
        1 => Just(State::NotReady),
        1 => Just(State::Terminating { serving: Serving::Yes, since: Some(NOW) }),
        1 => Just(State::Gone),
    ];
    let pods = proptest::collection::btree_map(1..6u8, state, 0..5);
    let both = any::<bool>();
    proptest::option::weighted(
        0.9,
        (mode, pods, both).prop_map(|(mode, pods, both)| {
            let mut ports = vec![http(mode)];
            if both {
                ports.push(port("dns", Protocol::Udp, 53, mode));
            }
            let pods: Vec<_> = pods.into_iter().collect();
            intent(ports, &pods)
        }),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// I6: a crash after any number of steps leaves something from which the rest is found. The
    /// model panics when anything is made twice or deleted while in use.
    #[test]
    fn i6_a_plan_cut_short_anywhere_converges_without_duplicates(
        wishes in proptest::collection::vec((wish(), 0..8usize), 1..6)
    ) {
        let (mut cloud, mut now) = (Cloud::default(), NOW);
        for (wish, cut) in &wishes {
            let plan = plan(&settings(), &service(), wish.as_ref(), &cloud.seen, now);
            let steps: Vec<_> = Lane::ALL
                .into_iter()
                .flat_map(|lane| plan.runnable(lane))
                .flat_map(|group| group.steps)
                .collect();
            steps.iter().take(*cut).for_each(|step| cloud.execute(step));
            cloud.settle();
        }
        let last = wishes.last().and_then(|(wish, _)| wish.as_ref());
        cloud.converge(last, &mut now);
        let writes = cloud.writes;
        cloud.converge(last, &mut now);
        prop_assert_eq!(cloud.writes, writes, "I4: at rest nothing is written");
        match last {
            None => prop_assert!(cloud.seen.is_empty()),
            Some(intent) => {
                prop_assert_eq!(cloud.seen.balancers.len(), 1);
                prop_assert_eq!(cloud.seen.groups.len(), intent.spec.ports.len());
                let done = outcome(intent, &cloud.seen, now).programmed;
                prop_assert_eq!(done, Programmed::Yes);
            }
        }
    }

    /// I2: whatever is asked for next (another mode, another name of the port), at no step does a
    /// listener lose its last usable target while pods that were usable live on.
    #[test]
    fn i2_a_listener_is_never_left_without_a_target_that_serves(
        wishes in proptest::collection::vec((0..3usize, 0..2usize), 1..5)
    ) {
        let all = [TargetMode::Node, TargetMode::Vip, TargetMode::Pod];
        let pods = [(1, State::Ready), (2, State::Ready)];
        let first = intent(vec![http(TargetMode::Pod)], &pods);
        let (mut cloud, mut now) = converged(&first);
        for (mode, name) in wishes {
            let ports = vec![port(["http", "web"][name], Protocol::Tcp, 80, all[mode])];
            let next = intent(ports, &pods);
            for _ in 0..12 {
                let plan = plan(&settings(), &service(), Some(&next), &cloud.seen, now);
                for lane in Lane::ALL {
                    for group in plan.runnable(lane) {
                        for step in &group.steps {
                            cloud.execute(step);
                            let serves = cloud.seen.balancers.iter().all(|b| {
                                b.listeners.values().all(|id| {
                                    let group = cloud.seen.group(id).unwrap();
                                    group.targets.values().any(|s| s.usable())
                                })
                            });
                            prop_assert!(serves, "I2: after {}", step);
                        }
                    }
                }
                cloud.settle();
                now += Duration::from_secs(30);
            }
        }
    }
}
