//! Datagrams in batches: `recvmmsg` and `sendmmsg`, with the local address of each datagram (`IP_PKTINFO`, `IPV6_RECVPKTINFO`), with marks
//! of congestion (`IP_TOS`, `IPV6_TCLASS`) and with segments: several datagrams of one size between the same two addresses in one
//! message (`UDP_GRO`, `UDP_SEGMENT`).

use std::io;
use std::mem::{self, MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use rustix::net::SocketAddrAny;
use rustix::net::addr::{SocketAddrLen, SocketAddrStorage};

/// Largest number of messages of one call.
pub const BATCH: usize = 16;
/// Room for one message: no datagram is larger.
pub const MESSAGE_SIZE: usize = 65_536;
/// Largest number of segments in one message that every kernel with `UDP_SEGMENT` takes.
pub const SEGMENTS_MAX: usize = 64;
/// Largest datagram that is joined with others: it fits into the smallest packet that IPv6 lets a network have, 1,280 bytes.
const JOINED_SIZE_MAX: usize = 1_232;

/// Room for the ancillary data of one message: an address, the size of its segments, and its mark.
type Control = [u64; 16];

/// Room for the messages of one call, and what has arrived there.
pub struct ReceiveBatch {
    /// [`BATCH`] times [`MESSAGE_SIZE`] bytes. Pages that no datagram has reached take no memory.
    bytes: Box<[u8]>,
    /// Room for senders; zeroed where a call writes next.
    names: Box<[MaybeUninit<SocketAddrStorage>; BATCH]>,
    /// Room for ancillary data.
    controls: Box<[Control; BATCH]>,
    received: Vec<Message>,
}

struct Message {
    len: usize,
    peer: Option<SocketAddrAny>,
    local: Option<IpAddr>,
    segment: Option<u16>,
    ecn: u8,
    is_truncated: bool,
}

/// A message that has arrived.
pub struct ReceivedMessage<'a> {
    /// One datagram, or several of the size `segment`, of which the last may be shorter.
    pub bytes: &'a [u8],
    /// Sender; `None` for a Unix socket without a name.
    pub peer: Option<&'a SocketAddrAny>,
    /// Local address that it was sent to, if the socket tells.
    pub local: Option<IpAddr>,
    /// Size of the datagrams in `bytes`, if they are several.
    pub segment: Option<u16>,
    /// Mark of explicit congestion notification (RFC 3168), the two low bits of the traffic class, if the socket tells; 0 for none.
    pub ecn: u8,
    /// True if a part of it did not fit.
    pub is_truncated: bool,
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        Self {
            bytes: vec![0; BATCH * MESSAGE_SIZE].into(),
            names: Box::new([const { MaybeUninit::zeroed() }; BATCH]),
            controls: Box::new([[0; 16]; BATCH]),
            received: Vec::with_capacity(BATCH),
        }
    }
}

impl ReceiveBatch {
    /// Receives up to [`BATCH`] messages from a socket, and returns their number. Never waits.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; what the network has reported for a connected socket.
    pub fn receive(&mut self, fd: impl AsFd) -> io::Result<usize> {
        self.received.clear();
        let Self { names, controls, .. } = self;
        let base = self.bytes.as_mut_ptr();
        let mut parts: [libc::iovec; BATCH] = std::array::from_fn(|at| libc::iovec {
            // The buffer has room for all messages, so the address is inside.
            iov_base: base.wrapping_add(at * MESSAGE_SIZE).cast(),
            iov_len: MESSAGE_SIZE,
        });
        let mut headers: [libc::mmsghdr; BATCH] = std::array::from_fn(|at| {
            let mut header = empty_header();
            header.msg_hdr.msg_name = names[at].as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = size_of::<SocketAddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &mut parts[at];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = controls[at].as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            header
        });
        // SAFETY: every header points to a name, a part of the buffer and room for control data that are as long as it says, belong to
        // it alone and live until the call returns.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (header, name) in headers.iter().zip(names.iter_mut()).take(count) {
            let message = &header.msg_hdr;
            let mut received = Message {
                len: (header.msg_len as usize).min(MESSAGE_SIZE),
                peer: peer_of(mem::replace(name, MaybeUninit::zeroed()), message.msg_namelen),
                local: None,
                segment: None,
                ecn: 0,
                is_truncated: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            };
            read_control(message, &mut received);
            self.received.push(received);
        }
        Ok(count)
    }

    /// The messages of the last call.
    pub fn iter(&self) -> impl Iterator<Item = ReceivedMessage<'_>> {
        self.bytes.chunks(MESSAGE_SIZE).zip(&self.received).map(|(bytes, message)| ReceivedMessage {
            bytes: &bytes[..message.len],
            peer: message.peer.as_ref(),
            local: message.local,
            segment: message.segment,
            ecn: message.ecn,
            is_truncated: message.is_truncated,
        })
    }
}

