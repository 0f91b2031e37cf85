//! Groups of servers, and which of their peers gets the next request: for HTTP and for streams alike.
//!
//! ```text
//! Group::start_selection ─► PeerSelection ─► Group::select ─► Lease ─► done(PeerOutcome) ─► PeerChange
//!                               ▲                 │ NoPeer                │ Failed, and tries are left
//!                               │                 └─► enqueue, or 502     │
//!                               └─────────────────────────────────────────┘
//! ```
//!
//! No protocol, no I/O and no clock: time is an argument, in milliseconds of a clock that never goes back, and so are random
//! numbers. A [`Group`] is shared by all loops behind an `Arc`. The sequences of all methods are nginx's; `tests/nginx.rs`
//! has what nginx did with the same servers.
//!
//! The [`PeerState`] of a peer changes with requests and is made of atomics; the [`PeerList`] changes by operators or
//! DNS and is replaced as a whole. A reload makes another group with the states of the old one.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod balance;
mod group;
mod health;
mod hint;
mod lease;
mod peer;
mod peer_list;
mod peer_state;
mod queue;
mod retry_budget;
mod selection;
mod server;
mod snapshot;
mod sticky_sessions;
#[cfg(test)]
mod tests;

pub use balance::{BalanceFactor, BalanceMethod, KeyKind, LeastTime, RandomTwo, TimeKind};
pub use group::{Group, NoPeer, ServerExists, UnknownPeer};
pub use health::{CheckAction, HealthCheckParams, HealthChecker};
pub use lease::{Lease, PeerOutcome};
pub use peer::{Peer, PeerChange, PeerId, PeerStatus, ServerId};
pub use peer_list::PeerList;
pub use peer_state::{Health, PeerCounters, PeerState};
pub use queue::QueuedRequest;
pub use retry_budget::{RetryBudget, RetryPermit};
pub use selection::{BalanceKey, PeerSelection};
pub use server::{AdminState, PeerParams, ResolvedAddress, Server, ServerAddress};
pub use snapshot::{CheckCounts, GroupSnapshot, PeerSnapshot};
pub use sticky_sessions::{Learned, StickySessions};
pub use tw_base::Rng;

tw_base::limits! {
    /// Limits of a group that DNS can make large.
    pub const LIMITS;

    section "upstream servers";
    use balance::LIMITS;
    use hint::LIMITS;
}
