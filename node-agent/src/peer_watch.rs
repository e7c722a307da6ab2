//! Looks at who else programs nftables on this node: kube-proxy's tables, who commits to them and who answers its health
//! port, and hands of others on our own tables. No decision is made here; `peer` and the app have those.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use onehop_nft::{DumpError, Ears, Event, Events, Socket, Table};
use tokio::sync::mpsc::UnboundedSender;

use crate::args::KUBE_PROXY_HEALTH_PORT;
use crate::claims::Front;
use crate::http::SERVER;
use crate::peer::Sighting;
use crate::table::element::Family;
use crate::table::layout::{self, nft_family};
use crate::table::set::frontend_of;

/// Name of kube-proxy's tables.
const TABLE: &str = "kube-proxy";
/// Its maps whose keys are frontends.
const MAPS: [&str; 3] = ["service-ips", "service-nodeports", "no-endpoint-services"];
/// A look without an event.
const EVERY: Duration = Duration::from_secs(30);
/// After an event, until its commit is complete and what follows at once has come.
const SETTLE: Duration = Duration::from_millis(200);
/// How long the health port may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// kube-proxy's table of a family.
pub fn table(family: Family) -> Table {
    Table::new(nft_family(family), TABLE)
}

/// Sees kube-proxy's tables from a socket of its own.
#[derive(Debug)]
pub struct Watcher {
    socket: Socket,
    events: Events,
    /// Netlink port of our writer where the tables are not owned: others may change them there (S-260).
    writer: Option<u32>,
}

/// What was told while nothing was looked at.
#[derive(Debug, Default)]
struct Told {
    committed: bool,
    tampered: Option<String>,
}

impl Watcher {
    /// In the network namespace of the caller; commits from now on are noticed. `writer` is the netlink port of the
    /// socket that writes our tables, if others can change them.
    pub fn open(writer: Option<u32>) -> io::Result<Self> {
        Ok(Self {
            events: Events::open()?,
            socket: Socket::open()?,
            writer,
        })
    }

    /// What makes it deaf for a while.
    pub fn ears(&self) -> Ears {
        self.events.ears()
    }

    /// One look.
    pub fn look(&mut self, committed: bool) -> Result<Sighting, DumpError> {
        let all = self.socket.tables()?;
        let held: Vec<Table> = Family::ALL
            .map(table)
            .into_iter()
            .filter(|table| all.iter().any(|info| info.table == *table))
            .collect();
        let mut fronts = BTreeSet::new();
        for family in Family::ALL {
            if held.contains(&table(family)) {
                self.fronts(family, &mut fronts)?;
            }
        }
        Ok(Sighting {
            answers: port_is_answered_by_another(),
            committed,
            tampered: None,
            tables: !held.is_empty(),
            iptables: self.has_iptables_chains()?,
            fronts,
        })
    }

    fn fronts(&mut self, family: Family, fronts: &mut BTreeSet<Front>) -> Result<(), DumpError> {
        for map in MAPS {
            match self.socket.elements(&table(family), map) {
                Ok(elements) => {
                    fronts.extend(elements.iter().filter_map(|one| frontend_of(family, one)));
                }
                // Not every version has every map.
                Err(DumpError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// By `iptables-nft`; chains of the legacy tables are in no nftables table.
    pub fn has_iptables_chains(&mut self) -> Result<bool, DumpError> {
        for family in Family::ALL {
            let chains = match self.socket.chains(&Table::new(nft_family(family), "nat")) {
                Ok(chains) => chains,
                Err(DumpError::NotFound) => continue,
                Err(error) => return Err(error),
            };
            if chains.iter().any(|chain| chain.name == "KUBE-SERVICES") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells of every change, from a thread of its own that ends with the receiver.
    pub fn spawn(mut self, sightings: UnboundedSender<Sighting>) -> io::Result<()> {
        let work = move || {
            loop {
                let told = match self.wait() {
                    Ok(told) => told,
                    Err(error) => {
                        tracing::error!(%error, "cannot follow changes of nftables any more");
                        return;
                    }
                };
                let sighting = match self.look(told.committed) {
                    Ok(sighting) => Sighting {
                        tampered: told.tampered,
                        ..sighting
                    },
                    Err(error) => {
                        tracing::warn!(%error, "cannot look at the tables of kube-proxy");
                        continue;
                    }
                };
                if sightings.send(sighting).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("kube-proxy".to_owned())
            .spawn(work)
            .map(drop)
    }

    /// Until kube-proxy's tables or ours were changed, or for long enough.
    fn wait(&mut self) -> io::Result<Told> {
        let (mut wait, mut foreign) = (EVERY, false);
        let mut told = Told::default();
        while let Some(event) = self.events.wait(wait)? {
            match event {
                Event::Changed { table, port_id } => {
                    told.committed |= table.name == TABLE;
                    foreign |= self.writer.is_some_and(|own| own != port_id) && is_ours(&table);
                }
                // Ours are mended at once (S-261).
                Event::Committed { process, .. } if foreign => {
                    told.tampered = Some(process.unwrap_or_default());
                    return Ok(told);
                }
                Event::Committed { .. } => {}
                // Nothing is known of who did what, so it is no sign of a living kube-proxy; a look follows.
                Event::Lost => {
                    told.tampered = self.writer.map(|_| "lost notifications".to_owned());
                    return Ok(told);
                }
            }
            if told.committed {
                wait = SETTLE;
            }
        }
        Ok(told)
    }
}

fn is_ours(changed: &Table) -> bool {
    Family::ALL.map(layout::table).contains(changed)
}

/// Whether kube-proxy's health port is answered, and not by an agent: those say who they are.
fn port_is_answered_by_another() -> bool {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, KUBE_PROXY_HEALTH_PORT));
    is_another(&answer_of(to))
}

fn is_another(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    answer.starts_with("HTTP/") && !answer.contains(SERVER)
}

/// What a health port says; nothing if nobody listens. What came before a reset or the end of our patience counts: who
/// answers and then cuts the connection is there all the same.
fn answer_of(to: SocketAddr) -> Vec<u8> {
    let mut answer = Vec::new();
    let mut ask = || -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Refused if the other side has answered and closed already; its answer can still be read.
        let asked = stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.take(4096).read_to_end(&mut answer)?;
        asked
    };
    if let Err(error) = ask() {
        tracing::trace!(%error, %to, "the health port was not read to its end");
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one connection and then resets it, with the request unread.
    fn rude(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Data that nobody reads makes the close a reset.
            while stream.peek(&mut [0]).unwrap() == 0 {}
            stream.write_all(answer).unwrap();
        });
        at
    }

    #[test]
    fn s125_an_answer_that_is_cut_by_a_reset_counts() {
        let at = rude(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(is_another(&answer_of(at)));
    }

    #[test]
    fn s125_neither_an_agent_nor_silence_is_a_kube_proxy() {
        let ours = format!("HTTP/1.1 200 OK\r\nServer: {SERVER}\r\n\r\n");
        assert!(!is_another(ours.as_bytes()));
        assert!(!is_another(&answer_of(rude(b""))));
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        assert!(!is_another(&answer_of(free)));
    }
}
