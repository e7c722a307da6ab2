//! Network interfaces of targets: which security groups let packets in to a machine or a pod (AWS-310). Pure.
//!
//! All interfaces of the VPC are read as one listing, never one by one: no id in it can be unknown to AWS, and one read
//! serves all groups that wait for it (AWS-706).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::id::Cidr;
use onehop_core::time::Time;

/// Between two reads because of a target whose interface is not known.
const AGAIN: Duration = Duration::from_secs(20);
/// How often a target is looked for so, before it waits for the next listing of everything: the interface of a machine that
/// has just come may not be shown yet, and a machine outside of AWS (hybrid nodes) has none.
const TRIES: u8 = 3;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `eni-…`.
    pub id: String,
    /// Ids of its security groups.
    pub groups: BTreeSet<String>,
    /// Its addresses, also those that the CNI gives to pods.
    pub addresses: BTreeSet<IpAddr>,
    /// Ranges that the CNI gives addresses to pods from.
    pub prefixes: Vec<Cidr>,
    /// The machine whose primary one it is.
    pub primary_of: Option<String>,
}

/// What a target's interface says of where its rules go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The security group.
    pub group: String,
    /// All that it was chosen from, if its tags alone did not decide (AWS-311).
    pub among: BTreeSet<String>,
}

/// All that are known.
#[derive(Debug, Default)]
pub struct Interfaces {
    all: Vec<Interface>,
    by_instance: BTreeMap<String, usize>,
    by_address: BTreeMap<IpAddr, usize>,
    /// Interfaces that have ranges.
    with_prefixes: Vec<usize>,
    /// Targets that were not found, and by how many reads since the last listing of everything.
    unknown: BTreeMap<String, u8>,
    read_at: Option<Time>,
}

impl Interfaces {
    /// Targets that were not found before are looked for as if they were new.
    pub fn look_again(&mut self) {
        self.unknown.clear();
    }

    /// Takes in a read that began at `began`; without an answer what was known stays.
    pub fn read(&mut self, all: Option<Vec<Interface>>, began: Time) {
        let Some(all) = all else {
            self.read_at = Some(began);
            return;
        };
        *self = Self {
            read_at: Some(began),
            unknown: std::mem::take(&mut self.unknown),
            ..Self::default()
        };
        for (index, interface) in all.iter().enumerate() {
            let instance = interface.primary_of.clone();
            self.by_instance.extend(instance.map(|id| (id, index)));
            let addresses = interface.addresses.iter();
            self.by_address.extend(addresses.map(|one| (*one, index)));
            if !interface.prefixes.is_empty() {
                self.with_prefixes.push(index);
            }
        }
        self.all = all;
    }

    /// The interface of a target, by its id: a machine's primary one, or the one that has the address.
    pub fn of(&self, target: &str) -> Option<&Interface> {
        let index = match target.parse::<IpAddr>() {
            Err(_) => self.by_instance.get(target).copied(),
            Ok(address) => self.by_address.get(&address).copied().or_else(|| {
                let mut having = self.with_prefixes.iter().copied();
                having.find(|index| {
                    let of = self.all.get(*index);
                    let mut prefixes = of.into_iter().flat_map(|one| &one.prefixes);
                    prefixes.any(|range| range.net().contains(&address))
                })
            }),
        };
        self.all.get(index?)
    }

