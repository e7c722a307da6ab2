//! The right to write. Every mutating call, to the cloud and to the API server, goes through the
//! [`Fence`]; observing and planning never ask.
//!
//! The fence is up until a time, not until somebody lowers it: a process that was stopped (SIGSTOP, a
//! paused machine) finds it down when it goes on, before any task has had a chance to tell. Time is
//! that of a monotonic clock, which runs on while the process does not.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Whether this process may write now. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fence {
    clock: Clock,
    /// Longest time for one mutating call.
    limit: Duration,
    /// Milliseconds since 1970 by our clock.
    up_until: Arc<AtomicI64>,
    /// Lowered for good.
    lowered: CancellationToken,
    /// Calls under way.
    calls: Arc<watch::Sender<usize>>,
}

/// The fence is down: the call must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not made: this process is not the one that writes")]
pub struct Fenced;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It was not made.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// It was given up, so that it cannot start after a successor's first one.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

impl Fence {
    /// A fence that is down until raised, and down for good once `lowered` is cancelled. No call
    /// through it lasts longer than `limit`.
    pub fn new(clock: Clock, limit: Duration, lowered: CancellationToken) -> Self {
        Self {
            clock,
            limit,
            up_until: Arc::new(AtomicI64::new(i64::MIN)),
            lowered,
            calls: Arc::default(),
        }
    }

    /// Raises it until a time.
    pub fn raise_until(&self, until: Time) {
        self.up_until.store(until.as_millis(), Ordering::SeqCst);
    }

    /// Raises it until it is lowered: there is no election.
    pub fn raise(&self) {
        self.raise_until(Time::from_millis(i64::MAX));
    }

    /// Lowers it for good.
    pub fn lower(&self) {
        self.lowered.cancel();
    }

    /// Cancelled once it is down for good.
    pub fn lowered(&self) -> &CancellationToken {
        &self.lowered
    }

    /// Fails when a call must not start.
    pub fn check(&self) -> Result<(), Fenced> {
        let until = Time::from_millis(self.up_until.load(Ordering::SeqCst));
        if self.lowered.is_cancelled() || self.clock.now() >= until {
            Err(Fenced)
        } else {
            Ok(())
        }
    }

    /// Makes one mutating call, unless the fence is down. A call that has started may end after the
    /// fence went down, but not after the limit.
    pub async fn call<F: Future>(&self, call: F) -> Result<F::Output, Unanswered> {
        // Counted before the check: who lowers the fence and then sees no call will never see one.
        let _under_way = UnderWay::new(&self.calls);
        self.check()?;
        let end = self.clock.now() + self.limit;
        let mut call = pin!(call);
        let mut alarm = pin!(self.clock.sleep_until(end));
        std::future::poll_fn(|context| {
            // Asked of the clock and before the call: after a stop of the process the call is woken
            // as likely first as the timer, and must not go out then.
            if self.clock.now() >= end {
                return Poll::Ready(Err(Unanswered::TimedOut(self.limit)));
            }
            if let Poll::Ready(answer) = call.as_mut().poll(context) {
                return Poll::Ready(Ok(answer));
            }
            let late = alarm.as_mut().poll(context);
            late.map(|()| Err(Unanswered::TimedOut(self.limit)))
        })
        .await
    }

    /// Waits until no call is under way.
    pub async fn idle(&self) {
        // The sender lives as long as we do.
        let _ = self.calls.subscribe().wait_for(|calls| *calls == 0).await;
    }

    /// The client with every mutating request behind the fence.
    pub fn client(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let fence = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (fence, client) = (fence.clone(), client.clone());
            async move {
                let answer = if *request.method() == Method::GET {
                    client.send(request).await
                } else {
                    fence.call(client.send(request)).await?
                };
                answer.map_err(tower::BoxError::from)
            }
        });
        Client::new(service, namespace)
    }
}

/// Counts a call for as long as it lives.
struct UnderWay<'a>(&'a watch::Sender<usize>);

impl<'a> UnderWay<'a> {
    fn new(calls: &'a watch::Sender<usize>) -> Self {
        calls.send_modify(|calls| *calls += 1);
        Self(calls)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);

    fn fence() -> (Fence, Clock) {
        let clock = Clock::fixed(Time::EPOCH);
        (Fence::new(clock, LIMIT, CancellationToken::new()), clock)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_up_only_until_its_time_and_never_again_once_lowered() {
        let (fence, clock) = fence();
        assert_eq!(fence.check(), Err(Fenced));
        fence.raise_until(clock.now() + LIMIT);
        assert_eq!(fence.check(), Ok(()));
        clock.sleep(LIMIT).await;
        assert_eq!(fence.check(), Err(Fenced));
        fence.raise();
        assert_eq!(fence.check(), Ok(()));
        fence.lower();
        fence.raise();
        assert_eq!(fence.check(), Err(Fenced));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_not_polled_for_its_limit_does_not_go_on() {
        let (fence, clock) = fence();
        fence.raise();
        let mut sent = 0;
        let call = fence.call(async {
            tokio::task::yield_now().await;
            sent += 1;
        });
        let mut call = Box::pin(call);
        assert!(futures::poll!(&mut call).is_pending());
        // Nobody polls, as in a stopped process; the call itself would be ready at once.
        clock.sleep(LIMIT).await;
        assert_eq!(call.await, Err(Unanswered::TimedOut(LIMIT)));
        assert_eq!(sent, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_under_way_ends_after_the_fence_went_down_and_is_waited_for() {
        let (fence, clock) = fence();
        fence.raise();
        let short = LIMIT / 2;
        let call = fence.call(clock.sleep(short));
        let waiting = async {
            fence.lower();
            fence.idle().await;
            clock.now()
        };
        let (answer, idle_at) = futures::join!(call, waiting);
        assert_eq!((answer, idle_at), (Ok(()), Time::EPOCH + short));
        assert_eq!(
            fence.call(async {}).await,
            Err(Unanswered::Fenced(Fenced)),
            "none starts afterwards"
        );
    }
}
