//! What the agent needs of its node, asked once before anything else: the privilege to use nftables, nftables itself,
//! and every part that a rule of ours is made of. Called by `main`, which ends with [`EXIT`] where something is missing;
//! a restart does not bring it. Leaves nothing behind: what is tried is made and deleted in one transaction.

use std::io;

use onehop_nft::{
    Base, Batch, Chain, ChainInfo, CommitError, DumpError, Expr, Hook, OpIndex, Policy, Rule,
    Socket, Table,
};

use crate::table::class;
use crate::table::element::{ClassKind, Family};
use crate::table::layout::{self, Layout, Options, nft_family};

/// Exit status of an agent whose node lacks something.
pub const EXIT: u8 = 3;

/// Name of the table that is made and deleted in one transaction.
const TRIAL: &str = "onehop-startup-check";

/// The kernel, as far as it is asked here: the seam at which tests put one that lacks something.
pub trait Ask {
    /// Whether nftables answers this process.
    fn answers(&mut self) -> Result<(), DumpError>;
    /// Whether the kernel takes a batch.
    fn takes(&mut self, batch: &Batch) -> Result<(), CommitError>;
}

impl Ask for Socket {
    fn answers(&mut self) -> Result<(), DumpError> {
        self.tables().map(drop)
    }

    fn takes(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.commit(batch)
    }
}

/// What the node lacks.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The privilege.
    #[error(
        "the kernel does not let this process use nftables: the agent needs CAP_NET_ADMIN in the node's network \
         namespace (hostNetwork: true and securityContext.capabilities.add: [NET_ADMIN])"
    )]
    Privilege,
    /// nftables.
    #[error(
        "the kernel has no nftables ({0}): load the module nf_tables on the node, or use a kernel built with \
         CONFIG_NF_TABLES"
    )]
    Nftables(String),
    /// Something that a rule needs.
    #[error(
        "the kernel refuses {what} ({why}): use a kernel built with {needs}, or load that module on the node"
    )]
    Part {
        /// The object.
        what: String,
        /// The kernel's answer.
        why: String,
        /// What it is probably made without.
        needs: String,
    },
}

/// Asks for everything. One family that lacks something does not stop the other (S-10): only both do.
pub fn check(kernel: &mut dyn Ask, options: &Options) -> Result<(), Missing> {
    kernel.answers().map_err(|error| match error {
        DumpError::Kernel(libc::EPERM | libc::EACCES) => Missing::Privilege,
        other => Missing::Nftables(other.to_string()),
    })?;
    let mut missing = Vec::new();
    for family in Family::ALL {
        let trial = Trial::new(family, options);
        if let Err(error) = kernel.takes(&trial.batch) {
            let lacks = trial.explain(&error);
            tracing::error!(?family, %lacks, "a family cannot be programmed on this node");
            missing.push(lacks);
        }
    }
    let all = missing.len() == Family::ALL.len();
    missing
        .into_iter()
        .next()
        .filter(|_| all)
        .map_or(Ok(()), Err)
}

/// Chains of others that drop by policy what is forwarded, as `family table chain`. No table can undo that of another one,
/// so what pods and load balancers send through Services is lost unless the administrator lets it pass (S-69).
pub fn forward_drops(socket: &mut Socket) -> Result<Vec<String>, DumpError> {
    let ours = Family::ALL.map(layout::table);
    let mut dropping = Vec::new();
    for info in socket.tables()? {
        if ours.contains(&info.table) {
            continue;
        }
        let chains = match socket.chains(&info.table) {
            Ok(chains) => chains,
            // It went meanwhile.
            Err(DumpError::NotFound) => continue,
            Err(error) => return Err(error),
        };
        let drops = |base: &Base| base.hook == Hook::Forward && base.policy == Policy::Drop;
        let found = chains
            .iter()
            .filter(|chain| chain.base.as_ref().is_some_and(drops));
        let named = |chain: &ChainInfo| {
            let family = format!("{:?}", info.table.family).to_lowercase();
            format!("{family} {} {}", info.table.name, chain.name)
        };
        dropping.extend(found.map(named));
    }
    Ok(dropping)
}

/// No socket: the kernel has no netlink for packet filters at all.
pub fn no_socket(error: &io::Error) -> Missing {
    Missing::Nftables(error.to_string())
}

/// One family's table, with every kind of rule that the agent ever writes, made and deleted in one transaction. Its chains
/// stand at no hook, so that no packet ever meets them.
struct Trial {
    batch: Batch,
    parts: Vec<(OpIndex, String, Vec<&'static str>)>,
}

impl Trial {
    fn new(family: Family, options: &Options) -> Self {
        let layout = Layout::new(family, options);
        let table = Table::new(nft_family(family), TRIAL);
        let mut trial = Self {
            batch: Batch::new(),
            parts: Vec::new(),
        };
        let op = trial.batch.add_table(&table, 0, None);
        trial.note(op, "a table".to_owned(), Vec::new());
        for set in &layout.sets {
            let op = trial.batch.add_set(&table, set);
            trial.note(op, format!("the set {}", set.name), Vec::new());
        }
        let class = (
            Chain::regular("class"),
            class::rules(family, ClassKind::N, 2),
        );
        let chains: Vec<(Chain, &Vec<Rule>)> = layout
            .chains
            .iter()
            .chain([&class])
            .map(|(chain, rules)| (Chain::regular(&chain.name), rules))
            .collect();
        for (chain, _) in &chains {
            let op = trial.batch.add_chain(&table, chain);
            trial.note(op, format!("the chain {}", chain.name), Vec::new());
        }
        for (chain, rules) in &chains {
            for (number, rule) in (1..).zip(*rules) {
                let op = trial.batch.add_rule(&table, &chain.name, rule);
                let needs = rule.exprs().iter().filter_map(needs).collect();
                trial.note(op, format!("rule {number} of chain {}", chain.name), needs);
            }
        }
        trial.batch.del_table(&table);
        trial
    }

