//! Rollouts and kills under load, one after another: they measure, so nothing else should run beside them.

mod agent_killed;
mod away;
mod aws;
mod azure;
mod cells;
mod changes;
mod controller_killed;
mod fewer;
mod gates;
mod graceful;
mod guard;
mod instant;
mod leader_changes;
mod moves;
mod nodes_go;
mod outage;
mod pod_health;
mod promise;
mod scaled;
mod support;
mod tails;
mod udp_flows;
mod unrest;
