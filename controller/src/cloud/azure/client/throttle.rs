//! What Azure has asked to be left alone with: one direction of one kind of resource, until then; everything else goes on
//! (AZ-371). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::time::Time;

/// How long after a refusal that does not say.
const UNSAID: Duration = Duration::from_secs(10);

/// A direction of a kind of resource.
pub(super) type Way = (String, Direction);

/// Whether something is asked or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// GET.
    Read,
    /// PUT and DELETE.
    Write,
}

/// What is to be left alone, and until when.
#[derive(Debug, Default)]
pub(super) struct Throttle(BTreeMap<Way, Time>);

impl Throttle {
    /// Notes that Azure has answered 429.
    pub(super) fn refused(&mut self, way: Way, retry_after: Option<Duration>, now: Time) {
        self.0.insert(way, now + retry_after.unwrap_or(UNSAID));
    }

    /// What was answered with 429 was no throttling.
    pub(super) fn lift(&mut self, way: &Way) {
        self.0.remove(way);
    }

    /// How long to wait before the next request, if at all.
    pub(super) fn wait(&self, way: &Way, now: Time) -> Option<Duration> {
        let until = *self.0.get(way)?;
        (until > now).then(|| until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn az371_one_direction_of_one_kind_waits_and_everything_else_goes_on() {
        let now = Time::from_millis(1_800_000_000_000);
        let way = |kind: &str, direction| (kind.to_owned(), direction);
        let writes = way("loadBalancers", Direction::Write);
        let mut throttle = Throttle::default();
        assert_eq!(throttle.wait(&writes, now), None);
        throttle.refused(writes.clone(), Some(Duration::from_secs(3)), now);
        assert_eq!(throttle.wait(&writes, now), Some(Duration::from_secs(3)));
        assert_eq!(throttle.wait(&writes, now + Duration::from_secs(3)), None);
        for other in [
            way("loadBalancers", Direction::Read),
            way("publicIPAddresses", Direction::Write),
        ] {
            assert_eq!(throttle.wait(&other, now), None);
        }
        throttle.refused(writes.clone(), None, now);
        assert_eq!(throttle.wait(&writes, now), Some(UNSAID));
        throttle.lift(&writes);
        assert_eq!(throttle.wait(&writes, now), None, "AZ-184");
    }
}
