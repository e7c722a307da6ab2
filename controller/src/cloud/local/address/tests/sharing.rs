//! Who may share an address.

use super::*;

#[test]
fn c29_sharing_needs_one_key_disjoint_ports_and_policies_that_agree() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    let first = svc("a").key("k");
    let udp = || svc("b").key("k").port(Protocol::Udp, 80);
    let shared = ips(&["10.0.0.1"]);
    let table = [
        (first.clone(), udp(), None),
        (
            first.clone(),
            svc("b").key("k").port(Protocol::Tcp, 81),
            None,
        ),
        (first.clone(), svc("b").key("k"), Some("both use TCP/80")),
        (
            first.clone(),
            udp().key("other"),
            Some("is held by Service shop/a"),
        ),
        (
            first.clone(),
            svc("b").port(Protocol::Udp, 80),
            Some("is held by Service shop/a"),
        ),
        (svc("a"), udp(), Some("is held by Service shop/a")),
        (
            first.clone().local("x"),
            udp(),
            Some("with externalTrafficPolicy Local"),
        ),
        (
            first.clone().local("x"),
            udp().local("y"),
            Some("with externalTrafficPolicy Local"),
        ),
        (first.clone().local("x"), udp().local("x"), None),
        (
            first.clone(),
            udp().namespace("other"),
            Some("of two namespaces, and not both"),
        ),
    ];
    for (first, second, clash) in table {
        let mut book = AddressBook::default();
        assert_eq!(first.given(&pools, &mut book), shared);
        // Not asked for by address: shared where it may be, else an address of its own.
        let own = second.given(&pools, &mut book.clone());
        assert_eq!(own == shared, clash.is_none(), "C-29, C-30: {clash:?}");
        let asked = second.clone().fixed(&["10.0.0.1"]).place(&pools, &mut book);
        match (clash, asked.refused) {
            (None, refused) => assert_eq!(refused, None, "C-29"),
            (Some(clash), refused) => {
                let told = refused.unwrap().to_string();
                assert!(told.contains(clash), "C-29, C-30: {told}");
                assert!(told.contains("shop/a"), "C-29: names the other one: {told}");
            }
        }
    }
}

#[test]
fn c29_c37_l06_every_change_of_one_that_shares_is_looked_at_again() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    let mut book = AddressBook::default();
    let (web, dns) = (svc("a").key("k"), svc("b").key("k").port(Protocol::Udp, 53));
    web.given(&pools, &mut book);
    dns.given(&pools, &mut book);
    let changes = [
        (dns.clone().port(Protocol::Tcp, 80), "both use TCP/80"),
        (dns.clone().key("other"), "no sharing key in common"),
        (dns.clone().local("x"), "with externalTrafficPolicy Local"),
    ];
    for (changed, clash) in changes {
        let placement = changed.place(&pools, &mut book);
        assert_eq!(
            placement.addresses,
            ips(&["10.0.0.1"]),
            "C-29: what it has stays"
        );
        let told = placement.refused.unwrap().to_string();
        let both = told.contains("both Service shop/b and Service shop/a");
        assert!(told.contains(clash) && both, "C-29: {told}");
        assert_eq!(
            web.place(&pools, &mut book).refused,
            None,
            "C-24: the other one is not blamed"
        );
    }
    assert_eq!(
        dns.clone()
            .port(Protocol::Udp, 54)
            .place(&pools, &mut book)
            .refused,
        None,
        "C-37"
    );
    // The port is the other's once the cloud has let it go.
    let wide = web.clone().port(Protocol::Udp, 53);
    assert!(
        wide.place(&pools, &mut book).refused.is_some(),
        "C-33, C-37"
    );
    book.confirm(&dns.holder);
    assert_eq!(wide.place(&pools, &mut book).refused, None, "C-37");
}

#[test]
fn c12_c29_all_that_share_can_change_to_another_key() {
    let pools = [plain("a", &["10.0.0.1/32"])];
    let mut book = AddressBook::default();
    let service = |name, port| svc(name).key("old").port(Protocol::Tcp, port);
    let all = [service("a", 1), service("b", 2), service("c", 3)];
    for service in &all {
        service.given(&pools, &mut book);
    }
    let new = all.clone().map(|service| service.key("new"));
    assert!(new[0].place(&pools, &mut book).refused.is_some(), "C-29");
    assert!(new[1].place(&pools, &mut book).refused.is_some(), "C-29");
    book.take_news();
    assert_eq!(new[2].place(&pools, &mut book).refused, None, "C-12");
    let stirred: Vec<_> = book.take_news().0.into_iter().map(|key| key.name).collect();
    assert_eq!(stirred, ["a", "b"], "C-12: the others are looked at again");
    for service in &new {
        assert_eq!(service.place(&pools, &mut book).refused, None, "C-12");
    }
}

