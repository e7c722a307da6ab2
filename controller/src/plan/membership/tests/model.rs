//! The policy against a tiny model of pods and of a group, with registrations that fail now and then.

use proptest::prelude::*;

use super::*;

/// What happens to the model.
#[derive(Clone, Copy, Debug)]
enum Event {
    Start(u8),
    Flap(u8),
    Terminate(u8),
    End(u8),
    /// The cloud judges every target by what it is.
    Probe,
    /// The next registrations are refused, or accepted again.
    Refuse(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..6u8;
    prop_oneof![
        3 => pod.clone().prop_map(Event::Start),
        1 => pod.clone().prop_map(Event::Flap),
        2 => pod.clone().prop_map(Event::Terminate),
        2 => pod.prop_map(Event::End),
        3 => Just(Event::Probe),
        1 => any::<bool>().prop_map(Event::Refuse),
    ]
}

#[derive(Default)]
struct Model {
    pods: BTreeMap<u8, State>,
    group: BTreeMap<TargetKey, CloudState>,
    refuses: bool,
}

fn state_of(pods: &BTreeMap<u8, State>, target: &TargetKey) -> State {
    let pod = pods.iter().find(|(n, _)| key(**n) == *target);
    pod.map_or(Gone, |(_, state)| *state)
}

impl Model {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(n) => {
                let pod = self.pods.entry(n).or_insert(Ready);
                if *pod == Gone {
                    *pod = Ready;
                }
            }
            Event::Flap(n) => {
                if let Some(pod) = self.pods.get_mut(&n) {
                    *pod = match *pod {
                        Ready => NotReady,
                        NotReady => Ready,
                        other => other,
                    };
                }
            }
            Event::Terminate(n) => {
                if let Some(pod) = self.pods.get_mut(&n).filter(|p| **p == Ready) {
                    *pod = DYING;
                }
            }
            Event::End(n) => {
                if let Some(pod) = self.pods.get_mut(&n) {
                    *pod = Gone;
                }
            }
            Event::Probe => {
                self.group.retain(|_, state| *state != Draining);
                let pods = self.pods.clone();
                for (target, state) in &mut self.group {
                    let answers =
                        matches!(state_of(&pods, target), Ready | State::Terminating { .. });
                    *state = if answers { Healthy } else { Unhealthy };
                }
            }
            Event::Refuse(refuses) => self.refuses = refuses,
        }
    }

    fn state(&self, key: &TargetKey) -> State {
        state_of(&self.pods, key)
    }

    fn decide(&self) -> Decision {
        let members: Vec<_> = self
            .pods
            .iter()
            .map(|(n, state)| member(*n, *state))
            .collect();
        decide(&POLICY, &members, &self.group, View::Watched, NOW)
    }

    /// Carries a decision out as the executor does; returns whether anything changed.
    fn apply(&mut self, decision: &Decision) -> bool {
        let before = self.group.clone();
        let wanted: Vec<_> = decision
            .with(Action::Register)
            .map(|(key, _)| key)
            .collect();
        let accepted = !self.refuses || wanted.is_empty();
        if accepted {
            self.group
                .extend(wanted.into_iter().map(|key| (key, Initial)));
        }
        for (action, run) in [(Action::Release, true), (Action::Drain, accepted)] {
            for (key, _) in decision.with(action).filter(|_| run) {
                self.group.insert(key, Draining);
            }
        }
        before != self.group
    }

    fn registered(&self) -> impl Iterator<Item = &TargetKey> {
        self.group
            .iter()
            .filter(|(_, s)| s.registered())
            .map(|(k, _)| k)
    }
}

proptest! {
    #[test]
    fn i2_the_group_is_never_emptied_while_something_that_is_in_it_can_serve(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut model = Model::default();
        for event in events {
            model.happen(event);
            let served = model.registered().any(|k| serves_now(model.state(k)));
            let healthy = model
                .group
                .iter()
                .any(|(k, s)| *s == Healthy && model.state(k) == Ready);
            let decision = model.decide();
            for (key, _) in decision.with(Action::Drain).chain(decision.with(Action::Release)) {
                prop_assert!(model.state(&key) != Ready, "a ready pod is never taken out");
            }
            prop_assert_eq!(decision.below_floor, 0, "ZD-121");
            // ZD-01: one that could go on serving stops only when another one is healthy in the load balancer.
            for (key, reason) in decision.with(Action::Drain).chain(decision.with(Action::Release)) {
                let bounded = reason == Reason::HoldMaximum;
                if serves_now(model.state(&key)) && !bounded {
                    prop_assert!(healthy, "ZD-01: {} {:?}", key, reason);
                }
            }
            model.apply(&decision);
            if served {
                prop_assert!(model.registered().any(|k| serves_now(model.state(k))));
            }
            if healthy {
                let still = |(k, s): (&TargetKey, &CloudState)| {
                    *s == Healthy && model.state(k) == Ready
                };
                prop_assert!(model.group.iter().any(still), "healthy capacity is kept");
            }
        }
    }

    #[test]
    fn i4_decisions_come_to_rest_with_exactly_what_is_ready(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut model = Model::default();
        for event in events {
            model.happen(event);
            let decision = model.decide();
            model.apply(&decision);
        }
        model.refuses = false;
        for _ in 0..4 {
            let decision = model.decide();
            model.apply(&decision);
            model.happen(Event::Probe);
        }
        let last = model.decide();
        prop_assert!(!model.apply(&last), "I4: nothing changed, so nothing is written: {last:?}");
        for (n, state) in &model.pods {
            let registered = model.group.get(&key(*n)).is_some_and(|s| s.registered());
            match state {
                Ready => prop_assert!(registered, "a ready pod is a target"),
                Gone => prop_assert!(!registered, "a gone pod is none"),
                _ => {}
            }
        }
    }
}