/// A message to be sent.
#[derive(Clone, Copy)]
pub struct OutgoingMessage<'a> {
    /// One datagram, or several of the size `segment`, of which the last may be shorter.
    pub bytes: &'a [u8],
    /// Receiver; `None` for that of a connected socket.
    pub to: Option<&'a SocketAddrAny>,
    /// Local address that it comes from; `None` leaves the choice to the kernel.
    pub from: Option<IpAddr>,
    /// Size of the datagrams in `bytes`, if they are several: at most [`SEGMENTS_MAX`].
    pub segment: Option<u16>,
    /// Mark of explicit congestion notification, the two low bits of the traffic class; 0 leaves the socket's.
    pub ecn: u8,
}

/// Use of one message for several datagrams (`UDP_SEGMENT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Datagrams of one size between the same two addresses are joined. The socket is one of UDP.
    Join,
    /// Each message is sent for itself.
    Separate,
}

/// Number of messages at the front of `messages` that [`send`] joins: datagrams of one size with the same addresses, and one shorter
/// one behind them.
pub fn joined_count(messages: &[OutgoingMessage<'_>], joining: Joining) -> usize {
    let [first, rest @ ..] = messages else { return 0 };
    let size = first.bytes.len();
    if joining == Joining::Separate || first.segment.is_some() || !(1..=JOINED_SIZE_MAX).contains(&size) {
        return 1;
    }
    let has_same_addresses = |message: &OutgoingMessage<'_>| {
        let is_same = match (first.to, message.to) {
            (None, None) => true,
            (Some(one), Some(other)) => ptr::eq(one, other),
            _ => false,
        };
        is_same && (first.from, first.ecn) == (message.from, message.ecn) && message.segment.is_none()
    };
    let rest = &rest[..rest.len().min(BATCH - 1)];
    let full = rest.iter().take_while(|next| next.bytes.len() == size && has_same_addresses(next)).count();
    let is_last =
        |next: &&OutgoingMessage<'_>| (1..size).contains(&next.bytes.len()) && has_same_addresses(next);
    1 + full + usize::from(rest.get(full).filter(is_last).is_some())
}

