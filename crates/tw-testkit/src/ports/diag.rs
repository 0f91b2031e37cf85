//! Kernel socket diagnostics (sock_diag(7)): listening sockets, without a pass over all connections of the machine.
//!
//! `/proc/net/tcp` has the same data, but walks the table of all connections for it: 20 ms on a machine on which
//! tests have just closed a few thousand.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};

/// `NLMSG_DONE` and `NLMSG_ERROR` (linux/netlink.h), `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const DONE: u16 = 3;
const ERROR: u16 = 2;
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`: all that fit, not one.
const DUMP: u16 = 0x301;
/// Bytes of `nlmsghdr` and of `inet_diag_req_v2`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
/// Offset of the port in a message, in network order: after the header, the family, the state, and two more bytes.
const PORT: usize = HEADER + 4;
const TCP: u8 = 6;
const STATE_LISTEN: u32 = 1 << 10;
/// The most that one reply takes.
const REPLY_MAX: usize = 64 << 10;

/// The TCP ports that some socket of this family listens on.
///
/// # Errors
/// The kernel has no such diagnostics, or they are not for this process.
pub(super) fn listeners(family: AddressFamily) -> io::Result<Vec<u16>> {
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG))?;
    send(&kernel, &request(family), SendFlags::empty())?;
    let mut ports = Vec::new();
    let mut reply = vec![0; REPLY_MAX];
    loop {
        let (len, _) = recv(&kernel, &mut reply, RecvFlags::empty())?;
        let mut rest = reply.get(..len).unwrap_or_default();
        while let Some((kind, message)) = next(&mut rest) {
            match kind {
                DONE => return Ok(ports),
                ERROR => return Err(io::ErrorKind::Unsupported.into()),
                _ => ports
                    .extend(message.get(PORT..PORT + 2).map(|port| u16::from_be_bytes([port[0], port[1]]))),
            }
        }
    }
}

fn request(family: AddressFamily) -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    // Neither a number nor a sender: it is the only one.
    request.extend([0; 8]);
    request.extend([family.as_raw() as u8, TCP, 0, 0]);
    request.extend(STATE_LISTEN.to_ne_bytes());
    request.resize(HEADER + REQUEST, 0);
    request
}

/// Takes one message, with its kind.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let len = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
    let message = rest.get(..len).filter(|_| len >= HEADER)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, message))
}
