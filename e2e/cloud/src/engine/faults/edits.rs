//! Changes behind the product's back (FC-96): what a person at the console, another tool or an
//! accident does. No API call: nothing is counted, throttled or refused for being in use.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use crate::engine::log::{Seq, What};
use crate::engine::{
    ApiError, Engine, Group, GroupId, LbId, ListenerKey, Protocol, Tags, TargetSpec,
};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    tag = "edit",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
#[allow(missing_docs, reason = "fields are those of the API")]
pub enum Edit {
    /// A load balancer disappears with its listeners.
    DeleteLoadBalancer { id: LbId },
    /// The tags of a load balancer become these.
    SetLoadBalancerTags { id: LbId, tags: Tags },
    /// Attributes of a load balancer change.
    ChangeLoadBalancer {
        id: LbId,
        addresses: Option<Vec<IpAddr>>,
        cross_zone: Option<bool>,
        #[serde(rename = "preserveClientIP")]
        preserve_client_ip: Option<bool>,
    },
    /// A listener disappears.
    DeleteListener {
        id: LbId,
        port: u16,
        protocol: Protocol,
    },
    /// A group disappears, also from the listeners that use it.
    DeleteGroup { id: GroupId },
    /// The tags of a group become these.
    SetGroupTags { id: GroupId, tags: Tags },
    /// Attributes of a group change.
    ChangeGroup {
        id: GroupId,
        drain_seconds: Option<u32>,
        health_port: Option<u16>,
        health_path: Option<String>,
    },
    /// A second group of the same name and tags appears, without targets: two generations (FC-97).
    DuplicateGroup { id: GroupId },
    /// Targets are deregistered.
    RemoveTargets {
        id: GroupId,
        targets: Vec<SocketAddr>,
    },
    /// Targets are registered.
    AddTargets {
        id: GroupId,
        targets: Vec<SocketAddr>,
    },
}

impl Engine {
    /// Makes a change behind the product's back. An error says what is not there.
    pub fn edit(&mut self, now: Time, edit: &Edit) -> Result<(), ApiError> {
        self.advance(now);
        let what = What::OutOfBand { edit: edit.clone() };
        let cause = self.log.push(self.now, None, what);
        self.apply_edit(edit, cause)?;
        self.revision += 1;
        self.note_change();
        self.advance(now);
        Ok(())
    }

    fn apply_edit(&mut self, edit: &Edit, cause: Seq) -> Result<(), ApiError> {
        match edit {
            Edit::DeleteLoadBalancer { id } => self.drop_lb(id, cause),
            Edit::SetLoadBalancerTags { id, tags } => {
                self.balancer_mut(id)?.spec.tags.clone_from(tags);
                Ok(())
            }
            Edit::ChangeLoadBalancer {
                id,
                addresses,
                cross_zone,
                preserve_client_ip,
            } => {
                let mut spec = self.balancer(id)?.spec.clone();
                spec.cross_zone = cross_zone.unwrap_or(spec.cross_zone);
                spec.preserve_client_ip = preserve_client_ip.unwrap_or(spec.preserve_client_ip);
                spec.addresses = addresses.clone().unwrap_or(spec.addresses);
                self.replace_lb(id, spec, cause)
            }
            Edit::DeleteListener { id, port, protocol } => {
                self.balancer(id)?;
                let key = ListenerKey {
                    port: *port,
                    protocol: *protocol,
                };
                self.remove_listener(id, key, cause);
                Ok(())
            }
            Edit::DeleteGroup { id } => self.force_out(id, cause),
            Edit::SetGroupTags { id, tags } => {
                self.group_mut(id)?.spec.tags.clone_from(tags);
                self.note_tags(id, cause);
                Ok(())
            }
            Edit::ChangeGroup { .. } => self.change_group(edit, cause),
            Edit::DuplicateGroup { id } => self.duplicate(id, cause),
            Edit::RemoveTargets { id, targets } => {
                self.group(id)?;
                let mut all = targets.iter();
                all.try_for_each(|target| self.deregister_one(id, *target, cause))
            }
            Edit::AddTargets { id, targets } => {
                self.group(id)?;
                targets.iter().try_for_each(|target| {
                    let spec = TargetSpec {
                        target: *target,
                        zone: None,
                    };
                    self.register_one(id, spec, cause)
                })
            }
        }
    }

    fn force_out(&mut self, id: &GroupId, cause: Seq) -> Result<(), ApiError> {
        for (lb, key) in self.group(id)?.users.clone() {
            self.remove_listener(&lb, key, cause);
        }
        self.drop_group(id);
        Ok(())
    }

    fn change_group(&mut self, edit: &Edit, cause: Seq) -> Result<(), ApiError> {
        let Edit::ChangeGroup {
            id,
            drain_seconds,
            health_port,
            health_path,
        } = edit
        else {
            return Ok(());
        };
        let mut spec = self.group(id)?.spec.clone();
        if let Some(seconds) = drain_seconds {
            spec.drain = Duration::from_secs(u64::from(*seconds));
        }
        if let Some(health) = &mut spec.health {
            health.port = health_port.or(health.port);
            if let Some(path) = health_path {
                health.path.clone_from(path);
            }
        }
        self.replace_group(id, spec, cause)
    }

    fn duplicate(&mut self, id: &GroupId, cause: Seq) -> Result<(), ApiError> {
        let spec = self.group(id)?.spec.clone();
        let twin = GroupId::numbered(self.next_group);
        self.next_group += 1;
        self.groups.insert(twin.clone(), Group::empty(spec));
        self.note_tags(&twin, cause);
        Ok(())
    }
}
