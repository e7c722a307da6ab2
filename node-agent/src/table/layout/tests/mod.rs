//! Rules about the rules.

mod guard;

use onehop_nft::Expr;
use onehop_nft::expr::LookupTo;

use super::*;
use crate::table::affinity::{List, Record, Recorder, Sticky, StickyPort};
use crate::table::class;
use crate::table::demand::OnDemand;
use crate::table::element::ClassKind;

fn options() -> Options {
    Options {
        masquerade_mark: 0x4000,
        masquerade_all: false,
        masquerade_ports: Vec::new(),
        detector: Detector::Ranges(
            ["10.244.0.0/16", "fd00:244::/32"]
                .map(|net| net.parse().expect("a range"))
                .to_vec(),
        ),
        beside_kube_proxy: false,
        before_iptables: false,
        service_cidrs: vec!["10.96.0.0/16".parse().expect("a range")],
    }
}

/// Every rule that we ever write.
fn all_rules(family: Family) -> Vec<(String, Rule)> {
    let options = options();
    let layout = Layout::new(family, &options);
    let named = |name: &str, rules: &[Rule]| {
        let rules = rules.iter().cloned();
        rules
            .map(|rule| (name.to_owned(), rule))
            .collect::<Vec<_>>()
    };
    let fixed = layout
        .chains
        .iter()
        .flat_map(|(chain, rules)| named(&chain.name, rules));
    let port = StickyPort::of(
        &onehop_core::id::ServiceKey::new("default", "web"),
        &onehop_core::id::PortKey::new("", onehop_core::id::Protocol::Tcp),
    );
    let record = |by| {
        OnDemand::Record(Record {
            by,
            port,
            seconds: 60,
        })
    };
    let made = class::in_store()
        .map(|(kind, count)| OnDemand::Class(kind, count))
        .chain([List::Cluster, List::Local].map(|list| OnDemand::Sticky(Sticky { list, port })))
        .chain([
            record(Recorder::List(List::Local)),
            record(Recorder::ByClient),
        ]);
    let made = made.flat_map(|chain| named(&chain.name(), &chain.rules(family, &options)));
    fixed.chain(made).collect()
}

#[test]
fn s203_no_rule_has_more_than_one_map_lookup_and_no_result_of_one_is_a_key() {
    for family in Family::ALL {
        for (chain, rule) in all_rules(family) {
            let maps = rule.exprs().iter().filter(|expr| {
                let verdict = |to: &LookupTo| !matches!(to, LookupTo::Match | LookupTo::NoMatch);
                matches!(expr, Expr::Lookup { to, .. } if verdict(to))
            });
            assert!(maps.count() <= 1, "{chain}: {rule:?}");
            let looked_up = rule.exprs().iter().position(|expr| {
                matches!(
                    expr,
                    Expr::Lookup {
                        to: LookupTo::Register(_),
                        ..
                    }
                )
            });
            let after = looked_up.map_or(&[][..], |at| &rule.exprs()[at + 1..]);
            let again = |expr: &Expr| matches!(expr, Expr::Lookup { .. } | Expr::Dynset { .. });
            assert!(!after.iter().any(again), "{chain}: {rule:?}");
        }
    }
}

#[test]
fn s246_a_packet_that_finds_no_slot_in_its_class_is_dropped() {
    for family in Family::ALL {
        for kind in [ClassKind::N, ClassKind::L, ClassKind::Np, ClassKind::Npl] {
            let rules = class::rules(family, kind, 3);
            let last = rules.last().expect("rules").exprs();
            let drop = Expr::Verdict(onehop_nft::Verdict::Drop);
            assert_eq!(last, [drop], "{kind:?}");
        }
    }
}

#[test]
fn s232_what_is_translated_is_no_business_of_the_empty_lists() {
    let layout = Layout::new(Family::V4, &options());
    let (_, rules) = layout
        .chains
        .iter()
        .find(|(chain, _)| chain.name == "no-endpoints")
        .expect("the chain");
    let first = rules.first().expect("a rule");
    assert_eq!(*first, Rule::ip().ct_status(CT_STATUS_DNAT, true).ret());
}
