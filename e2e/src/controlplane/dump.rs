//! Every object of a control plane, for the report of a world that failed.

use e2e_apiserver::ApiServer;
use e2e_fabric::Netns;
use std::{path::PathBuf, process::Command};

/// What a reader of a report wants to see; all objects of a real server would hide it.
const KINDS: &str = "nodes,namespaces,services,endpointslices,pods,deployments,replicasets,leases,events,\
    addresspools,loadbalancers,nodetargets";

/// Where objects come from. Asked while a world falls apart, so without a runtime.
pub(crate) enum Dump {
    /// From the server in this process.
    Embedded(ApiServer),
    /// By kubectl, inside the management namespace.
    Kubectl {
        /// The management namespace.
        netns: Netns,
        /// The program.
        program: PathBuf,
        /// An administrator's kubeconfig for it.
        kubeconfig: PathBuf,
    },
}

impl Dump {
    /// The objects as JSON, or why there are none.
    pub(crate) fn objects(&self) -> String {
        match self {
            Self::Embedded(api) => api.dump().to_string(),
            Self::Kubectl {
                netns,
                program,
                kubeconfig,
            } => {
                let mut command = Command::new(program);
                command
                    .args(["get", KINDS, "--all-namespaces", "--output=json"])
                    .arg("--request-timeout=10s")
                    .arg("--kubeconfig")
                    .arg(kubeconfig);
                match netns.run(move || command.output()) {
                    Ok(output) if output.status.success() => {
                        String::from_utf8_lossy(&output.stdout).into_owned()
                    }
                    Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                    Err(error) => format!("kubectl: {error}"),
                }
            }
        }
    }
}
