//! A network namespace with a thread that works in it, servers in it, and clients that call from it.

use std::cell::Cell;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use socket2::{Domain, Socket, Type};

/// A refusal may be noticed only after the first resend (S-341).
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a call that must not be answered is waited for.
const SILENCE: Duration = Duration::from_millis(400);

type Job = Box<dyn FnOnce() + Send>;

/// Gives this test's thread, and those that it starts from now on, descriptors of their own, once: see `in_namespace`.
pub(crate) fn own_descriptors() {
    thread_local!(static OWN: Cell<bool> = const { Cell::new(false) });
    if !OWN.replace(true) {
        unshare(CloneFlags::CLONE_FILES).unwrap();
    }
}

/// A network namespace with a thread that works in it.
pub(crate) struct Place(mpsc::Sender<Job>, pub(crate) i32);

impl Place {
    pub(crate) fn new() -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (ready, tid) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            ready.send(gettid().as_raw()).unwrap();
            for job in inbox {
                job();
            }
        });
        let place = Self(jobs, tid.recv().unwrap());
        place.ip("link set lo up");
        place
    }

    /// Runs something in it and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, result) = mpsc::channel();
        let job = move || drop(answer.send(f()));
        self.0.send(Box::new(job)).expect("its thread lives");
        result.recv().expect("no panic in the namespace")
    }

    pub(crate) fn ip(&self, arguments: &str) {
        self.command("ip", &arguments.split(' ').collect::<Vec<_>>());
    }

    pub(crate) fn nft(&self, arguments: &[&str]) -> String {
        self.command("nft", arguments)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let program = program.to_owned();
        self.run(move || {
            let output = Command::new(&program).args(&arguments).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {errors}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/{name}"), value.to_owned());
        self.run(move || {
            std::fs::write(&path, &value).unwrap_or_else(|error| panic!("{path}: {error}"));
        });
    }

    /// Answers TCP connections and datagrams at an address with itself and the peer it saw.
    pub(crate) fn serve(&self, at: SocketAddr) {
        let (listener, socket) =
            self.run(move || (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap()));
        thread::spawn(move || {
            while let Ok((stream, peer)) = listener.accept() {
                thread::spawn(move || converse(stream, at, peer));
            }
        });
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("{} {}", at.ip(), peer.ip()).as_bytes(), peer);
            }
        });
    }

    /// Who answered a connection from here, and which source it saw.
    pub(crate) fn call(&self, from: IpAddr, to: SocketAddr) -> Result<(IpAddr, IpAddr), ErrorKind> {
        self.call_within(from, to, PATIENCE)
    }

    /// The same where no answer is expected.
    pub(crate) fn silence(
        &self,
        from: IpAddr,
        to: SocketAddr,
    ) -> Result<(IpAddr, IpAddr), ErrorKind> {
        self.call_within(from, to, SILENCE)
    }

    fn call_within(
        &self,
        from: IpAddr,
        to: SocketAddr,
        patience: Duration,
    ) -> Result<(IpAddr, IpAddr), ErrorKind> {
        Ok(self.talk(from, to, patience)?.parties)
    }

    /// A connection that stays.
    pub(crate) fn open(&self, from: IpAddr, to: SocketAddr) -> Result<Talk, ErrorKind> {
        self.talk(from, to, PATIENCE)
    }

    fn talk(&self, from: IpAddr, to: SocketAddr, patience: Duration) -> Result<Talk, ErrorKind> {
        let socket = self.run(move || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
            socket
        });
        let connected = socket.connect_timeout(&to.into(), patience);
        connected.map_err(|error| error.kind())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = BufReader::new(stream);
        let mut text = String::new();
        stream.read_line(&mut text).map_err(|error| error.kind())?;
        let parties = parties(text.trim()).ok_or(ErrorKind::UnexpectedEof)?;
        Ok(Talk { stream, parties })
    }

    /// A socket whose datagrams are one flow.
    pub(crate) fn datagrams(&self, from: IpAddr, to: SocketAddr) -> Datagrams {
        let socket = self.run(move || UdpSocket::bind(SocketAddr::new(from, 0)).unwrap());
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        Datagrams(socket)
    }
}

/// A connection to a server of the lab.
pub(crate) struct Talk {
    stream: BufReader<TcpStream>,
    /// Who answered, and which source it saw.
    pub(crate) parties: (IpAddr, IpAddr),
}

impl Talk {
    /// Whether the other side still answers.
    pub(crate) fn goes_on(&mut self) -> bool {
        let mut line = String::new();
        let said = self.stream.get_mut().write_all(b"still there?\n");
        said.is_ok() && self.stream.read_line(&mut line).is_ok() && line == "still there?\n"
    }
}

/// One flow of datagrams.
pub(crate) struct Datagrams(UdpSocket);

impl Datagrams {
    /// Sends one and waits for the answer: who served it.
    pub(crate) fn server(&self) -> Option<IpAddr> {
        self.0.send(b"?").ok()?;
        let mut buffer = [0; 128];
        let length = self.0.recv(&mut buffer).ok()?;
        Some(parties(std::str::from_utf8(&buffer[..length]).ok()?)?.0)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

fn parties(text: &str) -> Option<(IpAddr, IpAddr)> {
    let (server, seen) = text.split_once(' ')?;
    Some((server.parse().ok()?, seen.parse().ok()?))
}

/// Says who it is and whom it sees, and then repeats what it hears.
fn converse(mut stream: TcpStream, at: SocketAddr, peer: SocketAddr) {
    let _ = stream.write_all(format!("{} {}\n", at.ip(), peer.ip()).as_bytes());
    let mut buffer = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
