mod annotations;
mod config;
mod families;
mod former;
mod former_beside;
mod problems;
mod rows;
mod switching;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::service::ServiceSpec;
use serde_json::{Value, json};

use super::super::balancer::{Changes, apply, new};
use super::super::document::{RULES, last_of_id, lay_over};
use super::super::model::{Documents, Times};
use super::super::outcome;
use super::super::public_ip::address_of;
use super::super::testkit::{annotated, key, own, resolved, settings};
use super::*;
use crate::plan::membership::{Guard, Member, Owner, State, TargetKey, View};
use crate::plan::{Members, PortMembers, Programmed, Step};
use onehop_core::crd::TargetMode;

const NOW: Time = Time::from_millis(1_800_000_000_000);

fn member(address: [u8; 4], port: u16, state: State) -> Member {
    Member {
        key: TargetKey {
            address: address.into(),
            port,
        },
        owner: Owner::Unknown,
        state,
        guard: Guard::Absent,
        held_since: None,
    }
}

/// An intent with these pods and nodes.
fn intent(service: &ServiceSpec, pods: &[(u8, State)], nodes: &[(u8, State)]) -> Intent {
    let spec = resolved(service);
    let members = spec.ports.iter().map(|port| {
        let list = |octet: u8, of: &[(u8, State)], at: u16| Members {
            list: of
                .iter()
                .map(|(n, state)| member([10, octet, 0, *n], at, *state))
                .collect(),
            at_most_healthy: None,
            zones: BTreeMap::new(),
        };
        let members = PortMembers {
            pods: list(1, pods, port.target_port.unwrap_or(8080)),
            nodes: list(0, nodes, port.node_port.unwrap_or(30000)),
            vips: list(0, nodes, port.port),
        };
        (port.key(), members)
    });
    Intent {
        service: key(),
        uid: service.uid.clone(),
        members: members.collect(),
        addresses: Vec::new(),
        departed: BTreeMap::new(),
        machines: Arc::default(),
        view: View::Watched,
        spec,
    }
}

/// Addresses in the pools of a load balancer, each with its pool.
fn addresses(balancer: &Value) -> BTreeSet<(String, String)> {
    let pools = balancer["properties"]["backendAddressPools"].as_array();
    let of = |pool: &Value| {
        let name = pool["name"].to_string();
        let members = &pool["properties"]["loadBalancerBackendAddresses"];
        let members = members.as_array().cloned().unwrap_or_default();
        let address = move |member: Value| {
            let address = member["properties"]["ipAddress"].to_string();
            (name.clone(), address)
        };
        members.into_iter().map(address)
    };
    pools.into_iter().flatten().flat_map(of).collect()
}

/// The cloud, as far as plans are carried out on it at once.
#[derive(Default)]
struct Cloud {
    documents: Documents,
    times: Times,
}

impl Cloud {
    fn seen(&mut self, now: Time) -> Observed {
        self.times.note(&self.documents, now);
        Observed {
            service: key(),
            uids: ["test1".into()].into(),
            asks: false,
            documents: Arc::new(self.documents.clone()),
            times: Arc::new(self.times.clone()),
            missing: Arc::default(),
            standing: Arc::default(),
        }
    }

    fn plan(&mut self, intent: Option<&Intent>, now: Time) -> Vec<AzureStep> {
        let seen = self.seen(now);
        plan(&settings(), &key(), intent, &seen, now)
            .steps()
            .cloned()
            .collect()
    }

