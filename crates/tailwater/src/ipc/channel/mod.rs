//! The socket between the master and a worker process: messages with descriptors.
//!
//! ```text
//! packet 1:  head (size of the body, place of the body, number of descriptors) [body]   [the body as a file in memory]
//! packet 2…: one byte                                                                   up to 200 descriptors
//! ```
//! Buffers of messages are wiped: there are private keys among the files of a configuration.
//!
//! A Unix socket of packets, so that a message arrives as a whole or not at all. The configuration of a large site has
//! megabytes: a long body is sent as a file in memory. The worker process may be under an attacker's control. Its
//! messages are read by [`Channel::answer`], which takes short messages only, keeps no descriptor and never waits.

mod message;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
    sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

pub(crate) use message::{Configure, Keys, Text, WorkerCommand, WorkerReply};

/// The longest body inside a packet, bytes.
const INLINE_MAX: usize = 8 * 1024;
/// Descriptors of one packet; the kernel takes 253.
const FDS_MAX: usize = 200;
/// Longest wait of a message for room in the socket. The reader needs milliseconds unless it hangs.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a head: the size of the body, whether it is a file, the number of descriptors.
const HEAD_SIZE: usize = 8 + 1 + 4;

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

/// Content of one packet.
struct Packet {
    /// Length in bytes.
    size: usize,
    fds: Vec<OwnedFd>,
    /// Set if descriptors are missing, because this process may open no more.
    is_short: bool,
}

/// Result of reading.
#[derive(Debug)]
pub(crate) enum ReadResult<M> {
    /// A message.
    Message(M),
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    Gone,
    /// Something that is no message.
    Malformed,
}

