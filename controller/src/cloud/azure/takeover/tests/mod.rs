use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_core::time::Time;
use serde_json::json;

use super::super::balancer::{Changes, apply, new};
use super::super::document::{POOLS, RULES, children_mut};
use super::super::model::Documents;
use super::super::settings::{Kind, Layout, TakeOver as Wish};
use super::super::testkit::{key, own, part, resolved, service, settings};
use super::*;
use crate::plan::custody::Selection;
use crate::plan::membership::View;

const NOW: Time = Time::from_millis(1_800_000_000_000);

fn told(peer: PeerServices, accepted: &[&str]) -> Settings {
    let chosen = |entries: &[&str]| {
        let entries: Vec<String> = entries.iter().map(|it| (*it).to_owned()).collect();
        Selection::read(&entries).unwrap()
    };
    Settings {
        layout: Layout::Shared,
        take_over: Wish {
            peer,
            of: chosen(&["*"]),
            accepted: chosen(accepted),
        },
        ..settings()
    }
}

fn with_finalizers(mut service: ServiceSpec, finalizers: &[&str]) -> ServiceSpec {
    service.finalizers = finalizers.iter().map(|it| (*it).to_owned()).collect();
    service
}

/// The peer's load balancer and public IP of the Service, by its recipes.
fn documents() -> Documents {
    let mut balancer = new(&settings());
    apply(
        &mut balancer,
        &settings(),
        &Changes {
            parts: vec![part(&service(&[80]))],
            ..Changes::default()
        },
    );
    if let Some(all) = balancer.as_object_mut() {
        all.remove("tags");
    }
    let name = "kubernetes-atest1";
    let pip = json!({"id": settings().place.public_ip_id(None, name), "name": name,
        "tags": {"service": "default/test1", "k8s-azure-cluster-name": "KUBERNETES"},
        "properties": {"ipAddress": "20.0.0.1", "publicIPAddressVersion": "IPv4"}});
    Documents {
        balancers: BTreeMap::from([(Kind::External, balancer)]),
        public_ips: vec![pip],
        ..Documents::default()
    }
}

fn decide(
    settings: &Settings,
    service: &ServiceSpec,
    documents: Documents,
    release: Release,
) -> (Option<TakeOverStage>, Option<&'static str>, Vec<String>) {
    let intent = Intent {
        service: key(),
        uid: service.uid.clone(),
        spec: resolved(service),
        addresses: Vec::new(),
        members: BTreeMap::new(),
        departed: BTreeMap::new(),
        machines: Arc::default(),
        view: View::Watched,
    };
    let seen = Observed {
        service: key(),
        uids: [service.uid.clone()].into(),
        asks: false,
        documents: Arc::new(documents),
        times: Arc::default(),
        missing: Arc::default(),
        standing: Arc::default(),
    };
    let of = Situation {
        settings,
        service,
        intent: &intent,
        seen: &seen,
        now: NOW,
    };
    match custody(of, release) {
        Custody::Ours => (None, None, vec![]),
        Custody::Theirs(handover) => {
            let act = match handover.act {
                Act::Look => "look",
                Act::Take => "take",
                Act::Give => "give",
                Act::Cloud(_) | Act::OnceBound(_) => "call",
            };
            let Handover { report, .. } = *handover;
            (Some(report.stage), Some(act), report.blocked)
        }
    }
}

#[test]
fn az014_k04_whose_a_service_is_is_read_off_its_class_and_finalizers() {
    use TakeOverStage::{Conflict, Observing, Returned, Returning, Switching};
    let (off, may) = (
        told(PeerServices::Off, &[]),
        told(PeerServices::MayAct, &[]),
    );
    let (keep, give) = (Release::Keep, Release::GiveBack);
    let theirs = &[FINALIZER][..];
    let ours = &[SERVICE_FINALIZER][..];
    let rows = [
        (&off, theirs, keep, Some(Switching), Some("take")),
        (&may, theirs, keep, Some(Observing), Some("look")),
        (&may, &[], keep, Some(Observing), Some("look")),
        (&off, &[], keep, None, None),
        (&off, ours, keep, None, None),
        (&off, ours, give, Some(Returning), Some("give")),
        (&off, theirs, give, Some(Returned), Some("look")),
        (
            &off,
            &[FINALIZER, SERVICE_FINALIZER],
            keep,
            Some(Conflict),
            Some("look"),
        ),
    ];
    for (settings, finalizers, release, stage, act) in rows {
        let service = with_finalizers(service(&[80]), finalizers);
        let (found, does, why) = decide(settings, &service, documents(), release);
        assert_eq!((found, does), (stage, act), "{finalizers:?} {why:?}");
    }
    let own = with_finalizers(own(&[80]), theirs);
    assert_eq!(
        decide(&off, &own, documents(), keep).0,
        None,
        "AZ-001: our class is ours"
    );
}

#[test]
fn az014_az239_a_difference_or_a_pool_of_interfaces_stops_a_take_over_and_is_named() {
    let off = told(PeerServices::Off, &[]);
    let theirs = with_finalizers(service(&[80]), &[FINALIZER]);
    let mut other = documents();
    if let Some(balancer) = other.balancers.get_mut(&Kind::External) {
        children_mut(balancer, RULES)[0]["properties"]["idleTimeoutInMinutes"] = json!(30);
        children_mut(balancer, RULES)[0]["properties"]["enableTcpReset"] = json!(false);
    }
    let (stage, _, why) = decide(&off, &theirs, other.clone(), Release::Keep);
    assert_eq!(stage, Some(TakeOverStage::Observing));
    assert!(why[0].contains("rule atest1-TCP-80"), "{why:?}");
    let accepting = told(PeerServices::Off, &["default/test1"]);
    let (stage, ..) = decide(&accepting, &theirs, other, Release::Keep);
    assert_eq!(stage, Some(TakeOverStage::Switching), "it was accepted");
    let mut other = documents();
    if let Some(balancer) = other.balancers.get_mut(&Kind::External) {
        children_mut(balancer, POOLS)[0]["properties"]["backendIPConfigurations"] =
            json!([{"id": "/nic"}]);
    }
    let (stage, _, why) = decide(&accepting, &theirs, other, Release::Keep);
    assert_eq!(stage, Some(TakeOverStage::Observing));
    assert!(why[0].contains("nodeIP"), "AZ-239: {why:?}");
    let (stage, _, why) = decide(&accepting, &theirs, Documents::default(), Release::Keep);
    assert_eq!(stage, Some(TakeOverStage::Observing), "{why:?}");
    let mut foreign = documents();
    foreign.public_ips[0]["tags"]["k8s-azure-cluster-name"] = json!("another");
    let (_, _, why) = decide(&accepting, &theirs, foreign, Release::Keep);
    assert!(!why.is_empty(), "AZ-180: of another cluster");
}
