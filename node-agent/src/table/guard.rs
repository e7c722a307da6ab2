//! The static part of the target guard (12.9): its chains, and those that bring replies back by the interface of arrival.
//!
//! All that NAT needs is there from the agent's start, with empty maps (S-135, ZD-44); what only later packets need comes
//! with the first element (`hooks`). Everything that changes is an element, also the uplinks: the chains per uplink exist
//! for every number, and maps by interface name lead to them (S-402).

use onehop_nft::expr::{CT_STATUS_DNAT, DynsetOp, Expr, PayloadAt, PayloadBase, Reg};
use onehop_nft::{CmpOp, CtDirection, Field, FieldType, Rule, Set, Value};

use super::counts::Counted;
use super::element::{Family, MAX_UPLINK, SetId, UplinkNumber};
use super::layout::{K, UPLINK_MARK, nft_family};
use super::set::address;

/// Later packets of flows to a target that is gone while others serve (S-414).
pub const DEAD_STEERED: &str = "dead-steered";
/// Packets to a target that is gone while nobody serves (S-414).
pub const DEAD_REFUSED: &str = "dead-refused";
/// Probes of the health of a pod, which the agent answers (S-421).
pub const POD_HEALTH: &str = "pod-health";
const UPLINK_RESTORE: &str = "uplink-restore";
const GUARD: &str = "guard";
const DEAD: &str = "dead";
const FIRST_REFUSAL: &str = "first-refusal";
/// Clients whose connection was refused once; written by the rules alone.
const REFUSED: &str = "refused";
/// Longer than the first two pauses between SYNs, 1 s and 2 s, together.
const REFUSED_FOR_MS: u64 = 4_000;
const REFUSED_AT_MOST: u32 = 65_535;

/// Bits of connection and packet mark that hold the number of an uplink (S-401).
pub const UPLINK_MASK: u32 = 0x0f00_0000;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The mark of an uplink.
pub fn uplink_bits(number: UplinkNumber) -> u32 {
    u32::from(number) << UPLINK_MASK.trailing_zeros()
}

/// The chain that remembers this uplink in the connection.
pub fn mark_uplink(number: UplinkNumber) -> String {
    format!("mark-uplink-{number}")
}

/// The chain that sends a packet out by this uplink.
pub fn to_uplink(number: UplinkNumber) -> String {
    format!("to-uplink-{number}")
}

/// The first rule of `nat-prerouting`: traffic of pods and of the node itself never comes by an uplink (ZD-43).
pub(super) fn enter(family: Family) -> Rule {
    by_uplink(family).jump(GUARD)
}

/// The regular chains.
pub(super) fn regular_chains(family: Family) -> Vec<(String, Vec<Rule>)> {
    let mut chains = Vec::new();
    for number in 1..=MAX_UPLINK {
        let mark = rule(family).set_ct_mark(!UPLINK_MASK, uplink_bits(number));
        chains.push((mark_uplink(number), vec![mark]));
        chains.push((to_uplink(number), vec![send_out(rule(family), number)]));
    }
    let mark = rule(family).vmap(&[Field::IifName], SetId::UplinkMarks.name());
    chains.extend([
        (UPLINK_MARK.to_owned(), vec![mark]),
        (UPLINK_RESTORE.to_owned(), restore(family)),
        (DEAD_STEERED.to_owned(), dead_steered(family)),
        (DEAD_REFUSED.to_owned(), dead_refused(family)),
        (DEAD.to_owned(), dead(family)),
        (FIRST_REFUSAL.to_owned(), first_refusal(family)),
        (POD_HEALTH.to_owned(), pod_health(family)),
        (GUARD.to_owned(), guard(family)),
    ]);
    chains
}

fn marked(family: Family, op: CmpOp) -> Rule {
    rule(family).masked(Field::CtMark, UPLINK_MASK, op, 0)
}

/// Replies of a connection that came by a remembered uplink (S-402).
pub(super) fn replies(family: Family) -> Rule {
    marked(family, CmpOp::Neq)
        .ct_direction(CtDirection::Reply)
        .jump(UPLINK_RESTORE)
}

/// Those that the node makes itself (S-405).
pub(super) fn local_replies(family: Family) -> Vec<Rule> {
    let icmp = match family {
        Family::V4 => 1,
        Family::V6 => 58,
    };
    vec![
        marked(family, CmpOp::Eq).ret(),
        rule(family).ct_direction(CtDirection::Original).ret(),
        // Its source was chosen before: it leaves by the interface that owns that (S-405).
        rule(family)
            .l4proto(icmp)
            .vmap(&[Field::Saddr], SetId::UplinkAddresses.name()),
        rule(family)
            .cmp(Field::L4Proto, CmpOp::Neq, Value::new().u8(icmp))
            .jump(UPLINK_RESTORE),
    ]
}

/// Packets from outside to a target that is gone, which nothing translated (S-414).
pub(super) fn of_the_dead(family: Family) -> Rule {
    by_uplink(family)
        .ct_status(CT_STATUS_DNAT, false)
        .in_set(&K, SetId::DeadKeys.name())
        .jump(DEAD)
}

fn rule(family: Family) -> Rule {
    Rule::new(nft_family(family))
}

fn by_uplink(family: Family) -> Rule {
    rule(family).in_set(&[Field::IifName], SetId::Uplinks.name())
}

