//! One event loop: the state that every protocol shares ([`LoopCore`]), and the life of a loop, which accepts connections
//! for an [`Application`] and replaces its generation at a reload.

mod accept;
mod accepting;
mod application;
mod balance;
mod budget;
mod buffers;
mod bulk_queue;
mod connection_list;
mod connections;
mod counts;
mod datagram_listener;
mod datagram_queues;
mod datagrams;
mod idle_eviction;
mod loop_core;
mod open_connection;
mod passed_datagrams;
mod process_links;
mod process_packet;
mod run;
mod running;
mod session_handover;
mod siblings;
mod slow_requests;
mod tally;

pub use application::{AcceptedConnection, Application, LoopCommand, PassedConnection};
pub use budget::{BULK_MIN, CopyBudget};
pub use buffers::{Buffers, INPUT_SIZE, SCRATCH_SIZE, copy_received};
pub use bulk_queue::{BodySize, BulkTurn};
pub use connection_list::{ConnectionList, ConnectionSlot};
pub use connections::{
    ClientInfo, ConnectionPermit, Connections, ConnectionsExhausted, EvictableConnection, Eviction,
    IdleResources,
};
pub use counts::{Counts, DescriptorLimit, PastStall, Reloads, Stalls, StartTime};
pub use datagram_listener::{DatagramBuffer, DatagramListener, ReceivedDatagram};
pub use datagram_queues::{PassOutcome, PassedDatagram};
pub use loop_core::{LoopCore, LoopShare};
pub use process_links::{LinkOutcome, PROCESSES_MAX, ProcessLinks};
pub use process_packet::{PACKET_SIZE_MAX, PacketHead, read_packet};
pub use run::run;
pub use session_handover::{
    HANDOVER_SESSIONS_MAX, HANDOVER_TIME_MAX, HandedSession, HandoverOffers, HandoverPhase, HandoverVerdict,
    OfferedSession, RECORD_SIZE_MAX,
};
pub use siblings::Sibling;
pub use slow_requests::{SlowRequest, SlowRequests};
pub use tally::{HandshakeFailure, LevelGuard, LoopCounter, OwnTally, Tally};

pub use crate::generation::LoopConfiguration;

tw_base::limits! {
    /// Limits of event loops.
    pub(crate) const LIMITS;

    /// Connections open on one loop, to clients and to upstream servers.
    directive "worker_connections",
        "idle connections to upstream servers are closed, the oldest first, then connections that wait for a request, or linger; \
        with none, a new client is refused, and a request that needs a connection gets 500";
    use connections::LIMITS;
    use accepting::AT_ONCE_LIMIT;
    use budget::LIMITS;
    /// Panics whose stacks wait to be written into the error log.
    pub const PANICS_WAITING_MAX: usize = 16, count, "further ones are written without";
    /// Stacks of panics whose names are remembered.
    ///
    /// Largest number of remembered stacks: one fault may happen with every request.
    pub const STACKS_KNOWN_MAX: usize = 16, count, "the oldest is looked up anew";
    use accept::LIMITS;
    use datagrams::LIMITS;
    use datagram_queues::LIMITS;
    use process_links::LIMITS;
    use session_handover::LIMITS;
    use siblings::LIMITS;
    use counts::LIMITS;
    use slow_requests::LIMITS;
}
