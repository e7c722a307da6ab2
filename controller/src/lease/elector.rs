//! The task that reads and writes the Lease: wins it, holds it, gives it up. What to do is decided in
//! `evaluate`; this only does it, and raises the fence while it is so.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use onehop_core::crd::INSTALL_LABEL;
use onehop_core::id::InstallId;
use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::{Clock, TimedOut};
use onehop_runtime::watch::{Seen, WatchMetrics, watch};
use prometheus_client::metrics::gauge::Gauge;
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::claims::Claims;
use super::evaluate::{JITTER, Record, Sighting, Timing, Verdict, evaluate, held, released};
use super::fence::Fence;
use super::peers::Peers;

/// What an election is about.
#[derive(Clone, Debug)]
pub struct Election {
    /// Who we are: another one for each process, also after a restart.
    pub identity: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// The times.
    pub timing: Timing,
}

impl Election {
    /// The Lease's usual name (K-02).
    pub fn lease_name(install: &InstallId) -> String {
        format!("onehop-controller-{install}")
    }
}

/// Where a candidate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// Somebody else leads.
    Standby {
        /// Who.
        leader: String,
    },
    /// Another install claims what we claim: we do not lead, and look again (C-121).
    Refused {
        /// Which, and what.
        why: String,
    },
    /// We lead.
    Leading,
}

/// Leadership ended against our will. The process has to end: a new one starts from what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The Lease was not renewed in time.
    #[error("lost the Lease {lease}: not renewed within {deadline:?}")]
    NotRenewed {
        /// Namespace and name.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
    },
    /// Somebody else holds it.
    #[error("lost the Lease {lease} to {holder}")]
    Taken {
        /// Namespace and name.
        lease: String,
        /// Who.
        holder: String,
    },
}

/// What an elector is made of.
pub struct Parts {
    /// The API server, without a fence.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// What to raise.
    pub fence: Fence,
    /// What we claim.
    pub claims: Claims,
    /// Our install.
    pub install: InstallId,
    /// 1 while we lead.
    pub leader: Gauge,
    /// For jitter.
    pub rng: SmallRng,
}

/// The task.
pub struct Elector {
    election: Election,
    parts: Parts,
    leases: Api<Lease>,
    peers: Peers,
    /// The Lease as read or written last.
    lease: Option<Lease>,
    seen: Option<Sighting>,
}

/// A try that led to nothing; the next one may.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Late(#[from] TimedOut),
}

