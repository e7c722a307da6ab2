mod problems;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::service::ServiceSpec;
use serde_json::{Value, json};

use super::super::balancer::{Changes, apply, new};
use super::super::document::{last_of_id, lay_over};
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

/// Members of the other family beside those that there are.
fn and_six(mut intent: Intent) -> Intent {
    for members in intent.members.values_mut() {
        for list in [&mut members.pods, &mut members.nodes, &mut members.vips] {
            let twin = |member: &Member| {
                let IpAddr::V4(address) = member.key.address else {
                    panic!("only IPv4 is mirrored");
                };
                let mut twin = member.clone();
                twin.key.address = address.to_ipv6_mapped().into();
                twin
            };
            let twins: Vec<Member> = list.list.iter().map(twin).collect();
            list.list.extend(twins);
        }
    }
    intent
}

#[test]
fn az310_az315_each_family_has_a_frontend_and_a_pool_and_comes_and_goes_alone() {
    use onehop_core::id::IpFamily;
    let with = |families: &[IpFamily]| {
        let service = ServiceSpec {
            families: families.to_vec(),
            ..own(&[80])
        };
        and_six(intent(&service, &[], &[(1, READY), (2, READY)]))
    };
    let (single, dual) = (with(&[IpFamily::V4]), with(&IpFamily::ALL));
    let mut cloud = Cloud::default();
    cloud.settle(Some(&single), NOW);
    assert_eq!(
        cloud.members("demo-azure"),
        ["10.0.0.1", "10.0.0.2"],
        "of its family"
    );
    let before = cloud.documents.clone();
    let done = cloud.settle(Some(&dual), NOW);
    let writes = |what: &str| done.iter().filter(|step| step.starts_with(what)).count();
    assert_eq!(
        (writes("write public IP"), writes("write part")),
        (1, 1),
        "{done:?}"
    );
    assert_eq!(
        cloud.members("demo-azure-IPv6"),
        ["::ffff:10.0.0.1", "::ffff:10.0.0.2"],
        "AZ-310"
    );
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.1", "10.0.0.2"]);
    let balancer = &cloud.documents.balancers[&Kind::External];
    let rules: Vec<&str> = children(balancer, RULES).iter().map(name).collect();
    assert_eq!(rules, ["atest1-TCP-80", "atest1-TCP-80-IPv6"], "ZA-02");
    let counts = outcome::outcome(&settings(), &dual, &cloud.seen(NOW), NOW).ports;
    assert_eq!(counts.values().next().unwrap().registered, 4);
    cloud.settle(Some(&single), NOW);
    let there = &cloud.documents.balancers[&Kind::External];
    for kind in [FRONTENDS, RULES] {
        let old = &before.balancers[&Kind::External];
        assert_eq!(children(there, kind), children(old, kind), "AZ-315");
    }
    assert_eq!(cloud.documents.public_ips, before.public_ips, "AZ-315");
    cloud.settle(None, NOW);
    assert!(cloud.documents.balancers.is_empty() && cloud.documents.public_ips.is_empty());
}

#[test]
fn az315_a_private_address_stays_when_the_other_family_comes() {
    use onehop_core::id::IpFamily;
    for first in IpFamily::ALL {
        let second = if first == IpFamily::V4 {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let with = |families: &[IpFamily]| {
            let service = ServiceSpec {
                families: families.to_vec(),
                ..annotated(
                    own(&[80]),
                    &[
                        ("azure-load-balancer-internal", "true"),
                        ("onehop.dev/target", "node"),
                    ],
                )
            };
            and_six(intent(&service, &[], &[(1, READY)]))
        };
        let mut cloud = Cloud::default();
        // Azure takes an IPv6 frontend only beside an IPv4 one (AZ-188).
        let mut other = with(&[IpFamily::V4]).spec;
        other.service_uid = "other".into();
        let built = build(&settings(), &key(), &other, &cloud.documents).unwrap();
        cloud.carry_out(&AzureStep::PutPart {
            part: Box::new(built.part),
            members: vec![],
            needs: vec![],
        });
        cloud.settle(Some(&with(&[first])), NOW);
        let frontends = |cloud: &Cloud| {
            let balancer = &cloud.documents.balancers[&Kind::Internal];
            children(balancer, FRONTENDS).to_vec()
        };
        let before = frontends(&cloud);
        cloud.settle(Some(&with(&[first, second])), NOW);
        let after = frontends(&cloud);
        assert_eq!(after.len(), before.len() + 1);
        assert!(
            before.iter().all(|old| after.contains(old)),
            "AZ-315: {first}: {after:#?}"
        );
        cloud.settle(Some(&with(&[first])), NOW);
        assert_eq!(frontends(&cloud), before, "AZ-315: {first}");
    }
}

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

#[test]
fn za116_zi29_az113_after_a_flip_the_former_side_serves_on_until_the_grace_is_over() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let flipped = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    let internal = intent(&flipped, &[], &[(1, READY)]);
    let at = NOW + Duration::from_hours(1);
    let done = cloud.settle(Some(&internal), at);
    assert_eq!(
        done,
        [
            "write part atest1 of Internal with 1 members",
            "write security rules with atest1",
        ],
        "AZ-040: nothing goes yet"
    );
    give_private(&mut cloud);
    let end = at + Duration::from_mins(15);
    let said =
        |cloud: &mut Cloud, now| outcome::outcome(&settings(), &internal, &cloud.seen(now), now);
    let outcome = said(&mut cloud, at);
    let addresses: Vec<String> = outcome.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(
        addresses,
        ["10.0.4.4", "20.0.0.1"],
        "AZ-113: the new one first"
    );
    let notice = &outcome.notices[0];
    assert!(
        notice.reason == "FormerAddressServes" && notice.message.contains(&end.to_string()),
        "{notice:?}"
    );
    let demands = super::super::model::demands(&settings(), &roster(&internal), &cloud.documents);
    assert_eq!(demands.len(), 1, "the public side still needs its rule");
    // Nodes come and go on both sides meanwhile.
    let more = intent(&flipped, &[], &[(1, READY), (2, READY)]);
    let done = cloud.settle(Some(&more), at + Duration::from_mins(5));
    assert_eq!(
        done,
        [
            "pool demo-azure of External: 1 up, 0 down, 0 out",
            "pool demo-azure of Internal: 1 up, 0 down, 0 out",
        ],
        "AZ-113"
    );
    assert_eq!(
        cloud.settle(Some(&more), end - Duration::from_secs(1)),
        [""; 0]
    );
    assert_eq!(
        said(&mut cloud, end).addresses.len(),
        1,
        "unpublished before it goes"
    );
    let done = cloud.settle(Some(&more), end);
    assert_eq!(
        done,
        [
            "remove part atest1 of External",
            "delete public IP kubernetes-atest1"
        ],
        "ZI-29, ZA-43"
    );
    let kinds: Vec<Kind> = cloud.documents.balancers.keys().copied().collect();
    assert_eq!(kinds, [Kind::Internal]);
}

#[test]
fn az113_a_service_that_goes_has_no_grace() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let flipped = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    cloud.settle(Some(&intent(&flipped, &[], &[(1, READY)])), NOW);
    assert_eq!(cloud.documents.balancers.len(), 2);
    cloud.settle(None, NOW);
    assert!(cloud.documents.balancers.is_empty() && cloud.documents.public_ips.is_empty());
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
fn az116_az183_a_public_ip_goes_only_after_its_frontend() {
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
