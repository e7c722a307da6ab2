//! What the node's network tells about whether targets can be guarded there.

use onehop_node_agent::guard::network::Network;
use onehop_node_agent::guard::uplinks::{Keeper, Wishes};

use crate::place::{Place, own_descriptors};

fn refreshed(place: &Place) -> Network {
    place.run(|| Keeper::open(Wishes::default()).unwrap().refresh().unwrap())
}

#[test]
fn az256_zd58_where_packets_may_pass_netfilter_by_no_guard_is_promised_and_the_agent_says_why() {
    own_descriptors();
    for (interface, who) in [("cilium_host", "Cilium"), ("bpfin.cali", "Calico")] {
        let place = Place::new();
        for command in [
            "link add up0 type veth peer name far0",
            "addr add 10.9.0.1/24 dev up0",
            "link set up0 up",
            "link set far0 up",
            "route add default via 10.9.0.2",
        ] {
            place.ip(command);
        }
        let network = refreshed(&place);
        assert!(network.offers_guard(), "{:?}", network.problems);
        place.ip(&format!("link add {interface} type veth peer name peer0"));
        let network = refreshed(&place);
        assert!(!network.offers_guard(), "AZ-256");
        let [problem] = &network.problems[..] else {
            panic!("AZ-256: {:?}", network.problems);
        };
        assert!(
            problem.contains(interface) && problem.contains(who),
            "ZD-58: {problem}"
        );
        place.ip(&format!("link del {interface}"));
        assert!(refreshed(&place).offers_guard(), "it is seen again");
    }
}
