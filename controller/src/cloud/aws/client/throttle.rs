//! Token buckets in front of the APIs, one for each family of calls, shared by all shards (AWS-711). A
//! refusal for pace halves the rate; it recovers slowly (AWS-712). Where tokens are short, who needs one
//! most is served first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::Notify;

/// Families of calls that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Reads of ELB.
    Describe,
    /// Those of them that only look how targets are.
    Health,
    /// Register and deregister.
    Members,
    /// Other writes of ELB.
    Change,
    /// EC2.
    Ec2,
}

/// Rate and burst of one family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Calls a second.
    pub rate: f64,
    /// Calls that pass at once when there were none for long.
    pub burst: f64,
}

/// The limits of all families (AWS-711).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Reads of ELB. Looks at targets at rest or on their way get half of it.
    pub describe: Limit,
    /// Register and deregister.
    pub members: Limit,
    /// Other writes of ELB.
    pub change: Limit,
    /// EC2.
    pub ec2: Limit,
}

impl Default for Limits {
    fn default() -> Self {
        let limit = |rate, burst| Limit { rate, burst };
        Self {
            describe: limit(8.0, 30.0),
            members: limit(4.0, 20.0),
            change: limit(3.0, 20.0),
            ec2: limit(10.0, 50.0),
        }
    }
}

/// Least share of the rate that is left after many refusals.
const LEAST: f64 = 1.0 / 16.0;
/// Time in which a halved rate doubles again.
const RECOVERY: f64 = 30.0;
/// How long guarded targets wait for their deregistration at most: half of what a load balancer may
/// go on sending to them after it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Who goes first where tokens are short (AWS-712): the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// A registration, by the share of its group's wanted targets that take flows, in percent.
    Register(u8),
    /// A deregistration of targets of which one has nobody that stands in for it.
    Deregister,
    /// A deregistration of targets that are all guarded: never before others, and never starved.
    DeregisterGuarded,
    /// Whatever comes in its own order.
    Other,
}

/// The buckets.
#[derive(Debug)]
pub struct Throttle {
    clock: Clock,
    lines: [Mutex<Line>; 5],
}

/// One bucket and who waits at it.
#[derive(Debug)]
struct Line {
    bucket: Bucket,
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    turn: Turn,
    since: Time,
    wake: Arc<Notify>,
}

impl Waiter {
    fn rank(&self, now: Time) -> Turn {
        if self.turn == Turn::DeregisterGuarded && now.since(self.since) >= PATIENCE {
            return Turn::Register(0);
        }
        self.turn
    }
}

impl Line {
    fn first(&self, now: Time) -> Option<u64> {
        let of = self.waiting.iter();
        of.map(|(number, waiter)| (waiter.rank(now), *number))
            .min()
            .map(|(_, number)| number)
    }

    fn wake_first(&self, now: Time) {
        let first = self.first(now).and_then(|number| self.waiting.get(&number));
        if let Some(waiter) = first {
            waiter.wake.notify_one();
        }
    }
}

/// When somebody came to the line.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    number: u64,
    since: Time,
}

/// A place in the line, given up when dropped.
#[derive(Debug)]
#[must_use]
pub struct Place<'a> {
    throttle: &'a Throttle,
    family: Family,
    number: u64,
    wake: Arc<Notify>,
}

impl Place<'_> {
    /// Waits for a token.
    pub async fn token(self) {
        let clock = self.throttle.clock;
        loop {
            let wait = self.throttle.with(self.family, |line| {
                let now = clock.now();
                if line.first(now) != Some(self.number) {
                    // Time has made somebody else the first.
                    line.wake_first(now);
                    return Some(None);
                }
                line.bucket.take(now).map(Some)
            });
            match wait {
                None => return,
                Some(None) => self.wake.notified().await,
                Some(Some(wait)) => {
                    tokio::select! {
                        () = clock.sleep(wait) => {}
                        () = self.wake.notified() => {}
                    }
                }
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let now = self.throttle.clock.now();
        self.throttle.with(self.family, |line| {
            line.waiting.remove(&self.number);
            line.wake_first(now);
        });
    }
}

/// One bucket. Pure but for its state.
#[derive(Clone, Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    /// Share of the rate that is used, 1 when nothing was refused lately.
    share: f64,
    level: f64,
    at: Time,
}

impl Bucket {
    const fn full(limit: Limit, at: Time) -> Self {
        let Limit { rate, burst } = limit;
        Self {
            rate,
            burst,
            share: 1.0,
            level: burst,
            at,
        }
    }

    /// Takes a token, or says how long to wait for one.
    fn take(&mut self, now: Time) -> Option<Duration> {
        let rate = self.fill(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return None;
        }
        Some(Duration::from_secs_f64((1.0 - self.level) / rate))
    }