    /// Plans and carries out until nothing is left to do; gives what was done.
    fn settle(&mut self, intent: Option<&Intent>, now: Time) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..10 {
            let steps = self.plan(intent, now);
            if steps.is_empty() {
                return done;
            }
            for step in steps {
                done.push(step.to_string());
                self.carry_out(&step);
            }
        }
        panic!("never settles: {done:#?}");
    }

    fn carry_out(&mut self, step: &AzureStep) {
        let (kind, changes) = match step {
            AzureStep::PutPublicIp { id, document } => {
                let mut document = document.clone();
                let six = document["properties"]["publicIPAddressVersion"] == "IPv6";
                let address = if six { "2603::1" } else { "20.0.0.1" };
                let given =
                    json!({"id": id, "name": last_of_id(id), "properties": {"ipAddress": address}});
                lay_over(&mut document, &given);
                self.documents
                    .public_ips
                    .retain(|pip| pip["id"] != json!(id));
                return self.documents.public_ips.push(document);
            }
            AzureStep::DeletePublicIp { id } => {
                return self
                    .documents
                    .public_ips
                    .retain(|pip| pip["id"] != json!(id));
            }
            AzureStep::PutRules { .. } | AzureStep::ReleaseRules { .. } => {
                return;
            }
            AzureStep::PutPart { part, members, .. } => {
                let changes = Changes {
                    parts: vec![part.as_ref().clone()],
                    members: members.clone(),
                    ..Changes::default()
                };
                (part.kind, changes)
            }
            AzureStep::RemovePart { kind, base, .. } => (
                *kind,
                Changes {
                    removed: [base.clone()].into(),
                    ..Changes::default()
                },
            ),
            AzureStep::ChangeMembers { kind, change } => (
                *kind,
                Changes {
                    members: vec![change.clone()],
                    ..Changes::default()
                },
            ),
            AzureStep::DropPool { kind, pool } => (
                *kind,
                Changes {
                    pools: [pool.clone()].into(),
                    ..Changes::default()
                },
            ),
        };
        let balancer = self
            .documents
            .balancers
            .entry(kind)
            .or_insert_with(|| new(&settings()));
        let before = addresses(balancer);
        apply(balancer, &settings(), &changes);
        let brings = !addresses(balancer).is_subset(&before);
        assert!(step.registers() || !brings, "ZD-12: {step} brings members");
        if super::super::balancer::is_empty(balancer) {
            self.documents.balancers.remove(&kind);
        }
    }

    fn members(&self, pool: &str) -> Vec<String> {
        let mut balancers = self.documents.balancers.values();
        let pool = balancers.find_map(|balancer| child(balancer, POOLS, pool));
        let one = |member: &Value| {
            let p = &member["properties"];
            format!(
                "{}{}",
                p["ipAddress"].as_str().unwrap(),
                if p["adminState"] == "Down" {
                    " Down"
                } else {
                    ""
                }
            )
        };
        children(pool.unwrap(), super::super::document::MEMBERS)
            .iter()
            .map(one)
            .collect()
    }
}

const READY: State = State::Ready;

#[test]
fn az115_az116_what_is_made_in_order_and_nothing_is_left() {
    let intent = intent(&own(&[80]), &[], &[(1, READY), (2, READY)]);
    let mut cloud = Cloud::default();
    assert_eq!(
        cloud.settle(Some(&intent), NOW),
        [
            "write public IP kubernetes-atest1",
            "write part atest1 of External with 2 members",
            "write security rules with atest1"
        ],
        "AZ-115"
    );
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.1", "10.0.0.2"]);
    let seen = cloud.seen(NOW);
    let outcome = outcome::outcome(&settings(), &intent, &seen, NOW);
    assert_eq!(outcome.programmed, Programmed::Yes);
    assert_eq!(outcome.addresses, [IpAddr::from([20, 0, 0, 1])]);
    assert_eq!(
        cloud.settle(None, NOW),
        [
            "write security rules without default/test1",
            "remove part atest1 of External",
            "delete public IP kubernetes-atest1"
        ],
        "AZ-116"
    );
    assert_eq!(cloud.documents, Documents::default(), "ZA-99");
}

/// The private frontend gets its address.
fn give_private(cloud: &mut Cloud) {
    let balancer = cloud.documents.balancers.get_mut(&Kind::Internal).unwrap();
    let frontends = super::super::document::children_mut(balancer, FRONTENDS);
    frontends[0]["properties"]["privateIPAddress"] = json!("10.0.4.4");
}

fn roster(intent: &Intent) -> super::super::model::Roster {
    let met = super::super::model::Met {
        uids: [intent.uid.clone()].into(),
        spec: Some(Arc::new(intent.spec.clone())),
    };
    super::super::model::Roster {
        services: [(key(), met)].into(),
    }
}

