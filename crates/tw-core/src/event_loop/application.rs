//! Application on the loops of a process, and what a loop hands to it: connections, datagrams, configurations.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use tw_net::{Addr, ListenSocket, Transport, proxy_protocol};

use super::datagram_listener::{DatagramListener, ReceivedDatagram};
use super::datagram_queues::PassedDatagram;
use super::loop_core::LoopCore;
use super::session_handover::{HandedSession, HandoverPhase};
use crate::generation::LoopConfiguration;

/// Application that runs on the loops of a process: one protocol, or all of them. A value is its state on one loop.
pub trait Application: Sized + 'static {
    /// Configuration that a loop serves, as commands carry it.
    type Generation: LoopConfiguration;

    /// Creates the state of a loop that starts with `generation`.
    fn new(core: Rc<LoopCore>, generation: Self::Generation) -> Rc<Self>;

    /// Serves new requests by `generation` from now on.
    fn set_generation(&self, generation: Self::Generation);

    /// Serves a connection until it is closed. Called once for each.
    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> + 'static;

    /// Takes a datagram that has arrived on a listening socket. Called for each, and never waits. A protocol without
    /// datagrams receives none.
    fn receive(self: &Rc<Self>, _listener: &Rc<DatagramListener>, _datagram: &ReceivedDatagram<'_>) {}

    /// Takes a datagram that another loop or process has received. Called for each, and never waits.
    fn receive_passed(self: &Rc<Self>, _datagram: PassedDatagram) {}

    /// Returns true if the datagrams of this address tell the process that they belong to, so that one process can receive those of
    /// all.
    fn has_process_in_datagrams(&self, _listen: &Addr) -> bool {
        false
    }

    /// Returns true if there are connections whose datagrams arrive on this socket. A loop that is about to end receives them
    /// still.
    fn has_connections_over(&self, _listener: &DatagramListener) -> bool {
        false
    }

    /// Closes the connections whose datagrams arrive on this socket, because another process receives them now. Sessions stay that only
    /// answer.
    fn stop_connections(&self, _listener: &DatagramListener) {}

    /// Takes over a session over datagrams that another process hands over. Called for each, and never waits. A protocol without such
    /// sessions takes none.
    fn take_over(self: &Rc<Self>, _session: HandedSession) {}

    /// Ends what still answers by a socket whose address the configuration has given up.
    fn stop_receiving(&self, _listener: &DatagramListener) {}

    /// Runs the background tasks of the loop's current generation (health checks, name resolution …). The future
    /// never completes: the loop drops it when requests get another generation, and starts that one's; a loop that is
    /// draining has none.
    fn run_background_tasks(self: Rc<Self>) -> impl Future<Output = ()> + 'static;

    /// Frees one part of what has been unused for long enough. Returns the time until the next call.
    fn sweep(&self) -> Duration;

    /// Closes every file that is kept open only for later requests: at a reload, and on command.
    fn close_files(&self);
}

/// Accepted connection, before its task starts.
pub struct AcceptedConnection {
    /// Number of the connection: `*id` in log lines.
    pub id: u64,
    /// The socket; for a connection that was passed on, perhaps a TLS stream over it.
    pub transport: Transport,
    /// Address of the peer.
    pub peer: Addr,
    /// Listening address on which it was accepted, or to which it was passed.
    pub listen: Rc<Addr>,
    /// Facts about a connection that a session has passed on; `None` for one that was just accepted.
    pub passed: Option<Box<PassedConnection>>,
}

/// Facts about a connection that was accepted on another listening address and passed on.
pub struct PassedConnection {
    /// Address that stands for that of the socket.
    pub local: Addr,
    /// Bytes of the client that were read and not used.
    pub early: Vec<u8>,
    /// Number of times that the connection was passed on.
    pub passes: u32,
    /// Result of a TLS handshake, in the type of the crate that does handshakes.
    pub tls: Option<Box<dyn Any>>,
    /// PROXY protocol header of the connection.
    pub proxy_header: Option<Box<proxy_protocol::Header>>,
}

/// Commands to a loop.
pub enum LoopCommand<G> {
    /// Start to accept connections. The first command: no client is served before it.
    Start,
    /// Serve new requests with this configuration, accepting on these sockets instead of the old ones.
    Generation(G, Vec<ListenSocket>),
    /// Close every file that is kept open only for later requests.
    CloseFiles,
    /// Look at [`ProcessLinks`](super::ProcessLinks): another process may have begun or ended to receive the datagrams of connections.
    ReceiverChanged,
    /// Take over a session over datagrams of another process.
    TakeOver(HandedSession),
    /// Stop accepting, finish the requests in progress, then end. Sessions over datagrams are offered to the next process, if there is one.
    Quit(HandoverPhase),
    /// Offer sessions over datagrams to the next process, or not, after `Quit`.
    HandOver(HandoverPhase),
}
