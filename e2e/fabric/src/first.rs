//! First packets that a namespace's own rules log: which way was chosen for a flow that is never translated, and so in no
//! table of connections. The fake cloud starts one in each LB node for floating frontends; the rule logs to
//! [`crate::NFLOG_GROUP`] once the packet mark says the way.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use socket2::Socket;

use crate::drops::{
    ATTR_PAYLOAD, CFG_CMD, CMD_UNBIND, attributes, command, header, messages, open,
};
use crate::fabric::lock;
use crate::netns::Netns;
use crate::{Result, io};

/// Packets kept, newest last.
const KEPT: usize = 20_000;
// linux/netfilter/nfnetlink_log.h
const ATTR_MARK: u16 = 2;

/// The first packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstPacket {
    /// When it had passed, within the delay of a thread's wake-up.
    pub at: Time,
    /// IP protocol number.
    pub protocol: u8,
    /// Where it came from.
    pub client: SocketAddr,
    /// Where it was sent.
    pub destination: SocketAddr,
    /// The mark that it carried.
    pub mark: u32,
}

/// Called on the reader's thread for each packet.
pub type FirstHook = Arc<dyn Fn(FirstPacket) + Send + Sync>;

/// The reader; stops when dropped.
#[must_use = "packets are recorded until this is dropped"]
pub struct FirstPackets {
    kept: Arc<Mutex<VecDeque<FirstPacket>>>,
    stop: Arc<AtomicBool>,
    control: Socket,
    reader: Option<std::thread::JoinHandle<Result<()>>>,
}

impl FirstPackets {
    /// Starts to read what rules of `ns` log; `hook` is told of each.
    pub fn start(ns: &Netns, clock: Clock, hook: FirstHook) -> Result<Self> {
        let what = |what: &str| io(format!("{what} the nflog group in {}", ns.name()));
        let mut socket = ns.run(open).map_err(what("bind"))?;
        let control = socket.try_clone().map_err(what("clone"))?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (to, stopped) = (Arc::clone(&kept), Arc::clone(&stop));
        let reader = ns.thread("first", move || {
            let mut buffer = vec![0; 1 << 16];
            while !stopped.load(Ordering::Acquire) {
                // ENOBUFS: packets were lost to the record, not to their receivers.
                let Ok(length) = socket.read(&mut buffer) else {
                    continue;
                };
                let now = clock.now();
                for packet in messages(&buffer[..length]).filter_map(|m| packet(m, now)) {
                    let mut kept = lock(&to);
                    if kept.len() == KEPT {
                        kept.pop_front();
                    }
                    kept.push_back(packet);
                    drop(kept);
                    hook(packet);
                }
            }
        })?;
        Ok(Self {
            kept,
            stop,
            control,
            reader: Some(reader),
        })
    }

    /// The newest first packet of `client`.
    pub fn last_of(&self, protocol: u8, client: SocketAddr) -> Option<FirstPacket> {
        let of = |packet: &&FirstPacket| packet.protocol == protocol && packet.client == client;
        lock(&self.kept).iter().rev().find(of).copied()
    }
}

impl Drop for FirstPackets {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The kernel's acknowledgement wakes the reader.
        let _ = (&self.control).write(&command(&[(CFG_CMD, &[CMD_UNBIND])]));
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn packet(message: &[u8], at: Time) -> Option<FirstPacket> {
    let find =
        |wanted| attributes(message).find_map(|(kind, value)| (kind == wanted).then_some(value));
    let mark = u32::from_be_bytes(find(ATTR_MARK)?.try_into().ok()?);
    let ip = find(ATTR_PAYLOAD)?;
    let header = header(ip)?;
    let port = |at: usize| Some(u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?));
    Some(FirstPacket {
        at,
        protocol: header.protocol,
        client: SocketAddr::new(header.source, port(header.length)?),
        destination: SocketAddr::new(header.destination, port(header.length + 2)?),
        mark,
    })
}
