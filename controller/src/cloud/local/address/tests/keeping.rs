//! What moves an address and what does not.

use serde_json::json;

use super::*;

#[test]
fn c24_what_a_service_holds_stays_when_others_go_and_pools_change() {
    let mut book = AddressBook::default();
    let pools = [plain("a", &["10.0.0.1-10.0.0.9"])];
    svc("x").given(&pools, &mut book);
    let second = ips(&["10.0.0.2"]);
    assert_eq!(svc("y").given(&pools, &mut book), second);
    svc("x").release(&mut book);
    assert_eq!(svc("y").given(&pools, &mut book), second, "C-24");
    let better = [
        plain("a", &["10.0.0.1-10.0.0.9"]),
        ranked("best", 1, &["10.9.0.1/32"]),
    ];
    assert_eq!(svc("y").given(&better, &mut book), second, "C-24");
    let closed = [pool(
        "a",
        &["10.0.0.0/24"],
        json!({
            "autoAssign": false, "serviceAllocation": { "namespaces": ["other"] },
        }),
    )];
    assert_eq!(svc("y").given(&closed, &mut book), second, "C-24");
}

#[test]
fn c25_restored_addresses_are_never_given_to_somebody_else_and_shared_ones_stay_shared() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.3"])];
    let mut book = AddressBook::default();
    let web = svc("web").key("k");
    let dns = svc("dns").key("k").port(Protocol::Udp, 53);
    web.restored("10.0.0.1", &mut book).unwrap();
    dns.restored("10.0.0.1", &mut book).unwrap();
    let third = svc("third").restored("10.0.0.1", &mut book);
    assert_eq!(
        third,
        Err(web.holder.clone()).or(Err(dns.holder.clone())),
        "C-25"
    );
    assert_eq!(
        svc("new").given(&pools, &mut book),
        ips(&["10.0.0.2"]),
        "C-25"
    );
    for service in [&web, &dns] {
        assert_eq!(service.given(&pools, &mut book), ips(&["10.0.0.1"]), "C-25");
    }
}

#[test]
fn c26_the_users_own_change_moves_an_assignment_and_the_old_address_is_free_once_the_cloud_let_go()
{
    let pools = [
        plain("a", &["10.0.0.1/32"]),
        plain("b", &["10.1.0.1-10.1.0.2"]),
    ];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    let moved = svc("x").pool("b");
    assert_eq!(
        moved.given(&pools, &mut book),
        ips(&["10.1.0.1"]),
        "C-26: requested pool"
    );
    let told = svc("y").pool("a").refused(&pools, &mut book);
    assert_eq!(
        told, "no free IPv4 address in pools: a",
        "C-33: the cloud may still have it"
    );
    assert_eq!(book.confirm(&moved.holder), ips(&["10.0.0.1"]));
    assert!(book.take_news().1, "C-23: waiters hear of it");
    assert_eq!(
        svc("y").pool("a").given(&pools, &mut book),
        ips(&["10.0.0.1"]),
        "C-34"
    );
    let fixed = svc("x").fixed(&["10.1.0.2"]);
    assert_eq!(
        fixed.given(&pools, &mut book),
        ips(&["10.1.0.2"]),
        "C-26: requested address"
    );
    let taken = svc("x").fixed(&["10.0.0.1"]).place(&pools, &mut book);
    assert_eq!(
        taken.addresses,
        ips(&["10.1.0.2"]),
        "C-08: refused, it keeps what it has"
    );
    assert!(taken.refused.is_some());
}

#[test]
fn c27_l03_an_address_that_left_every_pool_is_kept_marked_and_given_to_nobody_else() {
    let before = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let after = [plain("a", &["10.0.0.2/32"])];
    for asked in [svc("x"), svc("x").pool("a"), svc("x").fixed(&["10.0.0.1"])] {
        let mut book = AddressBook::default();
        asked.given(&before, &mut book);
        let kept = asked.place(&after, &mut book);
        assert_eq!(kept.refused, None, "C-27");
        assert_eq!(kept.orphaned, ips(&["10.0.0.1"]), "C-27");
        let status = &Pools::read(&after).statuses(&book)["a"];
        assert_eq!(status.orphaned, ["10.0.0.1"], "C-27: pool status");
        assert_eq!((status.assigned, status.available), (0, 1), "C-104");
        let told = svc("y").fixed(&["10.0.0.1"]).refused(&before, &mut book);
        assert_eq!(told, "address 10.0.0.1 is held by Service shop/x", "C-27");
        // Also once another pool has it, and no pool at all.
        let elsewhere = [plain("a", &["10.0.0.2/32"]), plain("c", &["10.0.0.1/32"])];
        assert_eq!(
            asked.given(&elsewhere, &mut book),
            ips(&["10.0.0.1"]),
            "C-24"
        );
        assert_eq!(
            asked.place(&[], &mut book).addresses,
            ips(&["10.0.0.1"]),
            "C-27"
        );
        let moved = svc("x").fixed(&["10.0.0.2"]).given(&after, &mut book);
        assert_eq!(
            moved,
            ips(&["10.0.0.2"]),
            "C-27: an explicit migration moves it"
        );
    }
}

#[test]
fn c27_a_pool_that_is_being_deleted_gives_nothing_new_and_keeps_its_services() {
    let mut pools = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    pools[0] = born(pools[0].clone(), 1);
    pools[0].metadata.deletion_timestamp = pools[0].metadata.creation_timestamp.clone();
    let kept = svc("x").place(&pools, &mut book);
    assert_eq!((kept.refused, kept.orphaned), (None, vec![]), "C-27");
    let told = svc("y").pool("a").refused(&pools, &mut book);
    assert_eq!(
        told, "AddressPool \"a\" gives no address: it is being deleted",
        "C-27"
    );
}

#[test]
fn c31_ct18_a_second_family_is_added_and_the_valid_one_kept() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.9", "fd00::1-fd00::9"])];
    let mut book = AddressBook::default();
    svc("x").given(&pools, &mut book);
    svc("y").given(&pools, &mut book);
    let dual = svc("y").families(&BOTH).given(&pools, &mut book);
    assert_eq!(dual, ips(&["10.0.0.2", "fd00::1"]), "C-31: added and kept");
    svc("x").release(&mut book);
    let six = svc("y").families(&[IpFamily::V6]).given(&pools, &mut book);
    assert_eq!(
        six,
        ips(&["fd00::1"]),
        "C-31: the one that is still valid stays"
    );
}

#[test]
fn c33_l22_l54_addresses_of_others_are_in_the_one_index() {
    let pools = [plain("a", &["10.0.0.1-10.0.0.2"])];
    let mut book = AddressBook::default();
    book.set_foreign([(ip("10.0.0.1"), ServiceKey::new("peer", "p"))].into());
    assert_eq!(
        svc("x").given(&pools, &mut book),
        ips(&["10.0.0.2"]),
        "C-33"
    );
    let told = svc("y").fixed(&["10.0.0.1"]).refused(&pools, &mut book);
    assert_eq!(told, "address 10.0.0.1 is held by Service peer/p", "C-33");
    book.set_foreign([].into());
    assert!(book.take_news().1, "C-23");
}
