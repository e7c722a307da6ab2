//! The static part of the target guard.

use onehop_nft::expr::CtDirection;
use onehop_nft::{ChainType, CmpOp, Field};

use super::*;
use crate::table::demand::OnDemand;
use crate::table::element::MAX_UPLINK;
use crate::table::guard::{UPLINK_MASK, uplink_bits};
use crate::table::hooks::OnHook;

fn chain(family: Family, name: &str) -> (Chain, Vec<Rule>) {
    let layout = Layout::new(family, &options());
    let mut chains = layout.chains.into_iter();
    let found = chains.find(|(chain, _)| chain.name == name);
    found.expect("the chain")
}

fn rule(family: Family) -> Rule {
    Rule::new(nft_family(family))
}

#[test]
fn s401_numbers_of_uplinks_share_no_bit_with_anybody_elses_marks() {
    // kube-proxy's two, the VPC CNI's, and our own masquerade.
    let others = [0x4000, 0x8000, 0x80, options().masquerade_mark];
    let mut seen = 0;
    for number in 1..=MAX_UPLINK {
        let bits = uplink_bits(number);
        assert_eq!(bits & !UPLINK_MASK, 0, "S-401");
        assert_eq!(bits >> UPLINK_MASK.trailing_zeros(), u32::from(number));
        seen |= bits;
    }
    assert_eq!(seen, UPLINK_MASK, "1 to 15, and 0 is none");
    assert!(others.iter().all(|other| other & UPLINK_MASK == 0), "S-401");
}

#[test]
fn s405_s422_errors_leave_by_the_interface_that_owns_their_source_and_all_else_by_that_of_arrival()
{
    for (family, icmp) in [(Family::V4, 1), (Family::V6, 58)] {
        let hook = OnDemand::Hook(OnHook::RestoreOutput);
        let base = hook.chain().base.expect("a base chain");
        assert_eq!(base.kind, ChainType::Route, "S-405: routed again");
        let rules = hook.rules(family, &options());
        let by_source = rule(family)
            .l4proto(icmp)
            .vmap(&[Field::Saddr], SetId::UplinkAddresses.name());
        let at = |wanted: &Rule| rules.iter().position(|rule| rule == wanted);
        let unmarked = rule(family).masked(Field::CtMark, UPLINK_MASK, CmpOp::Eq, 0);
        let own = rule(family).ct_direction(CtDirection::Original).ret();
        assert_eq!(at(&unmarked.ret()), Some(0));
        assert_eq!(at(&own), Some(1));
        assert_eq!(at(&by_source), Some(2), "S-405, S-422");
        assert_eq!(rules.len(), 4);
    }
}

#[test]
fn s408_a_packet_in_the_middle_of_a_flow_passes_the_guard_before_anything_is_looked_up() {
    for family in Family::ALL {
        let (_, rules) = chain(family, "guard");
        let looks = |rule: &Rule| {
            let mut exprs = rule.exprs().iter();
            exprs.any(|expr| matches!(expr, Expr::Lookup { .. }))
        };
        let first = rules.first().expect("a rule");
        let last = first.exprs().last().expect("a verdict");
        assert_eq!(*last, Expr::Verdict(onehop_nft::Verdict::Return), "S-408");
        assert!(!looks(first) && rules[1..].iter().all(looks), "S-408");
        // FIN, SYN, RST and ACK, of which the first packet of a flow has SYN alone.
        let later = rule(family).l4proto(6).tcp_flags(0x17, CmpOp::Neq, 0x02);
        assert_eq!(*first, later.ret(), "ZD-44: nothing else is new");
        let (_, entry) = chain(family, "nat-prerouting");
        let uplinks = rule(family).in_set(&[Field::IifName], SetId::Uplinks.name());
        assert_eq!(entry[0], uplinks.jump("guard"), "S-408: from outside only");
    }
}

#[test]
fn s414_to_a_pod_that_is_gone_first_packets_are_dropped_and_later_ones_reset() {
    for family in Family::ALL {
        let (_, steered) = chain(family, "dead-steered");
        let (_, refused) = chain(family, "dead-refused");
        let mark = rule(family).jump("uplink-mark");
        let reset = rule(family).l4proto(6).reject_tcp_reset();
        // The resend of a first packet is steered, once the old entry is gone.
        let drops =
            |rule: &Rule| rule.exprs().last() == Some(&Expr::Verdict(onehop_nft::Verdict::Drop));
        assert_eq!(steered[0], mark, "S-414: by the interface of arrival");
        assert!(drops(&steered[1]) && drops(&steered[2]), "S-414");
        assert_eq!(steered[3], reset, "S-414");
        assert_eq!(steered.len(), 4);
        let unreachable = rule(family).reject_port_unreachable();
        assert_eq!(refused[0], mark, "S-414");
        assert!(refused.ends_with(&[reset, unreachable]), "S-414");
    }
}
