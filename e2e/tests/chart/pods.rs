//! What the pods ask of a node.

use crate::sets::{sets, with};
use anyhow::Result;
use onehop_e2e::chart::{Chart, minimal_values};
use serde_json::{Value, json};

/// C-53: the controller is nobody, on a root that it cannot write.
#[test]
fn c53_the_controller_has_no_privilege() -> Result<()> {
    let chart = Chart::of_this_build()?;
    for set in sets()? {
        let rendered = chart.render(&set.values)?;
        let deployment = &rendered.of_kinds(&["Deployment"])[0]["spec"]["template"]["spec"];
        let own = &deployment["containers"][0]["securityContext"];
        assert_eq!(deployment["securityContext"]["runAsNonRoot"], true);
        assert_eq!(own["readOnlyRootFilesystem"], true);
        assert_eq!(own["allowPrivilegeEscalation"], false);
        assert_eq!(own["capabilities"], json!({"drop": ["ALL"]}));
        let asked = set.values["hostNetwork"] == true;
        assert_eq!(deployment["hostNetwork"] == true, asked, "{}", set.name);
    }
    Ok(())
}

/// S-314 and C-53: one capability, in the node's network namespace, and no privilege. K-55: no ports, which would be
/// host ports, and readiness by exec on a socket that the pods of an update do not share.
#[test]
fn s314_c53_k55_the_agents_pod() -> Result<()> {
    let rendered = Chart::of_this_build()?.render(&minimal_values())?;
    let agent = rendered.agent()?;
    assert_eq!(agent.pod["hostNetwork"], true);
    let security = &agent.container["securityContext"];
    assert_eq!(
        security["capabilities"],
        json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
    assert_eq!(security["privileged"], Value::Null);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(agent.container["ports"], Value::Null, "K-55");
    let probe = &agent.container["readinessProbe"]["exec"]["command"];
    let socket = agent
        .args()?
        .into_iter()
        .find(|arg| arg.starts_with("--ready-socket="));
    assert_eq!(
        *probe,
        json!(["onehop-node-agent", "ready", socket]),
        "K-55"
    );
    let path = socket
        .as_deref()
        .and_then(|arg| arg.split_once('='))
        .map(|(_, path)| path);
    let mount = agent.container["volumeMounts"][0]["mountPath"]
        .as_str()
        .unwrap_or("-");
    assert!(
        path.is_some_and(|path| path.starts_with(mount)),
        "the socket is in the pod's own volume"
    );
    assert!(agent.pod["volumes"][0]["emptyDir"].is_object());
    Ok(())
}

/// S-314: what needs a privilege ends before the agent starts. K-29: what is kept outlives the pod.
#[test]
fn s314_k29_settings_are_made_before_and_answers_are_kept_on_the_node() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let rendered = chart.render(&minimal_values())?;
    let agent = rendered.agent()?;
    let first = &agent.pod["initContainers"][0];
    assert_eq!(first["args"], json!(["--init-only"]), "S-314");
    assert_eq!(first["securityContext"]["privileged"], true);
    assert_eq!(first["image"], agent.container["image"]);
    let args = agent.args()?;
    assert!(
        args.iter()
            .any(|arg| arg == "--node-file=/var/lib/onehop/node.json"),
        "K-29: {args:?}"
    );
    let mount = json!({"name": "node", "mountPath": "/var/lib/onehop"});
    let mounts = agent.container["volumeMounts"].as_array();
    assert!(
        mounts.is_some_and(|mounts| mounts.contains(&mount)),
        "K-29: {mounts:?}"
    );
    let path = json!({"path": "/var/lib/onehop", "type": "DirectoryOrCreate"});
    assert_eq!(agent.pod["volumes"][1]["hostPath"], path, "K-29");
    let neither = json!({"agent": {"nodeFolder": "", "kernelSettings": false}});
    let rendered = chart.render(&with(neither))?;
    let agent = rendered.agent()?;
    assert_eq!(agent.pod["initContainers"], Value::Null);
    assert!(!agent.args()?.iter().any(|arg| arg.contains("node-file")));
    assert_eq!(agent.pod["volumes"].as_array().map(Vec::len), Some(1));
    Ok(())
}

/// Crd.md section 8: as the only proxy the agent reaches the API server without any Service.
#[test]
fn the_only_proxy_needs_no_service_to_start() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let beside = chart.render(&minimal_values())?;
    assert_eq!(beside.agent()?.pod["dnsPolicy"], "ClusterFirstWithHostNet");
    let replace =
        json!({"agent": {"mode": "replace", "apiServer": {"host": "10.0.0.5", "port": 443}}});
    let replace = chart.render(&with(replace))?;
    let agent = replace.agent()?;
    assert_eq!(agent.pod["dnsPolicy"], "Default");
    let env = agent.container["env"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    for (name, value) in [
        ("KUBERNETES_SERVICE_HOST", "10.0.0.5"),
        ("KUBERNETES_SERVICE_PORT", "443"),
    ] {
        assert!(
            env.contains(&json!({"name": name, "value": value})),
            "{name} in {env:?}"
        );
    }
    Ok(())
}

/// C-65: the oldest supported version is said, and an older one is refused.
#[test]
fn c65_kube_version() -> Result<()> {
    let text = std::fs::read_to_string(Chart::folder().join("Chart.yaml"))?;
    assert!(text.contains("kubeVersion: \">=1.33.0-0\""));
    let chart = Chart::of_this_build()?;
    assert!(chart.template_for("1.37.2", &minimal_values()).is_ok());
    let older = chart.template_for("1.32.9", &minimal_values());
    assert!(older.is_err_and(|error| error.to_string().contains("1.33.0")));
    Ok(())
}