    /// Lets time pass; gives the rate.
    fn fill(&mut self, now: Time) -> f64 {
        let passed = now.since(self.at).as_secs_f64();
        self.at = now;
        self.share = (self.share * 2_f64.powf(passed / RECOVERY)).min(1.0);
        let rate = self.rate * self.share;
        self.level = (self.level + passed * rate).min(self.burst);
        rate
    }

    fn refused(&mut self) {
        self.share = (self.share / 2.0).max(LEAST);
        self.level = self.level.min(0.0);
    }
}

impl Throttle {
    /// Full buckets.
    pub fn new(clock: Clock, limits: &Limits) -> Self {
        let now = clock.now();
        let half = Limit {
            rate: limits.describe.rate / 2.0,
            burst: limits.describe.burst / 2.0,
        };
        let line = |limit| {
            Mutex::new(Line {
                bucket: Bucket::full(limit, now),
                waiting: BTreeMap::new(),
                next: 0,
            })
        };
        let Limits {
            describe,
            members,
            change,
            ec2,
        } = *limits;
        Self {
            clock,
            // In the order of the families.
            lines: [describe, half, members, change, ec2].map(line),
        }
    }

    /// A place in the line for somebody who may come later, or leave and come back.
    pub fn ticket(&self, family: Family) -> Ticket {
        let since = self.clock.now();
        self.with(family, |line| {
            line.next += 1;
            Ticket {
                number: line.next,
                since,
            }
        })
    }

