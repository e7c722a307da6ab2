//! Every packet scenario, once. From this list come the tests on both control planes (`main.rs`) and the table of
//! proxies (`../peers/main.rs`).
//!
//! A row: the scenario's function; whether the real control plane runs it in every run (`essential`) or only with
//! `--all-back-ends` (`more`); and what a real kube-proxy makes of it in the agent's place (see `Peer`).

macro_rules! scenarios {
    ($each:ident) => {
        $each! {
            cells {
                s60_s62_policy_cluster_keeps_pod_addresses_and_masquerades_external_clients: essential, Peer::Same;
                s49_s55_s63_policy_local_keeps_client_addresses_and_serves_the_cluster_from_anywhere: essential, Peer::Same;
            }
            empty {
                s48_a_service_without_any_endpoint_is_refused: essential, Peer::Same;
                s55_policy_local_without_local_endpoint_is_dropped_for_outside_clients_only: more, Peer::Same;
                s25_an_undefined_port_of_a_cluster_ip_is_refused: more, Peer::Same;
            }
            flood {
                i6_many_services_made_and_deleted_at_once_through_kills_end_right: more, Peer::Ours("I6", "kills our programs and counts what is left in our tables");
            }
            hairpin {
                s66_a_pod_reaches_itself_through_its_cluster_ip_and_is_masqueraded: more, Peer::Same;
            }
            health_port {
                s101_s102_s103_health_port_follows_local_ready_endpoints: essential, Peer::Same;
            }
            removal {
                a_service_without_node_ports_opens_none: more, Peer::Same;
                c34_a_removed_service_leaves_nothing_behind: essential, Peer::Same;
                a_service_that_stops_being_a_load_balancer_gives_everything_back: more, Peer::Same;
            }
            sharing {
                c29_tcp_and_udp_on_one_number_of_one_address_reach_the_pods_of_two_services: more, Peer::Same;
                c19_c29_an_address_is_shared_in_vip_mode_and_one_that_leaves_takes_nothing_along: more, Peer::Ours("K-27", "its addresses come by NodeTargets, which kube-proxy does not know");
            }
            terminating {
                s47_terminating_endpoints_are_used_only_when_nothing_is_ready: essential, Peer::Same;
            }
            vip {
                s22_s62_fc_t29_vip_with_policy_cluster_is_masqueraded_by_the_node_that_got_the_packet: essential, Peer::Same;
                s22_s63_fc_t29_vip_with_policy_local_keeps_the_clients_address: more, Peer::Same;
                s22_k27_an_address_is_listed_first_programmed_then_and_published_last: more, Peer::Ours("K-27", "asks what agents say in NodeTargets, which kube-proxy does not know");
            }
            ways_to_run {
                s02_beside_serves_labelled_services_only: more, Peer::Ours("S-02", "the label keeps a Service from kube-proxy by design");
                s02_s129_s310_replace_serves_all_and_answers_on_kube_proxys_ports: more, Peer::Ours("S-129", "asks our ports, which a kube-proxy does not have");
            }
            zones {
                fc29_fc31_fc61_pods_get_the_flows_of_their_zone_and_see_the_client_or_that_zones_lb_node: more, Peer::Same;
                fc31_a_zone_without_a_target_is_silent_unless_it_may_use_the_other_zones: more, Peer::Same;
                s63_fc29_through_node_ports_of_a_local_service_pods_see_the_client_or_that_zones_lb_node: more, Peer::Same;
                fc29b_fc31_a_kept_frontend_address_reaches_the_nodes_of_its_zone: more, Peer::Same;
            }
        }
    };
}
