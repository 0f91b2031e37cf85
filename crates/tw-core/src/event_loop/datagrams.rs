//! Receiving from listening datagram sockets: a loop reads those that are its own, and hands each datagram to the protocol that owns
//! the address, with what an answer needs.
//!
//! ```text
//! recvmmsg ─► ReceivedDatagram { sender, address it was sent to } ─► Application::receive ─► session of the protocol
//!                                                                                          │
//! sendmmsg ◄──────────────────── DatagramListener::send ◄──────────────────────────────────┘
//! ```
//! The kernel chooses the socket, and so the loop, by the addresses of a datagram, so all datagrams of a client reach one loop, as long as
//! the number of sockets stays the same (`passed_datagrams`). A loop that stops receiving keeps its sessions: their answers leave by the [`DatagramListener`] that they hold.
//! While another process receives the datagrams of connections, loops leave the sockets alone (`process_links`).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tw_base::Errno;
use tw_log::Level;
use tw_net::listen::SocketKind;
use tw_net::{Addr, ListenSocket};
use tw_rt::watch::Subject;
use tw_rt::{DatagramPeers, DatagramSocket, Deadline};

use super::accepting::End;
use super::application::Application;
use super::datagram_listener::{DatagramListener, ReceivedDatagram};
use super::loop_core::LoopCore;
use super::running::Running;
use super::session_handover::HANDOVER_TIME_MAX;
use crate::generation::{ListenAddress, SocketSharing};

/// Pause after an error of a listening socket, which would otherwise be there again at once.
const PAUSE: Duration = Duration::from_millis(500);

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Datagrams that a loop takes from one socket at once.
    const RECEIVED_AT_ONCE_MAX: usize = tw_rt::BATCH, count,
        "the others have their turn first; what does not fit into the socket meanwhile is dropped by the kernel";
}

/// Reason to stop waiting for datagrams.
enum Wait {
    /// The socket may have some.
    Readable(io::Result<()>),
    /// Another process receives.
    ReceivedElsewhere,
    /// The time is over.
    Over,
}

impl LoopCore {
    /// The socket of this loop that receives what is sent to the address `listen` of the configuration, if it has one.
    pub fn datagram_listener(&self, listen: &Addr) -> Option<Rc<DatagramListener>> {
        let is_of = |listener: &DatagramListener| match (listener.address.inet(), listen.inet()) {
            (Some(own), Some(listen)) if own.ip().is_unspecified() => {
                own.port() == listen.port() && own.is_ipv4() == listen.is_ipv4()
            }
            _ => *listener.address == *listen,
        };
        let all = self.listeners.borrow();
        let mut all =
            all.iter().filter_map(Weak::upgrade).filter(|listener| is_of(listener)).collect::<Vec<_>>();
        // A socket bound to exactly this address receives all of its datagrams, so it is preferred to a wildcard.
        let exact = all.iter().position(|listener| *listener.address == *listen).unwrap_or(0);
        (!all.is_empty()).then(|| all.swap_remove(exact))
    }

    /// Lets the tasks that receive look who receives the datagrams of connections.
    pub(super) fn wake_receivers(&self) {
        let all: Vec<_> = self.listeners.borrow().iter().filter_map(Weak::upgrade).collect();
        all.iter().filter_map(|listener| listener.receiver.take()).for_each(Waker::wake);
    }

    fn add_listener(&self, listener: &Rc<DatagramListener>) {
        let mut all = self.listeners.borrow_mut();
        all.retain(|candidate| candidate.strong_count() > 0);
        all.push(Rc::downgrade(listener));
    }

    /// Returns true if the current configuration listens for datagrams on `address`.
    fn receives_on(&self, address: &Addr) -> bool {
        let process = self.process();
        process
            .listens
            .iter()
            .any(|listen| listen.options.kind == SocketKind::Datagram && listen.address == *address)
    }

    /// Other addresses of the configuration whose datagrams arrive on the same socket.
    fn addresses_sharing(&self, listener: &DatagramListener) -> Vec<Rc<Addr>> {
        let Some(own) = listener.address.inet().filter(|own| own.ip().is_unspecified()) else {
            return Vec::new();
        };
        let process = self.process();
        let is_shared = |listen: &&ListenAddress| {
            let is_of_port = listen.address.inet().is_some_and(|address| address.port() == own.port());
            is_of_port
                && listen.options.kind == SocketKind::Datagram
                && listen.socket == SocketSharing::UsesWildcard
        };
        process.listens.iter().filter(is_shared).map(|listen| Rc::new(listen.address.clone())).collect()
    }
}

impl<A: Application> Running<A> {
    /// Brings a listening datagram socket to this loop.
    pub(super) fn datagram_socket(
        socket: ListenSocket,
    ) -> io::Result<(DatagramSocket, Rc<DatagramListener>)> {
        let id = socket.cookie()?;
        let address = Rc::new(socket.addr().clone());
        let socket = DatagramSocket::new(socket.into(), DatagramPeers::Many)?;
        let listener =
            DatagramListener { id, address, sender: socket.sender()?, receiver: RefCell::default() };
        Ok((socket, Rc::new(listener)))
    }

