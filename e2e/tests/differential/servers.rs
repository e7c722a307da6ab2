//! The two servers, and our object types on both.

use anyhow::{Context, Result};
use e2e_apiserver::{ApiServer, Clock, Config, Identity};
use e2e_fabric::{Fabric, FabricConfig, WorldTag};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Crd;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use onehop_e2e::controlplane::Referee;
use std::path::PathBuf;

const CRDS: [&str; 3] = [
    include_str!("../../../charts/onehop/files/crds/addresspools.yaml"),
    include_str!("../../../charts/onehop/files/crds/loadbalancers.yaml"),
    include_str!("../../../charts/onehop/files/crds/nodetargets.yaml"),
];

/// Keeps what runs, in the order in which it has to end.
pub(crate) struct Servers {
    pub(crate) embedded: Client,
    pub(crate) real: Client,
    _referee: Referee,
    fabric: Fabric,
    folder: PathBuf,
}

impl Servers {
    /// Starts both.
    pub(crate) async fn start(seed: u64) -> Result<Self> {
        let clock = Clock::system();
        let config = Config {
            seed,
            service_cidrs: vec![Fabric::SERVICE_CIDR.into(), Fabric::SERVICE_CIDR6.into()],
            ..Config::default()
        };
        let api = ApiServer::start(clock, config);
        let tag = WorldTag::new()?;
        let folder = std::env::temp_dir().join(format!("onehop-differential-{}", tag.as_str()));
        std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let fabric = Fabric::new(tag, FabricConfig::new(clock))?;
        let referee = Referee::start(&fabric, clock, &folder).await?;
        let servers = Self {
            embedded: api.client(&Identity::admin()),
            real: referee.client(),
            _referee: referee,
            fabric,
            folder,
        };
        for client in [&servers.embedded, &servers.real] {
            install(client).await?;
        }
        Ok(servers)
    }

    /// Ends both, and removes what they wrote.
    pub(crate) fn end(self) -> Result<()> {
        self.fabric.end()?;
        std::fs::remove_dir_all(&self.folder)
            .with_context(|| format!("remove {}", self.folder.display()))
    }
}

async fn install(client: &Client) -> Result<()> {
    let api: Api<Crd> = Api::all(client.clone());
    for text in CRDS {
        let crd: Crd = serde_saphyr::from_str(text)?;
        let name = crd.name_any();
        let params = PatchParams::apply("setup").force();
        api.patch(&name, &params, &Patch::Apply(&crd)).await?;
        await_condition(api.clone(), &name, is_crd_established()).await?;
    }
    Ok(())
}