    /// Takes a place in the line.
    pub fn enter(&self, family: Family, turn: Turn, ticket: Ticket) -> Place<'_> {
        let wake = Arc::new(Notify::new());
        let waiter = Waiter {
            turn,
            since: ticket.since,
            wake: Arc::clone(&wake),
        };
        let now = self.clock.now();
        self.with(family, |line| {
            line.waiting.insert(ticket.number, waiter);
            // It may be the first one now.
            line.wake_first(now);
        });
        Place {
            throttle: self,
            family,
            number: ticket.number,
            wake,
        }
    }

    /// Waits for a token.
    pub async fn pass(&self, family: Family, turn: Turn) {
        let ticket = self.ticket(family);
        self.enter(family, turn, ticket).token().await;
    }

    /// Takes a token for a look at targets, if there is one that nobody waits for: what can come later need hold nobody
    /// up. Those at rest leave half of the tokens to those on their way.
    pub fn spare(&self, need: Need) -> bool {
        let now = self.clock.now();
        let free = |family, share: f64| {
            self.with(family, |line| {
                line.bucket.fill(now);
                let left = line.bucket.level - 1.0;
                line.waiting.is_empty() && left >= line.bucket.burst * share
            })
        };
        let share = match need {
            Need::OnTheirWay => 0.0,
            Need::AtRest => 0.5,
        };
        let both = free(Family::Health, share) && free(Family::Describe, 0.0);
        both && [Family::Health, Family::Describe]
            .into_iter()
            .all(|family| self.with(family, |line| line.bucket.take(now).is_none()))
    }

    /// The service has refused a call for its pace.
    pub fn refused(&self, family: Family) {
        self.with(family, |line| line.bucket.refused());
    }

    fn with<T>(&self, family: Family, act: impl FnOnce(&mut Line) -> T) -> T {
        let line = &self.lines[family as usize];
        act(&mut line.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why targets are looked at that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Something is about to change (AWS-510).
    OnTheirWay,
    /// To find what others have changed (AWS-423).
    AtRest,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn limit(rate: f64, burst: f64) -> Limit {
        Limit { rate, burst }
    }

    const fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn aws711_the_burst_passes_and_then_the_rate() {
        let mut bucket = Bucket::full(limit(4.0, 20.0), at(0));
        let passed = (0..30).filter(|_| bucket.take(at(0)).is_none()).count();
        assert_eq!(passed, 20);
        let wait = bucket.take(at(0)).unwrap();
        assert_eq!(wait, Duration::from_millis(250));
        assert_eq!(bucket.take(at(250)), None);
    }

    #[test]
    fn aws712_a_refusal_halves_the_rate_which_recovers_slowly() {
        let mut bucket = Bucket::full(limit(4.0, 1.0), at(0));
        bucket.refused();
        assert_eq!(bucket.take(at(0)), Some(Duration::from_millis(500)));
        for _ in 0..20 {
            bucket.refused();
        }
        assert_eq!(bucket.take(at(0)), Some(Duration::from_secs(4)), "a floor");
        bucket.take(at(600_000));
        assert!((bucket.share - 1.0).abs() < 1e-9);
    }

    /// Lets all of them ask for a token at once where the bucket is empty; gives their order.
    async fn order(throttle: &Arc<Throttle>, turns: &[(&'static str, Turn)]) -> Vec<&'static str> {
        let served = Arc::new(Mutex::new(Vec::new()));
        let calls = turns.iter().map(|(name, turn)| {
            let (throttle, served) = (Arc::clone(throttle), Arc::clone(&served));
            async move {
                throttle.pass(Family::Members, *turn).await;
                served.lock().unwrap().push(*name);
            }
        });
        futures::future::join_all(calls).await;
        let served = served.lock().unwrap();
        served.clone()
    }

    async fn empty() -> Arc<Throttle> {
        let throttle = Throttle::new(Clock::fixed(Time::EPOCH), &Limits::default());
        for _ in 0..20 {
            throttle.pass(Family::Members, Turn::Other).await;
        }
        Arc::new(throttle)
    }

    #[tokio::test(start_paused = true)]
    async fn aws712_aws421_where_tokens_are_short_the_groups_that_need_them_most_come_first() {
        let throttle = empty().await;
        let start = throttle.clock.now();
        let turns = [
            ("guarded", Turn::DeregisterGuarded),
            ("unguarded", Turn::Deregister),
            ("whole", Turn::Register(100)),
            ("half", Turn::Register(50)),
            ("none", Turn::Register(0)),
            ("another half", Turn::Register(50)),
        ];
        let order = order(&throttle, &turns).await;
        let wanted = [
            "none",
            "half",
            "another half",
            "whole",
            "unguarded",
            "guarded",
        ];
        assert_eq!(order, wanted, "AWS-712");
        let took = throttle.clock.now().since(start);
        assert_eq!(took, Duration::from_millis(6 * 250), "AWS-711: 4 a second");
    }

    #[tokio::test(start_paused = true)]
    async fn aws712_guarded_targets_wait_no_longer_than_the_tail_allows() {
        let throttle = empty().await;
        let guarded = throttle.pass(Family::Members, Turn::DeregisterGuarded);
        let start = throttle.clock.now();
        // For ever more registrations than there are tokens.
        let flood = async {
            loop {
                let burst =
                    std::iter::repeat_with(|| throttle.pass(Family::Members, Turn::Register(0)));
                futures::future::join_all(burst.take(10)).await;
            }
        };
        tokio::select! {
            () = guarded => {}
            () = flood => {}
        }
        let waited = throttle.clock.now().since(start);
        assert!(waited >= PATIENCE, "AWS-712: {waited:?}");
        // Behind the ten that were in the line by then.
        assert!(
            waited < PATIENCE + Duration::from_secs(3),
            "AWS-712: {waited:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn aws712_who_leaves_is_in_nobodys_way_and_comes_back_to_the_old_place() {
        let throttle = empty().await;
        let (family, turn) = (Family::Members, Turn::Register(10));
        let ticket = throttle.ticket(family);
        drop(throttle.enter(family, turn, ticket));
        let start = throttle.clock.now();
        throttle.pass(family, turn).await;
        let quarter = Duration::from_millis(250);
        assert_eq!(
            throttle.clock.now().since(start),
            quarter,
            "nobody else waits"
        );
        let later = throttle.ticket(family);
        let mut later = Box::pin(throttle.enter(family, turn, later).token());
        tokio::select! {
            () = &mut later => panic!("AWS-712: it was before"),
            () = throttle.enter(family, turn, ticket).token() => {}
        }
        assert_eq!(throttle.clock.now().since(start), quarter * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn aws711_looks_at_targets_have_half_of_the_reads_and_those_at_rest_half_of_that_burst() {
        let throttle = Throttle::new(Clock::fixed(Time::EPOCH), &Limits::default());
        let taken = |need| (0..100).filter(|_| throttle.spare(need)).count();
        assert_eq!(taken(Need::AtRest), 7, "AWS-423");
        assert_eq!(taken(Need::OnTheirWay), 8, "AWS-510: they come first");
        throttle.clock.sleep(Duration::from_mins(1)).await;
        let mut looks = 0;
        for _ in 0..60 {
            throttle.clock.sleep(Duration::from_secs(1)).await;
            looks += taken(Need::AtRest);
        }
        assert!((236..=250).contains(&looks), "AWS-711: {looks} a minute");
        // Somebody waits for a read that he cannot do without.
        while throttle
            .with(Family::Describe, |l| l.bucket.take(throttle.clock.now()))
            .is_none()
        {}
        let ticket = throttle.ticket(Family::Describe);
        let _waits = throttle.enter(Family::Describe, Turn::Other, ticket);
        throttle.clock.sleep(Duration::from_secs(1)).await;
        assert!(!throttle.spare(Need::OnTheirWay), "AWS-711");
    }

    #[test]
    fn aws710_aws711_our_buckets_are_not_above_the_services() {
        // What the service allows an account: reads 10 a second, 40 at once; the others were measured.
        let limits = Limits::default();
        let service = [
            (limits.describe, 10.0, 40.0),
            (limits.members, 4.0, 20.0),
            (limits.change, 3.0, 20.0),
        ];
        for (ours, rate, burst) in service {
            assert!(
                ours.rate <= rate && ours.burst <= burst,
                "AWS-710: {ours:?}"
            );
        }
    }
}
