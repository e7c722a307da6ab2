//! What happens in a cell, while its load runs.

use super::cells::{Event, Mode};
use crate::world::{World, eventually};
use anyhow::Result;
use e2e_cloud::engine::{Engine, Faults, TargetState, Throttle, What};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use nix::sys::signal::Signal;
use onehop_core::crd::{NodeTargets, TargetState as Told};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The Deployment and its Service.
pub(super) const NAME: &str = "web";
/// How long anything may take.
const WITHIN: Duration = Duration::from_mins(3);
/// Between two steps of unrest.
const UNREST_MS: std::ops::Range<u64> = 200..1500;
/// How long the API server is away.
const API_AWAY: Duration = Duration::from_millis(300);
/// Steps of unrest in each of two rollouts.
const STEPS: u32 = 5;

/// Does it, and waits until Kubernetes and the cloud have followed: late flows belong to it.
pub(super) async fn happen(world: &World, event: Event, mode: Mode) -> Result<()> {
    let objects = &world.objects;
    match event {
        Event::Rollout => objects.restart(NAME).await?,
        Event::ScaleDown => {
            let fewer = json!({"spec": {"replicas": 2}});
            objects
                .api::<k8s_openapi::api::apps::v1::Deployment>()
                .patch(NAME, &PatchParams::default(), &Patch::Merge(fewer))
                .await?;
        }
        Event::Drain => drain(world, "b").await?,
        Event::AgentKilled => {
            objects.restart(NAME).await?;
            second_generation(world).await?;
            for node in ["a", "b"] {
                world.kill_agent(node)?;
            }
        }
        Event::ControllerKilled => {
            objects.restart(NAME).await?;
            second_generation(world).await?;
            world.controller.kill()?;
        }
        Event::Chaos | Event::LeaderChaos => {
            let kinds = if event == Event::Chaos { 4 } else { 6 };
            for turn in 0..2 {
                objects.restart(NAME).await?;
                unrest(world, world.seed * 2 + turn, kinds).await?;
                objects.rolled_out(NAME, WITHIN).await?;
            }
        }
    }
    objects.rolled_out(NAME, WITHIN).await?;
    settled(world, mode).await
}

/// Waits until no target is on its way in or held, and no load balancer node goes on choosing one that has left.
pub(super) async fn settled(world: &World, mode: Mode) -> Result<()> {
    let what = "the cloud has followed";
    eventually(&world.clock, what, WITHIN, async || {
        let tails = tails(world);
        let inventory = world.cloud.look(Engine::inventory);
        let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        let coming = |state| matches!(state, TargetState::Initial | TargetState::Unhealthy);
        let coming = targets.filter(|t| coming(t.state)).count();
        // With policy Local nodes without a pod are unhealthy for good.
        let coming = if mode == Mode::Local { 0 } else { coming };
        let held = held(world).await?;
        if tails == 0 && coming == 0 && held == 0 {
            return Ok(());
        }
        Err(format!("{tails} tails, {coming} coming, {held} held"))
    })
    .await?;
    world.cloud_settled().await;
    Ok(())
}

fn tails(world: &World) -> usize {
    let mut running = BTreeSet::new();
    for event in world.cloud.events_after(0, usize::MAX) {
        match &event.what {
            What::TailStarted {
                node,
                group,
                target,
                ..
            } => {
                running.insert((*node, group.clone(), *target));
            }
            What::TailEnded {
                node,
                group,
                target,
                ..
            } => {
                running.remove(&(*node, group.clone(), *target));
            }
            _ => {}
        }
    }
    running.len()
}

async fn held(world: &World) -> Result<usize, String> {
    let objects: Api<NodeTargets> = Api::all(world.kube());
    let all = objects.list(&ListParams::default()).await;
    let all = all.map_err(|error| error.to_string())?;
    let installs = all.items.iter().flat_map(|o| o.spec.installs.values());
    let targets = installs.flat_map(|install| &install.targets);
    Ok(targets.filter(|t| t.state == Told::Held).count())
}

/// Waits until a pod of the new generation is ready: the middle of a rollout.
async fn second_generation(world: &World) -> Result<()> {
    let what = "a new pod is ready";
    eventually(&world.clock, what, WITHIN, async || {
        match world.journal.ready_spans(&BTreeMap::new()).len() {
            ready if ready > 4 => Ok(()),
            ready => Err(format!("{ready} pods were ready so far")),
        }
    })
    .await
}

async fn drain(world: &World, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.kube());
    let cordon = json!({"spec": {"unschedulable": true}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(cordon))
        .await?;
    let pods = world.objects.api::<Pod>();
    let of_it = ListParams::default()
        .labels(&format!("app={NAME}"))
        .fields(&format!("spec.nodeName={node}"));
    for pod in pods.list(&of_it).await? {
        pods.delete(&pod.name_any(), &DeleteParams::default())
            .await?;
    }
    Ok(())
}

/// Kills agents and controller and has the cloud throttle, at moments that the seed chooses; of six kinds also asks the
/// leader to end and takes the API server away for a moment.
async fn unrest(world: &World, seed: u64, kinds: u32) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let set = |faults| {
        world
            .cloud
            .with(|engine, now| engine.set_faults(now, faults));
    };
    for _ in 0..STEPS {
        let pause = Duration::from_millis(rng.random_range(UNREST_MS));
        world.clock.sleep(pause).await;
        match rng.random_range(0..kinds) {
            // One that is down already goes on being so.
            0 => drop(world.kill_agent("a")),
            1 => drop(world.kill_agent("b")),
            2 => lead_ends(world, Signal::SIGKILL).await,
            4 => lead_ends(world, Signal::SIGTERM).await,
            5 => world.restart_api_server(API_AWAY).await?,
            _ => set(Faults {
                throttle: vec![Throttle {
                    operations: BTreeSet::new(),
                    per_second: 2,
                    burst: 2,
                }],
                ..Faults::default()
            }),
        }
    }
    set(Faults::default());
    Ok(())
}

/// Ends the leader, if somebody leads and has not ended yet.
async fn lead_ends(world: &World, how: Signal) {
    let leader = match &world.second {
        Some(_) => world.leader().await.map(|(leader, _)| leader),
        None => Ok(&world.controller),
    };
    drop(leader.map(|leader| leader.signal(how)));
}
