//! Flags of the leader election, named and with defaults as in Kubernetes' own components.

use std::time::Duration;

use clap::{ArgAction, Args};
use onehop_core::id::InstallId;

use crate::lease::Election;
use crate::lease::Timing;
use crate::lease::evaluate::TimingError;

/// As they are written.
#[derive(Clone, Debug, Args)]
pub(super) struct ElectionArgs {
    /// Elect a leader among replicas; without it, there must never be two.
    #[arg(long, env = "ONEHOP_LEADER_ELECT", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: bool,
    /// How long the others wait for a leader that does not renew its Lease; whole seconds.
    #[arg(long, env = "ONEHOP_LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_parser = duration)]
    leader_elect_lease_duration: Duration,
    /// How long a leader that cannot renew its Lease goes on.
    #[arg(long, env = "ONEHOP_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_parser = duration)]
    leader_elect_renew_deadline: Duration,
    /// Time between two tries to get or renew the Lease.
    #[arg(long, env = "ONEHOP_LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_parser = duration)]
    leader_elect_retry_period: Duration,
    /// Name of the Lease; has to contain the install id. Default: `onehop-controller-<install id>`.
    #[arg(long, env = "ONEHOP_LEADER_ELECT_RESOURCE_NAME")]
    leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease. Default: the one of the pod or of the kubeconfig.
    #[arg(long, env = "ONEHOP_LEADER_ELECT_RESOURCE_NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
    /// Name of this replica, part of its identity in the Lease.
    #[arg(long, env = "POD_NAME")]
    pod_name: Option<String>,
}

/// Resolved, but for what only the API client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// Namespace of the Lease, if one was given.
    pub namespace: Option<String>,
    /// Name of the Lease.
    pub name: String,
    /// The times.
    pub timing: Timing,
}

/// What is wrong with these flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionError {
    /// The times do not fit together.
    #[error("--leader-elect-…: {0}")]
    Timing(#[from] TimingError),
    /// Two installs would share the Lease.
    #[error("--leader-elect-resource-name must contain the install id {0}")]
    Name(InstallId),
}

impl ElectionArgs {
    /// Resolves them; none without an election.
    pub(super) fn resolve(
        self,
        install: &InstallId,
    ) -> Result<Option<ElectionConfig>, ElectionError> {
        let timing = Timing::new(
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
        )?;
        let name = self.lease(install)?;
        Ok(self.leader_elect.then_some(ElectionConfig {
            namespace: self.leader_elect_resource_namespace,
            name,
            timing,
        }))
    }

    /// Name of the Lease.
    pub(super) fn lease(&self, install: &InstallId) -> Result<String, ElectionError> {
        match &self.leader_elect_resource_name {
            Some(name) if !name.contains(install.as_str()) => {
                Err(ElectionError::Name(install.clone()))
            }
            Some(name) => Ok(name.clone()),
            None => Ok(Election::lease_name(install)),
        }
    }

    /// Namespace of the Lease, if one was given.
    pub(super) fn namespace(&self) -> Option<String> {
        self.leader_elect_resource_namespace.clone()
    }

    /// Name of this replica: in a pod, the host name is the pod's name too.
    pub(super) fn replica(&self) -> String {
        let given = self.pod_name.clone();
        given
            .or_else(|| std::env::var("HOSTNAME").ok())
            .unwrap_or_else(|| "onehop-controller".to_owned())
    }
}

/// A duration as Go writes it: `1m30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 15s, 1m30s or 500ms");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, after) = rest.split_at(digits);
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        total += Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())?;
        rest = next;
    }
    if text.is_empty() {
        Err(wrong())
    } else {
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        election: ElectionArgs,
    }

    fn resolve(flags: &[&str]) -> Result<Option<ElectionConfig>, ElectionError> {
        let command = Command::try_parse_from([&["x"], flags].concat()).unwrap();
        command.election.resolve(&"demo-local".into())
    }

    #[test]
    fn k02_by_default_there_is_an_election_on_a_lease_named_after_the_install() {
        let config = resolve(&[]).unwrap().unwrap();
        assert_eq!(config.name, "onehop-controller-demo-local", "K-02");
        let seconds = Duration::from_secs;
        let usual = Timing::new(seconds(15), seconds(10), seconds(2));
        assert_eq!(Ok(config.timing), usual);
        let other = ["--leader-elect-resource-name", "mine"];
        let refused = Err(ElectionError::Name("demo-local".into()));
        assert_eq!(resolve(&other), refused, "K-02");
    }

    #[test]
    fn the_election_can_be_switched_off_and_its_times_must_fit() {
        assert_eq!(resolve(&["--leader-elect=false"]), Ok(None));
        assert!(resolve(&["--leader-elect"]).unwrap().is_some());
        let late = ["--leader-elect-renew-deadline", "15s"];
        let refused = Err(ElectionError::Timing(TimingError::Deadline));
        assert_eq!(resolve(&late), refused);
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("300ms"), Ok(Duration::from_millis(300)));
        for wrong in ["", "15", "s", "1x", "1.2.3s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
