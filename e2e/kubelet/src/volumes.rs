//! Volumes of pods: what a manifest says of them, and the folders of this machine behind them. A node's host paths are a
//! folder of its own, for all nodes share one machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::events::PodRef;

/// Where the files of a volume come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Volume {
    Empty,
    /// A path of the node, made if it is not there.
    Host(String),
    Projected(Vec<Projection>),
    /// Something that this stand-in does not mount.
    Other,
}

/// One source of files in a projected volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Projection {
    Token {
        path: String,
        seconds: i64,
    },
    /// A `ConfigMap` and, by key, the files made of it.
    Config {
        name: String,
        files: Vec<(String, String)>,
    },
    Namespace {
        path: String,
    },
    Other,
}

impl Volume {
    pub(crate) fn read(volume: &core::Volume) -> (String, Self) {
        let kind = if volume.empty_dir.is_some() {
            Self::Empty
        } else if let Some(host) = &volume.host_path {
            Self::Host(host.path.clone())
        } else if let Some(projected) = &volume.projected {
            let sources = projected.sources.iter().flatten();
            Self::Projected(sources.map(Projection::read).collect())
        } else {
            Self::Other
        };
        (volume.name.clone(), kind)
    }
}

impl Projection {
    fn read(source: &core::VolumeProjection) -> Self {
        if let Some(token) = &source.service_account_token {
            return Self::Token {
                path: token.path.clone(),
                seconds: token.expiration_seconds.unwrap_or(3600),
            };
        }
        if let Some(config) = &source.config_map {
            let items = config.items.iter().flatten();
            return Self::Config {
                name: config.name.clone(),
                files: items
                    .map(|item| (item.key.clone(), item.path.clone()))
                    .collect(),
            };
        }
        let fields = source.downward_api.as_ref().and_then(|d| d.items.as_ref());
        match fields.map(Vec::as_slice) {
            Some([item])
                if item
                    .field_ref
                    .as_ref()
                    .is_some_and(|f| f.field_path == "metadata.namespace") =>
            {
                Self::Namespace {
                    path: item.path.clone(),
                }
            }
            _ => Self::Other,
        }
    }
}

/// Whose volumes, and where they are.
pub(crate) struct Place<'a> {
    pub(crate) client: &'a Client,
    pub(crate) pod: &'a PodRef,
    pub(crate) account: &'a str,
    pub(crate) fs_group: Option<u32>,
    /// The pod's own folder.
    pub(crate) folder: PathBuf,
    /// The node's paths.
    pub(crate) host: PathBuf,
}

impl Place<'_> {
    /// Makes them all; gives the folder of each by its name.
    pub(crate) async fn prepare(
        &self,
        volumes: &[(String, Volume)],
    ) -> Result<BTreeMap<String, PathBuf>> {
        let mut folders = BTreeMap::new();
        for (name, volume) in volumes {
            let folder = self
                .one(name, volume)
                .await
                .with_context(|| format!("volume {name}"))?;
            folders.insert(name.clone(), folder);
        }
        Ok(folders)
    }

    async fn one(&self, name: &str, volume: &Volume) -> Result<PathBuf> {
        if let Volume::Host(path) = volume {
            let folder = self.host.join(path.trim_start_matches('/'));
            fs::create_dir_all(&folder)?;
            return Ok(folder);
        }
        let folder = self.folder.join("volumes").join(name);
        fs::create_dir_all(&folder)?;
        chown(&folder, None, self.fs_group)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o2777))?;
        match volume {
            Volume::Empty => {}
            Volume::Projected(sources) => {
                for source in sources {
                    self.project(source, &folder).await?;
                }
            }
            Volume::Host(_) | Volume::Other => bail!("of a kind that is not mounted here"),
        }
        Ok(folder)
    }

    async fn project(&self, source: &Projection, folder: &Path) -> Result<()> {
        match source {
            Projection::Token { path, seconds } => {
                let token = self.token(*seconds).await?;
                self.write(&folder.join(path), &token)
            }
            Projection::Config { name, files } => {
                let all: Api<core::ConfigMap> =
                    Api::namespaced(self.client.clone(), &self.pod.namespace);
                let data = all.get(name).await?.data.unwrap_or_default();
                files.iter().try_for_each(|(key, path)| {
                    let text = data
                        .get(key)
                        .with_context(|| format!("{name} has no {key}"))?;
                    self.write(&folder.join(path), text)
                })
            }
            Projection::Namespace { path } => self.write(&folder.join(path), &self.pod.namespace),
            Projection::Other => bail!("a source that is not projected here"),
        }
    }

    /// A token of the pod's account that is good for as long as the pod is there, and names its node.
    async fn token(&self, seconds: i64) -> Result<String> {
        let accounts: Api<core::ServiceAccount> =
            Api::namespaced(self.client.clone(), &self.pod.namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(self.pod.name.clone()),
                    uid: Some(self.pod.uid.clone()),
                }),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(self.account, &PostParams::default(), &request)
            .await?;
        let name = answer.name_any();
        Ok(answer
            .status
            .with_context(|| format!("no token of {name}"))?
            .token)
    }

    /// As a kubelet leaves it: nobody but root reads it, and the group that owns the pod's volumes.
    fn write(&self, path: &Path, text: &str) -> Result<()> {
        fs::write(path, text)?;
        let mode = if self.fs_group.is_some() {
            0o640
        } else {
            0o600
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        chown(path, None, self.fs_group)?;
        Ok(())
    }
}