fn status(trouble: &Trouble) -> Option<u16> {
    match trouble {
        Trouble::Api(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

impl Elector {
    /// A candidate.
    pub fn new(election: Election, parts: Parts) -> Self {
        Self {
            leases: Api::namespaced(parts.client.clone(), &election.namespace),
            peers: Peers::new(&parts.client, &election),
            election,
            parts,
            lease: None,
            seen: None,
        }
    }

    /// Wins and holds the Lease until `stop` (then it is released, once no call is under way), or
    /// until it is lost. The fence is down for good at the end.
    pub async fn run(
        mut self,
        stop: CancellationToken,
        metrics: WatchMetrics,
        position: watch::Sender<Position>,
    ) -> Result<(), Lost> {
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            result = self.lead(&metrics, &position) => result,
        };
        self.parts.fence.lower();
        self.parts.leader.set(0);
        // Also if we never led: what took the Lease may have been cut off before the answer came.
        if result.is_ok() {
            self.parts.fence.idle().await;
            if let Err(error) = self.release().await {
                tracing::warn!(%error, lease = self.name(), "cannot release the Lease: it has to expire");
            }
        }
        result
    }

    async fn lead(
        &mut self,
        metrics: &WatchMetrics,
        position: &watch::Sender<Position>,
    ) -> Result<(), Lost> {
        let until = self.win(metrics, position).await;
        tracing::info!(
            lease = self.name(),
            identity = self.election.identity,
            "leading"
        );
        self.parts.leader.set(1);
        position.send_replace(Position::Leading);
        self.hold(until).await
    }

    /// Tries until the Lease is ours; the answer is until when the fence is up.
    async fn win(&mut self, metrics: &WatchMetrics, position: &watch::Sender<Position>) -> Time {
        let mut changes = self.changes(metrics);
        loop {
            match self.compete().await {
                Ok(Round::Won { until }) => return until,
                Ok(Round::Not(now)) => {
                    position.send_if_modified(|before| {
                        let news = *before != now;
                        if news {
                            tracing::info!(lease = self.name(), position = ?now, "not leading");
                        }
                        *before = now;
                        news
                    });
                }
                Ok(Round::Again) => {}
                Err(error) => {
                    tracing::warn!(%error, lease = self.name(), "cannot use the Lease, trying again");
                }
            }
            let pause = self.pause();
            tokio::select! {
                () = self.parts.clock.sleep(pause) => {}
                () = vacated(&mut changes, &self.election) => {}
            }
        }
    }

    async fn compete(&mut self) -> Result<Round, Trouble> {
        self.look().await?;
        let now = self.parts.clock.now();
        let Election {
            identity, timing, ..
        } = &self.election;
        match evaluate(self.seen.as_ref(), identity, timing, now) {
            Verdict::Held { by, .. } => Ok(Round::Not(Position::Standby { leader: by })),
            Verdict::Vacant | Verdict::Expired | Verdict::Mine => self.take().await,
        }
    }

    /// Takes the Lease, unless another install claims what we do. Published first and looked at once
    /// more afterwards: of two that start at once at least one sees the other.
    async fn take(&mut self) -> Result<Round, Trouble> {
        if let Some(why) = self.overlap().await? {
            return Ok(Round::Not(Position::Refused { why }));
        }
        let started = self.parts.clock.now();
        match self.write(started).await {
            Err(trouble) if matches!(status(&trouble), Some(404 | 409)) => return Ok(Round::Again),
            other => other?,
        }
        if let Some(why) = self.overlap().await? {
            self.release().await?;
            return Ok(Round::Not(Position::Refused { why }));
        }
        let until = started + self.election.timing.deadline();
        if self.parts.clock.now() >= until {
            return Ok(Round::Again);
        }
        self.parts.fence.raise_until(until);
        Ok(Round::Won { until })
    }

    /// Renews until that fails for too long.
    async fn hold(&mut self, mut until: Time) -> Result<(), Lost> {
        loop {
            let left = until.since(self.parts.clock.now());
            let pause = self.pause().min(left);
            self.parts.clock.sleep(pause).await;
            let started = self.parts.clock.now();
            if started >= until {
                return Err(Lost::NotRenewed {
                    lease: self.name(),
                    deadline: self.election.timing.deadline(),
                });
            }
            match self.renew(started, until).await {
                Ok(Renewal::Done) => {
                    until = started + self.election.timing.deadline();
                    self.parts.fence.raise_until(until);
                }
                Ok(Renewal::Taken { holder }) => {
                    let lease = self.name();
                    return Err(Lost::Taken { lease, holder });
                }
                Err(error) => {
                    tracing::warn!(%error, lease = self.name(), "cannot renew the Lease, trying again");
                }
            }
        }
    }

    async fn renew(&mut self, started: Time, until: Time) -> Result<Renewal, Trouble> {
        let clock = self.parts.clock;
        let attempt = async {
            match self.write(started).await {
                // Somebody has changed or deleted it: is it still ours?
                Err(trouble) if matches!(status(&trouble), Some(404 | 409)) => self.look().await?,
                other => return other.map(|()| Renewal::Done),
            }
            let holder = self.seen.as_ref().map(|seen| seen.record.holder.clone());
            if let Some(Some(holder)) =
                holder.filter(|h| h.as_ref() != Some(&self.election.identity))
            {
                return Ok(Renewal::Taken { holder });
            }
            self.write(started).await.map(|()| Renewal::Done)
        };
        clock.within(until.since(started), attempt).await?
    }

    /// Reads the Lease.
    async fn look(&mut self) -> Result<(), Trouble> {
        let (limit, clock) = (self.election.timing.call_limit(), self.parts.clock);
        let get = self.leases.get_opt(&self.election.name);
        let lease = clock.within(limit, get).await??;
        self.note(lease);
        Ok(())
    }

    fn note(&mut self, lease: Option<Lease>) {
        let now = self.parts.clock.now();
        self.seen = lease
            .as_ref()
            .map(|lease| Sighting::after(self.seen.take(), Record::from(lease), now));
        self.lease = lease;
    }

    /// Writes the Lease as ours; fails if it has changed since it was read.
    async fn write(&mut self, now: Time) -> Result<(), Trouble> {
        let before = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = held(before, &self.election.identity, &self.election.timing, now);
        let written = self.put(spec).await?;
        self.note(Some(written));
        Ok(())
    }

    async fn put(&self, spec: LeaseSpec) -> Result<Lease, Trouble> {
        let Election {
            namespace,
            name,
            timing,
            ..
        } = &self.election;
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        lease
            .annotations_mut()
            .extend(self.parts.claims.annotations());
        let install = self.parts.install.to_string();
        lease.labels_mut().insert(INSTALL_LABEL.to_owned(), install);
        lease.spec = Some(spec);
        let params = PostParams::default();
        let (limit, clock) = (timing.call_limit(), self.parts.clock);
        let written = if self.lease.is_some() {
            clock
                .within(limit, self.leases.replace(name, &params, &lease))
                .await?
        } else {
            clock
                .within(limit, self.leases.create(&params, &lease))
                .await?
        };
        Ok(written?)
    }

    /// Gives the Lease up, if it is ours.
    async fn release(&mut self) -> Result<(), Trouble> {
        self.look().await?;
        let ours =
            |spec: &&LeaseSpec| spec.holder_identity.as_ref() == Some(&self.election.identity);
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let Some(spec) = spec.filter(ours).cloned() else {
            return Ok(());
        };
        let written = self.put(released(spec, self.parts.clock.now())).await?;
        self.note(Some(written));
        tracing::info!(lease = self.name(), "released the Lease");
        Ok(())
    }

    async fn overlap(&mut self) -> Result<Option<String>, Trouble> {
        let (limit, clock) = (self.election.timing.call_limit(), self.parts.clock);
        let look = self
            .peers
            .overlap(&self.parts.claims, &self.election.timing, clock);
        Ok(clock.within(limit, look).await??)
    }

    fn pause(&mut self) -> Duration {
        let longer = self.parts.rng.random_range(0.0..JITTER);
        self.election.timing.retry().mul_f64(1.0 + longer)
    }

    fn name(&self) -> String {
        format!("{}/{}", self.election.namespace, self.election.name)
    }

    /// What happens to the Lease: only a hint to look at once.
    fn changes(&mut self, metrics: &WatchMetrics) -> BoxStream<'static, Seen<Lease>> {
        let Election {
            namespace, name, ..
        } = &self.election;
        let fields = format!("metadata.name={name},metadata.namespace={namespace}");
        let config = watcher::Config::default().fields(&fields);
        let backoff = Policy::WATCH.start(&mut self.parts.rng);
        watch::<Lease>(self.parts.client.clone(), config, backoff, metrics)
    }
}

/// How a try went.
enum Round {
    Won { until: Time },
    Not(Position),
    Again,
}

enum Renewal {
    Done,
    Taken { holder: String },
}

/// Waits until somebody gives the Lease up or deletes it.
async fn vacated(changes: &mut BoxStream<'static, Seen<Lease>>, election: &Election) {
    while let Some(seen) = changes.next().await {
        let vacant = match &seen {
            Seen::Applied(lease) => {
                lease.name_any() == election.name && Record::from(lease).holder.is_none()
            }
            Seen::Deleted(key) => key.name == election.name,
            _ => false,
        };
        if vacant {
            return;
        }
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests;
