//! Routing tables and policy rules of the uplinks: what there should be against what there is (S-403). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::messages::{Change, MarkRule, Route, Seen};
use crate::guard::network::Uplink;
use crate::table::element::{Family, MAX_UPLINK, UplinkNumber};
use crate::table::guard::{UPLINK_MASK, uplink_bits};

/// Routing table of uplink 0; the others follow.
const FIRST_TABLE: u32 = 7700;
/// Before the rules of any CNI.
const PRIORITY: u32 = 100;
/// The kernel's own table of local addresses.
const LOCAL_TABLE: u32 = 255;

const fn table(number: UplinkNumber) -> u32 {
    FIRST_TABLE + number as u32
}

/// Whether a routing table is one of ours.
pub(super) fn is_ours(table: u32) -> bool {
    const OURS: RangeInclusive<u32> = FIRST_TABLE..=FIRST_TABLE + MAX_UPLINK as u32;
    OURS.contains(&table)
}

/// Which number each uplink has. A number is not given anew while connections may carry it, so an interface keeps its
/// own for as long as the agent runs, and over a restart by its routing table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers(BTreeMap<String, UplinkNumber>);

impl Numbers {
    /// The number of an uplink.
    pub(super) fn of(&self, name: &str) -> Option<UplinkNumber> {
        self.0.get(name).copied()
    }

    /// Gives every uplink a number that has none. More than fifteen: the last ones get none.
    pub(super) fn assign(&mut self, seen: &Seen, names: &BTreeSet<String>) {
        for link in &seen.links {
            let mut routes = seen.routes.iter();
            let own = routes.find(|r| r.out == link.index && is_ours(r.table));
            let number = own.and_then(|r| UplinkNumber::try_from(r.table - FIRST_TABLE).ok());
            if let Some(number) = number.filter(|n| !self.0.values().any(|used| used == n)) {
                self.0.entry(link.name.clone()).or_insert(number);
            }
        }
        for name in names {
            if !self.0.contains_key(name) {
                let used: BTreeSet<UplinkNumber> = self.0.values().copied().collect();
                let free = (1..=MAX_UPLINK).find(|number| !used.contains(number));
                self.0.extend(free.map(|number| (name.clone(), number)));
            }
        }
    }
}

/// What is to be done. Link routes come before the default routes whose gateways they reach, and tables before the
/// rules that lead to them.
pub(super) fn changes(seen: &Seen, uplinks: &[Uplink]) -> Vec<Change> {
    // With one uplink there is only one way out (S-402).
    let several = if uplinks.len() > 1 { uplinks } else { &[] };
    let routes: BTreeSet<Route> = several.iter().flat_map(|u| routes_of(seen, u)).collect();
    let rules: BTreeSet<MarkRule> = several.iter().flat_map(|u| rules_of(u, &routes)).collect();
    let held_rules = seen.rules.iter().filter(|r| is_ours(r.table));
    let held_routes = seen.routes.iter().filter(|r| is_ours(r.table));
    let mut changes = Vec::new();
    let surplus = held_rules.clone().filter(|r| !rules.contains(r));
    changes.extend(surplus.cloned().map(Change::DeleteRule));
    let surplus = held_routes.clone().filter(|r| !routes.contains(r));
    changes.extend(surplus.cloned().map(Change::DeleteRoute));
    let mut missing: Vec<&Route> = routes
        .iter()
        .filter(|r| held_routes.clone().all(|held| held != *r))
        .collect();
    missing.sort_by_key(|r| r.via.is_some());
    changes.extend(missing.into_iter().cloned().map(Change::AddRoute));
    let missing = rules
        .iter()
        .filter(|r| held_rules.clone().all(|held| held != *r));
    changes.extend(missing.cloned().map(Change::AddRule));
    changes
}

/// Copies of the interface's link routes, and its default route, wherever they are.
fn routes_of(seen: &Seen, uplink: &Uplink) -> Vec<Route> {
    let mut links = seen.links.iter();
    let Some(link) = links.find(|l| l.name == uplink.name.as_str()) else {
        return Vec::new();
    };
    let mut copies: BTreeMap<(Family, Option<ipnet::IpNet>), Route> = BTreeMap::new();
    for route in &seen.routes {
        let foreign = route.out != link.index || is_ours(route.table) || route.table == LOCAL_TABLE;
        if foreign || (route.to.is_some() && route.via.is_some()) {
            continue;
        }
        let copy = Route {
            table: table(uplink.number),
            // IPv6 chooses its source by itself, and tells it in a form that would differ.
            source: route.source.filter(|_| route.family == Family::V4),
            ..route.clone()
        };
        copies.entry((route.family, route.to)).or_insert(copy);
    }
    copies.into_values().collect()
}

