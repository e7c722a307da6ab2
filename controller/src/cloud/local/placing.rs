//! From a resolved Service to a request for addresses, and from the answer to what is said. Pure.

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::IpFamily;
use onehop_core::service::ServiceSpec;

use super::address::{
    self, AddressBook, Ask, Customer, Denied, Holder, Partners, Pools, Request, Scope, SharingKey,
    Terms,
};
use super::resolve::{OPTION_ADDRESSES, OPTION_POOL, OPTION_SHARING, OPTION_SHARING_NAMESPACES};
use crate::plan::{Found, Giver, Market, Notice, Placed, Refusal};

/// Value of an option of the resolved spec.
pub(super) fn option<'a>(spec: &'a LoadBalancerSpec, name: &str) -> Option<&'a str> {
    let option = spec.options.iter().find(|option| option.name == name)?;
    Some(&option.value)
}

/// The sharing key of the resolved spec, and with whom it agrees to share.
pub(super) fn sharing(spec: &LoadBalancerSpec) -> (Option<SharingKey>, Partners) {
    let partners = option(spec, OPTION_SHARING_NAMESPACES).map_or(Partners::Own, Partners::parse);
    let scope = match partners {
        Partners::Own => Scope::Namespace,
        Partners::Named(_) | Partners::Any => Scope::Across,
    };
    let key = option(spec, OPTION_SHARING).map(|name| SharingKey {
        name: name.to_owned(),
        scope,
    });
    (key, partners)
}

/// Chooses addresses for one Service from the pools.
pub(super) fn place(
    service: &ServiceSpec,
    spec: &LoadBalancerSpec,
    market: &Market,
    book: &mut AddressBook,
) -> Placed {
    let pools = Pools::read(&market.pools);
    let holder = Holder {
        service: service.key.clone(),
        uid: service.uid.clone(),
    };
    let held: Vec<IpFamily> = book
        .held_by(&holder)
        .into_iter()
        .map(IpFamily::of)
        .collect();
    let mut request = request(spec);
    request.families = families(&request.families, &pools, &held);
    let ask = Ask {
        holder: &holder,
        customer: Customer {
            namespace: &service.key.namespace,
            namespace_labels: &market.namespace_labels,
            labels: &service.labels,
        },
        request: &request,
        terms: &Terms::of(service, spec, sharing(spec)),
        policy: &market.policy,
    };
    let placement = address::allocate(ask, &pools, book);
    let orphaned = placement.orphaned.iter().map(|address| Notice {
        reason: "AddressOrphaned",
        message: format!(
            "address {address} is in no AddressPool any more: it is kept until the Service asks for \
             another address or pool"
        ),
        degrades: true,
    });
    Placed {
        giver: Giver::Pools,
        notices: orphaned.collect(),
        addresses: placement.addresses,
        refusal: placement.refused.map(|denied| refusal(&denied)),
    }
}

fn refusal(denied: &Denied) -> Refusal {
    Refusal {
        reason: match denied {
            Denied::InUse { .. } | Denied::InCloud { .. } | Denied::Clash { .. } => {
                "RequestedAddressInUse"
            }
            Denied::Policy { .. } => "PolicyRefused",
            _ => "AllocationFailed",
        },
        message: denied.to_string(),
    }
}

/// Notes an address in use with the terms that were carried out last (C-25).
pub(super) fn restore(found: Found<'_>, book: &mut AddressBook) -> Result<(), Holder> {
    let terms = match (found.service, found.spec) {
        (Some(service), Some(spec)) => Terms::of(service, spec, sharing(spec)),
        (None, Some(spec)) => Terms::of(&ServiceSpec::default(), spec, sharing(spec)),
        (_, None) => Terms::default(),
    };
    let request = found.spec.map(request);
    let known = (&terms, request.as_ref());
    book.restore(found.address, found.holder.clone(), found.source, known)
}

fn request(spec: &LoadBalancerSpec) -> Request {
    let fixed = option(spec, OPTION_ADDRESSES)
        .unwrap_or_default()
        .split(',');
    Request {
        families: spec.families.clone(),
        addresses: fixed.filter_map(|text| text.trim().parse().ok()).collect(),
        pool: option(spec, OPTION_POOL).map(str::to_owned),
    }
}

/// The first family is a must; the second one is given where a pool has it, and kept where it is held
/// (C-31).
fn families(wanted: &[IpFamily], pools: &Pools, held: &[IpFamily]) -> Vec<IpFamily> {
    let has =
        |family: IpFamily| pools.iter().any(|pool| pool.has(family)) || held.contains(&family);
    let chosen: Vec<_> = wanted
        .iter()
        .enumerate()
        .filter(|(i, family)| *i == 0 || has(**family))
        .map(|(_, family)| *family)
        .collect();
    if chosen.is_empty() {
        vec![IpFamily::V4]
    } else {
        chosen
    }
}