#[test]
fn az253_a_switch_of_mode_fills_the_new_pool_before_a_rule_uses_it() {
    let vip = intent(&own(&[80]), &[(1, READY)], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&vip), NOW);
    let pods = intent(
        &annotated(own(&[80]), &[("onehop.dev/target", "pod")]),
        &[(1, READY)],
        &[(1, READY)],
    );
    assert_eq!(
        cloud.settle(Some(&pods), NOW)[..2],
        [
            "pool atest1-pods-1 of External: 1 up, 0 down, 0 out",
            "write security rules with atest1"
        ]
    );
    cloud.settle(Some(&vip), NOW);
    let later = NOW + settings().switch_tail;
    assert_eq!(
        cloud.settle(Some(&vip), later),
        ["drop pool atest1-pods-1 of External"],
        "AZ-253: one tail later"
    );
}

#[test]
fn az291_az295_a_pod_is_replaced_register_first_then_down_then_out() {
    let pods = |list: &[(u8, State)]| {
        intent(
            &annotated(own(&[80]), &[("onehop.dev/target", "pod")]),
            list,
            &[],
        )
    };
    let leaving = State::Terminating {
        serving: crate::plan::membership::Serving::Yes,
        since: None,
    };
    let mut cloud = Cloud::default();
    cloud.settle(Some(&pods(&[(1, READY)])), NOW);
    let probed = NOW + Duration::from_mins(1);
    let both = pods(&[(1, leaving), (2, READY)]);
    assert_eq!(
        cloud.settle(Some(&both), probed),
        ["pool atest1-pods-1 of External: 1 up, 0 down, 0 out"],
        "AZ-295"
    );
    let later = probed + Duration::from_secs(11);
    assert_eq!(
        cloud.settle(Some(&both), later),
        ["pool atest1-pods-1 of External: 0 up, 1 down, 0 out"],
        "AZ-291, AZ-292"
    );
    assert_eq!(
        cloud.members("atest1-pods-1"),
        ["10.1.0.1 Down", "10.1.0.2"]
    );
    let gone = pods(&[(1, State::Gone), (2, READY)]);
    assert_eq!(
        cloud.settle(Some(&gone), later),
        ["pool atest1-pods-1 of External: 0 up, 0 down, 1 out"],
        "AZ-291"
    );
}

#[test]
fn az109_nothing_leaves_in_the_write_that_changes_the_shape() {
    let nodes = |ports: &[u16], list: &[(u8, State)]| intent(&own(ports), &[], list);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&nodes(&[80], &[(1, READY), (2, READY)])), NOW);
    let changed = nodes(&[80, 81], &[(1, State::Gone), (2, READY)]);
    let first = cloud.plan(Some(&changed), NOW);
    assert!(
        first
            .iter()
            .all(|step| !matches!(step, AzureStep::ChangeMembers { .. })),
        "{first:?}"
    );
    cloud.settle(Some(&changed), NOW);
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.2"], "AZ-232");
}

#[test]
fn az099_az107_a_load_balancer_of_somebody_else_is_not_touched() {
    let intent = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud
        .documents
        .balancers
        .insert(Kind::External, super::super::testkit::foreign());
    assert_eq!(cloud.plan(Some(&intent), NOW), [], "AZ-099");
    let seen = cloud.seen(NOW);
    let outcome = outcome::outcome(&settings(), &intent, &seen, NOW);
    assert_eq!(outcome.notices[0].reason, "LoadBalancerForeign");
    assert!(matches!(outcome.programmed, Programmed::Waiting(_)));
}

#[test]
fn zi27_az116_az183_a_public_ip_goes_only_after_its_frontend() {
    let intent = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&intent), NOW);
    let pip = &mut cloud.documents.public_ips[0];
    pip["properties"]["ipConfiguration"] = json!({"id": "/held"});
    assert!(address_of(pip).is_some());
    let seen = cloud.seen(NOW);
    let plan = plan(&settings(), &key(), None, &seen, NOW);
    let group = plan
        .groups
        .iter()
        .find(|group| group.subject.as_str().starts_with("publicIP"))
        .unwrap();
    assert!(
        group.after.iter().any(|id| id.to_string().contains("part")),
        "AZ-116: {plan}"
    );
    cloud.documents.balancers.clear();
    assert!(
        cloud
            .plan(None, NOW)
            .iter()
            .all(|step| !matches!(step, AzureStep::DeletePublicIp { .. })),
        "AZ-183: somebody else's frontend holds it"
    );
}