    fn note(&mut self, op: OpIndex, what: String, needs: Vec<&'static str>) {
        self.parts.push((op, what, needs));
    }

    fn explain(&self, error: &CommitError) -> Missing {
        let failed = match error {
            CommitError::Refused(ops) => ops.first(),
            _ => None,
        };
        let part = failed.and_then(|failed| self.parts.iter().find(|(op, ..)| *op == failed.op));
        let (what, needs) = part.map_or_else(
            || ("our table".to_owned(), &[][..]),
            |(_, what, needs)| (what.clone(), needs),
        );
        let needs = if needs.is_empty() {
            "CONFIG_NF_TABLES".to_owned()
        } else {
            needs.join(" and ")
        };
        let why = failed.map_or_else(
            || error.to_string(),
            |failed| io::Error::from_raw_os_error(failed.errno).to_string(),
        );
        Missing::Part { what, why, needs }
    }
}

/// The build option of an expression that a kernel with nftables may lack.
const fn needs(expr: &Expr) -> Option<&'static str> {
    match expr {
        Expr::Numgen { .. } => Some("CONFIG_NFT_NUMGEN"),
        Expr::Jhash { .. } => Some("CONFIG_NFT_HASH"),
        Expr::Nat { .. } => Some("CONFIG_NFT_NAT"),
        Expr::Masquerade { .. } => Some("CONFIG_NFT_MASQ"),
        Expr::Redirect { .. } => Some("CONFIG_NFT_REDIR"),
        Expr::Reject(_) => Some("CONFIG_NFT_REJECT"),
        Expr::Ct { .. } | Expr::CtSet { .. } => Some("CONFIG_NFT_CT"),
        Expr::Fib { .. } => Some("CONFIG_NFT_FIB"),
        Expr::Limit { .. } => Some("CONFIG_NFT_LIMIT"),
        Expr::Log { .. } => Some("CONFIG_NFT_LOG"),
        _ => None,
    }
}

#[cfg(test)]
#[path = "../../e2e/src/documented.rs"]
mod documented;

#[cfg(test)]
mod tests {
    use onehop_nft::FailedOp;

    use super::*;
    use crate::table::layout::Detector;

    fn options() -> Options {
        Options {
            masquerade_mark: 0x4000,
            masquerade_all: false,
            masquerade_ports: Vec::new(),
            detector: Detector::Ranges(Vec::new()),
            beside_kube_proxy: true,
            before_iptables: false,
            service_cidrs: Vec::new(),
        }
    }

    /// A kernel that answers so.
    struct Lacking {
        listing: Option<i32>,
        /// Build option that it was made without, in these families.
        option: Option<(&'static str, Vec<onehop_nft::Family>)>,
    }

    impl Ask for Lacking {
        fn answers(&mut self) -> Result<(), DumpError> {
            self.listing
                .map_or(Ok(()), |errno| Err(DumpError::Kernel(errno)))
        }

        fn takes(&mut self, batch: &Batch) -> Result<(), CommitError> {
            let Some((option, families)) = &self.option else {
                return Ok(());
            };
            for family in Family::ALL {
                let trial = Trial::new(family, &options());
                // Batches of two families differ in size or content; the operations are the same.
                if format!("{:?}", trial.batch) != format!("{batch:?}") {
                    continue;
                }
                if !families.contains(&nft_family(family)) {
                    return Ok(());
                }
                let part = trial
                    .parts
                    .iter()
                    .find(|(.., needs)| needs.contains(option));
                let (op, ..) = part.expect("a rule of ours needs it");
                return Err(CommitError::Refused(vec![FailedOp {
                    op: *op,
                    element: None,
                    errno: libc::ENOENT,
                    message: None,
                }]));
            }
            unreachable!("a batch of neither family")
        }
    }

    fn said(
        listing: Option<i32>,
        option: Option<(&'static str, Vec<onehop_nft::Family>)>,
    ) -> Option<String> {
        let mut kernel = Lacking { listing, option };
        check(&mut kernel, &options())
            .err()
            .map(|missing| missing.to_string())
    }

    #[test]
    fn s314_what_the_node_lacks_is_named_with_what_to_do() {
        let both = vec![onehop_nft::Family::Ip, onehop_nft::Family::Ip6];
        let table = [
            ("no-net-admin", said(Some(libc::EPERM), None)),
            ("no-nftables", said(Some(libc::EINVAL), None)),
            (
                "no-expression",
                said(None, Some(("CONFIG_NFT_NUMGEN", both.clone()))),
            ),
        ];
        for (case, said) in table {
            assert_eq!(
                said.as_ref(),
                Some(&documented::text(case)),
                "S-314: {case}"
            );
        }
        for option in [
            "CONFIG_NFT_CT",
            "CONFIG_NFT_NAT",
            "CONFIG_NFT_MASQ",
            "CONFIG_NFT_REJECT",
        ] {
            let told = said(None, Some((option, both.clone()))).unwrap_or_default();
            assert!(told.contains(option), "S-314: {told}");
        }
    }

    #[test]
    fn s10_one_family_that_lacks_something_does_not_stop_the_other() {
        let one = vec![onehop_nft::Family::Ip6];
        assert_eq!(said(None, Some(("CONFIG_NFT_NUMGEN", one))), None, "S-10");
        assert_eq!(said(None, None), None);
    }
}