    /// Receives datagrams until told to end.
    pub(super) async fn receive(
        self,
        mut socket: DatagramSocket,
        listener: Rc<DatagramListener>,
        end: Rc<End>,
    ) {
        self.add_listener(&listener);
        loop {
            let outcome = match end.or(self.wait_for_datagrams(&socket, &listener, None)).await {
                Some(Wait::Readable(ready)) => ready.and_then(|()| self.receive_batch(&socket, &listener)),
                Some(Wait::ReceivedElsewhere) => match self.pause(socket, &listener, &end).await {
                    Ok(Some(resumed)) => {
                        socket = resumed;
                        continue;
                    }
                    // Connections of this socket get their datagrams from the other process.
                    Ok(None) => return self.stop_paused(&listener),
                    Err(error) => {
                        let log = &self.process().error_log;
                        let errno = Errno::from(&error);
                        return tw_log::emerg!(log, "cannot receive on {} again ({errno})", listener.address);
                    }
                },
                Some(Wait::Over) | None => break,
            };
            match outcome {
                Ok(RECEIVED_AT_ONCE_MAX..) => tw_rt::yield_now().await,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let log = &self.process().error_log;
                    let errno = Errno::from(&error);
                    tw_log::alert!(log, "recvmsg() on {} failed ({errno})", listener.address);
                    if end.or(tw_rt::time::sleep(PAUSE)).await.is_none() {
                        break;
                    }
                }
            }
        }
        if !self.receives_on(&listener.address) {
            return self.app.stop_receiving(&listener);
        }
        // Connections over datagrams end like others, with the loop, and need their datagrams until then.
        if self.connections.is_stopping() && self.app.has_connections_over(&listener) {
            let subject = Subject { kind: "accept", id: 0 };
            drop(tw_rt::spawn_local(subject, self.receive_rest(socket, listener)));
        }
    }

    /// Waits for datagrams, the end of the time, or another process that receives.
    async fn wait_for_datagrams(
        &self,
        socket: &DatagramSocket,
        listener: &DatagramListener,
        mut time: Option<&mut Deadline>,
    ) -> Wait {
        poll_fn(|cx| {
            if self.counts.links.is_received_elsewhere() && self.has_process_in_datagrams(listener) {
                return Poll::Ready(Wait::ReceivedElsewhere);
            }
            if let Some(time) = &mut time
                && time.poll_elapsed(cx).is_ready()
            {
                return Poll::Ready(Wait::Over);
            }
            listener.wake_on_change(cx);
            socket.poll_readable(cx).map(Wait::Readable)
        })
        .await
    }

    /// Returns true if all datagrams of this socket tell the process that they belong to.
    fn has_process_in_datagrams(&self, listener: &DatagramListener) -> bool {
        let has_process = |listen: &Addr| self.app.has_process_in_datagrams(listen);
        has_process(&listener.address)
            && self.addresses_sharing(listener).iter().all(|address| has_process(address))
    }

    /// Leaves a socket alone while another process receives from it. `None` once told to end.
    async fn pause(
        &self,
        socket: DatagramSocket,
        listener: &DatagramListener,
        end: &End,
    ) -> io::Result<Option<DatagramSocket>> {
        // The loop would wake up for every datagram.
        let socket = socket.into_fd()?;
        let resumed = poll_fn(|cx| {
            listener.wake_on_change(cx);
            if self.counts.links.is_received_elsewhere() { Poll::Pending } else { Poll::Ready(()) }
        });
        match end.or(resumed).await {
            Some(()) => DatagramSocket::new(socket, DatagramPeers::Many).map(Some),
            None => Ok(None),
        }
    }

    /// Ends receiving from a socket that another process receives from.
    fn stop_paused(&self, listener: &DatagramListener) {
        if !self.receives_on(&listener.address) {
            self.app.stop_receiving(listener);
        }
    }

    /// Receives datagrams until the loop ends, or another process does.
    fn receive_rest(
        self,
        socket: DatagramSocket,
        listener: Rc<DatagramListener>,
    ) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async move {
            let mut time = Deadline::new();
            if self.counts.is_replaced() {
                time.set(HANDOVER_TIME_MAX);
            }
            loop {
                match self.wait_for_datagrams(&socket, &listener, Some(&mut time)).await {
                    Wait::Readable(Ok(())) => {}
                    Wait::Readable(Err(_)) | Wait::ReceivedElsewhere => return,
                    // Half of the datagrams would go to the other process. Clients connect to it anew.
                    Wait::Over => return self.app.stop_connections(&listener),
                }
                match self.receive_batch(&socket, &listener) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                    _ => tw_rt::yield_now().await,
                }
            }
        })
    }

    fn receive_batch(&self, socket: &DatagramSocket, listener: &Rc<DatagramListener>) -> io::Result<usize> {
        self.datagrams.with(|batch| {
            let count = tw_rt::watch::operation("receiving datagrams", || socket.try_receive(batch))?;
            let sharing = self.addresses_sharing(listener);
            for message in batch.iter() {
                if message.is_truncated {
                    self.log_once_a_second(Level::Alert, format_args!("recvmsg() truncated data"));
                    continue;
                }
                let is_for = |address: &&Rc<Addr>| address.inet().map(|to| to.ip()) == message.local;
                let listen = sharing.iter().find(is_for).unwrap_or(&listener.address);
                let peer = message.peer;
                let local = message.local;
                let ecn = message.ecn;
                let size = message.segment.map_or(message.bytes.len(), usize::from).max(1);
                let mut rest = message.bytes;
                loop {
                    let (bytes, behind) = rest.split_at(size.min(rest.len()));
                    // A panic with one datagram must not keep the loop from receiving the next; the panic hook has
                    // logged it.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        self.app.receive(listener, &ReceivedDatagram { bytes, peer, local, listen, ecn });
                    }));
                    rest = behind;
                    if rest.is_empty() {
                        break;
                    }
                }
            }
            Ok(count)
        })
    }
}
