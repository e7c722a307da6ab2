//! Every rendered argument is read by the program's own definition of its flags.

use crate::sets::{sets, with};
use anyhow::{Context, Result, bail};
use clap::Parser;
use onehop_controller::args as controller;
use onehop_e2e::chart::{Chart, NAMESPACE, Program};
use onehop_node_agent::args as agent;
use serde_json::{Value, json};

fn controller_config(program: Program<'_>) -> Result<controller::Config> {
    let args = [vec!["onehop-controller".to_owned()], program.args()?].concat();
    Ok(controller::Args::try_parse_from(args)?.resolve()?)
}

fn agent_config(program: Program<'_>) -> Result<agent::Config> {
    // The node's name comes by the environment.
    let name = ["onehop-node-agent", "--node-name", "n"].map(str::to_owned);
    let args = [name.to_vec(), program.args()?].concat();
    Ok(agent::Args::try_parse_from(args)?.resolve()?)
}

/// Containers that run before the one container of a workload.
fn before(workload: &Value) -> Result<Vec<Program<'_>>> {
    let pod = &workload["spec"]["template"]["spec"];
    let containers = pod["initContainers"].as_array();
    let containers = containers.map(Vec::as_slice).unwrap_or_default();
    let program = |container| Ok(Program { pod, container });
    containers.iter().map(program).collect()
}

#[test]
fn every_rendered_argument_is_a_flag_of_the_program() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in sets()? {
        let rendered = chart.render(&set.values)?;
        for workload in rendered.of_kinds(&["Deployment", "DaemonSet", "StatefulSet", "Job"]) {
            let name = workload["metadata"]["name"].as_str().context("a name")?;
            let of = || format!("{name} of {}", set.name);
            let program = Program::of(workload)?;
            let job = |config: controller::Config| config.job;
            match workload["kind"].as_str() {
                Some("Deployment") => {
                    let job = controller_config(program).map(job).with_context(of)?;
                    assert_eq!(job, controller::Job::Control);
                }
                // C-80: the hook is the controller's own program, as the same install.
                Some("Job") => {
                    let job = controller_config(program).map(job).with_context(of)?;
                    assert_eq!(job, controller::Job::UninstallCheck);
                }
                Some("DaemonSet") => {
                    agent_config(program).with_context(of)?;
                    for container in before(workload)? {
                        agent_config(container).with_context(of)?;
                    }
                }
                _ => bail!("{}: nothing reads the arguments of this kind", of()),
            }
        }
    }
    Ok(())
}

/// C-50 and K-02: what values say arrives.
#[test]
fn c50_values_arrive_in_the_programs() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let values = with(json!({
        "installId": "blue", "loadBalancerClass": ["example.com/a"], "claimClassless": true, "metricsPort": 9080, "healthPort": 9081,
        "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s", "retryPeriod": "1s"},
        "agent": {"clusterCIDR": ["10.244.0.0/16"], "nodePortAddresses": ["all"], "masqueradeAll": true, "masqueradeBit": 15},
    }));
    let rendered = chart.render(&values)?;
    let config = controller_config(rendered.controller()?)?;
    let claim = &config.settings.claim;
    assert_eq!(claim.install, "blue".into(), "K-02");
    assert!(
        claim.classes.contains("example.com/a") && claim.classes.contains("onehop.dev/local"),
        "{claim:?}"
    );
    assert_eq!(
        claim.classless,
        onehop_controller::snapshot::Classless::Claim
    );
    assert_eq!(
        (config.metrics_address.port(), config.health_address.port()),
        (9080, 9081)
    );
    let election = config.election.context("an election")?;
    assert_eq!(election.namespace.as_deref(), Some(NAMESPACE));
    // Only this Lease may be read and changed.
    let role = rendered.object("Role", "onehop-controller")?;
    let named = &role["rules"][1]["resourceNames"];
    assert_eq!(
        *named,
        json!([election.name]),
        "the Role names the Lease of the election"
    );

    let config = agent_config(rendered.agent()?)?;
    assert_eq!(config.pod_ranges(), ["10.244.0.0/16".parse()?]);
    assert_eq!(config.nodeport_addresses, agent::NodePortAddresses::All);
    assert!(config.masquerade_all);
    assert_eq!(config.masquerade_mark, 1 << 15);
    Ok(())
}

/// C-56: one value switches ports, and the controller probes nodes where the agent answers.
#[test]
fn c56_one_value_switches_the_way_to_run() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let of = |values| -> Result<(agent::Config, controller::Config)> {
        let rendered = chart.render(&values)?;
        Ok((
            agent_config(rendered.agent()?)?,
            controller_config(rendered.controller()?)?,
        ))
    };
    let ports = |config: &agent::Config| {
        let all = config.health_binds.iter().chain(&config.metrics_binds);
        all.map(std::net::SocketAddr::port).collect::<Vec<_>>()
    };
    let (beside, controller) = of(with(json!({})))?;
    assert_eq!(beside.mode, agent::Mode::Beside);
    assert_eq!(ports(&beside), [10356, 10349]);
    assert_eq!(
        controller.proxy,
        onehop_controller::cloud::local::resolve::NodeProxy::Beside
    );
    let replace = json!({"agent": {"mode": "replace", "apiServer": {"host": "10.0.0.5"}}});
    let (replace, controller) = of(with(replace))?;
    assert_eq!(replace.mode, agent::Mode::Replace);
    assert_eq!(ports(&replace), [10356, 10256, 10249]);
    assert_eq!(
        controller.proxy,
        onehop_controller::cloud::local::resolve::NodeProxy::Replace
    );
    Ok(())
}
