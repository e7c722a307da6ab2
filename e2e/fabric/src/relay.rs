//! Programs of an LB node that speak as clients: what a user-space path needs where targets must see who asked.

use std::net::SocketAddr;

use onehop_nft::{
    Batch as Rules, Chain, ChainType, CmpOp, CtDirection, Family, Field, Hook, Rule, Table, Value,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::ip::Batch;
use crate::lb::LbNet;
use crate::netns::Netns;
use crate::tables::commit;
use crate::{Result, io};

/// Marks such connections and the packets that come back on them; above all numbers of delivery links.
const MARK: u32 = 0x4000_0000;
/// Where the packets that come back are the node's own.
const TABLE: u32 = 4000;
const MANGLE: i32 = -150;

impl LbNet {
    /// Lets the node's own programs connect with sources that are not its own. To be called once.
    pub fn speak_as_clients(&self) -> Result<()> {
        let mut rules = Rules::new();
        for family in [Family::Ip, Family::Ip6] {
            let of = Table::new(family, "relay");
            rules.add_table(&of, 0, None);
            let output = Chain::base("output", ChainType::Filter, Hook::Output, MANGLE);
            rules.add_chain(&of, &output);
            let marked = Rule::new(family).is(Field::Mark, Value::new().u32_host(MARK));
            rules.add_rule(&of, "output", &marked.set_ct_mark(0, MARK));
            let back = Chain::base("back", ChainType::Filter, Hook::Prerouting, MANGLE);
            rules.add_chain(&of, &back);
            let reply = Rule::new(family)
                .ct_direction(CtDirection::Reply)
                .cmp(Field::CtMark, CmpOp::Eq, Value::new().u32_host(MARK))
                .mark_from_ct(u32::MAX);
            rules.add_rule(&of, "back", &reply);
        }
        commit(self.netns(), "make the relay's tables", rules)?;
        let interface = self.interface();
        for mut batch in [Batch::default(), Batch::v6()] {
            // What leaves with the mark is routed as everything else.
            batch
                .line(format!("route add local default dev lo table {TABLE}"))
                .line(format!(
                    "rule add pref {TABLE} iif {interface} fwmark {MARK} lookup {TABLE}"
                ));
            batch.run(self.netns())?;
        }
        Ok(())
    }
}

impl Netns {
    /// Connects to `to` as `source`, an address that need not be one of the namespace; the time-out is the caller's.
    /// Answers come here only after [`LbNet::speak_as_clients`].
    pub async fn tcp_stream_as(
        &self,
        source: SocketAddr,
        to: SocketAddr,
    ) -> Result<tokio::net::TcpStream> {
        let what = format!("connect to {to} as {source} from {}", self.name());
        let socket = self.run(move || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            if to.is_ipv4() {
                socket.set_ip_transparent_v4(true)?;
            } else {
                socket.set_ip_transparent_v6(true)?;
            }
            socket.set_mark(MARK)?;
            socket.set_reuse_address(true)?;
            socket.bind(&source.into())?;
            socket.set_nonblocking(true)?;
            std::io::Result::Ok(socket)
        });
        let socket = socket.map_err(io(what.clone()))?;
        let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
        socket.connect(to).await.map_err(io(what))
    }
}