#[test]
fn c30_k60_namespaces_share_only_where_both_agree_and_both_may() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    let shop = || svc("a").key("k");
    let other = || svc("b").namespace("other").key("k").port(Protocol::Udp, 53);
    let two =
        "of two namespaces, and not both name the other's in onehop.dev/allow-shared-ip-namespaces";
    let table = [
        (shop(), other(), Some(two)),
        (shop().across("other"), other(), Some(two)),
        (shop().across("third"), other().across("*"), Some(two)),
        (shop().across("other"), other().across("shop, third"), None),
        (shop().across("*"), other().across("*"), None),
        (
            shop().across("*").local("x"),
            other().across("*").local("x"),
            Some("and the same pod selector"),
        ),
        (
            shop().across("*"),
            other().namespace("shop"),
            Some("only one of them has onehop.dev/allow-shared-ip-namespaces"),
        ),
    ];
    for (first, second, clash) in table {
        let mut book = AddressBook::default();
        first.given(&pools, &mut book);
        let own = second.given(&pools, &mut book.clone());
        assert_eq!(
            own == ips(&["10.0.0.1"]),
            clash.is_none(),
            "C-30: {clash:?}"
        );
        let asked = second.clone().fixed(&["10.0.0.1"]).place(&pools, &mut book);
        let told = asked.refused.map(|denied| denied.to_string());
        assert_eq!(told.is_some(), clash.is_some(), "C-30: {told:?}");
        let says = |told: &String| told.contains(clash.unwrap_or_default());
        assert!(told.as_ref().is_none_or(says), "C-30: {told:?}");
    }
    let mut forbidden = other().across("*");
    forbidden.policy.across_namespaces = Sharing::Forbidden;
    let told = forbidden.refused(&pools, &mut AddressBook::default());
    assert_eq!(
        told,
        "onehop.dev/allow-shared-ip-namespaces is refused by policy \"default\", which allows no sharing between \
         namespaces",
        "K-60: off unless a policy says otherwise"
    );
}

#[test]
fn c12_c30_two_that_share_can_both_open_up_to_other_namespaces() {
    let pools = [plain("a", &["10.0.0.1/32"])];
    let mut book = AddressBook::default();
    let (web, dns) = (
        svc("web").key("k"),
        svc("dns").key("k").port(Protocol::Udp, 53),
    );
    web.given(&pools, &mut book);
    dns.given(&pools, &mut book);
    let (web, dns) = (web.across("*"), dns.across("*"));
    let told = web.refused(&pools, &mut book);
    assert!(told.contains("only one of them has"), "C-29: {told}");
    for service in [&dns, &web] {
        assert_eq!(service.place(&pools, &mut book).refused, None, "C-12");
    }
    let third = svc("third")
        .namespace("other")
        .key("k")
        .across("shop")
        .port(Protocol::Tcp, 81);
    assert!(
        matches!(
            third.place(&pools, &mut book).refused,
            Some(Denied::Clash {
                clash: Clash::Changing,
                ..
            })
        ),
        "C-33: the cloud has yet to take their key"
    );
    for service in [&dns, &web] {
        book.confirm(&service.holder);
    }
    assert_eq!(third.given(&pools, &mut book), ips(&["10.0.0.1"]), "C-30");
}

#[test]
fn c29_who_comes_back_to_an_address_that_it_was_leaving_is_asked_like_a_new_one() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let mut book = AddressBook::default();
    svc("a").key("k").given(&pools, &mut book);
    let other = svc("b").key("k").port(Protocol::Tcp, 81);
    assert_eq!(other.given(&pools, &mut book), ips(&["10.0.0.1"]));
    let alone = svc("b").fixed(&["10.0.0.2"]);
    alone.given(&pools, &mut book);
    let told = svc("b").fixed(&["10.0.0.1"]).refused(&pools, &mut book);
    assert_eq!(
        told, "address 10.0.0.1 is held by Service shop/a",
        "C-29, C-33"
    );
}
