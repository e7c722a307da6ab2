//! `get` and `describe`.

use crate::kubectl::{Kubectl, applied, has_lines};
use anyhow::{Context, Result, ensure};
use onehop_e2e::world::{Cluster, ServiceManifest};

/// Kinds with their columns, and those that `-o wide` adds.
const COLUMNS: [(&str, &[&str], &[&str]); 9] = [
    (
        "services",
        &[
            "NAME",
            "TYPE",
            "CLUSTER-IP",
            "EXTERNAL-IP",
            "PORT(S)",
            "AGE",
        ],
        &["SELECTOR"],
    ),
    (
        "deployments",
        &["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
        &["CONTAINERS", "IMAGES", "SELECTOR"],
    ),
    (
        "replicasets",
        &["NAME", "DESIRED", "CURRENT", "READY", "AGE"],
        &["CONTAINERS", "IMAGES", "SELECTOR"],
    ),
    (
        "pods",
        &["NAME", "READY", "STATUS", "RESTARTS", "AGE"],
        &["IP", "NODE", "NOMINATED NODE", "READINESS GATES"],
    ),
    (
        "nodes",
        &["NAME", "STATUS", "ROLES", "AGE", "VERSION"],
        &[
            "INTERNAL-IP",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "KERNEL-VERSION",
            "CONTAINER-RUNTIME",
        ],
    ),
    (
        "endpointslices",
        &["NAME", "ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"],
        &[],
    ),
    (
        "loadbalancers",
        &[
            "NAME", "SERVICE", "MODE", "ADDRESS", "TARGETS", "HELD", "DRAINING", "READY", "AGE",
        ],
        &["PROVIDER", "CLASS", "REASON"],
    ),
    (
        "addresspools",
        &["NAME", "ASSIGNED", "AVAILABLE", "CONFLICT", "AGE"],
        &[],
    ),
    (
        "nodetargets",
        &["NAME", "SYNCED", "MODE", "VERSION", "AGE"],
        &[],
    ),
];

async fn columns(kubectl: &Kubectl) -> Result<()> {
    for (kind, usual, wide) in COLUMNS {
        let plain = kubectl.headers(&format!("get {kind}")).await?;
        ensure!(plain == usual, "{kind}: {plain:?}");
        let all = kubectl.headers(&format!("get {kind} -o wide")).await?;
        ensure!(all == [usual, wide].concat(), "{kind} -o wide: {all:?}");
    }
    Ok(())
}

/// The cells of the row that begins with a name, all but the age, which is at `age`.
async fn row(kubectl: &Kubectl, line: &str, name: &str, age: usize) -> Result<Vec<String>> {
    let rows = kubectl.rows(line).await?;
    let found = rows
        .iter()
        .find(|row| row.first().is_some_and(|n| n == name));
    let mut row = found.with_context(|| format!("{name}: {rows:?}"))?.clone();
    ensure!(row.len() > age, "{row:?}");
    row.remove(age);
    Ok(row)
}

/// C-104, C-T22: columns and what is in them. In pod mode, so that no port is chosen by chance.
pub(crate) async fn c104_get_and_describe_tell_what_users_look_for(on: Cluster) -> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let at = applied(on, 2, service).await?;
    let kubectl = &at.kubectl;
    let lb = at.address.ip().to_string();
    kubectl
        .ok("wait olb/web --for=jsonpath={.status.summary.targets}=4/4 --timeout=30s")
        .await?;
    columns(kubectl).await?;

    let cluster = kubectl
        .ok("get service web -o jsonpath={.spec.clusterIP}")
        .await?;
    let service = row(kubectl, "get services -o wide", "web", 5).await?;
    let ports = "80/TCP,80/UDP";
    ensure!(
        service == ["web", "LoadBalancer", &cluster, &lb, ports, "app=web"],
        "{service:?}"
    );
    let balancer = row(kubectl, "get olb -o wide", "web", 8).await?;
    let class = "onehop.dev/local";
    ensure!(
        balancer
            == [
                "web",
                "web",
                "pod",
                &lb,
                "4/4",
                "0",
                "0",
                "True",
                "local",
                class,
                "TargetsReady"
            ],
        "{balancer:?}"
    );
    let deployment = row(kubectl, "get deployments -o wide", "web", 4).await?;
    ensure!(
        deployment == ["web", "2/2", "2", "2", "server", "pod-server", "app=web"],
        "{deployment:?}"
    );
    for pod in kubectl.rows("get pods -l app=web").await? {
        ensure!(pod[1..4] == ["1/1", "Running", "0"], "{pod:?}");
    }
    let node = row(kubectl, "get nodes -o wide", "a", 3).await?;
    ensure!(
        node[..3] == ["a", "Ready", "<none>"] && node[4] == "10.0.1.11",
        "{node:?}"
    );
    let all = kubectl.ok("get all -o name").await?;
    for name in [
        "service/web",
        "deployment.apps/web",
        "replicaset.apps/web-",
        "pod/web-",
    ] {
        ensure!(all.lines().any(|l| l.starts_with(name)), "{name}: {all}");
    }
    selections(kubectl).await?;
    descriptions(kubectl, &lb).await?;
    at.world.end().await
}

