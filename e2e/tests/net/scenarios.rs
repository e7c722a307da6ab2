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
                s61_s65_detectors_that_know_this_nodes_pods_only: more, Peer::Ours("S-61", "gives our agents flags; kube-proxy's are those of every world");
            }
            frontends {
                s23_an_address_with_ip_mode_proxy_is_left_to_its_load_balancer: more, Peer::Same;
                s43_new_connections_are_spread_evenly: more, Peer::Same;
            }
            affinity {
                s80_a_client_sticks_over_all_frontends_of_a_service_port: essential, Peer::Same;
                s81_a_client_chooses_again_after_the_timeout_and_each_connection_prolongs_it: more, Peer::Same;
                s82_a_client_moves_when_its_endpoint_is_not_usable: more, Peer::Same;
                s83_affinity_is_kept_over_a_restart_of_the_agent: more, Peer::Ours("S-83", "kills our agent");
                s84_with_policy_local_a_client_sticks_inside_the_local_list: more, Peer::Same;
                s80_s82_a_client_of_a_load_balancer_sticks_with_policy_cluster: essential, Peer::Same;
                s82_s84_a_client_of_a_load_balancer_sticks_with_policy_local: more, Peer::Same;
            }
            choices {
                s54_s73_empty_local_lists_refuse_and_unlisted_families_are_closed_by_choice: more, Peer::Ours("S-54", "asks for flags that kube-proxy does not have");
                s114_healthz_heeds_a_missing_pod_network_by_choice: more, Peer::Ours("S-114", "asks for a flag that kube-proxy does not have");
            }
            conntrack {
                s34_no_connection_of_the_node_or_through_it_has_a_node_ports_number: more, Peer::Ours("S-34", "kube-proxy takes any port");
                s97_packets_outside_of_the_window_cut_no_connection: more, Peer::Ours("S-97", "asks for a flag's third value, which kube-proxy does not have");
                s98_a_half_closed_connection_is_remembered_for_an_hour: more, Peer::Ours("S-98", "kube-proxy runs there without its times, which it cannot set from a namespace");
            }
            coexistence {
                s121_s90_i9_a_killed_agent_interrupts_nothing_and_takes_up_what_changed: more, Peer::Ours("S-121", "kills our agent");
                s123_s347_a_foreign_flush_in_a_loop_cuts_nothing: more, Peer::Ours("S-123", "kube-proxy does not notice that its rules are gone");
                s122_i5_a_stopped_agent_leaves_its_rules_and_cleanup_takes_them_and_nothing_else: more, Peer::Ours("S-122", "runs our clean-up");
            }
            dual_stack {
                s10_both_families_of_a_service_serve_and_keep_addresses: essential, Peer::Same;
                s10_a_family_without_endpoints_is_refused_while_the_other_serves: more, Peer::Same;
                s10_c31_a_load_balancer_of_both_families_reaches_targets_of_both: more, Peer::Ours("K-27", "kube-proxy learns an address when it is published; until then its nodes send the first packets back, which the source check drops");
            }
            empty {
                s48_a_service_without_any_endpoint_is_refused: essential, Peer::Same;
                s55_policy_local_without_local_endpoint_is_dropped_for_outside_clients_only: essential, Peer::Same;
                s25_an_undefined_port_of_a_cluster_ip_is_refused: more, Peer::Same;
                s25_s48_s50_refusals_concern_new_flows_only: essential, Peer::Same;
                s08_s49_internal_policy_local_with_pods_of_the_host_network: more, Peer::Same;
                s48_pods_that_failed_are_refused: more, Peer::Same;
                s26_s128_addresses_that_no_service_has: more, Peer::Ours("S-26", "compares our two ways to run");
            }
            external {
                s21_s33_external_addresses_serve_and_of_two_claims_the_older_wins: essential, Peer::Ours("S-33", "kube-proxy lets the last writer win");
            }
            flood {
                s120_i8_a_flood_of_services_and_endpoints_delays_nobody_else: more, Peer::Ours("S-120", "kube-proxy waits a second between syncs");
                i6_many_services_made_and_deleted_at_once_through_kills_end_right: more, Peer::Ours("I6", "kills our programs and counts what is left in our tables");
            }
            hairpin {
                s66_a_pod_reaches_itself_through_its_cluster_ip_and_is_masqueraded: essential, Peer::Same;
            }
            health_port {
                s101_s102_s103_health_port_follows_local_ready_endpoints: essential, Peer::Same;
                s109_k29_a_restart_without_the_api_server_changes_no_answer: more, Peer::Ours("S-109", "kube-proxy answers 503 until it has seen the API server");
                s104_s111_taints_and_the_end_of_the_node_reach_healthz_only: essential, Peer::Ours("S-111", "asks our port, and for more taints than kube-proxy heeds");
                s105_a_health_port_that_is_taken_is_told_and_tried_again: more, Peer::Ours("S-105", "kube-proxy tries again only when something changes");
            }
            labels {
                s02_a_service_comes_and_goes_with_its_label: essential, Peer::Ours("S-02", "the label's value is our name");
                s345_s126_between_two_live_proxies_a_service_moves_with_its_label_and_its_health_port: more, Peer::Ours("S-345", "has both proxies on every node");
            }
            local_policy {
                c43_l25_l09_a_node_answers_while_an_endpoint_on_it_can_serve_and_no_longer: essential, Peer::Same;
                zd_t17_zd60_late_flows_to_a_node_without_an_endpoint_are_forwarded_unless_dropped: more, Peer::Ours("ZD-60", "kube-proxy drops them");
            }
            node_faults {
                fc79a_s111_nodes_that_are_taken_away_with_a_signal_cost_no_connection: more, Peer::Ours("S-111", "kube-proxy heeds one of these signals");
                fc79a_a_node_without_the_api_server_serves_what_it_knows_and_catches_up: more, Peer::Same;
                fc79a_k24_pods_on_a_node_without_an_agent_are_targets_like_any_other: more, Peer::Ours("K-24", "is about nodes without our agent");
                fc79a_pods_whose_kubelet_is_gone_get_no_new_connection_and_lose_none: more, Peer::Same;
            }
            node_gone {
                c42_l11_new_connections_avoid_a_dark_node_within_seconds_whatever_the_cluster_says_of_it: more, Peer::Same;
            }
            node_ports {
                s27_s28_s29_s100_node_ports_answer_inside_listed_ranges_and_follow_the_interfaces: more, Peer::Ours("S-28", "kube-proxy looks at interfaces only when it does a full sync");
                s24_s27_s28_node_ports_answer_on_the_primary_address_and_follow_the_node_object: essential, Peer::Ours("S-28", "kube-proxy ends when its node's address changes");
            }
            removal {
                a_service_without_node_ports_opens_none: more, Peer::Same;
                c34_a_removed_service_leaves_nothing_behind: essential, Peer::Same;
                a_service_that_stops_being_a_load_balancer_gives_everything_back: more, Peer::Same;
            }
            sctp {
                s31_sctp_reaches_endpoints_and_answers_come_from_the_frontend: essential, Peer::Same;
            }
            sharing {
                c29_tcp_and_udp_on_one_number_of_one_address_reach_the_pods_of_two_services: essential, Peer::Same;
                c19_c29_an_address_is_shared_in_vip_mode_and_one_that_leaves_takes_nothing_along: more, Peer::Ours("K-27", "its addresses come by NodeTargets, which kube-proxy does not know");
            }
            signals {
                zd_t42_zd78_w18_signals_about_a_node_do_what_the_table_says_until_they_are_taken_back: more, Peer::Ours("ZD-78", "is about our agent's answers and who guards");
            }
            slices {
                s01_s11_services_follow_edits_of_ports_and_type: essential, Peer::Same;
                s03_a_headless_slice_is_not_looked_at: more, Peer::Same;
                s04_s05_s07_s32_slices_are_taken_as_they_say: essential, Peer::Same;
                s06_copies_of_an_endpoint_in_several_slices_are_one: more, Peer::Ours("S-06", "of copies that differ kube-proxy takes one by chance");
            }
            source_ranges {
                s72_a_node_that_is_allowed_may_come_from_the_load_balancers_address_itself: more, Peer::Ours("K-27", "an address that is not yet published is bound on a node");
                s70_s71_s73_s74_ranges_hold_for_everybody_at_the_load_balancers_address: essential, Peer::Ours("K-27", "kube-proxy learns an address when it is published; until then its nodes send the first packets back, which the source check drops");
            }
            terminating {
                s47_terminating_endpoints_are_used_only_when_nothing_is_ready: essential, Peer::Same;
                s47_each_policy_falls_back_to_the_terminating_endpoints_of_its_list: more, Peer::Same;
                s07_s40_unready_pods_serve_only_where_they_are_published: more, Peer::Same;
            }
            topology {
                s41_s42_s44_s45_s46_s47_hints_choose_the_endpoints_and_follow_the_nodes_zone: essential, Peer::Same;
            }
            udp {
                s91_a_flow_follows_a_changed_target_port: essential, Peer::Same;
                s47_s91_s94_s95_a_valid_flow_is_never_cut: more, Peer::Ours("S-94", "kills our agent");
                s91_s92_s93_udp_flows_follow_their_service: essential, Peer::Differs("S-92", "kube-proxy leaves UDP flows of a Service without endpoints to their last one");
            }
            vip {
                s22_s62_fc_t29_vip_with_policy_cluster_is_masqueraded_by_the_node_that_got_the_packet: essential, Peer::Same;
                s22_s63_fc_t29_vip_with_policy_local_keeps_the_clients_address: more, Peer::Same;
                fc29c_k52_where_nobody_on_the_nodes_would_forward_it_the_service_is_refused_and_nothing_is_sent: more, Peer::Ours("K-52", "a Service that our agent proxies next");
                s22_k27_zd_t41_an_address_is_listed_first_programmed_then_and_published_last: more, Peer::Ours("K-27", "asks what agents say in NodeTargets, which kube-proxy does not know");
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
                fc31_the_controller_registers_targets_in_the_zone_of_their_node: essential, Peer::Same;
            }
        }
    };
}
