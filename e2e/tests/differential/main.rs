//! The real API server is the referee of the embedded one: a seeded generator of request sequences is sent to both, and
//! their answers must be the same, after names, times and versions that servers choose freely were put aside.
//!
//! The seeds are printed. `ONEHOP_DIFFERENTIAL_SEED` gives others, between commas, and `ONEHOP_DIFFERENTIAL_REQUESTS` the
//! least number of requests with each.
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

use anyhow::{Context, Result, ensure};
use generate::Episode;
use kinds::KindRow;
use rand::{SeedableRng, rngs::SmallRng};
use servers::Servers;
use side::Side;
use std::collections::BTreeSet;

/// Seeds of a run that names none.
const SEEDS: &str = "1,2,3";
/// Least number of requests with each seed.
const REQUESTS: &str = "2500";
/// Differences that are told in full; there may be more.
const TOLD: usize = 100;

/// Numbers from the environment, between commas.
fn setting(name: &str, default: &str) -> Result<Vec<u64>> {
    let text = std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let numbers = text.split(',').map(|number| number.trim().parse());
    let parsed: Result<Vec<u64>, _> = numbers.collect();
    parsed.with_context(|| format!("{name} should be numbers: {text:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_answers_as_the_real_one() -> Result<()> {
    let wanted = setting("ONEHOP_DIFFERENTIAL_REQUESTS", REQUESTS)?[0];
    let kinds = KindRow::all()?;
    known::print_table();
    let mut failed = Vec::new();
    for seed in setting("ONEHOP_DIFFERENTIAL_SEED", SEEDS)? {
        let servers = Servers::start(seed).await?;
        let mut run = Run::default();
        let mut rng = SmallRng::seed_from_u64(seed);
        while run.sent < wanted {
            run.episodes += 1;
            run.episode(&mut rng, &kinds, &servers).await?;
        }
        servers.end()?;
        println!(
            "seed {seed}: {} requests in {} sequences, {} kinds of difference",
            run.sent,
            run.episodes,
            run.shapes.len()
        );
        if !run.reports.is_empty() {
            println!("{}", run.reports.concat());
            failed.push(seed);
        }
    }
    ensure!(
        failed.is_empty(),
        "the embedded server differs with seeds {failed:?}: see above"
    );
    Ok(())
}

/// What a run with one seed has seen so far.
#[derive(Default)]
struct Run {
    sent: u64,
    episodes: usize,
    /// Kinds of differences.
    shapes: BTreeSet<String>,
    /// One for each request that showed a new kind.
    reports: Vec<String>,
}

impl Run {
    /// Sends one sequence to both servers, until they differ.
    async fn episode(
        &mut self,
        rng: &mut SmallRng,
        kinds: &[KindRow],
        servers: &Servers,
    ) -> Result<()> {
        let mut episode = Episode::new(rng, kinds, self.episodes);
        let [mut ours, mut theirs] = [Side::new(&servers.embedded), Side::new(&servers.real)];
        let mut before = Vec::new();
        while let Some(request) = episode.next() {
            self.sent += 1;
            let (ours, theirs) = tokio::try_join!(ours.send(&request), theirs.send(&request))?;
            let found = known::unexplained(&request, &ours, &theirs);
            let mut new = false;
            for difference in &found {
                let shape = compare::shape(&request, difference, episode.namespace());
                new |= self.shapes.insert(shape);
            }
            if new && self.reports.len() < TOLD {
                let report = compare::report(&before, &request, &ours, &theirs, &found);
                self.reports.push(report);
            }
            if !found.is_empty() || compare::diverged(&ours, &theirs) {
                // From here on they may differ in everything.
                break;
            }
            before.push(format!("{request} -> {}", theirs.code));
        }
        Ok(())
    }
}
