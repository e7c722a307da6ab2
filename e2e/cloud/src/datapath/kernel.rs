//! The kernel of one LB node: what was put there last, and the difference to what is wanted.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use e2e_fabric::{LbNet, Router};
use onehop_nft::Socket;

use super::Error;
use super::among::Among;
use super::floating::{self, FLOWS, FRESH, Idle, Remembered, TRANSLATED_FLOWS};
use super::flows::{Flow, FlowTable};
use super::layout::{self, Elements, Key, Links};
use super::relay::Relays;
use crate::engine::{DataPathState, Frontend, FrontendPath, Profile, Protocol};
use crate::scale::Scale;

/// Sockets into the LB node's namespace, and what its table holds.
pub(super) struct Kernel {
    net: LbNet,
    router: Router,
    relays: Relays,
    rules: Socket,
    flows: FlowTable,
    elements: Elements,
    chains: BTreeSet<Among>,
    // How packets get to members of floating frontends.
    links: Links,
    idle: Idle,
    // Addresses that the router delivers here.
    routed: BTreeSet<IpAddr>,
    // Whether flows may be left that the programmed state does not know.
    stale_flows: bool,
}

impl Kernel {
    /// Sets the namespace up, with rules and no element.
    pub(super) fn open(
        net: LbNet,
        router: Router,
        (profile, scale): (&Profile, Scale),
        relays: Relays,
    ) -> Result<Self, Error> {
        let node: IpAddr = net.address().into();
        // Not below what `floating` remembers of these flows, which tracking must know at least as long.
        let seconds = |cloud| scale.wall_duration(cloud).as_millis().div_ceil(1000).max(1);
        let seconds = |cloud| seconds(cloud).to_string();
        let (tcp, udp) = (seconds(profile.idle_tcp), seconds(profile.idle_udp));
        let settings = [
            // A packet in the middle of a flow makes no flow: who has ended stays ended.
            ("net/netfilter/nf_conntrack_tcp_loose", "0"),
            // A packet outside the window is the end points' affair.
            ("net/netfilter/nf_conntrack_tcp_be_liberal", "1"),
            (
                "net/netfilter/nf_conntrack_tcp_timeout_established",
                tcp.as_str(),
            ),
            ("net/netfilter/nf_conntrack_udp_timeout", udp.as_str()),
            (
                "net/netfilter/nf_conntrack_udp_timeout_stream",
                udp.as_str(),
            ),
        ];
        net.netns()
            .sysctl(&settings)
            .map_err(|source| Error::Fabric { node, source })?;
        let open = |source| Error::Open { node, source };
        let mut rules = net.netns().run(Socket::open).map_err(open)?;
        let flows = net.netns().run(FlowTable::open).map_err(open)?;
        let idle = Idle {
            tcp: scale.wall_duration(profile.idle_tcp),
            udp: scale.wall_duration(profile.idle_udp),
        };
        let batch = layout::create(profile.lost_flow, idle);
        rules
            .commit(&batch)
            .map_err(|source| Error::Commit { node, source })?;
        Ok(Self {
            net,
            router,
            relays,
            rules,
            flows,
            elements: Elements::new(),
            chains: BTreeSet::new(),
            links: Links::new(),
            idle,
            routed: BTreeSet::new(),
            stale_flows: false,
        })
    }

    /// Makes the node forward as `state` says. New flows first, in one transaction; then flows that
    /// the state does not keep are ended: none can begin between the two. To be called within a tokio runtime.
    pub(super) fn program(&mut self, state: &DataPathState) -> Result<usize, Error> {
        let node = self.node();
        let state = &self.relays.through(state)?;
        self.link(state)?;
        let wanted = layout::elements(state, &self.links);
        self.stale_flows |= !self.flows.covers(state);
        self.unroute(&wanted)?;
        let (batch, chains) = layout::change(&self.elements, &wanted, &self.chains, self.idle);
        if !batch.is_empty() {
            self.rules
                .commit(&batch)
                .map_err(|source| Error::Commit { node, source })?;
            self.chains = chains;
        }
        self.elements = wanted;
        let cut = if self.stale_flows {
            let cut = self.flows.keep_only(state);
            let cut = cut.map_err(|source| Error::Conntrack { node, source })?;
            self.forget_translated(state, &cut)?;
            cut.len() + self.forget_floating(state)?
        } else {
            0
        };
        self.stale_flows = false;
        self.flows.remember(state);
        self.route()?;
        Ok(cut)
    }

    /// Flows in the kernel's table now.
    pub(super) fn flows(&mut self, client: Option<SocketAddr>) -> Result<Vec<Flow>, Error> {
        let node = self.node();
        let failed = |source| Error::Conntrack { node, source };
        let mut flows = self.flows.list(client).map_err(failed)?;
        let floating = self.floating()?;
        let floating = floating.iter().filter_map(|flow| self.flow(flow));
        flows.extend(floating.filter(|flow| client.is_none_or(|client| client == flow.client)));
        Ok(flows)
    }

