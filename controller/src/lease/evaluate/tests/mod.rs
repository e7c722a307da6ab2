//! Random sequences of candidates that look, write, are paused and die, with clocks that differ, against
//! the one thing that must hold: never two whose fences are up, and no call of the last one is under
//! way when the next one's fence rises.

use proptest::prelude::*;

use super::*;

fn timing() -> Timing {
    let ms = Duration::from_millis;
    Timing::new(ms(15_000), ms(10_000), ms(2_000)).unwrap()
}

/// A write on its way.
struct Pending {
    started: Time,
    spec: LeaseSpec,
    against: Option<u64>,
    answer: Option<Answer>,
}

/// How the API server answers a write.
enum Answer {
    /// Done; the Lease's new version.
    Written(u64),
    /// Somebody was faster.
    Conflict,
}

#[derive(Default)]
struct Candidate {
    /// Its clock is ahead of the real time by so many milliseconds.
    ahead: i64,
    name: String,
    lives: u32,
    seen: Option<Sighting>,
    spec: Option<LeaseSpec>,
    version: Option<u64>,
    until: Option<Time>,
    pending: Option<Pending>,
}

#[derive(Default)]
struct World {
    real: i64,
    lease: Option<(u64, LeaseSpec)>,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Debug)]
enum Act {
    /// Time passes: a pause for whoever has something to do.
    Pass(u16),
    /// Reads the Lease.
    Look(usize),
    /// Sends a write, if it is for it to write.
    Send(usize),
    /// The write arrives.
    Arrive(usize),
    /// Its answer arrives.
    Answer(usize),
    /// Gives the Lease up after its last call.
    Release(usize),
    /// Dies and comes back as somebody else.
    Die(usize),
}

fn record(spec: &LeaseSpec) -> Record {
    Record::from(&Lease {
        spec: Some(spec.clone()),
        ..Lease::default()
    })
}

impl World {
    fn new(ahead: &[i64]) -> Self {
        let candidate = |(index, ahead): (usize, &i64)| Candidate {
            ahead: *ahead,
            name: format!("{index}-0"),
            ..Candidate::default()
        };
        Self {
            candidates: ahead.iter().enumerate().map(candidate).collect(),
            ..Self::default()
        }
    }

    fn now(&self, i: usize) -> Time {
        Time::from_millis(self.real + self.candidates[i].ahead)
    }

    fn leads(&self, i: usize) -> bool {
        let until = self.candidates[i].until;
        until.is_some_and(|until| self.now(i) < until)
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Pass(ms) => self.real += i64::from(ms),
            Act::Look(i) => self.look(i),
            Act::Send(i) => self.send(i),
            Act::Arrive(i) => self.arrive(i),
            Act::Answer(i) => self.answer(i),
            Act::Release(i) => self.release(i),
            Act::Die(i) => self.die(i),
        }
    }

    fn look(&mut self, i: usize) {
        let now = self.now(i);
        let me = &mut self.candidates[i];
        me.version = self.lease.as_ref().map(|(version, _)| *version);
        me.spec = self.lease.as_ref().map(|(_, spec)| spec.clone());
        let seen = me.seen.take();
        me.seen = me
            .spec
            .as_ref()
            .map(|s| Sighting::after(seen, record(s), now));
    }

    fn send(&mut self, i: usize) {
        let now = self.now(i);
        let me = &mut self.candidates[i];
        match me.until {
            Some(until) if now >= until => return self.die(i),
            Some(_) => {}
            None => match evaluate(me.seen.as_ref(), &me.name, &timing(), now) {
                Verdict::Held { .. } => return,
                Verdict::Vacant | Verdict::Mine | Verdict::Expired => {}
            },
        }
        me.pending = Some(Pending {
            started: now,
            spec: held(me.spec.as_ref(), &me.name, &timing(), now),
            against: me.version,
            answer: None,
        });
    }

    fn arrive(&mut self, i: usize) {
        let Some(pending) = &mut self.candidates[i].pending else {
            return;
        };
        if pending.answer.is_some() {
            return;
        }
        let version = self.lease.as_ref().map(|(version, _)| *version);
        let fits = pending.against == version;
        let next = version.unwrap_or_default() + 1;
        if fits {
            self.lease = Some((next, pending.spec.clone()));
        }
        pending.answer = Some(if fits {
            Answer::Written(next)
        } else {
            Answer::Conflict
        });
    }

    fn answer(&mut self, i: usize) {
        let now = self.now(i);
        let me = &mut self.candidates[i];
        let Some(pending) = me.pending.take_if(|p| p.answer.is_some()) else {
            return;
        };
        let Some(Answer::Written(version)) = pending.answer else {
            // A leader looks whether it is still the one; a candidate looks before its next try.
            self.look(i);
            let holder = self
                .lease
                .as_ref()
                .and_then(|(_, spec)| spec.holder_identity.clone());
            if self.candidates[i].until.is_some() && holder != Some(self.candidates[i].name.clone())
            {
                self.die(i);
            }
            return;
        };
        me.version = Some(version);
        me.seen = Some(Sighting::after(me.seen.take(), record(&pending.spec), now));
        me.spec = Some(pending.spec);
        let until = pending.started + timing().deadline();
        if now >= until {
            return;
        }
        me.until = Some(until);
        self.risen(i);
    }

    /// A fence went up: nobody else's is, and nobody else's last call can be under way.
    fn risen(&self, i: usize) {
        for (j, other) in self.candidates.iter().enumerate().filter(|(j, _)| *j != i) {
            let Some(until) = other.until else { continue };
            let ended = until + timing().call_limit();
            assert!(ended < self.now(j), "{j} may write while {i} begins");
        }
    }

    fn release(&mut self, i: usize) {
        self.look(i);
        let now = self.now(i);
        let me = &self.candidates[i];
        if let Some((version, spec)) = &self.lease
            && spec.holder_identity.as_deref() == Some(&me.name)
        {
            self.lease = Some((version + 1, released(spec.clone(), now)));
        }
        self.die(i);
        // Lowered and idle before it was released: no call can be under way.
        self.candidates[i].until = None;
    }

    /// Its calls may still be under way, so its fence counts on.
    fn die(&mut self, i: usize) {
        let me = &mut self.candidates[i];
        me.lives += 1;
        let life = format!("{i}-{}", me.lives);
        *me = Candidate {
            ahead: me.ahead,
            name: life,
            lives: me.lives,
            ..Candidate::default()
        };
    }

    /// Whoever is left gets the Lease in the end.
    fn settle(&mut self) {
        for _ in 0..2 {
            self.look(0);
            self.real += 31_000;
        }
        self.die(0);
        self.look(0);
        self.real += 15_000;
        for act in [Act::Look(0), Act::Send(0), Act::Arrive(0), Act::Answer(0)] {
            self.act(&act);
        }
        assert!(
            self.leads(0),
            "nobody else lives, and still it does not lead"
        );
    }
}

