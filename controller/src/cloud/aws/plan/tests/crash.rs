//! A model of AWS in which plans are cut short at every step.

use proptest::prelude::*;

use super::*;

/// Something that happens to a Service.
#[derive(Clone, Debug)]
enum Event {
    Pod(u8, u8),
    Mode(bool),
    Check(bool),
    Public(bool),
    Ports(u8),
    Settle,
    Later,
    Deleted,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        4 => (1..6_u8, 0..5_u8).prop_map(|(n, state)| Event::Pod(n, state)),
        1 => any::<bool>().prop_map(Event::Mode),
        1 => any::<bool>().prop_map(Event::Check),
        1 => any::<bool>().prop_map(Event::Public),
        1 => (1..4_u8).prop_map(Event::Ports),
        3 => Just(Event::Settle),
        1 => Just(Event::Later),
        1 => Just(Event::Deleted),
    ];
    prop::collection::vec((one, any::<prop::sample::Index>()), 1..25)
        .prop_map(|all| all.into_iter().map(|(event, _)| event).collect())
}

fn build(
    pods: &std::collections::BTreeMap<u8, State>,
    (ip, http, public, ports): (bool, bool, bool, u8),
) -> Intent {
    let list: Vec<_> = (0..ports)
        .map(|n| (80 + u16::from(n), 8080, 30080 + u16::from(n)))
        .collect();
    let mut service = service(("shop", "web"), UID_A, &list);
    service.class = Some("onehop.dev/aws".to_owned());
    let mut pairs = vec![(
        "aws-load-balancer-nlb-target-type",
        if ip { "ip" } else { "instance" },
    )];
    if http {
        pairs.push(("aws-load-balancer-healthcheck-protocol", "http"));
    }
    pairs.push((
        "aws-load-balancer-scheme",
        if public {
            "internet-facing"
        } else {
            "internal"
        },
    ));
    let pods: Vec<_> = pods.iter().map(|(n, state)| (*n, *state)).collect();
    wanted(&annotated(service, &pairs), &pods)
}

/// I2: a load balancer that is published has, for each listener, a group that can serve whenever the Service
/// has ready targets and the group had a healthy target before.
fn serving(
    model: &Model,
    pods: &std::collections::BTreeMap<u8, State>,
    now: Time,
) -> Vec<(String, bool)> {
    // A pod that is gone serves nobody, and one that ends is not waited for beyond the hold maximum (ZD-26).
    let hold = std::time::Duration::from_mins(10);
    let gone = |id: &str| {
        let pod = id.strip_prefix("192.168.9.").and_then(|n| n.parse().ok());
        match pod.and_then(|n: u8| pods.get(&n)) {
            Some(State::Terminating { since, .. }) => since.is_none_or(|since| since + hold <= now),
            Some(state) => *state == State::Gone,
            None => false,
        }
    };
    let listeners = model
        .seen
        .balancers
        .iter()
        .flat_map(|b| b.listeners.iter().flatten());
    listeners
        .map(|(_, listener)| {
            let main = listener
                .groups
                .iter()
                .find(|(_, weight)| **weight > 0)
                .unwrap()
                .0;
            let group = model.seen.group(main).expect("a listener's group is there");
            {
                let targets = group.targets.iter().flatten();
                let mut healthy =
                    targets.filter(|(_, health)| health.state == HealthState::Healthy);
                (
                    listener.arn.clone(),
                    healthy.any(|(target, _)| !gone(&target.id)),
                )
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any prefix of any plan may be the last thing that happens, and it still converges, with no duplicate and
    /// nothing left over; no step takes the last healthy target of a listener away while pods are ready.
    #[test]
    fn i2_i6_aws612_aws642_every_prefix_is_safe_and_plans_converge(events in events(), cuts in prop::collection::vec(0..9_usize, 60)) {
        let mut model = empty();
        let mut pods = std::collections::BTreeMap::from([(1, State::Ready)]);
        let mut shape = (true, false, false, 1);
        let (mut now, mut cuts) = (NOW, cuts.into_iter().cycle());
        let mut deleted = false;
        for event in events {
            match event {
                Event::Pod(n, state) => {
                    let state = match state {
                        0 | 1 => State::Ready,
                        2 => State::NotReady,
                        3 => State::Terminating { serving: Serving::Yes, since: Some(now) },
                        _ => State::Gone,
                    };
                    pods.insert(n, state);
                }
                Event::Mode(ip) => shape.0 = ip,
                Event::Check(http) => shape.1 = http,
                Event::Public(public) => shape.2 = public,
                Event::Ports(ports) => shape.3 = ports,
                Event::Settle => model.settle(),
                Event::Later => now += settings().dns_grace,
                Event::Deleted => deleted = !deleted,
            }
            let intent = build(&pods, shape);
            let intent = (!deleted).then_some(&intent);
            let plan = planned(intent, &model, now);
            let mut left = cuts.next().unwrap_or(0);
            let ready = pods.values().any(|state| *state == State::Ready) || !shape.0;
            'plan: for lane in Lane::ALL {
                for step in plan.runnable(lane).iter().flat_map(|group| &group.steps) {
                    if left == 0 {
                        break 'plan;
                    }
                    left -= 1;
                    let before = serving(&model, &pods, now);
                    model.execute(step);
                    let after: std::collections::BTreeMap<_, _> = serving(&model, &pods, now).into_iter().collect();
                    for (listener, was) in before {
                        let is = after.get(&listener).copied();
                        prop_assert!(!(was && ready && !deleted && is == Some(false)), "I2: {step} of\n{plan}");
                    }
                }
            }
        }
        let intent = build(&pods, shape);
        for _ in 0..8 {
            converge(&mut model, Some(&intent), now);
            model.settle();
            now += settings().dns_grace;
        }
        prop_assert!(planned(Some(&intent), &model, now).is_empty(), "I4");
        prop_assert_eq!(model.seen.balancers.len(), 1, "I6: no duplicate");
        prop_assert_eq!(model.seen.groups.len(), usize::from(shape.3), "I6: nothing left over");
        for _ in 0..4 {
            converge(&mut model, None, now);
            model.settle();
        }
        prop_assert!(model.seen.is_empty(), "AWS-645: {:?}", model.seen.groups.iter().map(Tagged::generation).collect::<Vec<_>>());
    }
}