impl Channel {
    /// A new channel: our end, and the one for a process that is to be started.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Descriptors from a worker are refused, because closing them could take long: a lingering connection, a file
        // of a slow server. Older kernels pass descriptors, which are then closed.
        let _ = tw_sys::sockopt::set_pass_rights(&ours, false);
        Ok((Self(ours), theirs))
    }

    /// The end this process was started with, in the place of its standard input, which becomes `/dev/null`.
    pub(crate) fn of_stdin() -> io::Result<Self> {
        let ours = io::stdin().as_fd().try_clone_to_owned()?;
        let null = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self(ours))
    }

    /// The other end, for a test that plays the worker.
    #[cfg(test)]
    pub(crate) fn of(end: OwnedFd) -> Self {
        Self(end)
    }

    /// Sends a message and descriptors. Waits for a late reader, at most [`SEND_TIMEOUT`] for each packet. Errors as
    /// [`send_until`](Self::send_until).
    pub(crate) fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let packets = 1 + u32::try_from(fds.len().div_ceil(FDS_MAX)).map_err(io::Error::other)?;
        self.send_until(Instant::now() + SEND_TIMEOUT.saturating_mul(packets), message, fds)
    }

    /// Sends a message, waiting at most until then, and not at all after that time. Errors: the other end is closed;
    /// `WouldBlock` if it does not read. When a part of the message was sent already, the channel is closed for both
    /// ends.
    pub(crate) fn send_until<M: Serialize>(
        &self,
        until: Instant,
        message: &M,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        // A buffer that grows leaves copies of secrets behind, so the size is computed first.
        let size = postcard::experimental::serialized_size(message).map_err(io::Error::other)?;
        let mut body = Zeroizing::new(vec![0; size]);
        postcard::to_slice(message, &mut body).map_err(io::Error::other)?;
        let is_inline = body.len() <= INLINE_MAX;
        let mut head = Zeroizing::new(Vec::with_capacity(HEAD_SIZE + INLINE_MAX));
        head.extend((body.len() as u64).to_le_bytes());
        head.push(u8::from(is_inline));
        head.extend(u32::try_from(fds.len()).map_err(io::Error::other)?.to_le_bytes());
        if is_inline {
            head.extend(&*body);
            self.send_packet(until, &head, &[])?;
        } else {
            let file = rustix::fs::memfd_create("configuration", MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&file, body.len() as u64)?;
            write_all(&file, &body)?;
            self.send_packet(until, &head, &[file.as_fd()])?;
        }
        let rest = fds.chunks(FDS_MAX).try_for_each(|fds| self.send_packet(until, &[0], fds));
        // The next message would be taken for the rest of this one.
        rest.inspect_err(|_| self.stop_talking())
    }

    /// Says nothing more: the other end finds the channel closed.
    pub(crate) fn stop_talking(&self) {
        // Fails only if it is closed already.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }

    /// Hears nothing more: what the other end sends fails there.
    pub(crate) fn stop_listening(&self) {
        // Fails only if it is closed already.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
    }

    /// Waits for the next message with its descriptors; `None` when the other end is closed. For the worker process,
    /// which believes its master. `EMFILE` when this process may not open as many files: that message is lost as a whole,
    /// and the next one can be read.
    pub(crate) fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut packet = Zeroizing::new(vec![0; HEAD_SIZE + INLINE_MAX]);
        let Packet { size, fds: mut files, mut is_short } = self.receive_packet(&mut packet)?;
        let Some((head, inline)) = packet[..size].split_first_chunk::<HEAD_SIZE>() else {
            return if size == 0 { Ok(None) } else { Err(malformed()) };
        };
        let (size, is_inline, count) = read_head(head);
        let mut fds = Vec::new();
        for _ in 0..count.div_ceil(FDS_MAX) {
            let more = self.receive_packet(&mut [0])?;
            if more.size == 0 {
                return Err(malformed());
            }
            fds.extend(more.fds);
            is_short |= more.is_short;
        }
        if is_short {
            return Err(Errno::MFILE.into());
        }
        if fds.len() != count {
            return Err(malformed());
        }
        let long;
        let body = if is_inline {
            inline
        } else {
            let file = files.pop().ok_or_else(malformed)?;
            long = Zeroizing::new(read_all(&file, usize::try_from(size).map_err(io::Error::other)?)?);
            &long
        };
        let message = postcard::from_bytes(body).map_err(io::Error::other)?;
        Ok(Some((message, fds)))
    }

    /// The next message, if there is one. For the master, which does not believe its workers.
    pub(crate) fn answer<M: DeserializeOwned>(&self) -> ReadResult<M> {
        let mut packet = vec![MaybeUninit::uninit(); HEAD_SIZE + INLINE_MAX];
        let packet = match recv(&self.0, &mut packet[..], RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC) {
            Ok(((packet, _), size)) if size > 0 => packet,
            Err(Errno::AGAIN | Errno::INTR) => return ReadResult::Nothing,
            Ok(_) | Err(_) => return ReadResult::Gone,
        };
        let Some((head, body)) = packet.split_first_chunk::<HEAD_SIZE>() else {
            return ReadResult::Malformed;
        };
        let (size, is_inline, fds) = read_head(head);
        if !is_inline || fds != 0 || size != body.len() as u64 {
            return ReadResult::Malformed;
        }
        postcard::from_bytes(body).map_or(ReadResult::Malformed, ReadResult::Message)
    }

    fn send_packet(&self, until: Instant, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(malformed());
        }
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            let mut flags = SendFlags::NOSIGNAL;
            if remaining.is_zero() {
                flags |= SendFlags::DONTWAIT;
            } else {
                sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, Some(remaining))?;
            }
            match sendmsg(&self.0, &[io::IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive_packet(&self, bytes: &mut [u8]) -> io::Result<Packet> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [io::IoSliceMut::new(bytes)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let fds = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        });
        let fds = fds.collect();
        let is_short = received.flags.contains(ReturnFlags::CTRUNC);
        Ok(Packet { size: received.bytes, fds, is_short })
    }
}

/// Readable when a message or the end is there.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Size of the body, whether it follows, number of descriptors.
fn read_head(head: &[u8; HEAD_SIZE]) -> (u64, bool, usize) {
    let [a, b, c, d, e, f, g, h, inline, i, j, k, l] = *head;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), inline != 0, u32::from_le_bytes([i, j, k, l]) as usize)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message is malformed")
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while !bytes.is_empty() {
        let n = rustix::io::pwrite(file, bytes, at)?;
        at += n as u64;
        bytes = &bytes[n..];
    }
    Ok(())
}

