//! What people type: the real kubectl against both control planes, each scenario written once. A test's name says which:
//! `embedded::…` or `real::…`. Where packets are what a command is for, they are asked too.

mod apply;
mod change;
mod delete;
mod kubectl;
mod look;
mod nodes;
mod rollout;
mod words;

macro_rules! test {
    ($back_end:ident $module:ident $name:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() -> anyhow::Result<()> {
            use onehop_e2e::{controlplane::BackEnd, world::Cluster};
            crate::$module::$name(Cluster::on(BackEnd::$back_end)).await
        }
    };
}

macro_rules! tests {
    ($($module:ident { $($name:ident)* })*) => {
        mod embedded {
            $(mod $module { $(test! { Embedded $module $name })* })*
        }
        mod real {
            $(mod $module { $(test! { Real $module $name })* })*
        }
    };
}

tests! {
    look {
        c104_get_and_describe_tell_what_users_look_for
    }
    words {
        explain_and_api_resources_know_our_kinds
        events_and_waits_say_why_and_when
    }
    apply {
        applied_again_without_a_port_and_an_annotation_they_are_gone_and_the_rest_serves
        server_side_apply_names_who_has_a_field_and_takes_it_by_force
        client_side_apply_can_be_followed_by_server_side_apply
        what_is_not_valid_is_refused_in_the_same_words
    }
    change {
        c08_edit_annotate_label_and_patch_change_a_service_that_serves
        scale_says_what_it_expected
    }
    rollout {
        restart_undo_and_resume_lose_no_connection
    }
    nodes {
        a_cordoned_and_drained_node_loses_no_connection
    }
    delete {
        k03_a_service_goes_only_when_its_load_balancer_is_gone
        dependents_go_as_the_cascade_says
    }
}
