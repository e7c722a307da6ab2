//! What a container runtime does between the manifest and the program: mounts, a root of the image's own, capabilities,
//! user. The kubelet writes it down; the program `pod-container` becomes it, since namespaces and capabilities are a
//! process's own.
//!
//! As in a real runtime a container sees nothing of the machine but its mounts. Not done: cgroups, a PID
//! namespace of its own (worlds of real nodes have them all).

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, chdir, pivot_root, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use serde::{Deserialize, Serialize};

use crate::seccomp;

/// Devices that every container has.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// What runtimes give a container whose manifest says nothing.
const USUAL: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// A container that is about to start, or one that a command is run in.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sandbox {
    /// The image's files.
    pub root: PathBuf,
    /// Whether the program may write there.
    pub read_only: bool,
    /// Folders of the machine, and where they are mounted.
    pub mounts: Vec<Mount>,
    /// Who runs it.
    pub identity: Identity,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Process id of the container to run it in, instead of making one.
    pub within: Option<u32>,
}

/// A folder in a container.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Mount {
    /// On the machine.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
    /// Whether the program may not write there.
    pub read_only: bool,
}

/// Who a container's program is, and what it may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Identity {
    /// Its user; root if none is given, as in an image that names none.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// The group that owns the pod's volumes.
    pub fs_group: Option<u32>,
    /// Every capability, and the kernel's settings can be written.
    pub privileged: bool,
    /// Whether a program may give it more than it has.
    pub escalation: bool,
    /// Whether it has the runtime's default profile of calls.
    pub default_seccomp: bool,
    /// Capabilities, without `CAP_`; `ALL` for all of them.
    pub add: Vec<String>,
    /// Those of the usual ones that it has not.
    pub drop: Vec<String>,
}

impl Sandbox {
    /// Becomes the container's program. Returns only with the reason why it cannot.
    pub fn become_it(&self) -> Result<()> {
        match self.within {
            None => self.make()?,
            Some(pid) => {
                let path = format!("/proc/{pid}/ns/mnt");
                let file = File::open(&path).with_context(|| format!("open {path}"))?;
                setns(file, CloneFlags::CLONE_NEWNS).context("join the container's mounts")?;
            }
        }
        chdir("/").context("go to the container's root")?;
        self.identity.take()?;
        let (program, args) = self.command.split_first().context("a program to run")?;
        Err(Command::new(program).args(args).exec())
            .with_context(|| format!("run {program} in the image"))
    }

    fn make(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNS).context("make a namespace of mounts")?;
        // Nothing mounted here is to be seen outside.
        let all = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount_with(None, Path::new("/"), all)?;
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount_with(Some(&self.root), &self.root, bind)?;
        self.kernel()?;
        self.devices()?;
        for one in &self.mounts {
            let target = self.inside(&one.target)?;
            bind_folder(&one.source, &target, one.read_only)?;
        }
        if self.read_only {
            read_only(&self.root)?;
        }
        chdir(&self.root).context("enter the root")?;
        pivot_root(".", ".").context("make the image's files the root")?;
        umount2(".", MntFlags::MNT_DETACH).context("leave the machine's files")
    }

    /// `/proc` and `/sys`, of which only a privileged container writes the kernel's settings.
    fn kernel(&self) -> Result<()> {
        let proc = self.inside(Path::new("/proc"))?;
        mount_kind("proc", &proc, MsFlags::empty())?;
        let sys = self.inside(Path::new("/sys"))?;
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        if self.identity.privileged {
            return mount_kind("sysfs", &sys, flags);
        }
        flags |= MsFlags::MS_RDONLY;
        mount_kind("sysfs", &sys, flags)?;
        let settings = proc.join("sys");
        bind_folder(&settings, &settings, true)
    }

    fn devices(&self) -> Result<()> {
        let folder = self.inside(Path::new("/dev"))?;
        mount_kind("tmpfs", &folder, MsFlags::MS_NOSUID)?;
        for name in DEVICES {
            let target = folder.join(name);
            File::create(&target).with_context(|| format!("make {}", target.display()))?;
            mount_with(
                Some(&Path::new("/dev").join(name)),
                &target,
                MsFlags::MS_BIND,
            )?;
        }
        Ok(())
    }

    /// The folder behind a path of the container, made if the image has none.
    fn inside(&self, path: &Path) -> Result<PathBuf> {
        let below = path.strip_prefix("/").context("an absolute path")?;
        let target = self.root.join(below);
        fs::create_dir_all(&target).with_context(|| format!("make {}", target.display()))?;
        Ok(target)
    }
}

