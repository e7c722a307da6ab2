//! The own `NodeTargets` object: what controllers say about this node, and what the agent says about itself in its
//! status. Pure. The state keeps it, the app says what is true, `targets_status` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{
    AgentMode, Feature, NodeInstall, NodeTargets, NodeTargetsStatus, Tail, Vip,
};
use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::service::ServiceSpec;

use crate::args::Mode;

/// What matters of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnTargets {
    /// Generation of the spec.
    pub generation: i64,
    /// Addresses that load balancers deliver to this node, by install (K-27).
    pub vips: BTreeMap<InstallId, Vec<Vip>>,
    /// Everything that installs say.
    pub installs: BTreeMap<InstallId, NodeInstall>,
    /// What the status says.
    pub status: NodeTargetsStatus,
}

impl OwnTargets {
    /// Reads the object.
    pub fn of(object: &NodeTargets) -> Self {
        let installs = object.spec.installs.iter();
        Self {
            generation: object.metadata.generation.unwrap_or(0),
            vips: installs
                .map(|(install, entry)| (install.clone(), entry.vips.clone()))
                .collect(),
            installs: object.spec.installs.clone(),
            status: object.status.clone().unwrap_or_default(),
        }
    }
}

/// What is known of the object over its changes.
#[derive(Debug, Clone, Default)]
pub struct KnownTargets {
    last: OwnTargets,
    /// Generation in which the addresses changed last.
    vips_since: i64,
}

impl KnownTargets {
    /// Takes a newer object; the Services whose addresses changed. An install that is no longer named has said nothing
    /// about its addresses, so they stay (K-21).
    pub fn update(&mut self, mut new: OwnTargets) -> BTreeSet<ServiceKey> {
        for (install, vips) in &self.last.vips {
            new.vips
                .entry(install.clone())
                .or_insert_with(|| vips.clone());
        }
        let touched = if new.vips == self.last.vips {
            BTreeSet::new()
        } else {
            self.vips_since = new.generation;
            let all = self.last.vips.values().chain(new.vips.values());
            all.flatten().map(|vip| vip.service.key()).collect()
        };
        self.last = new;
        touched
    }

    /// Addresses of a Service that load balancers deliver to this node.
    pub fn vips(&self, service: &ServiceSpec) -> BTreeSet<IpAddr> {
        let all = self.last.vips.values().flatten();
        all.filter(|vip| vip.service.uid == service.uid && vip.service.key() == service.key)
            .map(|vip| vip.address)
            .collect()
    }

    /// What installs said, as last seen.
    pub fn installs(&self) -> &BTreeMap<InstallId, NodeInstall> {
        &self.last.installs
    }

    /// Generation of the spec as last seen.
    pub fn generation(&self) -> i64 {
        self.last.generation
    }

    /// The status to write, if it says something new: content, or that addresses which came or went are done. A mere
    /// change of the generation is no reason to write (I4, crd.md section 3).
    pub fn due(&self, truth: &Truth) -> Option<NodeTargetsStatus> {
        let wanted = truth.status();
        let said = &self.last.status;
        let content = NodeTargetsStatus {
            observed_generation: said.observed_generation,
            ..wanted.clone()
        };
        let acknowledged = said.observed_generation.unwrap_or(0) >= self.vips_since;
        let can_acknowledge = truth.generation >= self.vips_since;
        (content != *said || (!acknowledged && can_acknowledge)).then_some(wanted)
    }
}

/// What is true of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    /// Way to run.
    pub mode: Mode,
    /// Generation of the spec that the kernel has.
    pub generation: i64,
    /// Whether it guards targets.
    pub guard: bool,
    /// Whether it answers for the health of pods, where what comes to them can be brought here.
    pub answers: bool,
    /// Whether it forwards late flows of Services with policy Local that it proxies (ZD-60).
    pub window: bool,
    /// What keeps it from something.
    pub problems: Vec<String>,
    /// How long flows came to targets that were let go (ZD-83).
    pub tails: Vec<Tail>,
}

impl Truth {
    fn status(&self) -> NodeTargetsStatus {
        let guard = self.guard.then_some(Feature::Guard);
        let answers = (self.guard && self.answers).then_some(Feature::PodHealth);
        let window = self.window.then_some(Feature::LocalWindow);
        NodeTargetsStatus {
            observed_generation: Some(self.generation),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: match self.mode {
                Mode::Beside => AgentMode::Beside,
                Mode::Replace => AgentMode::Replace,
            },
            synced: true,
            features: guard
                .into_iter()
                .chain(answers)
                .chain(window)
                .chain([Feature::ServiceProxy])
                .collect(),
            problems: self.problems.clone(),
            tails: self.tails.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use onehop_core::crd::ServiceRef;

    use super::*;

    const NOW: Truth = Truth {
        mode: Mode::Beside,
        generation: 3,
        guard: false,
        answers: false,
        window: false,
        problems: Vec::new(),
        tails: Vec::new(),
    };

    fn object(generation: i64, addresses: &[&str]) -> OwnTargets {
        let vip = |address: &&str| Vip {
            service: ServiceRef {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                uid: "u1".into(),
            },
            address: address.parse().unwrap(),
            ports: Vec::new(),
        };
        OwnTargets {
            generation,
            vips: [("local".into(), addresses.iter().map(vip).collect())].into(),
            installs: BTreeMap::new(),
            status: NodeTargetsStatus::default(),
        }
    }

    fn service(uid: &str) -> ServiceSpec {
        ServiceSpec {
            key: ServiceKey::new("default", "web"),
            uid: uid.into(),
            ..ServiceSpec::default()
        }
    }

    #[test]
    fn k21_an_install_that_is_no_longer_named_keeps_its_addresses() {
        let mut known = KnownTargets::default();
        assert_eq!(known.update(object(1, &["198.51.100.1"])).len(), 1);
        let lost = OwnTargets {
            generation: 2,
            ..OwnTargets::default()
        };
        assert!(known.update(lost).is_empty());
        assert_eq!(known.vips(&service("u1")).len(), 1, "K-21");
        assert_eq!(known.vips(&service("u2")).len(), 0, "another Service");
        known.update(object(3, &[]));
        assert_eq!(known.vips(&service("u1")).len(), 0);
    }

    #[test]
    fn i4_status_is_written_on_new_content_and_for_addresses_that_are_done() {
        let mut known = KnownTargets::default();
        known.update(object(3, &["198.51.100.1"]));
        let first = known.due(&NOW).unwrap();
        assert_eq!(first.observed_generation, Some(3));
        let said = |generation, status: &NodeTargetsStatus, addresses: &[&str]| OwnTargets {
            status: status.clone(),
            ..object(generation, addresses)
        };
        known.update(said(3, &first, &["198.51.100.1"]));
        assert_eq!(known.due(&NOW), None, "I4");
        known.update(said(4, &first, &["198.51.100.1"]));
        let later = Truth {
            generation: 4,
            ..NOW
        };
        assert_eq!(known.due(&later), None, "I4: the generation alone");
        known.update(said(5, &first, &["198.51.100.2"]));
        assert_eq!(known.due(&later), None, "K-27: not in the kernel yet");
        let done = Truth {
            generation: 5,
            ..NOW
        };
        assert!(known.due(&done).is_some(), "K-27");
    }
}
