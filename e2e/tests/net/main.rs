//! Packet scenarios: real programs, real kernel, from a Service manifest to a byte that came back (S-340).
//!
//! Each scenario runs on both control planes, on the embedded one in both families; a test's name says it:
//! `embedded::ipv4::…`, `embedded::ipv6::…`, `real::essential::…`, `real::more::…`.

#[macro_use]
mod scenarios;

mod affinity;
mod aws;
mod aws_paths;
mod aws_peer;
mod aws_wire;
mod azure;
mod azure_cutover;
mod azure_restart;
mod azure_rules;
mod bad_input;
mod causes;
mod cells;
mod choices;
mod coexistence;
mod conntrack;
#[path = "../../src/documented.rs"]
mod documented;
mod dual_stack;
mod empty;
mod endings;
mod external;
mod fixed_point;
mod flood;
mod frontends;
mod hairpin;
mod health_port;
mod lab;
mod labels;
mod local_policy;
mod node_faults;
mod node_gone;
mod node_ports;
mod removal;
mod rights;
mod sctp;
mod sharing;
mod signals;
mod slices;
mod source_ranges;
mod support;
mod terminating;
mod topology;
mod udp;
mod upstream;
mod vip;
mod ways_to_run;
mod zones;

/// A test of one scenario on one control plane.
macro_rules! test {
    ($back_end:ident $family:ident $module:ident $name:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() -> anyhow::Result<()> {
            use onehop_e2e::{
                controlplane::BackEnd,
                world::{Cluster, Family},
            };
            let on = Cluster::on(BackEnd::$back_end).in_family(Family::$family);
            crate::$module::$name(on).await
        }
    };
}

/// The same on the real one, if the scenario's weight is the one asked for.
macro_rules! test_if {
    (essential essential $module:ident $name:ident) => {
        test! { Real V4 $module $name }
    };
    (more more $module:ident $name:ident) => {
        test! { Real V4 $module $name }
    };
    ($asked:ident $weight:ident $module:ident $name:ident) => {};
}

/// The same on the embedded one in IPv6, unless the scenario brings addresses of its own.
macro_rules! test_v6 {
    (endings $name:ident) => {};
    (zones $name:ident) => {};
    ($module:ident $name:ident) => {
        test! { Embedded V6 $module $name }
    };
}

macro_rules! tests {
    ($($module:ident { $($name:ident: $weight:ident, $peer:expr;)* })*) => {
        mod embedded {
            mod ipv4 {
                $(mod $module { $(test! { Embedded V4 $module $name })* })*
            }
            mod ipv6 {
                $(mod $module { $(test_v6! { $module $name })* })*
            }
        }
        mod real {
            mod essential {
                $(mod $module { $(test_if! { essential $weight $module $name })* })*
            }
            mod more {
                $(mod $module { $(test_if! { more $weight $module $name })* })*
            }
        }
    };
}

scenarios! { tests }
