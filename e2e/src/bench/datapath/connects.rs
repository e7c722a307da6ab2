//! New connections through either proxy, in turns: what the machine does meanwhile meets both alike.

use anyhow::{Context, Result};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    Connects, Plan, Way,
    clients::connect,
    lab::{Lab, ms},
    table::median,
};
use crate::world::Proxy;

/// How often each address is asked through each proxy.
const TURNS: usize = 16;
/// How long at a time.
const TURN: Duration = Duration::from_millis(250);

/// Connections that one client made without a pause.
#[derive(Debug, Default)]
struct Made {
    times_us: Vec<f64>,
    took: Duration,
}

impl Made {
    fn by(self, way: Way) -> Connects {
        let count = u32::try_from(self.times_us.len()).unwrap_or(u32::MAX);
        Connects {
            way,
            rate: f64::from(count) / self.took.as_secs_f64(),
            median_us: median(self.times_us.into_iter()),
        }
    }
}

/// Connections to each address of a Service, by one client without a pause, through each of the proxies.
///
/// # Errors
/// A world does not start, a proxy is not in sync in time, or its Service does not answer.
pub(super) async fn measure(plan: Plan, proxies: &[Proxy]) -> Result<Vec<(Proxy, Vec<Connects>)>> {
    let mut labs = Vec::new();
    for proxy in proxies {
        let lab = Lab::set(plan, *proxy).await?;
        for (_, to) in lab.ways {
            lab.answers(to).await?;
        }
        let made: [Made; 3] = std::array::from_fn(|_| Made::default());
        labs.push((*proxy, lab, made));
    }
    for turn in 0..TURNS {
        for way in 0..3 {
            for (_, lab, made) in &mut labs {
                let made = made.get_mut(way).context("three ways")?;
                let (_, to) = lab.ways.get(way).context("three ways")?;
                burst(lab, *to, made);
            }
        }
        eprintln!("    connections: {} of {TURNS}", turn + 1);
        // Nobody is always the one after the other.
        labs.reverse();
    }
    let done = labs.into_iter().map(|(proxy, lab, made)| {
        let ways = lab.ways.into_iter().zip(made);
        (proxy, ways.map(|((way, _), made)| made.by(way)).collect())
    });
    Ok(done.collect())
}

fn burst(lab: &Lab, to: SocketAddr, made: &mut Made) {
    let (times, took) = lab.asker.0.run(move || {
        let (began, mut times_us) = (Instant::now(), Vec::new());
        while began.elapsed() < TURN {
            let one = Instant::now();
            if connect(to).is_ok() {
                times_us.push(ms(one.elapsed()) * 1000.0);
            }
        }
        (times_us, began.elapsed())
    });
    made.times_us.extend(times);
    made.took += took;
}
