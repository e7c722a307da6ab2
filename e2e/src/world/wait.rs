//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use anyhow::{Result, bail};
use onehop_runtime::clock::Clock;
use std::time::Duration;

/// How often a condition without events of its own is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks at a condition until it gives a value. After `within` it fails, naming what was awaited and what was seen last.
pub async fn eventually<T>(
    clock: &Clock,
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T> {
    let deadline = clock.now() + within;
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(seen) if clock.now() >= deadline => {
                bail!(
                    "{what}: not within {} s; last seen: {seen}",
                    within.as_secs_f32()
                )
            }
            Err(_) => clock.sleep(LOOK_EVERY).await,
        }
    }
}
