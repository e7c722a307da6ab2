//! Every rendered argument is read by the program's own definition of its flags.

use crate::sets::{aws, overlay, sets, with};
use anyhow::{Context, Result, bail};
use clap::Parser;
use onehop_controller::args as controller;
use onehop_controller::cloud::azure::settings::Kind;
use onehop_controller::plan::Bounds;
use onehop_core::crd::LateFlows;
use onehop_e2e::chart::{Chart, NAMESPACE, Program};
use onehop_e2e::world::{Commands, chart_values};
use onehop_node_agent::args as agent;
use serde_json::{Value, json};

/// A cloud config as Azure's own programs have it, for what is mounted in the pod.
const CLOUD_CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chart/cloud-config.json");

fn controller_config(program: Program<'_>) -> Result<controller::Config> {
    let mounted = |arg: String| match arg.strip_prefix("--azure-config=") {
        Some(_) => format!("--azure-config={CLOUD_CONFIG}"),
        None => arg,
    };
    let args = program.args()?.into_iter().map(mounted);
    let args = std::iter::once("onehop-controller".to_owned()).chain(args);
    Ok(controller::Args::try_parse_from(args)?.resolve()?)
}

/// What the program would do around an uninstall, if it is started for that.
fn controller_errand(program: Program<'_>) -> Result<Option<controller::Errand>> {
    let args = [vec!["onehop-controller".to_owned()], program.args()?].concat();
    let errand = controller::Args::try_parse_from(args)?.errand();
    Ok(errand.transpose()?)
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
            match workload["kind"].as_str() {
                Some("Deployment") => {
                    assert_eq!(controller_errand(program)?, None, "{}", of());
                    controller_config(program).with_context(of)?;
                }
                // C-80, C-82: the hooks are the controller's own program, as the same install with the same Lease.
                Some("Job") => {
                    let errand = controller_errand(program).with_context(of)?;
                    let errand = errand.with_context(of)?;
                    let controllers = rendered.of_kinds(&["Deployment"]);
                    let controller = controllers.into_iter().next();
                    let controller =
                        controller.with_context(|| format!("a controller beside {}", of()))?;
                    let config = controller_config(Program::of(controller)?)?;
                    assert_eq!(errand.install, config.settings.claim.install, "{}", of());
                    let before =
                        workload["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete";
                    assert_eq!(errand.duty == controller::Duty::Check, before, "{}", of());
                    let election = config.election.with_context(of)?;
                    assert_eq!(errand.lease, election.name, "C-82: {}", of());
                    assert_eq!(errand.lease_namespace, election.namespace, "C-82: {}", of());
                    if !before {
                        // Only that Lease may go.
                        let role = rendered.object("Role", name)?;
                        let named = &role["rules"][0]["resourceNames"];
                        assert_eq!(*named, json!([errand.lease]), "C-82: {}", of());
                    }
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
        "installId": "blue", "loadBalancerClass": ["example.com/a"], "claimClassless": true, "membership": "compat",
        "metricsPort": 9080, "healthPort": 9081,
        "readinessGates": {"limitSeconds": 0}, "webhook": {"enabled": true, "port": 9444},
        "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s", "retryPeriod": "1s"},
        "agent": {"clusterCIDR": ["10.244.0.0/16"], "nodePortAddresses": ["all"], "masqueradeAll": true, "masqueradeBit": 15, "podHealthPort": 10291},
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
    // K-32: the install's own value.
    assert_eq!(
        config.defaults.membership,
        onehop_core::crd::MembershipPolicy::Compat
    );
    let asked = config.settings.pod_health.map(|of| of.port);
    assert_eq!(asked, Some(10291), "ZD-35");
    let gates = config.settings.gates.context("gates")?;
    assert_eq!(gates.limit, None, "AWS-507: never");
    let (name, address) = config.webhook.context("a webhook")?;
    assert_eq!(address.port(), 9444);
    for kind in ["Service", "Secret", "MutatingWebhookConfiguration"] {
        rendered.object(kind, &name)?;
    }
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
    assert_eq!(config.pod_health_port, Some(10291), "ZD-35");
    Ok(())
}

/// C-52: the bounds of zero-drop are values, whose defaults are those of the provider's cloud.
#[test]
fn c52_bounds_of_membership_arrive_for_every_provider() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let azure =
        json!({"provider": "azure", "azure": {"cloudConfigSecret": "azure-cloud-provider"}});
    let given = json!({
        "floorPercent": 50, "holdMaxSeconds": 60, "lateFlows": "drop", "tailMaxSeconds": {"local": 7, "aws": 7, "azure": 7},
        "awsApiThrottle": {"members": "1:2", "Elastic Load Balancing v2:^Describe": "3:4"}, "dnsGraceSeconds": 5,
        "azure": {"podSecurityGroup": "pods", "drainSeconds": 11}, "tailFloorSeconds": 3,
    });
    let wanted = Bounds {
        floor_percent: 50,
        hold_max_seconds: 60,
        tail_max_seconds: 7,
        late_flows: LateFlows::Drop,
    };
    for (base, tail) in [(with(json!({})), 0), (aws(), 180), (with(azure), 30)] {
        let of = |values: &Value| -> Result<controller::Config> {
            controller_config(chart.render(values)?.controller()?)
        };
        let bounds = |config: &controller::Config| match (&config.aws, &config.azure) {
            (Some(aws), _) => aws.settings.bounds,
            (_, Some(azure)) => azure.settings.bounds,
            _ => config.defaults.bounds,
        };
        assert_eq!(bounds(&of(&base)?), Bounds::with_tail(tail), "C-52: {base}");
        let mut values = base.clone();
        overlay(&mut values, &given);
        let config = of(&values)?;
        assert_eq!(bounds(&config), wanted, "C-52: {base}");
        let floor = config.settings.tails.floor_seconds;
        assert_eq!(floor, Some(3), "C-52, ZD-83: {base}");
        if let Some(aws) = config.aws {
            let limits = aws.access.limits;
            assert_eq!((limits.members.rate, limits.members.burst), (1.0, 2.0));
            assert_eq!((limits.describe.rate, limits.describe.burst), (3.0, 4.0));
            assert_eq!(aws.settings.dns_grace.as_secs(), 5, "C-124");
        }
        if let Some(azure) = config.azure {
            let pods = azure.settings.place.pod_security_group;
            assert_eq!(pods.map(|group| group.name).as_deref(), Some("pods"));
            assert_eq!(azure.settings.drain.as_secs(), 11);
            assert_eq!(azure.settings.dns_grace.as_secs(), 5, "C-124");
        }
    }
    Ok(())
}

/// AZ-450, AZ-451: places and identity arrive, or a Secret with the cloud config is mounted instead.
#[test]
fn az450_az451_values_of_azure_arrive() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let sets = sets()?;
    let azure = sets.iter().find(|set| set.name == "azure");
    let rendered = chart.render(&azure.context("a set of azure")?.values)?;
    let config = controller_config(rendered.controller()?)?;
    let place = config.azure.context("provider azure")?.settings.place;
    assert_eq!(
        place.balancer_id(Kind::External),
        "/subscriptions/s/resourceGroups/onehop/providers/Microsoft.Network/loadBalancers/demo-azure"
    );
    let deployment = rendered.object("Deployment", "onehop-controller")?;
    let label =
        &deployment["spec"]["template"]["metadata"]["labels"]["azure.workload.identity/use"];
    assert_eq!(*label, json!("true"), "AZ-451");
    let values =
        json!({"provider": "azure", "azure": {"cloudConfigSecret": "azure-cloud-provider"}});
    let rendered = chart.render(&with(values))?;
    let pod = &rendered.object("Deployment", "onehop-controller")?["spec"]["template"]["spec"];
    assert_eq!(
        pod["volumes"][0]["secret"]["secretName"],
        json!("azure-cloud-provider")
    );
    let args = rendered.controller()?.args()?;
    let config = args
        .iter()
        .find_map(|arg| arg.strip_prefix("--azure-config="));
    let folder = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str();
    assert_eq!(
        config,
        folder
            .map(|folder| format!("{folder}/cloud-config"))
            .as_deref()
    );
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
        controller.defaults.proxy,
        onehop_controller::cloud::local::resolve::NodeProxy::Beside
    );
    let replace = json!({"agent": {"mode": "replace", "apiServer": {"host": "10.0.0.5"}}});
    let (replace, controller) = of(with(replace))?;
    assert_eq!(replace.mode, agent::Mode::Replace);
    assert_eq!(ports(&replace), [10356, 10256, 10249]);
    assert_eq!(
        controller.defaults.proxy,
        onehop_controller::cloud::local::resolve::NodeProxy::Replace
    );
    Ok(())
}

/// Worlds on the embedded API server need no Helm: what they start programs with is kept, and is what the chart renders.
#[test]
fn worlds_without_helm_start_programs_as_the_chart_renders_them() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for mode in ["beside", "replace"] {
        let rendered = Commands::of(&chart.render(&chart_values(mode))?)?;
        let wanted = serde_json::to_string_pretty(&rendered)?;
        assert_eq!(
            rendered,
            Commands::golden(mode)?,
            "e2e/src/world/installation.json should have for {mode:?}: {wanted}"
        );
    }
    Ok(())
}
