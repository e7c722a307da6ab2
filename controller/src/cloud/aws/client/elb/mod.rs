//! `ELBv2` calls: one function each, typed both ways, behind the throttle. No decision is made here.

mod balancers;
mod groups;
mod listeners;
mod reads;
mod tags;

use std::future::Future;

use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::error::of_sdk;
use super::throttle::{Family, Throttle, Turn};
use super::way::Way;
use crate::cloud::{Class, CloudError};

/// Most pages of one listing (AWS-707).
const PAGES: usize = 200;
/// Most ARNs of one call for tags.
const TAGS_AT_ONCE: usize = 20;

/// The client.
#[derive(Debug)]
pub struct Elb {
    client: Client,
}

impl Elb {
    /// Over a configured client.
    pub const fn new(client: Client) -> Self {
        Self { client }
    }
}

/// A call on the heap: the client nests a future for each of its layers.
type Answered<'a, T> = BoxFuture<'a, Result<T, CloudError>>;

fn read<'a, T: 'a, E: Refused>(
    throttle: &'a Throttle,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    async move {
        throttle.pass(Family::Describe, Turn::Other).await;
        answered(throttle, Family::Describe, tried, call.await)
    }
    .boxed()
}

fn write<'a, T: 'a, E: Refused>(
    way: Way<'a>,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    async move {
        way.throttle.pass(Family::Change, Turn::Other).await;
        let answer = way.fenced(tried, call).await?;
        answered(way.throttle, Family::Change, tried, answer)
    }
    .boxed()
}

/// A call about members, whose turn was waited for: what it carries was decided only then.
fn members<'a, T: 'a, E: Refused>(
    way: Way<'a>,
    tried: &'a str,
    call: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
) -> Answered<'a, T> {
    async move {
        let answer = way.fenced(tried, call).await?;
        answered(way.throttle, Family::Members, tried, answer)
    }
    .boxed()
}

/// What every operation's error type is.
trait Refused: ProvideErrorMetadata + std::error::Error + Send + 'static {}

impl<E: ProvideErrorMetadata + std::error::Error + Send + 'static> Refused for E {}

fn answered<T, E: Refused>(
    throttle: &Throttle,
    family: Family,
    tried: &str,
    answer: Result<T, SdkError<E>>,
) -> Result<T, CloudError> {
    answer.map_err(|error| {
        let error = of_sdk(tried, &error);
        if error.class == Class::Throttled {
            throttle.refused(family);
        }
        error
    })
}

/// What a write made or changed, which its answer has to name.
fn made<T>(found: Option<T>, tried: &str, what: &str) -> Result<T, CloudError> {
    found
        .ok_or_else(|| CloudError::new(Class::Transient, tried, format!("no {what} in the answer")))
}

/// The one object that a read asked for by name or ARN.
fn found<T>(found: Option<T>, tried: &str, asked: &str) -> Result<T, CloudError> {
    found
        .ok_or_else(|| CloudError::new(Class::NotFound, tried, format!("no {asked} in the answer")))
}

/// Pages of one listing: bounded, and never the same one twice (AWS-707).
struct Pages {
    tried: &'static str,
    count: usize,
    marker: Option<String>,
    ended: bool,
    repeats: bool,
}

impl Pages {
    const fn new(tried: &'static str) -> Self {
        Self {
            tried,
            count: 0,
            marker: None,
            ended: false,
            repeats: false,
        }
    }

    /// The marker of the next page, or none when all were read.
    #[allow(clippy::option_option, reason = "the first page has no marker")]
    fn next(&mut self) -> Result<Option<Option<String>>, CloudError> {
        if self.ended {
            return Ok(None);
        }
        if self.repeats || self.count >= PAGES {
            let what = format!("its pages do not end: {} were read", self.count);
            return Err(CloudError::new(Class::Transient, self.tried, what));
        }
        self.count += 1;
        Ok(Some(self.marker.clone()))
    }

    fn seen(&mut self, next: Option<&str>) {
        let next = next.filter(|marker| !marker.is_empty()).map(str::to_owned);
        self.ended = next.is_none();
        self.repeats = next.is_some() && next == self.marker;
        self.marker = next;
    }
}
