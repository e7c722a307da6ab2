//! `cordon`, `drain`, `uncordon` and `taint`, under load.

use crate::kubectl::{Kubectl, applied, has_lines};
use anyhow::{Result, ensure};
use onehop_e2e::{
    scenario::Rollout,
    world::{Cluster, ServiceManifest},
};

/// The nodes of the pods of `web` that do not end.
async fn nodes_of_pods(kubectl: &Kubectl) -> Result<Vec<String>> {
    let nodes = "get pods -l app=web --field-selector status.phase=Running -o jsonpath={.items[*].spec.nodeName}";
    let nodes = kubectl.ok(nodes).await?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

async fn status_of_b(kubectl: &Kubectl) -> Result<String> {
    let rows = kubectl.rows("get nodes").await?;
    let of_b = rows.into_iter().find(|row| row[0] == "b");
    Ok(of_b.map(|row| row[1].clone()).unwrap_or_default())
}

pub(crate) async fn a_cordoned_and_drained_node_loses_no_connection(on: Cluster) -> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let at = applied(on, 4, service).await?;
    let kubectl = &at.kubectl;
    let both = nodes_of_pods(kubectl).await?;
    ensure!(both.iter().any(|node| node == "b"), "{both:?}");
    let rollout = Rollout {
        world: &at.world,
        address: at.address,
    };
    let report = rollout
        .during(async || {
            ensure!(kubectl.ok("cordon b").await? == "node/b cordoned");
            ensure!(status_of_b(kubectl).await? == "Ready,SchedulingDisabled");
            ensure!(kubectl.ok("cordon b").await? == "node/b already cordoned");
            // A pod that nothing would make again is not taken unasked: the agent's is one here.
            let refused = kubectl.refused("drain b --timeout=10s").await?;
            ensure!(
                refused.contains("cannot delete Pods that declare no controller")
                    && refused.contains("kube-system/onehop-agent-b"),
                "{refused}"
            );
            let said = kubectl
                .ok("drain b --pod-selector=app=web --timeout=60s")
                .await?;
            let gone = both.iter().filter(|node| *node == "b").count();
            let evicted = said.lines().filter(|l| l.ends_with(" evicted")).count();
            ensure!(evicted == gone, "{gone} pods: {said}");
            has_lines(&said, &["node/b drained"])?;
            kubectl
                .ok("rollout status deployment/web --timeout=60s")
                .await?;
            ensure!(nodes_of_pods(kubectl).await? == ["a"; 4]);

            ensure!(kubectl.ok("uncordon b").await? == "node/b uncordoned");
            ensure!(status_of_b(kubectl).await? == "Ready");
            ensure!(kubectl.ok("uncordon b").await? == "node/b already uncordoned");
            kubectl.ok("scale deployment web --replicas=6").await?;
            kubectl
                .ok("rollout status deployment/web --timeout=60s")
                .await?;
            let nodes = nodes_of_pods(kubectl).await?;
            ensure!(nodes.iter().any(|node| node == "b"), "{nodes:?}");
            Ok(())
        })
        .await?;
    ensure!(report.failed == 0, "{:#?}", report.failures);
    ensure!(kubectl.ok("taint nodes b busy=yes:NoSchedule").await? == "node/b tainted");
    let taints = "get node b -o jsonpath={.spec.taints[*].key}={.spec.taints[*].effect}";
    ensure!(kubectl.ok(taints).await? == "busy=NoSchedule");
    ensure!(kubectl.ok("taint nodes b busy-").await? == "node/b untainted");
    at.world.end().await
}