fn act(candidates: usize) -> impl Strategy<Value = Act> {
    let who = 0..candidates;
    prop_oneof![
        6 => (0..4_000_u16).prop_map(Act::Pass),
        1 => (0..40_000_u16).prop_map(Act::Pass),
        6 => who.clone().prop_map(Act::Look),
        8 => who.clone().prop_map(Act::Send),
        8 => who.clone().prop_map(Act::Arrive),
        8 => who.clone().prop_map(Act::Answer),
        1 => who.clone().prop_map(Act::Release),
        1 => who.prop_map(Act::Die),
    ]
}

proptest! {
    #[test]
    fn never_two_fences_are_up_whatever_clocks_pauses_and_deaths_do(
        ahead in prop::collection::vec(-1_000_000_000_i64..1_000_000_000, 3),
        acts in prop::collection::vec(act(3), 1..400),
    ) {
        let mut world = World::new(&ahead);
        for act in &acts {
            world.act(act);
            let up = (0..3).filter(|i| world.leads(*i)).count();
            prop_assert!(up <= 1, "{up} fences are up");
        }
        world.settle();
    }
}

#[test]
fn a_holder_that_renews_is_believed_whatever_its_clock_says() {
    let me = "me";
    let spec = |renewed| {
        let rival = held(None, "rival", &timing(), Time::from_millis(renewed));
        record(&rival)
    };
    let now = Time::from_millis(1_000_000);
    let first = Sighting::after(None, spec(0), now);
    let almost = now + Duration::from_secs(15) - Duration::from_millis(1);
    assert!(matches!(
        evaluate(Some(&first), me, &timing(), almost),
        Verdict::Held { .. }
    ));
    let expired = now + Duration::from_secs(15);
    assert_eq!(
        evaluate(Some(&first), me, &timing(), expired),
        Verdict::Expired
    );
    // Backwards by its clock: a renewal nonetheless.
    let again = Sighting::after(Some(first), spec(-5), almost);
    assert!(matches!(
        evaluate(Some(&again), me, &timing(), expired),
        Verdict::Held { .. }
    ));
}

#[test]
fn a_released_lease_is_vacant_at_once_and_changes_hands_are_counted() {
    let now = Time::from_millis(5_000);
    let first = held(None, "a", &timing(), now);
    assert_eq!(first.lease_transitions, Some(0));
    let free = released(first, now);
    let seen = Sighting::after(None, record(&free), now);
    assert_eq!(evaluate(Some(&seen), "b", &timing(), now), Verdict::Vacant);
    let second = held(Some(&free), "b", &timing(), now + Duration::from_secs(1));
    assert_eq!(second.lease_transitions, Some(1));
    let renewed = held(Some(&second), "b", &timing(), now + Duration::from_secs(2));
    assert_eq!(renewed.acquire_time, second.acquire_time);
    assert_eq!(renewed.lease_transitions, Some(1));
}

#[test]
fn times_that_could_let_two_lead_are_refused() {
    let s = Duration::from_secs;
    assert_eq!(Timing::new(s(10), s(10), s(2)), Err(TimingError::Deadline));
    assert_eq!(Timing::new(s(10), s(2), s(2)), Err(TimingError::Retry));
    let part = Duration::from_millis(1500);
    assert_eq!(Timing::new(part, s(1), s(0)), Err(TimingError::Lease));
    assert!(timing().call_limit() < s(5));
}
