//! What the profile `RuntimeDefault` keeps from a container's program: the calls that containerd's default profile refuses
//! to one without `CAP_SYS_ADMIN`, as it refuses them. That profile lists what is allowed instead; what neither list names,
//! such as calls that the kernel gets later, is allowed here.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use nix::libc as sys;
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Calls that are refused whatever their arguments are.
const REFUSED: [i64; 48] = [
    sys::SYS_acct,
    sys::SYS_add_key,
    sys::SYS_bpf,
    sys::SYS_clock_adjtime,
    sys::SYS_clock_settime,
    sys::SYS_delete_module,
    sys::SYS_fanotify_init,
    sys::SYS_finit_module,
    sys::SYS_fsconfig,
    sys::SYS_fsmount,
    sys::SYS_fsopen,
    sys::SYS_fspick,
    sys::SYS_get_mempolicy,
    sys::SYS_init_module,
    sys::SYS_io_uring_enter,
    sys::SYS_io_uring_register,
    sys::SYS_io_uring_setup,
    sys::SYS_kexec_file_load,
    sys::SYS_kexec_load,
    sys::SYS_keyctl,
    sys::SYS_lookup_dcookie,
    sys::SYS_mbind,
    sys::SYS_migrate_pages,
    sys::SYS_mount,
    sys::SYS_mount_setattr,
    sys::SYS_move_mount,
    sys::SYS_move_pages,
    sys::SYS_nfsservctl,
    sys::SYS_open_by_handle_at,
    sys::SYS_open_tree,
    sys::SYS_perf_event_open,
    sys::SYS_pivot_root,
    sys::SYS_quotactl,
    sys::SYS_quotactl_fd,
    sys::SYS_reboot,
    sys::SYS_request_key,
    sys::SYS_set_mempolicy,
    sys::SYS_setdomainname,
    sys::SYS_sethostname,
    sys::SYS_setns,
    sys::SYS_settimeofday,
    sys::SYS_swapoff,
    sys::SYS_swapon,
    sys::SYS_syslog,
    sys::SYS_umount2,
    sys::SYS_unshare,
    sys::SYS_userfaultfd,
    sys::SYS_vhangup,
];

/// Flags of `clone` that make a namespace.
const NAMESPACES: [i32; 7] = [
    sys::CLONE_NEWCGROUP,
    sys::CLONE_NEWIPC,
    sys::CLONE_NEWNET,
    sys::CLONE_NEWNS,
    sys::CLONE_NEWPID,
    sys::CLONE_NEWUSER,
    sys::CLONE_NEWUTS,
];

/// What `personality` may be asked for.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Keeps these calls from this thread and what it becomes, which has given up all but these capabilities.
pub(crate) fn confine(left: CapabilitySet) -> Result<()> {
    ensure!(
        !left.contains(CapabilitySet::SYS_ADMIN),
        "the profile of a container with CAP_SYS_ADMIN is another one, which is not known here"
    );
    // The flags of `clone3` are in memory, which a filter cannot read: as if the kernel had none, programs use `clone`.
    let unknown = BTreeMap::from([(sys::SYS_clone3, Vec::new())]);
    apply(unknown, sys::ENOSYS)?;
    apply(refused(left)?, sys::EPERM)
}

/// Calls, each with the rules of which one has to hold; without any it is refused always.
type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn refused(left: CapabilitySet) -> Result<Calls> {
    let mut calls: Calls = REFUSED.map(|call| (call, Vec::new())).into();
    if !left.contains(CapabilitySet::SYS_CHROOT) {
        calls.insert(sys::SYS_chroot, Vec::new());
    }
    let mut of_clone = Vec::new();
    for flag in NAMESPACES {
        let flag = u64::from(flag.cast_unsigned());
        of_clone.push(rule(&[(SeccompCmpOp::MaskedEq(flag), flag)])?);
    }
    calls.insert(sys::SYS_clone, of_clone);
    let mut of_socket = Vec::new();
    for family in [sys::AF_ALG, sys::AF_VSOCK] {
        let family = u64::from(family.cast_unsigned());
        of_socket.push(rule(&[(SeccompCmpOp::Eq, family)])?);
    }
    calls.insert(sys::SYS_socket, of_socket);
    let others = PERSONALITIES.map(|one| (SeccompCmpOp::Ne, one));
    calls.insert(sys::SYS_personality, vec![rule(&others)?]);
    Ok(calls)
}

/// All of these hold for the first argument.
fn rule(conditions: &[(SeccompCmpOp, u64)]) -> Result<SeccompRule> {
    let condition = |(operator, value): &(SeccompCmpOp, u64)| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator.clone(), *value)
    };
    let conditions = conditions.iter().map(condition);
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}

fn apply(calls: Calls, errno: i32) -> Result<()> {
    let arch = std::env::consts::ARCH.try_into()?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program).context("set the seccomp filter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

    /// A filter is a thread's: the others of the test go on as they were.
    #[test]
    fn what_the_default_profile_refuses_is_refused_also_to_root() {
        let confined = std::thread::spawn(|| {
            let none = None::<&str>;
            let open = |family| socket(family, SockType::Datagram, SockFlag::empty(), None);
            confine(CapabilitySet::NET_ADMIN).expect("a filter");
            assert_eq!(unshare(CloneFlags::CLONE_NEWUTS), Err(Errno::EPERM));
            let mounted = mount(none, "/tmp", Some("tmpfs"), MsFlags::empty(), none);
            assert_eq!(mounted, Err(Errno::EPERM));
            assert_eq!(nix::unistd::chroot("/"), Err(Errno::EPERM));
            assert_eq!(open(AddressFamily::Vsock).err(), Some(Errno::EPERM));
            assert!(open(AddressFamily::Netlink).is_ok());
            assert!(open(AddressFamily::Inet).is_ok());
            // A program can still be started, and a thread.
            let ran = std::process::Command::new("true").status();
            assert!(ran.is_ok_and(|status| status.success()));
            let thread = std::thread::spawn(|| 7).join();
            assert_eq!(thread.ok(), Some(7));
        });
        confined.join().expect("it went well");
        assert!(confine(CapabilitySet::SYS_ADMIN).is_err());
    }
}