/// A rule for every family in which the table has a way out.
fn rules_of(uplink: &Uplink, routes: &BTreeSet<Route>) -> Vec<MarkRule> {
    let table = table(uplink.number);
    let leads_out = |family: &Family| {
        let mut routes = routes.iter();
        routes.any(|r| r.family == *family && r.table == table && r.to.is_none())
    };
    let rule = |family| MarkRule {
        family,
        priority: PRIORITY,
        mark: uplink_bits(uplink.number),
        mask: UPLINK_MASK,
        table,
    };
    Family::ALL
        .into_iter()
        .filter(leads_out)
        .map(rule)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::super::messages::Link;
    use super::*;

    fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.to_owned(),
            kind: Some("veth".to_owned()),
            loopback: false,
            addresses: Vec::new(),
        }
    }

    fn route(table: u32, out: u32, to: Option<&str>, via: Option<&str>) -> Route {
        Route {
            family: Family::V4,
            table,
            to: to.map(|text| text.parse().unwrap()),
            via: via.map(|text| text.parse().unwrap()),
            out,
            source: None,
        }
    }

    fn two_interfaces() -> Seen {
        Seen {
            links: vec![link(2, "eth0"), link(3, "eth1"), link(9, "veth1")],
            routes: vec![
                route(254, 2, Some("10.0.1.1/32"), None),
                route(254, 2, None, Some("10.0.1.1")),
                route(102, 3, Some("10.0.2.1/32"), None),
                route(102, 3, None, Some("10.0.2.1")),
                route(254, 9, Some("10.244.1.5/32"), None),
            ],
            rules: Vec::new(),
        }
    }

    fn settle(seen: &mut Seen, numbers: &mut Numbers) -> Vec<Change> {
        let names = find::uplinks(seen, &[]);
        numbers.assign(seen, &names);
        let changes = changes(seen, &find::numbered(seen, &names, numbers));
        for change in &changes {
            match change.clone() {
                Change::AddRoute(route) => seen.routes.push(route),
                Change::AddRule(rule) => seen.rules.push(rule),
                Change::DeleteRoute(route) => seen.routes.retain(|r| *r != route),
                Change::DeleteRule(rule) => seen.rules.retain(|r| *r != rule),
            }
        }
        changes
    }

    #[test]
    fn s400_interfaces_with_a_default_route_are_uplinks() {
        let seen = two_interfaces();
        let names: Vec<String> = find::uplinks(&seen, &[]).into_iter().collect();
        assert_eq!(names, ["eth0", "eth1"], "S-400");
        let given = ["eth1".to_owned()];
        assert_eq!(find::uplinks(&seen, &given).len(), 1, "the flag overrides");
    }

    #[test]
    fn s403_each_uplink_has_a_table_and_a_rule_and_a_second_look_changes_nothing() {
        let (mut seen, mut numbers) = (two_interfaces(), Numbers::default());
        let first = settle(&mut seen, &mut numbers);
        assert_eq!(first.len(), 6, "{first:?}");
        assert!(
            matches!(&first[0], Change::AddRoute(r) if r.via.is_none()),
            "link routes first"
        );
        assert!(matches!(first[5], Change::AddRule(_)));
        assert_eq!(settle(&mut seen, &mut numbers), [], "S-403");
        // A restart finds the numbers in the tables.
        seen.links[0].name = "zeth0".to_owned();
        assert_eq!(settle(&mut seen, &mut Numbers::default()), []);
    }

    #[test]
    fn s402_with_one_uplink_left_rules_and_tables_go() {
        let (mut seen, mut numbers) = (two_interfaces(), Numbers::default());
        settle(&mut seen, &mut numbers);
        seen.routes.retain(|r| r.table != 102);
        settle(&mut seen, &mut numbers);
        let left = seen.routes.iter().filter(|r| is_ours(r.table)).count();
        assert_eq!((left, seen.rules.len()), (0, 0), "S-402");
    }
}
