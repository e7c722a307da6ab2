//! What one Service needs done in its load balancer, public IPs and the security group (AZ-115, AZ-116). Pure.
//!
//! A plan is of one Service; what several plans want of one document goes out in one write (see `client::writer`).

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;
use serde_json::Value;

use super::balancer::{PoolChange, conflict, has_part, is_ours, is_there, room};
use super::document::{FRONTENDS, POOLS, child, children, name, reference, referred, text};
use super::families::{last_ipv4, stays_for_ipv6};
use super::grace;
use super::members::{Filled, has_members};
use super::model::{Built, Observed, Rules, build};
use super::names;
use super::public_ip::{Release, is_attached, release};
use super::rights::locked;
use super::settings::{Kind, Settings};
use super::step::AzureStep;
use super::switch::other_pool;
use crate::plan::{Intent, Plan, arrange};

/// What has to be done for one Service; with no intent everything goes.
pub fn plan(
    settings: &Settings,
    service: &ServiceKey,
    intent: Option<&Intent>,
    seen: &Observed,
    now: Time,
) -> Plan<AzureStep> {
    let mut planner = Planner {
        settings,
        service,
        seen,
        now,
        steps: Vec::new(),
    };
    match intent {
        Some(intent) => {
            // What cannot be built is left exactly as it is (AZ-107); the outcome says why.
            if let Ok(mut built) = build(settings, service, &intent.spec, &seen.documents) {
                let end = grace::end(settings, &built.part, seen, now);
                if end.is_some_and(|end| end <= now) {
                    built.part = built.part.without_former();
                }
                planner.keep(intent, &built);
            }
        }
        None => planner.remove_all(),
    }
    arrange(std::slice::from_ref(service), planner.steps)
}

struct Planner<'a> {
    settings: &'a Settings,
    service: &'a ServiceKey,
    seen: &'a Observed,
    now: Time,
    steps: Vec<AzureStep>,
}

