//! Rights, which only a real API server checks: those that the chart gives are enough, and no more than they should be.

mod real {
    use crate::support::READY_WITHIN;
    use anyhow::{Context, Result, ensure};
    use k8s_openapi::api::rbac::v1::ClusterRole;
    use kube::{
        Api,
        api::{Patch, PatchParams},
    };
    use onehop_core::crd::NodeTargets;
    use onehop_e2e::{
        controlplane::{Account, BackEnd},
        world::{Cluster, ServiceManifest, World, WorldConfig, eventually},
    };
    use serde_json::json;

    async fn world() -> Result<World> {
        let config = WorldConfig {
            cluster: Cluster::on(BackEnd::Real),
            // One of them is meant to fail.
            keep_logs: false,
            ..WorldConfig::default()
        };
        World::start(config).await
    }

    /// C-53: a right that the chart forgot cannot go unseen, whatever the program makes of it.
    #[tokio::test(flavor = "multi_thread")]
    async fn c53_a_right_that_is_wanting_fails_the_world() -> Result<()> {
        let world = world().await?;
        let roles: Api<ClusterRole> = Api::all(world.kube());
        let mut role = roles.get("onehop-controller").await?;
        let rules = role.rules.as_mut().context("rules")?;
        let all = rules.len();
        rules.retain(|rule| {
            let mut resources = rule.resources.iter().flatten();
            resources.all(|name| name != "events")
        });
        ensure!(rules.len() == all - 1, "{rules:?}");
        roles
            .replace(
                "onehop-controller",
                &kube::api::PostParams::default(),
                &role,
            )
            .await?;
        // An event is sent, and refused.
        let service = ServiceManifest::load_balancer("web", "nobody");
        world.objects.apply(service.json()).await?;
        world.lb_address("web").await?;
        let ended = world.end().await;
        let told = format!("{:#}", ended.err().context("the world ended well")?);
        for word in [
            "C-53",
            "onehop-controller",
            "resource: \"events\"",
            "forbidden",
        ] {
            ensure!(told.contains(word), "{word}: {told}");
        }
        Ok(())
    }

    /// C-T45 and K-25.
    #[tokio::test(flavor = "multi_thread")]
    async fn ct45_k25_an_agent_writes_the_status_of_its_own_node_only() -> Result<()> {
        let world = world().await?;
        for node in ["a", "b"] {
            let object = json!({
                "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets",
                "metadata": {"name": node}, "spec": {"installs": {}},
            });
            // By its type, for its plural is its name.
            let all: Api<NodeTargets> = Api::all(world.kube());
            let apply = PatchParams::apply("scenario").force();
            all.patch(node, &apply, &Patch::Apply(object)).await?;
        }
        let agent = Account::NodeAgent {
            node: "a".to_owned(),
        };
        let as_agent: Api<NodeTargets> = Api::all(world.kube_as(&agent).await?);
        let status = Patch::Merge(json!({"status": {"version": "test"}}));
        let write = async |node: &str| {
            as_agent
                .patch_status(node, &PatchParams::default(), &status)
                .await
        };
        // The server takes a policy into use some time after it was made.
        let what = "the status of another node is refused";
        let refused = eventually(&world.clock, what, READY_WITHIN, async || {
            match write("b").await {
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(status.message),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        ensure!(
            refused.contains("its token is of node a, the object is of node b"),
            "{refused}"
        );
        write("a").await.context("the own node's")?;
        let seen = world.refused()?;
        ensure!(
            seen.len() == 1 && seen[0].request.resource == "nodetargets/status",
            "{seen:#?}"
        );
        world.end().await
    }
}
