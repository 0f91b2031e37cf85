//! The process: one socket for each loop, and timers. It ends when all sockets are closed.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tw_script::{FrameReader, HostMessage, PROTOCOL, ProcessMessage, encode};
use tw_sys::cpu_limit::CpuLimit;

use crate::check_link::CheckLink;
use crate::link::{Link, SocketLink};
use crate::realm::Realm;
use crate::sandbox;
use crate::session::Session;
use crate::watch::Watch;

/// One loop.
struct Peer {
    link: Rc<SocketLink>,
    session: Session,
}

/// Serves loops until all of them have closed their sockets.
///
/// # Errors
/// The kernel refuses to wait for sockets.
pub fn serve(sockets: Vec<OwnedFd>) -> io::Result<()> {
    serve_with(sockets, Watch::default())
}

/// Serves loops as [`serve`] does, in a process that gives up all rights first, and that ends itself if a callback cannot be
/// interrupted.
///
/// # Errors
/// The kernel refuses to restrict the process or to wait for sockets.
pub fn serve_confined(sockets: Vec<OwnedFd>) -> io::Result<()> {
    let timer = CpuLimit::new()?;
    sandbox::enter()?;
    serve_with(sockets, Watch::with_timer(timer))
}

fn serve_with(sockets: Vec<OwnedFd>, watch: Watch) -> io::Result<()> {
    let watch = Rc::new(watch);
    let mut peers: Vec<Peer> = sockets.into_iter().map(|socket| greet(socket, &watch)).collect();
    while !peers.is_empty() {
        for index in wait(&peers)? {
            if let Some(peer) = peers.get(index) {
                peer.link.receive();
            }
        }
        let now = Instant::now();
        for peer in &mut peers {
            while let Some(message) = peer.link.next_message() {
                peer.session.handle(message);
                peer.link.flush_with_others();
            }
            peer.session.fire_timers(now);
            peer.link.flush();
        }
        peers.retain(|peer| !peer.link.is_closed());
    }
    Ok(())
}

/// Takes over the socket of a loop.
fn greet(socket: OwnedFd, watch: &Rc<Watch>) -> Peer {
    let link = Rc::new(SocketLink::new(socket));
    // A short message cannot be too large.
    let _ = link.send(&ProcessMessage::Hello { protocol: PROTOCOL });
    link.flush();
    let session = Session::new(Rc::clone(&link) as Rc<dyn Link>, Rc::clone(watch));
    Peer { link, session }
}

/// Waits for bytes or a timer; returns the places of the peers that have sent something.
fn wait(peers: &[Peer]) -> io::Result<Vec<usize>> {
    let now = Instant::now();
    let next = peers.iter().filter_map(|peer| peer.session.next_timer()).min();
    let timeout = next.and_then(|time| Timespec::try_from(time.saturating_duration_since(now)).ok());
    let socket = |peer| PollFd::from_borrowed_fd(Peer::socket(peer), PollFlags::IN);
    let mut sockets: Vec<PollFd<'_>> = peers.iter().map(socket).collect();
    match poll(&mut sockets, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_ready = |socket: &PollFd<'_>| !socket.revents().is_empty();
    Ok(sockets.iter().enumerate().filter(|(_, socket)| is_ready(socket)).map(|(index, _)| index).collect())
}

impl Peer {
    fn socket(peer: &Self) -> std::os::fd::BorrowedFd<'_> {
        peer.link.socket()
    }
}

/// Reads [`HostMessage::Load`] messages and writes a [`ProcessMessage::Loaded`] for each: the check of a configuration.
///
/// # Errors
/// The input cannot be read, is no message or another one than `Load`, or the output cannot be written.
pub fn check(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let watch = Rc::new(Watch::default());
    let mut reader = FrameReader::default();
    let mut bytes = vec![0; 64 << 10];
    loop {
        while let Some(message) = reader.next_message().map_err(io::Error::other)? {
            let HostMessage::Load(load) = message else {
                return Err(io::Error::other("only modules can be checked"));
            };
            let script = load.script;
            let link: Rc<dyn Link> = Rc::new(CheckLink::new(&load.environment));
            let result = Realm::new(&Rc::from(load), &link, &watch).map(drop);
            let mut frame = Vec::new();
            encode(&ProcessMessage::Loaded { script, result }, &mut frame).map_err(io::Error::other)?;
            output.write_all(&frame)?;
            output.flush()?;
        }
        let size = input.read(&mut bytes)?;
        if size == 0 {
            return Ok(());
        }
        reader.push(bytes.get(..size).unwrap_or_default());
    }
}