    /// Whether some of these targets may be found by another read.
    pub fn is_due<'a>(&self, targets: impl Iterator<Item = &'a str>, now: Time) -> bool {
        if self.read_at.is_some_and(|at| at + AGAIN > now) {
            return false;
        }
        let mut targets = targets;
        let tried = |id| self.unknown.get(id).copied().unwrap_or_default();
        targets.any(|id| tried(id) < TRIES && self.of(id).is_none())
    }

    /// Takes note of those of these targets that were not found.
    pub fn not_found<'a>(&mut self, targets: impl Iterator<Item = &'a str>) {
        let missing: BTreeSet<&str> = targets.filter(|id| self.of(id).is_none()).collect();
        for id in missing {
            *self.unknown.entry(id.to_owned()).or_default() += 1;
        }
    }

    /// Where rules for these targets go, as far as their interfaces are known. `tagged` tells whether a security group
    /// carries the tags of the cluster's machines (AWS-311).
    pub fn carried<'a>(
        &self,
        targets: impl Iterator<Item = &'a str>,
        tagged: impl Fn(&str) -> bool,
    ) -> Vec<Carried> {
        let mut carried: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for interface in targets.filter_map(|id| self.of(id)) {
            let marked = interface.groups.iter().filter(|id| tagged(id));
            let marked: Vec<&String> = marked.collect();
            let (group, decided) = match (&marked[..], interface.groups.len()) {
                ([one], _) => (Some(*one), true),
                ([first, ..], _) => (Some(*first), false),
                ([], count) => (interface.groups.first(), count <= 1),
            };
            let Some(group) = group else { continue };
            let among = carried.entry(group.clone()).or_default();
            if !decided {
                among.extend(interface.groups.iter().cloned());
            }
        }
        let carried = carried.into_iter();
        carried
            .map(|(group, among)| Carried { group, among })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(id: &str, groups: &[&str]) -> Interface {
        Interface {
            id: id.to_owned(),
            groups: groups.iter().map(|id| (*id).to_owned()).collect(),
            ..Interface::default()
        }
    }

    fn world() -> Interfaces {
        let machine = |id: &str, instance: &str, groups: &[&str]| Interface {
            primary_of: Some(instance.to_owned()),
            ..interface(id, groups)
        };
        let mut all = Interfaces::default();
        all.read(
            Some(vec![
                Interface {
                    addresses: ["10.0.1.1", "10.0.1.20"].map(|a| a.parse().unwrap()).into(),
                    ..machine("eni-a", "i-a", &["sg-a"])
                },
                Interface {
                    prefixes: vec!["10.0.2.16/28".parse().unwrap()],
                    ..machine("eni-b", "i-b", &["sg-b", "sg-extra"])
                },
                // A pod's own, and one of a pod without a machine.
                Interface {
                    addresses: ["10.0.3.9".parse().unwrap()].into(),
                    ..interface("eni-pod", &["sg-pod"])
                },
                machine("eni-c", "i-c", &["sg-x", "sg-y"]),
                machine("eni-d", "i-d", &["sg-b", "sg-a"]),
            ]),
            Time::from_millis(0),
        );
        all
    }

    fn carried(targets: &[&str]) -> Vec<(String, usize)> {
        let tagged = |id: &str| ["sg-a", "sg-b"].contains(&id);
        let carried = world().carried(targets.iter().copied(), tagged);
        let pairs = carried.into_iter();
        pairs.map(|one| (one.group, one.among.len())).collect()
    }

    #[test]
    fn aws310_rules_go_to_what_each_targets_interface_carries() {
        let of = |pairs: &[(&str, usize)]| -> Vec<(String, usize)> {
            let pairs = pairs.iter();
            pairs.map(|(id, n)| ((*id).to_owned(), *n)).collect()
        };
        assert_eq!(
            carried(&["i-a", "i-b"]),
            of(&[("sg-a", 0), ("sg-b", 0)]),
            "AWS-310: machines of two kinds; AWS-311: the tag decides"
        );
        assert_eq!(
            carried(&["10.0.1.20", "10.0.2.17", "10.0.3.9"]),
            of(&[("sg-a", 0), ("sg-b", 0), ("sg-pod", 0)]),
            "AWS-310: a secondary address, one of a prefix, a pod's own interface"
        );
        // A hybrid node and a pod nobody knows are skipped.
        assert_eq!(
            carried(&["mi-1", "192.0.2.1", "i-gone"]),
            of(&[]),
            "AWS-310"
        );
    }

    #[test]
    fn aws311_where_tags_do_not_decide_it_is_the_first_and_that_is_told() {
        let tagged = |id: &str| ["sg-a", "sg-b"].contains(&id);
        let all = world();
        let none = all.carried(["i-c"].into_iter(), tagged);
        assert_eq!(none[0].group, "sg-x", "AWS-311: none has the tag");
        assert_eq!(none[0].among.len(), 2);
        let both = all.carried(["i-d"].into_iter(), tagged);
        assert_eq!(both[0].group, "sg-a", "AWS-311: both have");
        assert_eq!(both[0].among.len(), 2);
    }

    #[test]
    fn aws706_aws312_who_is_not_found_is_looked_for_a_few_times() {
        let at = |seconds: i64| Time::from_millis(seconds * 1000);
        let mut all = world();
        let due = |all: &Interfaces, id: &str, now| all.is_due([id].into_iter(), at(now));
        assert!(!due(&all, "i-a", 100), "known");
        assert!(!due(&all, "i-new", 1), "read just now");
        for time in 0..TRIES {
            assert!(due(&all, "i-new", 100), "AWS-706: {time}");
            all.not_found(["i-new", "i-new"].into_iter());
        }
        assert!(!due(&all, "i-new", 100), "AWS-706");
        all.read(None, at(200));
        assert!(
            all.of("i-a").is_some(),
            "AWS-312: no answer takes nothing away"
        );
        assert!(!due(&all, "i-later", 210), "nor is asked for again at once");
        all.look_again();
        all.read(None, at(300));
        assert!(
            due(&all, "i-new", 400),
            "with the next listing of everything"
        );
        assert!(due(&Interfaces::default(), "i-a", 0), "nothing was read");
    }
}
