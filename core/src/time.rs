//! A point in time, in milliseconds. No clock here: the caller brings the time.
//!
//! Used wherever a rule depends on time, and in the fields of our own objects (RFC 3339, UTC).

use std::borrow::Cow;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::ParseError;

/// Milliseconds since 1970 in UTC. Arithmetic saturates: a time is never an error.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

impl Time {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// A time from milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The time between `earlier` and this one; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The same time without its fraction of a second: what the API's `Time` fields can hold.
    #[must_use]
    pub const fn whole_seconds(self) -> Self {
        Self(self.0 - self.0.rem_euclid(1000))
    }

    fn timestamp(self) -> Timestamp {
        // Out of range only beyond the year 9999, where nothing more precise is wanted.
        Timestamp::from_millisecond(self.0).unwrap_or(if self.0 < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }
}

impl From<Timestamp> for Time {
    fn from(timestamp: Timestamp) -> Self {
        Self(timestamp.as_millisecond())
    }
}

impl From<&meta::Time> for Time {
    fn from(time: &meta::Time) -> Self {
        time.0.into()
    }
}

impl From<&meta::MicroTime> for Time {
    fn from(time: &meta::MicroTime) -> Self {
        time.0.into()
    }
}

impl From<Time> for meta::Time {
    fn from(time: Time) -> Self {
        Self(time.whole_seconds().timestamp())
    }
}

impl From<Time> for meta::MicroTime {
    fn from(time: Time) -> Self {
        Self(time.timestamp())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Time {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        text.parse::<Timestamp>()
            .map(Self::from)
            .map_err(|_| ParseError {
                text: text.to_owned(),
                what: "an RFC 3339 time",
            })
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_rfc_3339_with_milliseconds() {
        let text = "2026-03-04T05:06:07.089Z";
        let time: Time = text.parse().unwrap();
        assert_eq!(time.to_string(), text);
        assert_eq!(serde_json::to_value(time).unwrap(), text);
        assert_eq!(
            serde_json::from_str::<Time>("\"2026-03-04T05:06:07Z\"").unwrap(),
            time.whole_seconds()
        );
    }

    #[test]
    fn arithmetic_saturates() {
        let early = Time::from_millis(5);
        let late = early + Duration::from_secs(1);
        assert_eq!(late.since(early), Duration::from_secs(1));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(
            Time::from_millis(i64::MAX) + Duration::MAX,
            Time::from_millis(i64::MAX)
        );
    }
}