impl Planner<'_> {
    fn keep(&mut self, intent: &Intent, built: &Built) {
        let part = &built.part;
        let balancer = self.seen.balancer(part.kind);
        if balancer.is_some_and(|it| !is_ours(it, self.settings) || conflict(it, part).is_some()) {
            return;
        }
        if room(balancer, part, &self.seen.documents.ipv6()).is_some() {
            return;
        }
        let wishes = super::model::wishes(&intent.spec);
        let made = balancer.is_some_and(|balancer| has_part(balancer, &part.base));
        // A live one keeps its state (AZ-018).
        if !made && locked(&self.seen.missing, &wishes).is_some() {
            return;
        }
        for (id, document) in &built.public_ips {
            self.steps.push(AzureStep::PutPublicIp {
                id: id.clone(),
                document: document.clone(),
            });
        }
        let done = balancer.is_some_and(|balancer| is_there(balancer, part))
            && built.public_ips.is_empty();
        let changes = self.members(intent, built, done);
        if done {
            for change in changes {
                self.steps.push(AzureStep::ChangeMembers {
                    kind: part.kind,
                    change,
                });
            }
            self.former_members(intent, built);
            self.clean(built);
        } else if let Some(members) = self.first_members(intent, changes, built) {
            self.steps.push(AzureStep::PutPart {
                part: Box::new(part.clone()),
                members,
                needs: built.public_ips.iter().map(|(id, _)| id.clone()).collect(),
            });
        }
        if !done || *self.seen.rules(self.settings) == Rules::Due {
            self.steps.push(AzureStep::PutRules {
                base: part.base.clone(),
                kind: part.kind,
            });
        }
    }

    /// Members to change in the pools of the part.
    fn members(&self, intent: &Intent, built: &Built, done: bool) -> Vec<PoolChange> {
        let filled = built.part.all_pools().map(|pool| {
            let at = (pool, built.part.kind);
            Filled::read(self.settings, intent, at, self.seen, self.now)
        });
        let changes = filled.map(|filled| {
            let mut change = filled.change(self.settings, self.now);
            if !done {
                // Beside a change of shape nothing leaves: deletions come after what replaces them (AZ-109).
                change.down.clear();
                change.out.clear();
            }
            change
        });
        changes.filter(|change| !change.is_empty()).collect()
    }

    /// The changes that travel with the part (AZ-106); none where a rule is switched to a pool that has to be filled first
    /// (AZ-253), or what it needs has to be let in first: then this plan does only that.
    fn first_members(
        &mut self,
        intent: &Intent,
        changes: Vec<PoolChange>,
        built: &Built,
    ) -> Option<Vec<PoolChange>> {
        let Some(balancer) = self.seen.balancer(built.part.kind) else {
            return Some(changes);
        };
        let others = built
            .part
            .rules
            .iter()
            .filter_map(|wish| Some((wish, other_pool(balancer, wish)?)));
        let serving: Vec<_> = others
            .filter(|(_, old)| has_members(child(balancer, POOLS, old)))
            .collect();
        let empty = |new: &str| {
            let mut changes = changes.iter();
            changes.any(|change| change.pool.eq_ignore_ascii_case(new))
        };
        let unfilled = serving
            .iter()
            .any(|(wish, _)| referred(&wish.wish, "backendAddressPool").is_some_and(empty));
        // Let in before, so that nobody stays out for the time of a write.
        let shut = !serving.is_empty() && !self.seen.lets_in(self.settings, &intent.spec);
        // The same for the pool of a former frontend (AZ-113).
        let unfilled_former = built.part.former_pools.iter().any(|pool| empty(&pool.name));
        let switches = unfilled || unfilled_former || shut;
        if !switches {
            return Some(changes);
        }
        for change in changes {
            self.steps.push(AzureStep::ChangeMembers {
                kind: built.part.kind,
                change,
            });
        }
        None
    }

    /// What the Service has beyond its part: on the other load balancer, own pools that no rule uses, public IPs (AZ-110).
    fn clean(&mut self, built: &Built) {
        let part = &built.part;
        let grace = grace::end(self.settings, part, self.seen, self.now);
        let in_grace = grace.is_some_and(|end| end > self.now);
        for base in self.seen.bases(self.settings) {
            for kind in Kind::ALL {
                let own = base == part.base && (kind == part.kind || in_grace);
                if !own {
                    self.remove_part(kind, &base);
                }
            }
        }
        for pool in self.over(part.kind, &part.base) {
            self.steps.push(AzureStep::DropPool {
                kind: part.kind,
                pool,
            });
        }
        // What the former side holds is held until its end.
        if !in_grace {
            self.release(&built.uses);
        }
        if grace.is_none() || in_grace {
            let unsaid = grace::unsaid(self.settings, part, self.seen, grace).into_iter();
            // Of what goes there is nothing to be said.
            let unsaid: Vec<_> = unsaid.filter(|(id, _)| !self.goes(id)).collect();
            let puts = unsaid
                .into_iter()
                .map(|(id, document)| AzureStep::PutPublicIp { id, document });
            self.steps.extend(puts);
        }
    }

    /// Members of the pools of the former side, which serves on (AZ-113).
    fn former_members(&mut self, intent: &Intent, built: &Built) {
        let kind = built.part.kind.opposite();
        let pools = grace::pools_opposite(&built.part, self.seen);
        let changes = pools.iter().map(|pool| {
            Filled::read(self.settings, intent, (pool, kind), self.seen, self.now)
                .change(self.settings, self.now)
        });
        let steps = changes.filter(|change| !change.is_empty());
        self.steps
            .extend(steps.map(|change| AzureStep::ChangeMembers { kind, change }));
    }

    /// Own pools of the Service that no rule has used for the length of a switch.
    fn over(&self, kind: Kind, base: &str) -> Vec<String> {
        let pools = self
            .seen
            .balancer(kind)
            .map_or(&[][..], |balancer| children(balancer, POOLS));
        let own = pools
            .iter()
            .map(name)
            .filter(|pool| names::is_of(pool, base));
        let unused = |pool: &&str| {
            let since = self
                .seen
                .times
                .unused
                .get(&(kind, pool.to_ascii_lowercase()));
            since.is_some_and(|since| self.now.since(*since) >= self.settings.switch_tail)
        };
        own.filter(unused).map(str::to_owned).collect()
    }

    fn remove_part(&mut self, kind: Kind, base: &str) {
        let Some(balancer) = self.seen.balancer(kind) else {
            return;
        };
        let six = self.seen.documents.ipv6();
        if has_part(balancer, base) && !stays_for_ipv6(balancer, base, &six) {
            // A frontend that stays for the sake of those of IPv6 frees nothing (AZ-188).
            let held = last_ipv4(balancer, base, &six);
            let pips = self.seen.public_ips(self.settings).filter(|_| !held);
            let frees = pips.filter_map(|pip| text(pip, &["id"]));
            let frees = frees.map(str::to_owned).collect();
            self.steps.push(AzureStep::RemovePart {
                kind,
                base: base.to_owned(),
                frees,
            });
        }
    }

    /// Public IPs that name the Service and that it no longer uses (AZ-181).
    fn release(&mut self, uses: &[String]) {
        for pip in self.seen.public_ips(self.settings) {
            let Some(id) = text(pip, &["id"]).map(str::to_owned) else {
                continue;
            };
            if uses.iter().any(|used| used.eq_ignore_ascii_case(&id)) {
                continue;
            }
            match release(self.settings, pip, self.service) {
                Release::Nothing => {}
                Release::Keep(document) => self.steps.push(AzureStep::PutPublicIp { id, document }),
                // Not while somebody's frontend holds it: that goes first (AZ-183, AZ-187).
                Release::Delete if self.holds(&id) && !self.lets_go(&id) => {}
                Release::Delete => self.steps.push(AzureStep::DeletePublicIp { id }),
            }
        }
    }

    /// Whether a frontend holds it, by what the public IP says or by what our load balancers say: either may have been
    /// read before the other's last change.
    fn holds(&self, id: &str) -> bool {
        let holds = |frontend: &Value| {
            reference(frontend, "publicIPAddress").is_some_and(|it| it.eq_ignore_ascii_case(id))
        };
        let balancers = self.seen.documents.balancers.values();
        let mut frontends = balancers.flat_map(|balancer| children(balancer, FRONTENDS));
        let pip = self
            .seen
            .public_ips(self.settings)
            .find(|pip| text(pip, &["id"]) == Some(id));
        frontends.any(holds) || pip.is_some_and(is_attached)
    }

    /// Whether this plan deletes it.
    fn goes(&self, id: &str) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, AzureStep::DeletePublicIp { id: it } if it == id))
    }

    /// Whether this plan takes away the frontend that holds it.
    fn lets_go(&self, id: &str) -> bool {
        self.steps.iter().any(|step| matches!(step, AzureStep::RemovePart { frees, .. } if frees.iter().any(|f| f == id)))
    }

    fn remove_all(&mut self) {
        let bases: Vec<String> = self.seen.bases(self.settings).into_iter().collect();
        let left = bases
            .iter()
            .any(|base| is_left(self.settings, self.seen, base));
        if !left && !self.seen.asks {
            return;
        }
        self.steps.push(AzureStep::ReleaseRules {
            service: self.service.clone(),
            bases: bases.clone(),
        });
        for base in &bases {
            for kind in Kind::ALL {
                self.remove_part(kind, base);
            }
        }
        self.release(&[]);
    }
}

/// Whether anything of a Service with this base name is left.
pub fn is_left(settings: &Settings, seen: &Observed, base: &str) -> bool {
    let in_balancer = Kind::ALL
        .iter()
        .any(|kind| seen.balancer(*kind).is_some_and(|it| has_part(it, base)));
    let named = |pip: &Value| {
        release(settings, pip, &seen.service) != Release::Nothing
            && name(pip).starts_with(&format!("{}-{base}", settings.cluster))
    };
    in_balancer || seen.public_ips(settings).any(named)
}

#[cfg(test)]
mod tests;