/// Sends up to [`BATCH`] messages, and returns how many of them the kernel has taken. Never waits.
///
/// # Errors
/// The first message could not be sent, with those that were joined with it.
pub fn send(fd: impl AsFd, messages: &[OutgoingMessage<'_>], joining: Joining) -> io::Result<usize> {
    // Most calls send one message, for which clearing sixteen headers would take longer than sending.
    match messages {
        [_] => send_up_to::<1>(fd.as_fd(), messages, joining),
        _ => send_up_to::<BATCH>(fd.as_fd(), messages, joining),
    }
}

/// [`send`] with room for so many messages.
fn send_up_to<const MAX: usize>(
    fd: BorrowedFd<'_>,
    messages: &[OutgoingMessage<'_>],
    joining: Joining,
) -> io::Result<usize> {
    let messages = &messages[..messages.len().min(MAX)];
    let mut controls: [Control; MAX] = [[0; 16]; MAX];
    let mut parts = [const { libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 } }; MAX];
    for (part, message) in parts.iter_mut().zip(messages) {
        let base = message.bytes.as_ptr().cast_mut().cast();
        *part = libc::iovec { iov_base: base, iov_len: message.bytes.len() };
    }
    let mut headers: [libc::mmsghdr; MAX] = std::array::from_fn(|_| empty_header());
    let mut begin = 0;
    let mut ends = [0; MAX];
    let mut rest = &mut parts[..];
    let mut header_count = 0;
    while let Some(first) = messages.get(begin) {
        let count = joined_count(&messages[begin..], joining);
        let (own, others) = rest.split_at_mut(count);
        rest = others;
        let header = &mut headers[header_count].msg_hdr;
        header.msg_iov = own.as_mut_ptr();
        header.msg_iovlen = count as _;
        if let Some(to) = first.to {
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.addr_len();
        }
        // A joined datagram is no larger than a segment may be.
        let size = if count > 1 { u16::try_from(first.bytes.len()).ok() } else { first.segment };
        write_control(header, &mut controls[header_count], &OutgoingMessage { segment: size, ..*first });
        begin += count;
        ends[header_count] = begin;
        header_count += 1;
    }
    // SAFETY: every header points to an address, to as many parts as it says, each with bytes that are as long as the part says, and to
    // control data that are as long as it says; all live until the call returns, and the kernel only reads them.
    let count = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            header_count as libc::c_uint,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok(count.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0))
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: a header holds integers and pointers only, for which zero bytes are valid.
    unsafe { zeroed() }
}

fn peer_of(name: MaybeUninit<SocketAddrStorage>, len: libc::socklen_t) -> Option<SocketAddrAny> {
    // A Unix socket without a name has at most a family.
    let is_named = len as usize > size_of::<libc::sa_family_t>();
    let len = len.min(size_of::<SocketAddrStorage>() as libc::socklen_t) as SocketAddrLen;
    // SAFETY: the storage was zeroed and then written by the kernel, so all of it is initialised, and `len` is within it.
    is_named.then(|| unsafe { SocketAddrAny::new(name, len) })
}

/// Reads the local address and the size of segments.
fn read_control(header: &libc::msghdr, message: &mut Message) {
    // SAFETY: the header is as the kernel has left it: its control data is as long as it says, and lives.
    let mut entry = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: `entry` is null or points to an entry within the control data, which is aligned for it.
    while let Some(head) = unsafe { entry.as_ref() } {
        // SAFETY: the data of an entry follows it, within the control data.
        let data = unsafe { libc::CMSG_DATA(entry) };
        match (head.cmsg_level, head.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the kernel writes a whole `in_pktinfo`, for which any bytes are valid.
                let info: libc::in_pktinfo = unsafe { ptr::read_unaligned(data.cast()) };
                message.local = Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: the kernel writes a whole `in6_pktinfo`, for which any bytes are valid.
                let info: libc::in6_pktinfo = unsafe { ptr::read_unaligned(data.cast()) };
                message.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: the kernel writes a byte.
                let class: u8 = unsafe { ptr::read_unaligned(data.cast()) };
                message.ecn = class & 3;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: the kernel writes an int.
                let class: libc::c_int = unsafe { ptr::read_unaligned(data.cast()) };
                message.ecn = (class & 3) as u8;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: the kernel writes an int.
                let size: libc::c_int = unsafe { ptr::read_unaligned(data.cast()) };
                message.segment =
                    u16::try_from(size).ok().filter(|size| *size > 0 && usize::from(*size) < message.len);
            }
            _ => {}
        }
        // SAFETY: both are valid, as above.
        entry = unsafe { libc::CMSG_NXTHDR(header, entry) };
    }
}

