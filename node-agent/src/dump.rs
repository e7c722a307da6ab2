//! What is programmed for each Service, for people who are used to a chain per Service and find none (S-207): its
//! frontends, who gets their connections, and what becomes of those that nobody gets. Pure; the app calls it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use ipnet::IpNet;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;

use crate::claims::Front;
use crate::planner::{Notice, Planner, front_of};
use crate::state::State;
use crate::table::element::{Data, Elements, Key, LOCAL_SCOPE, SetId, Verdict};

/// One frontend, as the elements of its Service say it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Programmed {
    /// Who gets connections; of policy Local those of pods and of this node.
    cluster: Vec<SocketAddr>,
    /// Who gets those of outside clients, where that is decided apart.
    local: Vec<SocketAddr>,
    policy_local: bool,
    masqueraded: bool,
    sticky: bool,
    /// Who may come in, where not everybody may.
    sources: Option<Vec<IpNet>>,
    /// What becomes of connections that nobody gets.
    empty: Option<Verdict>,
}

/// The text for all Services that have something programmed or something to say, or for one.
pub fn text(state: &State, planner: &Planner, only: Option<&ServiceKey>) -> String {
    let mut keys: Vec<&ServiceKey> = match only {
        Some(key) => vec![key],
        None => state.keys().collect(),
    };
    keys.sort();
    let mut text = String::new();
    for key in keys {
        let Some(service) = state.service(key) else {
            continue;
        };
        let elements = planner.programmed(key);
        let _ = write!(
            text,
            "{}",
            of_service(service, &elements, planner.noticed(key))
        );
    }
    if text.is_empty() {
        text = match only {
            Some(key) => format!("Service {key} is not proxied by this agent\n"),
            None => "no Service is proxied by this agent\n".to_owned(),
        };
    }
    text
}

fn of_service(service: &ServiceSpec, elements: &Elements, notices: &[Notice]) -> String {
    let mut text = format!("{}\n", service.key);
    for (front, programmed) in fronts(elements) {
        let family = match front {
            Front::NodePort(family, ..) => format!(" ({family})"),
            Front::Vip(_) => String::new(),
        };
        let _ = writeln!(text, "  {front}{family}");
        for line in programmed.lines(service) {
            let _ = writeln!(text, "    {line}");
        }
    }
    for notice in notices {
        let _ = writeln!(text, "  ! {notice}");
    }
    text
}

fn fronts(elements: &Elements) -> BTreeMap<Front, Programmed> {
    let mut fronts: BTreeMap<Front, Programmed> = BTreeMap::new();
    for (element, data) in elements {
        // Node ports are recorded by each node address, which is no frontend of its own.
        let (_, set, key) = element;
        if *set == SetId::AffinityRecord {
            continue;
        }
        let Some(front) = front_of(element) else {
            continue;
        };
        let at = fronts.entry(front).or_default();
        match (set, key, data) {
            (
                SetId::Endpoints | SetId::NodePortEndpoints,
                Key::FrontendSlot(_, slot) | Key::NodePortSlot { slot, .. },
                Some(Data::Target(target)),
            ) => {
                let list = if *slot < LOCAL_SCOPE {
                    &mut at.cluster
                } else {
                    &mut at.local
                };
                list.push(*target);
            }
            (SetId::MasqFrontends | SetId::MasqNodePorts, ..) => at.masqueraded = true,
            (SetId::EtpLocal | SetId::EtpLocalNodePorts, ..) => at.policy_local = true,
            (
                SetId::Affinity
                | SetId::AffinityNodePorts
                | SetId::AffinityLocal
                | SetId::AffinityNodePortsLocal,
                ..,
            ) => at.sticky = true,
            (SetId::SourceGuarded, ..) => {
                at.sources.get_or_insert_default();
            }
            (SetId::SourceAllow, Key::Range(_, range), _) => {
                at.sources.get_or_insert_default().push(*range);
            }
            (SetId::NoEndpointServices | SetId::NoEndpointNodePorts, _, Some(data)) => {
                at.empty = data.verdict();
            }
            _ => {}
        }
    }
    fronts
}

impl Programmed {
    fn lines(&self, service: &ServiceSpec) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(sources) = &self.sources {
            lines.push(format!("only from    {}", list(sources)));
        }
        let nobody = match self.empty {
            Some(Verdict::Reject) => "nobody: refused",
            Some(Verdict::Drop) => "nobody: dropped",
            _ => "nobody",
        };
        let served = |list: &[SocketAddr]| match list {
            [] => nobody.to_owned(),
            list => self::list(list),
        };
        let masqueraded = if self.masqueraded {
            ", masqueraded"
        } else {
            ""
        };
        if self.policy_local {
            lines.push(format!("pods, node   {}", served(&self.cluster)));
            lines.push(format!("outside      {}", served(&self.local)));
        } else {
            lines.push(format!(
                "anybody      {}{masqueraded}",
                served(&self.cluster)
            ));
        }
        if let (true, Some(lasts)) = (self.sticky, service.affinity) {
            lines.push(format!(
                "a client stays where it was for {} s",
                lasts.as_secs()
            ));
        }
        lines
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(" ")
}
