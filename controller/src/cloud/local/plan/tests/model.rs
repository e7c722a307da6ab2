//! The cloud in small.

use super::*;

/// The cloud, as far as the planner can see it: every step does what its call does.
#[derive(Clone, Debug, Default)]
pub(super) struct Cloud {
    pub(super) seen: Observed,
    pub(super) made: u32,
    pub(super) writes: u32,
}

impl Cloud {
    pub(super) fn execute(&mut self, step: &LocalStep) {
        self.writes += 1;
        match step {
            LocalStep::CreateBalancer(spec) => {
                assert!(self.balancer(&spec.name).is_none(), "made twice: {step}");
                let (id, state) = (self.next_id("lb"), BalancerState::Active);
                let uid = spec.tags[names::SERVICE_UID].as_str().into();
                let listeners = BTreeMap::new();
                self.seen.balancers.push(Balancer {
                    id,
                    uid,
                    state,
                    listeners,
                    spec: spec.clone(),
                });
            }
            LocalStep::CreateGroup(spec) => {
                let twice = self.seen.groups.iter().any(|g| g.spec.name == spec.name);
                assert!(!twice, "made twice: {step}");
                let id = self.next_id("group");
                let group = tagged(id, spec);
                self.seen.groups.push(group);
            }
            LocalStep::AdjustBalancer(spec) => {
                self.balancer(&spec.name).unwrap().spec = spec.clone();
            }
            LocalStep::AdjustGroup(spec) => {
                let group = self.group(&spec.name);
                let targets = std::mem::take(&mut group.targets);
                let zones = std::mem::take(&mut group.zones);
                *group = Group {
                    targets,
                    zones,
                    ..tagged(group.id.clone(), spec)
                };
            }
            LocalStep::Register { group, targets } => {
                let group = self.group(group);
                for (key, zone) in targets {
                    let state = group.targets.get(key).copied();
                    let state = state.filter(|state| state.registered());
                    group
                        .targets
                        .insert(*key, state.unwrap_or(CloudState::Initial));
                    match zone {
                        Some(zone) => group.zones.insert(*key, zone.clone()),
                        None => group.zones.remove(key),
                    };
                }
            }
            LocalStep::Deregister { group, targets, .. } => {
                let group = self.group(group);
                group
                    .targets
                    .extend(targets.iter().map(|(key, _)| (*key, CloudState::Draining)));
            }
            LocalStep::PutListener {
                balancer,
                listener,
                group,
                ..
            } => {
                let id = self.group(group).id.clone();
                self.balancer(balancer)
                    .unwrap()
                    .listeners
                    .insert(*listener, id);
            }
            LocalStep::DeleteListener {
                balancer, listener, ..
            } => {
                self.balancer(balancer).unwrap().listeners.remove(listener);
            }
            LocalStep::DeleteBalancer { name } => {
                self.seen.balancers.retain(|b| b.spec.name != *name);
            }
            LocalStep::DeleteGroup { name } => {
                let used = self
                    .seen
                    .groups
                    .iter()
                    .any(|g| g.spec.name == *name && self.seen.in_use(g));
                assert!(!used, "deleted while in use: {step}");
                self.seen.groups.retain(|g| g.spec.name != *name);
            }
        }
    }

    pub(super) fn next_id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}-{}", self.made)
    }

    pub(super) fn balancer(&mut self, name: &str) -> Option<&mut Balancer> {
        self.seen.balancers.iter_mut().find(|b| b.spec.name == name)
    }

    pub(super) fn group(&mut self, name: &str) -> &mut Group {
        self.seen
            .groups
            .iter_mut()
            .find(|g| g.spec.name == name)
            .unwrap()
    }

    /// Probes succeed, drains end.
    pub(super) fn settle(&mut self) {
        for group in &mut self.seen.groups {
            group
                .targets
                .retain(|_, state| *state != CloudState::Draining);
            let judged = group.spec.probe.is_some();
            for state in group.targets.values_mut() {
                *state = if judged {
                    CloudState::Healthy
                } else {
                    CloudState::Unjudged
                };
            }
        }
    }

    /// Plans and carries out until nothing is left to do, as the reconciler does: lane by lane, each
    /// from a fresh look. Gives up after too many rounds.
    pub(super) fn converge(&mut self, intent: Option<&Intent>, now: &mut Time) {
        for _ in 0..40 {
            let plan = plan(&settings(), &service(), intent, &self.seen, *now);
            if plan.is_empty() {
                let look = next_look(
                    &settings(),
                    intent.map_or(&[], std::slice::from_ref),
                    &self.seen,
                    *now,
                );
                let before = self.seen.clone();
                self.settle();
                // A held target is looked at again and again; nothing but its end changes that.
                let rests =
                    before == self.seen && before.groups.iter().all(|g| g.retired.is_none());
                let Some(look) = look.filter(|_| !rests) else {
                    return;
                };
                *now = look.max(*now + Duration::from_secs(30));
                continue;
            }
            for lane in Lane::ALL {
                for group in plan.runnable(lane) {
                    group.steps.iter().for_each(|step| self.execute(step));
                }
            }
        }
        panic!("does not come to rest: {:#?}", self.seen);
    }
}

pub(super) fn tagged(id: String, spec: &GroupSpec) -> Group {
    Group {
        id,
        uid: spec.tags[names::SERVICE_UID].as_str().into(),
        port: names::port_from_tag(&spec.tags[names::PORT]).unwrap(),
        generation: spec.tags[names::GENERATION].parse().unwrap(),
        retired: spec
            .tags
            .get(names::RETIRED)
            .map(|since| since.parse().unwrap()),
        spec: spec.clone(),
        targets: BTreeMap::new(),
        zones: BTreeMap::new(),
    }
}

pub(super) fn converged(intent: &Intent) -> (Cloud, Time) {
    let (mut cloud, mut now) = (Cloud::default(), NOW);
    cloud.converge(Some(intent), &mut now);
    (cloud, now)
}

pub(super) fn planned(intent: Option<&Intent>, cloud: &Cloud, now: Time) -> String {
    plan(&settings(), &service(), intent, &cloud.seen, now).to_string()
}
