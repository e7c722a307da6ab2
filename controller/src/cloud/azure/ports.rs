//! Named target ports: a rule has one number for all pods of its pool (AZ-263). Pure.

use onehop_core::crd::{LoadBalancerPort, LoadBalancerSpec, TargetMode};
use onehop_core::id::PortKey;
use onehop_core::service::{ServiceSpec, TargetPort};

use super::annotations;
use super::resolve::notice;
use crate::plan::{Named, Notice, Numbers};

/// The Service with the numbers that its pods have for its named ports. A name stays where no pod has said one yet, and
/// where pods differ and nothing asks for pods as targets: then they are no targets.
pub(super) fn numbered(
    service: &ServiceSpec,
    last_good: Option<&LoadBalancerSpec>,
    numbers: &Numbers,
) -> Named {
    let mut named = Named {
        service: service.clone(),
        notices: Vec::new(),
    };
    let explicit = annotations::parse(service).0.mode == Some(TargetMode::Pod);
    for port in &mut named.service.ports {
        let TargetPort::Name(name) = port.target.clone() else {
            continue;
        };
        let live = live(last_good, service, &port.key);
        let counts = numbers.get(&port.key);
        // The most pods; of as many the number that is there already, else the lowest.
        let best = counts.into_iter().flatten().max_by_key(|(number, count)| {
            (**count, live == Some(**number), std::cmp::Reverse(**number))
        });
        let mixed = counts.is_some_and(|counts| counts.len() > 1);
        let chosen = best.map(|(number, _)| *number).or(live);
        let Some(number) = chosen.filter(|_| !mixed || explicit || live.is_some()) else {
            continue;
        };
        if mixed {
            named.notices.push(of_mixed(&port.key, &name, number));
        }
        port.target = TargetPort::Number(number);
    }
    named
}

/// The number that a live load balancer has for its pods.
fn live(last_good: Option<&LoadBalancerSpec>, service: &ServiceSpec, key: &PortKey) -> Option<u16> {
    let last_good = last_good.filter(|spec| spec.service_uid == service.uid)?;
    let is_it = |port: &&LoadBalancerPort| port.key() == *key && port.mode == TargetMode::Pod;
    last_good.ports.iter().find(is_it)?.target_port
}

fn of_mixed(port: &PortKey, name: &str, number: u16) -> Notice {
    let message = format!(
        "port {port}: targetPort {name:?} is not the same number on each pod, and a rule has one: {number}, that of most \
         of them; the other pods are no targets"
    );
    Notice {
        degrades: true,
        ..notice("MixedTargetPort", message)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::resolve::resolve;
    use super::super::testkit::{annotated, own, resolved, settings};
    use super::*;

    fn named(explicit: bool) -> ServiceSpec {
        let mut service = own(&[80]);
        service.ports[0].target = TargetPort::Name("http".to_owned());
        service.allocates_node_ports = false;
        service.ports[0].node_port = None;
        if explicit {
            return annotated(service, &[("onehop.dev/target", "pod")]);
        }
        service
    }

    fn numbers(service: &ServiceSpec, of: &[(u16, usize)]) -> Numbers {
        [(service.ports[0].key.clone(), of.iter().copied().collect())].into()
    }

    /// Mode, target port and reasons of what is said.
    fn outcome(
        service: &ServiceSpec,
        last_good: Option<&LoadBalancerSpec>,
        of: &[(u16, usize)],
    ) -> (Option<(TargetMode, Option<u16>)>, Vec<&'static str>) {
        let named = numbered(service, last_good, &numbers(service, of));
        let resolution = resolve(&settings(), &named.service, last_good);
        let mut said: Vec<_> = named.notices.iter().map(|notice| notice.reason).collect();
        said.extend(resolution.notices.iter().map(|notice| notice.reason));
        said.extend(resolution.refusals.iter().map(|refusal| refusal.reason));
        let port = resolution
            .spec
            .map(|spec| (spec.ports[0].mode, spec.ports[0].target_port));
        (port, said)
    }

    #[test]
    fn az263_a_named_target_port_is_the_number_that_the_pods_have() {
        for explicit in [false, true] {
            let (port, said) = outcome(&named(explicit), None, &[(8080, 3)]);
            assert_eq!(port, Some((TargetMode::Pod, Some(8080))), "{explicit}");
            assert!(said.is_empty(), "{said:?}");
        }
    }

    #[test]
    fn az263_where_pods_differ_the_default_is_another_mode_and_what_was_asked_for_takes_the_most() {
        let mixed = [(8080, 1), (9090, 2)];
        let (port, said) = outcome(&named(false), None, &mixed);
        assert_eq!(port.unwrap().0, TargetMode::Vip);
        assert_eq!(said, ["TargetModeFallback"]);
        let (port, said) = outcome(&named(true), None, &mixed);
        assert_eq!(port, Some((TargetMode::Pod, Some(9090))));
        assert_eq!(said, ["MixedTargetPort"]);
        // A live one is never switched silently (AZ-252).
        let live = {
            let mut service = named(false);
            service.ports[0].target = TargetPort::Number(8080);
            resolved(&service)
        };
        let (port, said) = outcome(&named(false), Some(&live), &mixed);
        assert_eq!(port, Some((TargetMode::Pod, Some(9090))));
        assert_eq!(said, ["MixedTargetPort"]);
        let (port, _) = outcome(&named(false), Some(&live), &[(8080, 2), (9090, 2)]);
        assert_eq!(
            port,
            Some((TargetMode::Pod, Some(8080))),
            "of as many the one that is"
        );
    }

    #[test]
    fn az263_before_any_pod_a_live_one_keeps_its_number_and_a_new_one_waits() {
        let live = {
            let mut service = named(false);
            service.ports[0].target = TargetPort::Number(8080);
            resolved(&service)
        };
        let (port, _) = outcome(&named(true), Some(&live), &[]);
        assert_eq!(port, Some((TargetMode::Pod, Some(8080))), "AZ-269");
        let (port, said) = outcome(&named(true), None, &[]);
        assert_eq!((port, said), (None, vec!["TargetModeImpossible"]));
        let none: BTreeMap<_, _> = Numbers::new();
        assert_eq!(numbered(&named(true), None, &none).service, named(true));
    }
}
