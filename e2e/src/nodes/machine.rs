//! One real node: its configuration files, and the process that is its init (`e2e/nodes/machine`).

use crate::world::Programs;
use anyhow::{Context, Result, bail};
use e2e_fabric::{Child, NodeNet};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// What becomes the node's init.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/nodes/machine");
/// Name of the variable that `e2e/run` sets to a list of archives of images, a path per line (see `e2e/nodes/images`).
const IMAGES: &str = "ONEHOP_IMAGES";
/// Where pods find DNS.
pub(crate) const CLUSTER_DNS: &str = "10.96.0.10";
/// The image in which a pod's namespaces are held.
const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// Lines of a log that an error repeats.
const LAST_LINES: usize = 15;

/// What a node is started with.
pub(crate) struct MachineConfig<'a> {
    /// Its network.
    pub(crate) node: &'a NodeNet,
    /// Its zone.
    pub(crate) zone: &'a str,
    /// Name of its control group, which begins with the world's tag.
    pub(crate) cgroup: String,
    /// The world's folder.
    pub(crate) folder: &'a Path,
    /// The kubelet's kubeconfig.
    pub(crate) kubeconfig: &'a Path,
    /// More programs of the node, each with its arguments.
    pub(crate) more: Vec<Vec<String>>,
}

/// A running node. It ends with its world.
pub(crate) struct Machine {
    name: String,
    folder: PathBuf,
    init: Mutex<Child>,
}

impl Machine {
    /// Writes the node's files and starts it; it registers itself at the API server some seconds later.
    pub(crate) fn start(config: &MachineConfig<'_>) -> Result<Self> {
        let name = config.node.name();
        let folder = config.folder.join(format!("machine-{name}"));
        let programs = Programs::of_the_control_plane()?;
        let files = Files {
            folder: &folder,
            config,
            programs: &programs,
        };
        files.write()?;
        let log = File::create(folder.join("machine.log")).context("make the node's log")?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--propagation", "private", "bash", SCRIPT])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .env("PATH", files.path()?)
            .env("NODE", name)
            .env(
                "ADDRESSES",
                config.node.addresses().map(|a| a.to_string()).join(","),
            )
            .env("ZONE", config.zone)
            .env("CGROUP", &config.cgroup)
            .env("FOLDER", &folder)
            .env("IMAGES", images()?.join(" "));
        for (variable, program) in [
            ("KUBELET", "kubelet"),
            ("CONTAINERD", "containerd"),
            ("CTR", "ctr"),
        ] {
            command.env(variable, programs.path(program)?);
        }
        let init = config.node.netns().spawn(command)?;
        Ok(Self {
            name: name.to_owned(),
            folder,
            init: Mutex::new(init),
        })
    }

    /// Whether it still runs; an error holds the ends of its logs.
    pub(crate) fn check(&self) -> Result<()> {
        let mut init = self.init.lock().unwrap_or_else(PoisonError::into_inner);
        if init.try_wait()?.is_none() {
            return Ok(());
        }
        let ends = ["machine", "containerd", "images", "kubelet", "more"].map(|log| {
            let text =
                fs::read_to_string(self.folder.join(format!("{log}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
            format!("{log}:\n{last}")
        });
        bail!(
            "node {} ended; the ends of its logs:\n{}",
            self.name,
            ends.join("\n")
        )
    }
}

/// Paths of the archives of all images.
fn images() -> Result<Vec<String>> {
    let list = std::env::var_os(IMAGES)
        .with_context(|| format!("{IMAGES} is not set: start this through ./e2e/run"))?;
    let text = fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The files of one node.
struct Files<'a> {
    folder: &'a Path,
    config: &'a MachineConfig<'a>,
    programs: &'a Programs,
}

impl Files<'_> {
    fn write(&self) -> Result<()> {
        let (bin, cni) = (self.folder.join("bin"), self.folder.join("cni"));
        for folder in [&bin, &cni] {
            fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        for name in [
            "containerd-shim-runc-v2",
            "runc",
            "ptp",
            "host-local",
            "loopback",
            "portmap",
        ] {
            symlink(self.programs.path(name)?, bin.join(name)).context("link a program")?;
        }
        // Addresses of a pod are the node's own: to wait until nobody else claims one takes seconds.
        let quick = "#!/bin/sh\n[ -z \"$CNI_NETNS\" ] || nsenter --net=\"$CNI_NETNS\" \
                     sh -c 'echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad'\nexec ptp \"$@\"\n";
        let path = self.put("bin/quick-ptp", quick)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        self.put("cni/10-pods.conflist", &self.cni().to_string())?;
        self.put("containerd.toml", &self.containerd())?;
        // JSON is YAML.
        self.put("kubelet.yaml", &self.kubelet().to_string())?;
        self.put("resolv.conf", "")?;
        let lines = self
            .config
            .more
            .iter()
            .map(|command| command.join(" ") + "\n");
        self.put("more", &lines.collect::<String>())?;
        fs::copy(self.config.kubeconfig, self.folder.join("kubeconfig"))?;
        Ok(())
    }

    /// Programs of the node first, then the machine's.
    fn path(&self) -> Result<String> {
        let inherited = std::env::var("PATH").context("PATH is not set")?;
        Ok(format!("{}:{inherited}", self.file("bin")))
    }

    fn put(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// Each pod has a link to the node and an address of each family; no masquerade, since the network knows them.
    fn cni(&self) -> Value {
        let node = self.config.node;
        let subnets = [node.pod_cidr().to_string(), node.pod_cidr6().to_string()];
        let ranges: Vec<Value> = subnets
            .into_iter()
            .zip(node.pod_range())
            .map(|(subnet, (first, last))| {
                json!([{"subnet": subnet, "rangeStart": first, "rangeEnd": last}])
            })
            .collect();
        json!({
            "cniVersion": "1.0.0", "name": "pods",
            "plugins": [{
                "type": "quick-ptp", "ipMasq": false, "mtu": 1500,
                "ipam": {
                    "type": "host-local", "dataDir": "/var/lib/cni", "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            }, {
                "type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true},
            }],
        })
    }

    fn containerd(&self) -> String {
        let (bin, cni) = (self.file("bin"), self.file("cni"));
        format!(
            r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{bin}"]
conf_dir = "{cni}"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{bin}/runc"
SystemdCgroup = false
"#
        )
    }

    fn kubelet(&self) -> Value {
        let authority = self.config.folder.join("ca.crt");
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": true},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{}", self.config.cgroup),
            "failCgroupV1": false, "failSwapOn": false,
            "clusterDNS": [CLUSTER_DNS], "clusterDomain": "cluster.local",
            "resolvConf": self.file("resolv.conf"),
            // All nodes share this machine's memory and disk, and none of them has to give any up.
            "localStorageCapacityIsolation": true,
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
                "imagefs.available": "0%", "imagefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        })
    }
}