fn send_out(rule: Rule, number: UplinkNumber) -> Rule {
    rule.set_mark(!UPLINK_MASK, uplink_bits(number))
}

/// A SYN without ACK: the first packet of a flow (ZD-44).
pub(super) fn syn(family: Family, op: CmpOp) -> Rule {
    rule(family)
        .l4proto(TCP)
        .tcp_flags(FIN | SYN | RST | ACK, op, SYN)
}

fn restore(family: Family) -> Vec<Rule> {
    let one = |number| {
        let came = rule(family).masked(Field::CtMark, UPLINK_MASK, CmpOp::Eq, uplink_bits(number));
        send_out(came, number).ret()
    };
    (1..=MAX_UPLINK).map(one).collect()
}

fn guard(family: Family) -> Vec<Rule> {
    let ranged = [&K[..], &[Field::Saddr]].concat();
    vec![
        syn(family, CmpOp::Neq).ret(),
        rule(family).vmap(&ranged, SetId::HealthFrom.name()),
        rule(family).vmap(&ranged, SetId::GuardFrom.name()),
        rule(family)
            .in_set(&[Field::Saddr], SetId::Inside.name())
            .ret(),
        rule(family).vmap(&K, SetId::HealthAny.name()),
        rule(family).vmap(&K, SetId::GuardAny.name()),
    ]
}

/// The name of the chain is that of a map, too: they have separate names. An address without an entry keeps its own port.
fn pod_health(family: Family) -> Vec<Rule> {
    vec![
        rule(family).jump(UPLINK_MARK),
        rule(family).dnat_to_map(&K, SetId::PodHealth.name()),
    ]
}

fn dead(family: Family) -> Vec<Rule> {
    let ranged = [&K[..], &[Field::Saddr]].concat();
    vec![
        rule(family).vmap(&ranged, SetId::DeadFrom.name()),
        rule(family)
            .in_set(&[Field::Saddr], SetId::Inside.name())
            .ret(),
        rule(family).vmap(&K, SetId::DeadAny.name()),
    ]
}

/// A first packet that still has an entry from before the guard is dropped: the entry goes, and the resend is steered.
fn dead_steered(family: Family) -> Vec<Rule> {
    vec![
        rule(family).jump(UPLINK_MARK),
        rule(family).l4proto(UDP).drop(),
        syn(family, CmpOp::Eq).drop(),
        rule(family).l4proto(TCP).reject_tcp_reset(),
    ]
}

fn dead_refused(family: Family) -> Vec<Rule> {
    vec![
        rule(family).jump(UPLINK_MARK),
        rule(family).jump(Counted::Refused.chain()),
        rule(family).l4proto(TCP).reject_tcp_reset(),
        rule(family).reject_port_unreachable(),
    ]
}

/// Sets that the rules write themselves.
pub(super) fn own_sets(family: Family) -> [Set; 1] {
    let client = [address(family), FieldType::PORT];
    [Set::new(REFUSED, &client)
        .dynamic()
        .timeout()
        .size(REFUSED_AT_MOST)]
}

/// The answer of a closed port, to a client outside, for a target that is listed. A server that exits at once closes its
/// port before anybody can know; the guard follows within milliseconds. So the first refusal of a connection is not
/// delivered: the client's SYN comes again after a second and is steered, or refused for good.
pub(super) fn refusal(family: Family) -> Rule {
    let original = CtDirection::Original;
    let sequence = PayloadAt {
        base: PayloadBase::Transport,
        offset: 4,
        len: 4,
    };
    let key = [
        Field::CtDaddr(original),
        Field::L4Proto,
        Field::CtDport(original),
    ];
    rule(family)
        .l4proto(TCP)
        .tcp_flags(FIN | SYN | RST | ACK, CmpOp::Eq, RST | ACK)
        // A reset in the middle of a connection has a sequence number.
        .push(Expr::Payload {
            dreg: Reg(0),
            at: sequence,
        })
        .push(Expr::Cmp {
            sreg: Reg(0),
            op: CmpOp::Eq,
            data: Value::exact(&[0; 4]),
        })
        .ct_direction(CtDirection::Reply)
        .in_set(&[Field::OifName], SetId::Uplinks.name())
        .in_set(&key, SetId::Targets.name())
        .jump(FIRST_REFUSAL)
}

fn first_refusal(family: Family) -> Vec<Rule> {
    let client = [Field::Daddr, Field::Dport];
    let (address, port) = match family {
        Family::V4 => ((16, 4), Reg(1)),
        Family::V6 => ((24, 16), Reg(4)),
    };
    let load = |dreg, base, (offset, len)| Expr::Payload {
        dreg,
        at: PayloadAt { base, offset, len },
    };
    vec![
        rule(family)
            .in_set(&[Field::Daddr], SetId::Inside.name())
            .ret(),
        rule(family).in_set(&client, REFUSED).ret(),
        rule(family)
            .push(load(Reg(0), PayloadBase::Network, address))
            .push(load(port, PayloadBase::Transport, (2, 2)))
            .push(Expr::Dynset {
                set: REFUSED.into(),
                op: DynsetOp::Add,
                key: Reg(0),
                data: None,
                timeout_ms: Some(REFUSED_FOR_MS),
            })
            .drop(),
    ]
}
