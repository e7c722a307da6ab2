//! Packet tests: real programs, real kernel, each from a Service manifest to a byte that came back.

mod cells;
mod empty;
mod endings;
mod flood;
mod hairpin;
mod health_port;
mod removal;
mod sharing;
mod support;
mod terminating;
mod vip;
mod ways_to_run;
mod zones;
