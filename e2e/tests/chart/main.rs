//! The chart, judged without a cluster: lint, golden renderings, the schema's refusals, the programs' own reading of
//! their arguments, and what the rights must never allow.

mod alerts;
mod args;
mod effects;
mod examples;
mod gitops;
mod golden;
mod image;
mod install;
mod installed;
mod lives;
mod pages;
mod pods;
mod promql;
mod refusals;
mod rights;
mod schemas;
mod scrape;
mod sets;
mod switches;
mod tools;
mod used;
mod user;
mod values;
mod webhook;
