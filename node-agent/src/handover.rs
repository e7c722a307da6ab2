//! Services that left this agent while a kube-proxy lives on the node: their label was taken off, or they were deleted,
//! which the watch of our label cannot tell apart. What is programmed for them stays until kube-proxy has it too, since
//! it syncs at most once a second and nobody would serve meanwhile (S-345). Pure; part of the state.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

/// Longest time: a second between kube-proxy's syncs, and a sync of a large cluster. Who deleted a Service for good sees
/// it served for so long if no slice goes with it.
const LONGEST: Duration = Duration::from_secs(5);

/// The Services that are on their way.
#[derive(Debug, Default)]
pub struct Handovers {
    taker: bool,
    leaving: BTreeMap<ServiceKey, Leaving>,
}

#[derive(Debug)]
struct Leaving {
    service: Box<ServiceSpec>,
    begun: Option<Begun>,
}

/// When it began to be on its way.
#[derive(Debug, Clone, Copy)]
struct Begun {
    at: Time,
    /// How often kube-proxy's tables had been looked at. What was seen before may be from when they served it last.
    looks: u64,
}

impl Handovers {
    /// Whether there is a kube-proxy that would take Services.
    pub fn set_taker(&mut self, there: bool) {
        self.taker = there;
    }

    /// A Service of ours is seen no more; this is what it was.
    pub fn left(&mut self, service: Box<ServiceSpec>) {
        // What is being deleted goes to nobody.
        if self.taker && service.deleted.is_none() {
            let (key, begun) = (service.key.clone(), None);
            self.leaving.insert(key, Leaving { service, begun });
        }
    }

    /// A Service is there again, or has no endpoint left that could be served.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.leaving.remove(key);
    }

    /// A Service that is on its way.
    pub fn get(&self, key: &ServiceKey) -> Option<&ServiceSpec> {
        self.leaving.get(key).map(|leaving| &*leaving.service)
    }

    /// All of them.
    pub fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.leaving.keys()
    }

    /// Lets go of those that kube-proxy has taken or will not take any more: their keys. `looks` counts the looks at
    /// kube-proxy's tables; `taken` tells what the last one saw.
    pub fn pass(
        &mut self,
        now: Time,
        looks: u64,
        taken: impl Fn(&ServiceKey) -> bool,
    ) -> Vec<ServiceKey> {
        let mut gone = Vec::new();
        self.leaving.retain(|key, leaving| {
            let begun = *leaving.begun.get_or_insert(Begun { at: now, looks });
            let stays = begun.at + LONGEST > now && !(looks > begun.looks && taken(key));
            if !stays {
                gone.push(key.clone());
            }
            stays
        });
        gone
    }

    /// When [`Handovers::pass`] has something to do by itself.
    pub fn next_end(&self) -> Option<Time> {
        let begun = self.leaving.values().filter_map(|leaving| leaving.begun);
        begun.map(|begun| begun.at + LONGEST).min()
    }
}
