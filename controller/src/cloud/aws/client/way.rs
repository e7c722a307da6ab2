//! How a change is made: behind the buckets, where it may wait, and through the fence, which it meets only when it is sent.

use super::throttle::Throttle;
use crate::cloud::CloudError;
use crate::lease::Fence;

/// What every call that changes something passes.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// The buckets.
    pub throttle: &'a Throttle,
    /// The right to write. Asked after the wait for a token: a wait is no part of a call's time, and who has lost the
    /// right meanwhile sends nothing (AWS-826).
    pub fence: &'a Fence,
}

impl Way<'_> {
    /// Sends a call that has its token.
    pub async fn fenced<F: Future>(&self, tried: &str, call: F) -> Result<F::Output, CloudError> {
        let answer = self.fence.call(call).await;
        answer.map_err(|unanswered| CloudError::unanswered(tried, unanswered))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use onehop_core::time::Time;
    use onehop_runtime::clock::Clock;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::cloud::Class;
    use crate::cloud::aws::client::throttle::{Family, Limits, Turn};

    /// Less than the wait for a token where there is none.
    const LIMIT: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn aws826_a_wait_for_a_token_is_no_part_of_a_call_and_ends_in_none_once_the_right_is_gone()
     {
        let clock = Clock::fixed(Time::EPOCH);
        let throttle = Throttle::new(clock, &Limits::default());
        let fence = Fence::new(clock, LIMIT, CancellationToken::new());
        fence.raise();
        let way = Way {
            throttle: &throttle,
            fence: &fence,
        };
        let sent = Cell::new(0);
        let call = async || {
            throttle.pass(Family::Members, Turn::Other).await;
            let send = async { sent.set(sent.get() + 1) };
            way.fenced("register", send).await
        };
        for _ in 0..22 {
            assert_eq!(
                call().await,
                Ok(()),
                "the last two waited longer than the limit"
            );
        }
        let lost = async {
            clock.sleep(LIMIT).await;
            fence.lower();
        };
        let (answer, ()) = futures::join!(call(), lost);
        assert_eq!(answer.unwrap_err().class, Class::Fenced, "AWS-826");
        assert_eq!(sent.get(), 22, "AWS-826");
    }
}
