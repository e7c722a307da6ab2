//! Real etcd, kube-apiserver, kube-controller-manager and kube-scheduler in the management namespace, with RBAC and
//! tokens for accounts. Certificates are made for each world and die with it.

use super::{
    API, Account, Asked, Audit, Dump, Forward, Refused, SYSTEM_NAMESPACE,
    audit::{self, POLICY, Refusals},
    processes::Processes,
};
use crate::world::{Programs, eventually};
use anyhow::{Context, Result, ensure};
use e2e_apiserver::pki::{Authority, Credentials, Issued, SigningKey, kubeconfig};
use e2e_fabric::{Fabric, Netns};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams};
use onehop_runtime::{
    client::{Options, Requests, connect},
    clock::Clock,
    metrics::Metrics,
};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where etcd listens: the loopback of the management namespace is this world's own.
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";
/// Time in which the API server must be ready.
const READY_WITHIN: Duration = Duration::from_mins(2);
/// How long a token of an account is good: longer than any world lives.
const TOKEN_SECONDS: i64 = 24 * 3600;
/// Where the API server says who wrote what.
const AUDIT_LOG: &str = "audit.log";
/// The group with every right.
const MASTERS: &str = "system:masters";

pub(super) struct Real {
    authority: Authority,
    admin: Issued,
    netns: Netns,
    folder: PathBuf,
    programs: Programs,
    forward: Forward,
    processes: Processes,
    refusals: Refusals,
    clock: Clock,
}

impl Real {
    /// Starts all of it, and gives a client with every right once the API server is ready.
    pub(super) async fn start(
        netns: &Netns,
        clock: Clock,
        folder: &Path,
    ) -> Result<(Self, Client)> {
        let (mut real, client) = Self::start_api(netns, clock, folder, &[]).await?;
        let manager = real
            .authority
            .client("kube-controller-manager", Some(MASTERS))?;
        real.run("kube-controller-manager", real.manager(&manager)?)?;
        let scheduler = real.authority.client("system:kube-scheduler", None)?;
        real.run("kube-scheduler", real.scheduler(&scheduler)?)?;
        Ok((real, client))
    }

    /// Starts etcd and the API server alone, with more flags for the latter.
    pub(super) async fn start_api(
        netns: &Netns,
        clock: Clock,
        folder: &Path,
        more: &[&str],
    ) -> Result<(Self, Client)> {
        let authority = Authority::new()?;
        let mut real = Self {
            admin: authority.client("kubernetes-admin", Some(MASTERS))?,
            authority,
            netns: netns.clone(),
            folder: folder.to_owned(),
            programs: Programs::of_the_control_plane()?,
            forward: Forward::open(netns, API).await?,
            processes: Processes::new(netns, folder),
            refusals: Refusals::of_log(folder.join(AUDIT_LOG)),
            clock,
        };
        real.write_keys()?;
        real.run("etcd", real.etcd())?;
        let mut flags = real.apiserver();
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        real.run("kube-apiserver", flags)?;
        let kubeconfig = real.write("kubeconfig-harness", &real.admin_kubeconfig())?;
        let options = Options {
            kubeconfig: Some(kubeconfig),
            ..Options::default()
        };
        let requests = Requests::new(&Metrics::default(), clock);
        let client = connect(&options, &requests).await?;
        real.processes
            .all_while(ready(&client, &clock))
            .await
            .context("start the API server")?;
        Ok((real, client))
    }

    /// A kubeconfig for programs on the management network.
    pub(super) async fn kubeconfig(&self, client: &Client, account: &Account) -> Result<String> {
        if matches!(account, Account::KubeProxy | Account::Kubelet { .. }) {
            let issued = self.authority.client(&account.name(), account.group())?;
            return Ok(self.text(API, &Credentials::Certificate(&issued)));
        }
        let token = token(client, account).await?;
        Ok(self.text(API, &Credentials::Token(&token)))
    }

    /// A client with the rights of an account, in this process.
    pub(super) async fn client_of(&self, client: &Client, account: &Account) -> Result<Client> {
        let token = token(client, account).await?;
        let text = self.text(self.forward.address(), &Credentials::Token(&token));
        let options = Options {
            kubeconfig: Some(self.write(&format!("{}-here", account.file_name()), &text)?),
            ..Options::default()
        };
        let requests = Requests::new(&Metrics::default(), self.clock);
        Ok(connect(&options, &requests).await?)
    }

    /// An administrator's kubeconfig for programs of this machine.
    pub(super) fn admin_kubeconfig(&self) -> String {
        let server = self.forward.address();
        self.text(server, &Credentials::Certificate(&self.admin))
    }

    pub(super) fn dump(&self) -> Result<Dump> {
        Ok(Dump::Kubectl {
            netns: self.netns.clone(),
            program: self.programs.path("kubectl")?,
            kubeconfig: self.inside()?,
        })
    }

    /// An administrator's kubeconfig for programs on the management network.
    pub(super) fn inside(&self) -> Result<PathBuf> {
        let text = self.text(API, &Credentials::Certificate(&self.admin));
        self.write("kubeconfig-inside", &text)
    }

    pub(super) fn audit(&self) -> Result<Audit> {
        Audit::of_log(&self.folder.join(AUDIT_LOG))
    }

    pub(super) fn asked(&self) -> Result<BTreeSet<Asked>> {
        audit::asked(&self.folder.join(AUDIT_LOG))
    }

    /// What accounts had no right to, since the last call.
    pub(super) fn refused(&self) -> Result<Vec<Refused>> {
        self.refusals.take()
    }

    /// All programs run, and whoever asked had the right.
    pub(super) fn check(&self) -> Result<()> {
        self.processes.check()?;
        let refused = self.refused()?;
        ensure!(
            refused.is_empty(),
            "C-53: the chart gives too few rights: {refused:#?}"
        );
        Ok(())
    }