/// Writes the control data of a message, if it needs some.
fn write_control(header: &mut libc::msghdr, control: &mut Control, message: &OutgoingMessage<'_>) {
    let base: *mut u8 = control.as_mut_ptr().cast();
    let mut used = 0;
    let mut put = |level: libc::c_int, kind: libc::c_int, data: &[u8]| {
        let len = data.len() as libc::c_uint;
        // SAFETY: arithmetic on a length.
        let head_len = unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: arithmetic on a length.
        let space = unsafe { libc::CMSG_SPACE(len) } as usize;
        assert!(used + space <= size_of::<Control>(), "three entries fit");
        // SAFETY: a head holds integers only, for which zero bytes are valid.
        let mut head: libc::cmsghdr = unsafe { zeroed() };
        head.cmsg_len = (head_len + data.len()) as _;
        head.cmsg_level = level;
        head.cmsg_type = kind;
        // SAFETY: the entry is within the control data by the check, and aligned, as each takes a multiple of its alignment.
        unsafe { ptr::write(base.wrapping_add(used).cast(), head) };
        // SAFETY: its data follows the head, within the control data by the same check; no other reference to it is used meanwhile.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), base.wrapping_add(used + head_len), data.len()) };
        used += space;
    };
    match message.from {
        // `in_pktinfo`: interface, local address, address of the header.
        Some(IpAddr::V4(from)) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&from.octets());
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        // `in6_pktinfo`: address, interface.
        Some(IpAddr::V6(from)) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&from.octets());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    if let Some(segment) = message.segment {
        put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if message.ecn != 0 {
        let class = libc::c_int::from(message.ecn).to_ne_bytes();
        // A socket of IPv6 sends to IPv4 addresses, too, which are mapped: the kernel takes the one of the address it sends to.
        let is_ipv6 = message.to.is_some_and(|to| to.address_family() == rustix::net::AddressFamily::INET6);
        if is_ipv6 {
            put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)
        } else {
            put(libc::IPPROTO_IP, libc::IP_TOS, &class)
        }
    }
    if used > 0 {
        header.msg_control = base.cast();
        header.msg_controllen = used as _;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;
    use crate::sockopt::{set_receive_local_address, set_udp_gro};

    fn address(socket: &UdpSocket) -> SocketAddrAny {
        socket.local_addr().unwrap().into()
    }

    fn peer(message: &ReceivedMessage<'_>) -> SocketAddr {
        SocketAddr::try_from(message.peer.unwrap().clone()).unwrap()
    }

    fn wait(socket: &UdpSocket, batch: &mut ReceiveBatch) -> usize {
        let mut byte = [0; 1];
        socket.peek(&mut byte).unwrap();
        batch.receive(socket).unwrap()
    }

    #[test]
    fn batches_keep_the_borders_of_datagrams_of_any_size() {
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let two = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = ReceiveBatch::default();
        assert_eq!(batch.receive(&two).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let to = address(&two);
        let large = vec![7; 65_507];
        let message = |bytes| OutgoingMessage { bytes, to: Some(&to), from: None, segment: None, ecn: 0 };
        assert_eq!(send(&one, &[message(b""), message(b"x"), message(&large)], Joining::Join).unwrap(), 3);
        assert_eq!(wait(&two, &mut batch), 3);
        let sizes: Vec<_> = batch.iter().map(|message| message.bytes.len()).collect();
        assert_eq!(sizes, [0, 1, 65_507]);
        assert!(
            batch.iter().all(|message| peer(&message) == one.local_addr().unwrap() && !message.is_truncated)
        );
        assert_eq!(batch.receive(&two).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(batch.iter().count(), 0);
    }

    #[test]
    fn local_address_is_told_and_chosen() {
        let wildcard = UdpSocket::bind("0.0.0.0:0").unwrap();
        set_receive_local_address(&wildcard, false).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"hello", ("127.0.0.3", wildcard.local_addr().unwrap().port())).unwrap();
        let mut batch = ReceiveBatch::default();
        wait(&wildcard, &mut batch);
        let message = batch.iter().next().unwrap();
        assert_eq!(message.local, Some(Ipv4Addr::new(127, 0, 0, 3).into()));
        let answer =
            OutgoingMessage { bytes: b"x", to: message.peer, from: message.local, segment: None, ecn: 0 };
        assert_eq!(send(&wildcard, &[answer], Joining::Join).unwrap(), 1);
        let (_, from) = client.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(from.ip(), Ipv4Addr::new(127, 0, 0, 3));
    }

    #[test]
    fn dual_stack_socket_answers_from_mapped_addresses() {
        let Ok(wildcard) = UdpSocket::bind("[::]:0") else { return };
        set_receive_local_address(&wildcard, true).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"hello", ("127.0.0.3", wildcard.local_addr().unwrap().port())).unwrap();
        let mut batch = ReceiveBatch::default();
        wait(&wildcard, &mut batch);
        let message = batch.iter().next().unwrap();
        assert_eq!(message.local, Some(Ipv4Addr::new(127, 0, 0, 3).to_ipv6_mapped().into()));
        let answer =
            OutgoingMessage { bytes: b"x", to: message.peer, from: message.local, segment: None, ecn: 0 };
        assert_eq!(send(&wildcard, &[answer], Joining::Join).unwrap(), 1);
        assert_eq!(client.recv_from(&mut [0; 9]).unwrap().1.ip(), Ipv4Addr::new(127, 0, 0, 3));
    }

    #[test]
    fn segments_are_datagrams_of_their_own() {
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let two = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = address(&two);
        let message =
            OutgoingMessage { bytes: b"aaabbbc", to: Some(&to), from: None, segment: Some(3), ecn: 0 };
        // A kernel or an interface without segments refuses.
        if send(&one, &[message], Joining::Separate).is_err() {
            return;
        }
        let mut batch = ReceiveBatch::default();
        let mut came = Vec::new();
        while came.len() < 3 {
            wait(&two, &mut batch);
            came.extend(batch.iter().map(|message| message.bytes.to_vec()));
        }
        assert_eq!(came, [&b"aaa"[..], b"bbb", b"c"]);
        set_udp_gro(&two, true).unwrap();
        send(&one, &[message], Joining::Separate).unwrap();
        let mut bytes = Vec::new();
        while bytes.len() < 7 {
            wait(&two, &mut batch);
            for message in batch.iter() {
                assert!(message.segment.is_none_or(|size| size == 3));
                bytes.extend_from_slice(message.bytes);
            }
        }
        assert_eq!(bytes, b"aaabbbc");
    }

    #[test]
    fn datagrams_that_are_joined_arrive_as_they_were() {
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let two = UdpSocket::bind("127.0.0.1:0").unwrap();
        let three = UdpSocket::bind("127.0.0.1:0").unwrap();
        two.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let to = address(&two);
        let other = address(&three);
        let message = |bytes| OutgoingMessage { bytes, to: Some(&to), from: None, segment: None, ecn: 0 };
        let elsewhere = OutgoingMessage { to: Some(&other), ..message(b"aaa") };
        let large = [7; 1_300];
        let messages = [
            &[message(b"aaa"), message(b"bbb"), message(b"c"), message(b"ddd")][..],
            &[message(b""), message(b""), message(b"e"), message(b"ff"), elsewhere],
            &[message(&large), message(&large), message(b"g")],
        ]
        .concat();
        for (joining, expected) in
            [(Joining::Join, &[3, 1, 1, 1, 1, 1, 1, 1, 1, 1][..]), (Joining::Separate, &[1; 12])]
        {
            let mut counts = Vec::new();
            let mut rest = &messages[..];
            while !rest.is_empty() {
                counts.push(joined_count(rest, joining));
                rest = &rest[counts[counts.len() - 1]..];
            }
            assert_eq!(counts, expected, "{joining:?}");
            // A kernel or an interface without segments refuses.
            if send(&one, &messages, joining).is_err() {
                return;
            }
            for sent in messages.iter().filter(|message| ptr::eq(message.to.unwrap(), &to)) {
                let mut buffer = [0; 2_000];
                let len = two.recv(&mut buffer).unwrap();
                assert_eq!(buffer[..len], *sent.bytes, "{joining:?}");
            }
            assert_eq!(three.recv(&mut [0; 9]).unwrap(), 3);
        }
    }
}