    /// Makes the ways to members of floating frontends.
    fn link(&mut self, state: &DataPathState) -> Result<(), Error> {
        let node = self.node();
        for member in layout::members(state) {
            let link = self.router.deliver(&self.net, member);
            let link = link.map_err(|source| Error::Fabric { node, source })?;
            self.links.insert(member, link);
        }
        Ok(())
    }

    fn floating(&mut self) -> Result<Vec<Remembered>, Error> {
        let node = self.node();
        let mut flows = Vec::new();
        for family in layout::FAMILIES {
            let held = self.rules.elements(&layout::table(family), FLOWS);
            let held = held.map_err(|source| Error::Conntrack { node, source })?;
            flows.extend(held.iter().filter_map(|of| Remembered::read(family, of)));
        }
        Ok(flows)
    }

    /// The member that a delivery link leads to.
    pub(super) fn member(&self, mark: u32) -> Option<IpAddr> {
        let link = self.links.iter().find(|(_, link)| **link == mark);
        link.map(|(member, _)| *member)
    }

    fn flow(&self, of: &Remembered) -> Option<Flow> {
        let (member, _) = self.links.iter().find(|(_, link)| **link == of.mark)?;
        let protocols = [Protocol::Tcp, Protocol::Udp];
        let protocol = protocols.into_iter().find(|p| p.number() == of.protocol)?;
        Some(Flow {
            client: of.client,
            frontend: Frontend {
                address: of.address,
                protocol,
                port: of.port,
            },
            target: SocketAddr::new(*member, of.port),
        })
    }

    /// Lets flows that were ended choose anew where the frontend floats now. As in `forget_floating` it is looked at until
    /// nothing is left.
    fn forget_translated(&mut self, state: &DataPathState, cut: &[Flow]) -> Result<(), Error> {
        let node = self.node();
        let floats = |flow: &&Flow| {
            let path = state.frontends.get(&flow.frontend);
            path.is_some_and(FrontendPath::floats)
        };
        let keys: BTreeSet<_> = cut.iter().filter(floats).map(floating::key).collect();
        while !keys.is_empty() {
            let mut left = Vec::new();
            for family in layout::FAMILIES {
                let held = self
                    .rules
                    .elements(&layout::table(family), TRANSLATED_FLOWS);
                let held = held.map_err(|source| Error::Conntrack { node, source })?;
                let held = held.into_iter().map(|element| (family, element.key));
                left.extend(held.filter(|key| keys.contains(key)));
            }
            if left.is_empty() {
                return Ok(());
            }
            self.rules
                .commit(&floating::forget(&left, &[TRANSLATED_FLOWS]))
                .map_err(|source| Error::Commit { node, source })?;
        }
        Ok(())
    }

    /// Ends floating flows to members that `state` does not keep. A packet that is just being forwarded may bring its
    /// flow back, so it is looked at until nothing is left.
    fn forget_floating(&mut self, state: &DataPathState) -> Result<usize, Error> {
        let node = self.node();
        let kept = |flow: &Flow| {
            let path = state.frontends.get(&flow.frontend);
            let same = |target: &SocketAddr| target.ip() == flow.target.ip();
            path.is_some_and(|path| path.established_floating.iter().any(same))
        };
        let mut cut = 0;
        loop {
            let mut gone = self.floating()?;
            gone.retain(|held| !self.flow(held).is_some_and(|flow| kept(&flow)));
            if gone.is_empty() {
                return Ok(cut);
            }
            cut += gone.len();
            let gone: Vec<_> = gone.iter().map(|flow| (flow.family, flow.key)).collect();
            self.rules
                .commit(&floating::forget(&gone, &[FLOWS, FRESH]))
                .map_err(|source| Error::Commit { node, source })?;
        }
    }

    /// Takes addresses that are no longer wanted out of the network.
    fn unroute(&mut self, wanted: &Elements) -> Result<(), Error> {
        let node = self.node();
        let gone: Vec<_> = self
            .routed
            .iter()
            .filter(|address| !wanted.contains_key(&Key::Address(**address)))
            .copied()
            .collect();
        for address in gone {
            // Another LB node may have taken it over meanwhile; then it is not ours to remove.
            if self.router.owner(address).as_deref() == Some(self.net.port()) {
                let unrouted = self.router.unroute_lb_address(address);
                unrouted.map_err(|source| Error::Fabric { node, source })?;
            }
            self.routed.remove(&address);
        }
        Ok(())
    }

    /// Brings the programmed addresses here.
    fn route(&mut self) -> Result<(), Error> {
        let node = self.node();
        let addresses = self.elements.keys().filter_map(|key| match key {
            Key::Address(address) => Some(*address),
            _ => None,
        });
        for address in addresses
            .filter(|address| !self.routed.contains(address))
            .collect::<Vec<_>>()
        {
            let routed = self.router.route_lb_address(address, &self.net);
            routed.map_err(|source| Error::Fabric { node, source })?;
            self.routed.insert(address);
        }
        Ok(())
    }

    fn node(&self) -> IpAddr {
        self.net.address().into()
    }
}