/// Labels, fields, order, and a column of one's own.
async fn selections(kubectl: &Kubectl) -> Result<()> {
    let named = "get services --field-selector metadata.name=web -o name";
    ensure!(kubectl.ok(named).await? == "service/web");
    let labelled = "get services -l service.kubernetes.io/service-proxy-name=onehop -o name";
    ensure!(kubectl.ok(labelled).await? == "service/web");
    let none = kubectl.run("get services -l no=such").await?;
    ensure!(
        none.err == "No resources found in default namespace.",
        "{none:?}"
    );
    let sorted = "get services --sort-by=.spec.type -o name";
    ensure!(kubectl.ok(sorted).await? == "service/kubernetes\nservice/web");
    let own = "get service web -o custom-columns=NAME:.metadata.name,CLASS:.spec.loadBalancerClass";
    ensure!(
        kubectl.rows(own).await? == [["web", "onehop.dev/local"]],
        "{own}"
    );
    let missing = kubectl.refused("get service nobody").await?;
    ensure!(
        missing == "Error from server (NotFound): services \"nobody\" not found",
        "{missing}"
    );
    Ok(())
}

async fn descriptions(kubectl: &Kubectl, lb: &str) -> Result<()> {
    let service = kubectl.ok("describe service web").await?;
    has_lines(
        &service,
        &[
            "Type: LoadBalancer",
            &format!("LoadBalancer Ingress: {lb} (VIP)"),
            "Port: tcp 80/TCP",
            "TargetPort: 8080/TCP",
            "External Traffic Policy: Cluster",
        ],
    )?;
    let pods = kubectl
        .ok("get pods -l app=web -o jsonpath={.items[*].status.podIP}")
        .await?;
    for pod in pods.split(' ') {
        ensure!(service.contains(&format!("{pod}:8080")), "{pod}: {service}");
    }
    ensure!(
        service.contains(&format!("Ensured load balancer: {lb}"))
            && service.contains("onehop-controller"),
        "{service}"
    );
    let deployment = kubectl.ok("describe deployment web").await?;
    has_lines(
        &deployment,
        &[
            "Replicas: 2 desired | 2 updated | 2 total | 2 available | 0 unavailable",
            "RollingUpdateStrategy: 25% max unavailable, 25% max surge",
            "Available True MinimumReplicasAvailable",
            "Progressing True NewReplicaSetAvailable",
        ],
    )?;
    ensure!(deployment.contains("ScalingReplicaSet"), "{deployment}");
    has_lines(
        &kubectl.ok("describe node b").await?,
        &[
            "Unschedulable: false",
            "InternalIP: 10.0.1.12",
            "PodCIDR: 10.244.2.0/24",
        ],
    )?;
    let pod = kubectl.ok("describe pod -l app=web").await?;
    has_lines(&pod, &["Status: Running", "Ready: True"])?;
    ensure!(pod.contains("Controlled By:  ReplicaSet/web-"), "{pod}");
    let slice = kubectl
        .ok("describe endpointslice -l kubernetes.io/service-name=web")
        .await?;
    has_lines(
        &slice,
        &["AddressType: IPv4", "tcp 8080 TCP", "udp 8080 UDP"],
    )?;
    ensure!(slice.contains("TargetRef:  Pod/web-"), "{slice}");
    has_lines(
        &kubectl.ok("describe olb web").await?,
        &[
            "Kind: LoadBalancer",
            "Targets: 4/4",
            "Type: Programmed",
            "Type: TargetsReady",
        ],
    )
}
