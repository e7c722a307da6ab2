//! A controller of provider azure that ends and comes back under traffic.

use crate::azure::{asked, remove, serve, web, world};
use anyhow::{Context, Result, ensure};
use onehop_e2e::{
    traffic::LongFlow,
    world::{World, eventually},
};
use std::time::Duration;

const WITHIN: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn za96_az105_a_controller_that_restarts_under_traffic_writes_nothing_and_nobody_notices()
-> Result<()> {
    for mode in [web().vip_mode(), web().pod_mode()] {
        let world = world().await?;
        let address = serve(&world, mode).await?;
        let every = Duration::from_millis(200);
        let flow = LongFlow::open(&world.sockets, address, every, world.clock).await;
        let flow = flow.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        let writes = world.azure()?.writes().len();
        let reads = |world: &World| -> Result<u64> {
            let calls = world.azure()?.calls();
            let lists = ["GET loadBalancers", "GET publicIPAddresses"];
            let counts = lists.map(|call| calls.get(call).copied().unwrap_or_default());
            Ok(counts.into_iter().min().unwrap_or_default())
        };
        for _ in 0..2 {
            let before = reads(&world)?;
            world.controller.kill()?;
            let mut failed = Vec::new();
            let what = "the next controller has looked at everything";
            eventually(&world.clock, what, WITHIN, async || {
                failed.extend(asked(&world, address).await.err());
                let read = reads(&world).map_err(|e| e.to_string())?;
                (read > before).then_some(()).ok_or(format!("{read}"))
            })
            .await?;
            ensure!(failed.is_empty(), "ZA-96: {failed:?}");
            for _ in 0..20 {
                asked(&world, address).await.context("ZA-96")?;
            }
            world.cloud_settled().await;
        }
        let now = world.azure()?.writes();
        ensure!(now.len() == writes, "ZA-96: {:?}", now.last());
        let end = flow.end().await.context("the flow tells how it ended")?;
        ensure!(end.cut.is_none(), "ZA-96: {end:?}");
        remove(&world).await?;
        world.end().await?;
    }
    Ok(())
}
