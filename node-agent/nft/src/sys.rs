//! The netlink socket: the only place of this crate with system calls.
//! Called by the `nf_tables`, conntrack, event and log sockets; knows nothing of what the bytes mean.
//! A socket belongs to the network namespace of the thread that opened it and may then be used from any thread.
#![allow(
    unsafe_code,
    reason = "libc has no safe wrapper for netlink sockets; every block states why it is sound"
)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

const NETLINK_NETFILTER: libc::c_int = 12;
/// `struct sockaddr_nl` is twelve bytes long.
const SOCKADDR_NL: libc::socklen_t = 12;
/// A `c_int` is four bytes long.
const C_INT: libc::socklen_t = 4;
// What the kernel is told must be what the types are.
const _: () =
    assert!(mem::size_of::<libc::sockaddr_nl>() == 12 && mem::size_of::<libc::c_int>() == 4);

/// What the kernel granted for a buffer (S-252).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes the kernel accounts for; about twice what was asked.
    pub granted: usize,
    /// Whether the limit of the system was overridden (needs `CAP_NET_ADMIN` in the initial user namespace).
    pub forced: bool,
}

/// Direction of a socket buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// A bound netfilter netlink socket.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    port_id: u32,
}

impl NetlinkSocket {
    /// Opens, sets capped and extended acknowledgements (S-251), and binds to a port of the kernel's choice.
    pub(crate) fn open() -> io::Result<Self> {
        // SAFETY: no pointers are passed; the result is checked before use.
        let raw = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                NETLINK_NETFILTER,
            )
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` is a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut socket = Self { fd, port_id: 0 };
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        // SAFETY: all-zero is a valid sockaddr_nl (pid 0 = the kernel chooses, no groups).
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
        // SAFETY: `address` is a sockaddr_nl of the length given.
        if unsafe { libc::bind(socket.raw(), (&raw const address).cast(), SOCKADDR_NL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut length = SOCKADDR_NL;
        // SAFETY: `address` and `length` are valid for writes, and `length` is the size of `address`.
        if unsafe { libc::getsockname(socket.raw(), (&raw mut address).cast(), &raw mut length) }
            < 0
        {
            return Err(io::Error::last_os_error());
        }
        socket.port_id = address.nl_pid;
        Ok(socket)
    }

    /// Our netlink port, by which own commits are told from foreign ones (S-260).
    pub(crate) fn port_id(&self) -> u32 {
        self.port_id
    }

    /// Joins a multicast group.
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.set_option(
            libc::SOL_NETLINK,
            libc::NETLINK_ADD_MEMBERSHIP,
            group.cast_signed(),
        )
    }

    /// Leaves a multicast group.
    pub(crate) fn leave(&self, group: u32) -> io::Result<()> {
        self.set_option(
            libc::SOL_NETLINK,
            libc::NETLINK_DROP_MEMBERSHIP,
            group.cast_signed(),
        )
    }

    /// From now on nothing is received that is told of the holder of this netlink port. The kernel drops it before anybody
    /// is woken.
    pub(crate) fn ignore(&self, port: u32) -> io::Result<()> {
        // Where a message's header has the port; a load takes it for a number in network order.
        const PORT_AT: u32 = 12;
        let step = |code: u32, jumps: [u8; 2], k: u32| libc::sock_filter {
            code: u16::try_from(code).unwrap_or_default(),
            jt: jumps[0],
            jf: jumps[1],
            k,
        };
        let (load, equals) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        );
        let mut steps = [
            step(load, [0, 0], PORT_AT),
            step(equals, [0, 1], u32::from_be_bytes(port.to_ne_bytes())),
            step(libc::BPF_RET | libc::BPF_K, [0, 0], 0),
            step(libc::BPF_RET | libc::BPF_K, [0, 0], u32::MAX),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: steps.as_mut_ptr(),
        };
        let length = libc::socklen_t::try_from(mem::size_of::<libc::sock_fprog>());
        // SAFETY: `program` names `steps`, which has as many as it says; both live across the call.
        let result = unsafe {
            libc::setsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                length.unwrap_or_default(),
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Raises a buffer, by force where allowed, and tells what was granted (S-252).
    pub(crate) fn raise_buffer(&self, direction: Direction, bytes: i32) -> io::Result<Buffer> {
        let (force, plain) = match direction {
            Direction::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
            Direction::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        };
        let forced = match self.set_option(libc::SOL_SOCKET, force, bytes) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                self.set_option(libc::SOL_SOCKET, plain, bytes)?;
                false
            }
            Err(error) => return Err(error),
        };
        let granted = self.option(libc::SOL_SOCKET, plain)?;
        Ok(Buffer {
            granted: usize::try_from(granted).unwrap_or(0),
            forced,
        })
    }

    /// Sends one datagram to the kernel.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: pointer and length are those of `bytes`, which lives across the call.
            let sent = unsafe {
                libc::send(
                    self.raw(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL,
                )
            };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Receives one datagram into `buffer` without waiting; `None` when there is none.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: pointer and length are those of `buffer`, which lives across the call.
            let got = unsafe {
                libc::recv(
                    self.raw(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                )
            };
            if let Ok(length) = usize::try_from(got) {
                return if length <= buffer.len() {
                    Ok(Some(length))
                } else {
                    Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "netlink datagram larger than the receive buffer",
                    ))
                };
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    /// Waits until something can be received, or the bell rang; false when `timeout` passed first.
    pub(crate) fn wait(&self, bell: &Bell, timeout: Duration) -> io::Result<bool> {
        let millis = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut polls = [self.raw(), bell.0.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two valid pollfds are passed, and the count says so.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), 2, millis) };
        match ready {
            0 => Ok(false),
            n if n > 0 => Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    fn raw(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }

    fn set_option(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        // SAFETY: the option value is a c_int that lives across the call, and the length says so.
        let result =
            unsafe { libc::setsockopt(self.raw(), level, name, (&raw const value).cast(), C_INT) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    fn option(&self, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
        let mut value: libc::c_int = 0;
        let mut length = C_INT;
        // SAFETY: `value` and `length` are valid for writes, and `length` is the size of `value`.
        let result = unsafe {
            libc::getsockopt(
                self.raw(),
                level,
                name,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(value)
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Wakes who waits for a socket, from another thread.
#[derive(Debug)]
pub(crate) struct Bell(File);

impl Bell {
    /// One that has not rung.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed; the result is checked before use.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` is a fresh descriptor that nothing else owns.
        Ok(Self(unsafe { File::from_raw_fd(raw) }))
    }

    /// Rings, until somebody asks whether it rang.
    pub(crate) fn ring(&self) -> io::Result<()> {
        (&self.0).write_all(&1_u64.to_ne_bytes())
    }

    /// Whether it rang since the last time this was asked.
    pub(crate) fn rang(&self) -> bool {
        // Without a ring the read would wait, which is an error here.
        (&self.0).read_exact(&mut [0; 8]).is_ok()
    }
}

/// Version of the running kernel (major, minor), for what depends on it (S-266, S-268).
/// Unreadable counts as the oldest, so that the careful way is taken.
pub fn kernel_version() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