fn read_all(file: &OwnedFd, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < size {
        match rustix::io::pread(file, &mut bytes[at..], at as u64)? {
            0 => return Err(malformed()),
            n => at += n,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::mpsc;
    use std::thread;
    use tw_testkit::wait;

    use super::*;

    fn ends() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel::of(theirs))
    }

    #[test]
    fn messages_of_any_size_arrive_with_their_descriptors() {
        let (master, worker) = ends();
        let file = File::open("/dev/null").unwrap();
        for (size, count) in
            [(0, 0), (1, 1), (INLINE_MAX - 10, 2), (INLINE_MAX + 10, 0), (3 << 20, 2 * FDS_MAX + 1)]
        {
            let body = vec![7_u8; size];
            let fds = vec![file.as_fd(); count];
            let (got, files) = thread::scope(|scope| {
                scope.spawn(|| master.send(&body, &fds).unwrap());
                worker.receive::<Vec<u8>>().unwrap().unwrap()
            });
            assert_eq!((got.len(), files.len()), (size, count));
        }
        drop(master);
        assert!(worker.receive::<Vec<u8>>().unwrap().is_none());
    }

    #[test]
    fn a_master_does_not_wait_and_takes_no_descriptors_from_a_worker() {
        let (master, worker) = ends();
        assert!(matches!(master.answer::<u32>(), ReadResult::Nothing));
        worker.send(&5_u32, &[]).unwrap();
        assert!(matches!(master.answer::<u32>(), ReadResult::Message(5)));
        let file = File::open("/dev/null").unwrap();
        // Newer kernels do not let it send them.
        let expected = match worker.send_packet(Instant::now(), b"x", &[file.as_fd()]) {
            Ok(()) => matches!(master.answer::<u32>(), ReadResult::Malformed),
            Err(error) => error.raw_os_error() == Some(Errno::PERM.raw_os_error()),
        };
        assert!(expected);
        let long = [0_u8; 3 * INLINE_MAX];
        for nonsense in [&b"x"[..], &[0xff; HEAD_SIZE], &[0xff; HEAD_SIZE + 9], &long] {
            let (master, worker) = ends();
            worker.send_packet(Instant::now(), nonsense, &[]).unwrap();
            assert!(matches!(master.answer::<u32>(), ReadResult::Malformed));
            drop(worker);
            assert!(matches!(master.answer::<u32>(), ReadResult::Gone));
        }
    }

    #[test]
    fn worker_without_a_listener_still_receives_orders() {
        let (master, worker) = ends();
        master.stop_listening();
        assert_eq!(worker.send(&5_u32, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        master.send(&5_u32, &[]).unwrap();
        assert_eq!(worker.receive::<u32>().unwrap().unwrap().0, 5);
    }

    /// Fills the buffer of the socket, without waiting.
    fn fill(channel: &Channel) {
        let send = |_| channel.send_until(Instant::now(), &[0_u8; 4096].to_vec(), &[]).err();
        assert_eq!((0..100_000).find_map(send).unwrap().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn send_to_a_worker_that_does_not_read_times_out() {
        let (master, _worker) = ends();
        fill(&master);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(master.send(&5_u32, &[]).map_err(|error| error.kind())));
        assert_eq!(receiver.recv_timeout(wait::TIMEOUT), Ok(Err(io::ErrorKind::WouldBlock)));
    }

    #[test]
    fn a_worker_that_reads_late_is_waited_for() {
        let (master, worker) = ends();
        fill(&master);
        thread::scope(|scope| {
            let sent = scope.spawn(|| master.send_until(Instant::now() + wait::TIMEOUT, &5_u32, &[]));
            let is_five = || matches!(worker.receive::<u32>(), Ok(Some((5, _))));
            assert!(wait::until(wait::TIMEOUT, is_five));
            sent.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_message_that_was_sent_in_part_is_the_last() {
        let (master, worker) = ends();
        fill(&master);
        // Room for a head, and not for descriptors.
        let mut packet = vec![0; HEAD_SIZE + INLINE_MAX];
        worker.receive_packet(&mut packet).unwrap();
        let file = File::open("/dev/null").unwrap();
        let fds = vec![file.as_fd(); 200 * FDS_MAX];
        assert!(master.send_until(Instant::now(), &5_u32, &fds).is_err());
        assert_eq!(master.send(&5_u32, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut messages = std::iter::repeat_with(|| worker.receive::<Vec<u8>>());
        assert!(messages.any(|order| !matches!(order, Ok(Some(_)))), "the worker finds an end");
    }
}
