//! The real API server is the referee of the embedded one: a seeded generator of request sequences is sent to both, and
//! their answers must be the same, after names, times and versions that servers choose freely were put aside.
//!
//! The seed is printed. `ONEHOP_DIFFERENTIAL_SEED` gives another one and `ONEHOP_DIFFERENTIAL_REQUESTS` the least number
//! of requests.
// The seed and the table of known differences are for whoever reads the log.
#![allow(clippy::print_stdout)]

mod compare;
mod generate;
mod kinds;
mod known;
mod normal;
mod patches;
mod reads;
mod request;
mod servers;
mod side;

use anyhow::{Context, Result};
use generate::Episode;
use kinds::KindRow;
use rand::{SeedableRng, rngs::SmallRng};
use servers::Servers;
use side::Side;
use std::{collections::BTreeMap, str::FromStr};

/// Least number of requests of a run.
const REQUESTS: usize = 2500;
/// Differences that are told in full; there may be more.
const TOLD: usize = 3000;

fn setting<T: FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => {
            let parsed = text.parse().ok();
            parsed.with_context(|| format!("{name} should be a number: {text:?}"))
        }
        Err(_) => Ok(default),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_answers_as_the_real_one() -> Result<()> {
    let seed: u64 = setting("ONEHOP_DIFFERENTIAL_SEED", 1)?;
    let wanted: usize = setting("ONEHOP_DIFFERENTIAL_REQUESTS", REQUESTS)?;
    println!("seed {seed}");
    let servers = Servers::start(seed).await?;
    let kinds = KindRow::all()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut sent, mut episodes) = (0, 0);
    let mut different = BTreeMap::new();
    while sent < wanted {
        episodes += 1;
        let mut episode = Episode::new(&mut rng, &kinds, episodes);
        let mut sides = [Side::new(&servers.embedded), Side::new(&servers.real)];
        let mut before = Vec::new();
        while let Some(request) = episode.next() {
            sent += 1;
            let [ours, theirs] = &mut sides;
            let (ours, theirs) = tokio::try_join!(ours.send(&request), theirs.send(&request))?;
            let found = known::unexplained(&request, &ours, &theirs);
            before.push(format!("{request} -> {}", theirs.code));
            for difference in &found {
                let shape = compare::shape(&request, difference, episode.namespace());
                let tell = || compare::report(&before, &request, &ours, &theirs, &found);
                different.entry(shape).or_insert_with(|| (0, tell())).0 += 1;
            }
            if !found.is_empty() || compare::diverged(&ours, &theirs) {
                // From here on they may differ in everything.
                break;
            }
        }
    }
    servers.end()?;
    println!(
        "{sent} requests in {episodes} sequences, {} kinds of difference",
        different.len()
    );
    known::print_table();
    let told: Vec<String> = different
        .iter()
        .take(TOLD)
        .map(|(shape, (times, report))| format!("\n##### {times} times: {shape}{report}"))
        .collect();
    assert!(
        different.is_empty(),
        "the embedded server differs (seed {seed}):\n{}",
        told.concat()
    );
    Ok(())
}
