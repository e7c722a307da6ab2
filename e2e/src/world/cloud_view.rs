//! What the fake cloud has at the moment, as its console would show it.

use super::World;
use e2e_cloud::engine::{Tags, TargetState};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

impl World {
    /// How many load balancers there are.
    pub fn load_balancers(&self) -> usize {
        self.cloud
            .with(|engine, now| engine.list_lbs(now, &Tags::default()))
            .map_or(0, |all| all.len())
    }

    /// How many target groups there are.
    pub fn target_groups(&self) -> usize {
        self.cloud
            .with(|engine, now| engine.list_groups(now, &Tags::default()))
            .map_or(0, |all| all.len())
    }

    /// Addresses of all targets that are registered and do not drain.
    pub fn registered_addresses(&self) -> BTreeSet<Ipv4Addr> {
        self.cloud.with(|engine, now| {
            let groups = engine
                .list_groups(now, &Tags::default())
                .unwrap_or_default();
            let targets = groups
                .iter()
                .flat_map(|group| engine.targets(now, &group.id, &[]).unwrap_or_default());
            let active =
                targets.filter(|t| !matches!(t.state, TargetState::Draining | TargetState::Unused));
            active
                .filter_map(|t| match t.target.ip() {
                    IpAddr::V4(address) => Some(address),
                    IpAddr::V6(_) => None,
                })
                .collect()
        })
    }
}
