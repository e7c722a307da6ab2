//! The rules on targets that all Services together need: a security group of machines is everybody's, so what one Service
//! needs no more may be another's. Pure; fed by each plan, asked at each sweep. Nothing is ever revoked on half a view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use super::model::{Group, Rule, SecurityGroup, Tagged};

/// How long a rule stays although nobody needs it any more: flows go on for so long (AWS-320).
const KEPT: Duration = Duration::from_mins(1);

/// The book.
#[derive(Debug, Default)]
pub struct RuleBook {
    wanted: BTreeMap<ServiceKey, BTreeSet<Rule>>,
    unwanted_since: BTreeMap<(String, Rule), Time>,
}

/// What there is of this install.
#[derive(Debug, Default)]
pub struct There<'a> {
    /// Services with a load balancer or a group.
    pub services: BTreeSet<ServiceKey>,
    /// Groups.
    pub groups: Vec<&'a Group>,
    /// Security groups that may have rules of ours for targets.
    pub security_groups: Vec<&'a SecurityGroup>,
}

impl RuleBook {
    /// What a Service needs from now on.
    pub fn note(&mut self, service: &ServiceKey, rules: BTreeSet<Rule>) {
        self.wanted.insert(service.clone(), rules);
    }

    /// Whether every Service that has anything is in the book: before that nothing is known to be unneeded (AWS-321).
    pub fn is_complete(&self, there: &There<'_>) -> bool {
        let known = |service: &ServiceKey| self.wanted.contains_key(service);
        there.services.iter().all(known)
    }

    /// Rules with this description that nobody has needed for a while, by security group.
    pub fn surplus(
        &mut self,
        there: &There<'_>,
        description: &str,
        now: Time,
    ) -> BTreeMap<String, Vec<Rule>> {
        if !self.is_complete(there) {
            self.unwanted_since.clear();
            return BTreeMap::new();
        }
        let serving = self.serving(there);
        let needed = |rule: &Rule| {
            let wanted = self.wanted.values().any(|rules| rules.contains(rule));
            wanted || serving.iter().any(|port| covers(rule, *port))
        };
        let of_group = there.security_groups.iter().flat_map(|group| {
            let ours = group.rules.iter().filter(|(_, told)| *told == description);
            ours.map(|(rule, _)| (group.id.clone(), rule.clone()))
        });
        let unwanted: BTreeSet<_> = of_group.filter(|(_, rule)| !needed(rule)).collect();
        self.unwanted_since.retain(|key, _| unwanted.contains(key));
        let mut surplus: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
        for (id, rule) in unwanted {
            let key = (id.clone(), rule.clone());
            let since = *self.unwanted_since.entry(key).or_insert(now);
            if since + KEPT <= now {
                surplus.entry(id).or_default().push(rule);
            }
        }
        surplus
    }

    /// Ports of groups that serve on while others replace them: their Service's wishes do not speak of them any more
    /// (AWS-620).
    fn serving(&self, there: &There<'_>) -> BTreeSet<u16> {
        let mut ports = BTreeSet::new();
        for group in &there.groups {
            let wanted = group
                .service()
                .and_then(|service| self.wanted.get(&service));
            let targets = group
                .targets
                .iter()
                .flatten()
                .map(|(target, _)| target.port);
            let all = targets.chain(group.check.port);
            ports.extend(all.filter(|port| {
                let mut rules = wanted.into_iter().flatten();
                !rules.any(|rule| covers(rule, *port))
            }));
        }
        ports
    }
}

fn covers(rule: &Rule, port: u16) -> bool {
    (rule.from..=rule.to).contains(&i32::from(port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::aws::model::RuleSource;

    const OURS: &str = "onehop.dev/install=i";

    fn rule(port: i32) -> Rule {
        Rule {
            protocol: "tcp",
            from: port,
            to: port,
            source: RuleSource::Group("sg-backend".to_owned()),
        }
    }

    fn nodes(rules: &[(i32, &str)]) -> SecurityGroup {
        SecurityGroup {
            id: "sg-nodes".to_owned(),
            name: "nodes".to_owned(),
            tags: BTreeMap::new(),
            rules: rules
                .iter()
                .map(|(port, told)| (rule(*port), (*told).to_owned()))
                .collect(),
        }
    }

    fn at(seconds: i64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    #[test]
    fn aws321_aws320_aws324_aws436_a_rule_that_nobody_needs_goes_after_a_while_and_no_other() {
        let (web, api) = (
            ServiceKey::new("shop", "web"),
            ServiceKey::new("shop", "api"),
        );
        let group = nodes(&[
            (80, OURS),
            (81, OURS),
            (82, "elbv2.k8s.aws/targetGroupBinding=shared"),
        ]);
        let there = There {
            services: [web.clone(), api.clone()].into(),
            security_groups: vec![&group],
            ..There::default()
        };
        let mut book = RuleBook::default();
        book.note(&web, [rule(80)].into());
        let none = BTreeMap::new();
        for now in [0, 600] {
            assert_eq!(
                book.surplus(&there, OURS, at(now)),
                none,
                "AWS-321: one is not known yet"
            );
        }
        book.note(&api, [rule(80)].into());
        assert_eq!(
            book.surplus(&there, OURS, at(600)),
            none,
            "AWS-320: kept a minute"
        );
        assert_eq!(book.surplus(&there, OURS, at(659)), none, "AWS-320");
        let gone = [("sg-nodes".to_owned(), vec![rule(81)])].into();
        assert_eq!(
            book.surplus(&there, OURS, at(660)),
            gone,
            "AWS-436; AWS-324: not the peer's"
        );
        // Another Service needs it too.
        book.note(&web, BTreeSet::new());
        for now in [700, 900] {
            assert!(!book.surplus(&there, OURS, at(now))["sg-nodes"].contains(&rule(80)));
        }
        // Somebody needs it again in time.
        book.note(&api, BTreeSet::new());
        let left = book.surplus(&there, OURS, at(901));
        assert_eq!(left["sg-nodes"], [rule(81)], "AWS-320");
        book.note(&api, [rule(80)].into());
        assert_eq!(book.surplus(&there, OURS, at(990))["sg-nodes"], [rule(81)]);
    }
}
