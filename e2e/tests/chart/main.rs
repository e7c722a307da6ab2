//! The chart, judged without a cluster: lint, golden renderings, the schema's refusals, the programs' own reading of
//! their arguments, and what the rights must never allow.

mod args;
mod golden;
mod pods;
mod refusals;
mod rights;
mod sets;