    fn run(&mut self, program: &str, args: Vec<String>) -> Result<()> {
        self.processes.start(&self.programs.path(program)?, &args)
    }

    fn text(&self, server: SocketAddr, credentials: &Credentials<'_>) -> String {
        kubeconfig(
            &format!("https://{server}"),
            self.authority.pem(),
            credentials,
        )
    }

    /// Certificate and keys that programs read from files.
    fn write_keys(&self) -> Result<()> {
        let mut names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
            .map(str::to_owned)
            .to_vec();
        names.extend([
            API.ip().to_string(),
            "127.0.0.1".to_owned(),
            "localhost".to_owned(),
        ]);
        // The Service `kubernetes` has the first address.
        names.extend(Fabric::SERVICE_CIDR.hosts().next().map(|a| a.to_string()));
        let server = self.authority.server(&names)?;
        let to_kubelets = self.authority.client("kube-apiserver", Some(MASTERS))?;
        let signing = SigningKey::new()?;
        for (file, text) in [
            ("ca.crt", self.authority.pem()),
            ("apiserver.crt", &server.certificate_pem()),
            ("apiserver.key", &server.key_pem()),
            ("kubelet-client.crt", &to_kubelets.certificate_pem()),
            ("kubelet-client.key", &to_kubelets.key_pem()),
            ("sa.key", &signing.private_pem),
            ("sa.pub", &signing.public_pem),
            ("audit.yaml", POLICY),
        ] {
            self.write(file, text)?;
        }
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn etcd(&self) -> Vec<String> {
        flags([
            ("data-dir", &self.file("etcd")),
            ("listen-client-urls", ETCD),
            ("advertise-client-urls", ETCD),
            ("listen-peer-urls", ETCD_PEER),
            ("initial-advertise-peer-urls", ETCD_PEER),
            ("initial-cluster", &format!("default={ETCD_PEER}")),
            // What a world stores dies with it.
            ("unsafe-no-fsync", "true"),
            ("log-level", "warn"),
        ])
    }

    fn apiserver(&self) -> Vec<String> {
        flags([
            ("etcd-servers", ETCD),
            ("secure-port", &API.port().to_string()),
            ("advertise-address", &API.ip().to_string()),
            ("tls-cert-file", &self.file("apiserver.crt")),
            ("tls-private-key-file", &self.file("apiserver.key")),
            ("client-ca-file", &self.file("ca.crt")),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", &self.file("sa.pub")),
            ("service-account-signing-key-file", &self.file("sa.key")),
            ("authorization-mode", "Node,RBAC"),
            // For logs and exec, where kubelets are real.
            (
                "kubelet-client-certificate",
                &self.file("kubelet-client.crt"),
            ),
            ("kubelet-client-key", &self.file("kubelet-client.key")),
            ("kubelet-preferred-address-types", "InternalIP"),
            (
                "service-cluster-ip-range",
                &format!("{},{}", Fabric::SERVICE_CIDR, Fabric::SERVICE_CIDR6),
            ),
            ("allow-privileged", "true"),
            ("audit-policy-file", &self.file("audit.yaml")),
            ("audit-log-path", &self.file(AUDIT_LOG)),
        ])
    }

    /// With every right: which of them each of its controllers has is not what is tested here.
    fn manager(&self, issued: &Issued) -> Result<Vec<String>> {
        let text = self.text(API, &Credentials::Certificate(issued));
        let kubeconfig = self.write("kubeconfig-kube-controller-manager", &text)?;
        Ok(flags([
            ("kubeconfig", kubeconfig.to_string_lossy().as_ref()),
            ("leader-elect", "false"),
            ("root-ca-file", &self.file("ca.crt")),
            ("service-account-private-key-file", &self.file("sa.key")),
            ("allocate-node-cidrs", "false"),
            // Its default of 20 calls a second would be what a rollout waits for.
            ("kube-api-qps", "300"),
            ("kube-api-burst", "600"),
        ]))
    }

    fn scheduler(&self, issued: &Issued) -> Result<Vec<String>> {
        let text = self.text(API, &Credentials::Certificate(issued));
        let kubeconfig = self.write("kubeconfig-kube-scheduler", &text)?;
        Ok(flags([
            ("kubeconfig", kubeconfig.to_string_lossy().as_ref()),
            ("leader-elect", "false"),
        ]))
    }
}

fn flags<const N: usize>(pairs: [(&str, &str); N]) -> Vec<String> {
    pairs
        .map(|(name, value)| format!("--{name}={value}"))
        .to_vec()
}

async fn ready(client: &Client, clock: &Clock) -> Result<()> {
    eventually(clock, "the API server is ready", READY_WITHIN, async || {
        let request = http::Request::get("/readyz").body(Vec::new());
        let request = request.map_err(|e| e.to_string())?;
        let answer = client.request_text(request).await;
        answer.map(drop).map_err(|e| e.to_string())
    })
    .await
}

/// A token of an account; an agent's is bound to its node, which the admission policy asks for (K-25).
async fn token(client: &Client, account: &Account) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let bound = match account {
        Account::NodeAgent { node } => Some(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.clone()),
            uid: None,
        }),
        Account::Controller { .. }
        | Account::CleanUp
        | Account::KubeProxy
        | Account::Kubelet { .. } => None,
    };
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            bound_object_ref: bound,
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let name = account.name();
    let answer = accounts
        .create_token_request(&name, &PostParams::default(), &request)
        .await
        .with_context(|| format!("ask for a token of {SYSTEM_NAMESPACE}/{name}"))?;
    let status = answer.status.context("a token request has a status")?;
    Ok(status.token)
}