impl Identity {
    /// The capabilities that are left to it.
    fn capabilities(&self) -> Result<CapabilitySet> {
        if self.privileged {
            return Ok(CapabilitySet::all());
        }
        let all = |names: &[String]| names.iter().any(|name| name == "ALL");
        let mut left = CapabilitySet::empty();
        if !all(&self.drop) {
            for name in USUAL
                .iter()
                .filter(|usual| !self.drop.iter().any(|d| d == *usual))
            {
                left |= named(name)?;
            }
        }
        if all(&self.add) {
            left = CapabilitySet::all();
        }
        for name in self.add.iter().filter(|name| *name != "ALL") {
            left |= named(name)?;
        }
        Ok(left)
    }

    /// Takes user, group and capabilities; in that order what each step needs is still there.
    fn take(&self) -> Result<()> {
        let left = self.capabilities()?;
        for number in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << number);
            // The kernel does not know them all.
            if !left.contains(one) && capability_is_in_bounding_set(one).unwrap_or(false) {
                remove_capability_from_bounding_set(one).context("give up a capability")?;
            }
        }
        let groups: Vec<Gid> = self.fs_group.into_iter().map(Gid::from_raw).collect();
        setgroups(&groups).context("set the groups")?;
        let group = Gid::from_raw(self.group);
        setresgid(group, group, group).context("set the group")?;
        let user = Uid::from_raw(self.user);
        setresuid(user, user, user).context("set the user")?;
        if user.is_root() && !self.privileged {
            let sets = CapabilitySets {
                effective: left,
                permitted: left,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets).context("set the capabilities")?;
        }
        if !self.escalation && !self.privileged {
            set_no_new_privs(true).context("forbid new privileges")?;
        }
        if self.default_seccomp {
            seccomp::confine(left)?;
        }
        Ok(())
    }
}

fn named(name: &str) -> Result<CapabilitySet> {
    let known = CapabilitySet::all().iter_names();
    let Some((_, one)) = known.into_iter().find(|(known, _)| *known == name) else {
        bail!("no capability {name}");
    };
    Ok(one)
}

fn mount_with(source: Option<&Path>, target: &Path, flags: MsFlags) -> Result<()> {
    mount(source, target, None::<&str>, flags, None::<&str>)
        .with_context(|| format!("mount {source:?} on {}", target.display()))
}

fn mount_kind(kind: &str, target: &Path, flags: MsFlags) -> Result<()> {
    mount(Some(kind), target, Some(kind), flags, None::<&str>)
        .with_context(|| format!("mount {kind} on {}", target.display()))
}

fn bind_folder(source: &Path, target: &Path, locked: bool) -> Result<()> {
    ensure!(source.is_dir(), "{} is no folder", source.display());
    mount_with(Some(source), target, MsFlags::MS_BIND)?;
    if locked { read_only(target) } else { Ok(()) }
}

/// A bind mount becomes read-only by a second call.
fn read_only(target: &Path) -> Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount_with(None, target, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_the_usual_ones_less_what_is_dropped_and_with_what_is_added() -> Result<()> {
        let of = |drop: &[&str], add: &[&str]| {
            let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
            let identity = Identity {
                drop: names(drop),
                add: names(add),
                ..Identity::default()
            };
            identity.capabilities()
        };
        assert_eq!(of(&["ALL"], &["NET_ADMIN"])?, CapabilitySet::NET_ADMIN);
        assert_eq!(of(&["ALL"], &[])?, CapabilitySet::empty());
        let usual = of(&[], &[])?;
        assert!(
            usual.contains(CapabilitySet::NET_RAW) && !usual.contains(CapabilitySet::SYS_ADMIN)
        );
        assert!(!of(&["NET_RAW"], &[])?.contains(CapabilitySet::NET_RAW));
        assert!(of(&[], &["NET_ADMN"]).is_err());
        Ok(())
    }
}
