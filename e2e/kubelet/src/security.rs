//! A container's security context as the kubelet reads it: the container's own before the pod's.

use k8s_openapi::api::core::v1 as core;

use crate::sandbox::Identity;

/// What the manifest says of who a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Security {
    pub(crate) identity: Identity,
    pub(crate) read_only_root: bool,
    /// Why it must not run, as a kubelet says it.
    pub(crate) refused: Option<&'static str>,
}

impl Security {
    pub(crate) fn read(pod: &core::PodSpec, container: &core::Container) -> Self {
        let pod = pod.security_context.clone().unwrap_or_default();
        let own = container.security_context.clone().unwrap_or_default();
        let number = |given: Option<i64>| given.and_then(|id| u32::try_from(id).ok());
        let user = number(own.run_as_user.or(pod.run_as_user)).unwrap_or_default();
        let names = |list: Option<Vec<String>>| list.unwrap_or_default();
        let capabilities = own.capabilities.unwrap_or_default();
        let privileged = own.privileged.unwrap_or(false);
        let profile = own.seccomp_profile.or(pod.seccomp_profile);
        let non_root = own.run_as_non_root.or(pod.run_as_non_root).unwrap_or(false);
        Self {
            identity: Identity {
                user,
                group: number(own.run_as_group.or(pod.run_as_group)).unwrap_or_default(),
                fs_group: number(pod.fs_group),
                privileged,
                escalation: own.allow_privilege_escalation.unwrap_or(true),
                default_seccomp: !privileged
                    && profile.is_some_and(|p| p.type_ == "RuntimeDefault"),
                add: names(capabilities.add),
                drop: names(capabilities.drop),
            },
            read_only_root: own.read_only_root_filesystem.unwrap_or(false),
            refused: (non_root && user == 0)
                .then_some("container has runAsNonRoot and image will run as root"),
        }
    }
}
