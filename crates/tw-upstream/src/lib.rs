//! Groups of servers, and which of their peers gets the next request: for HTTP and for streams alike.
//!
//! ```text
//! Group::begin ─► Attempt ─► Group::select ─► Lease ─► done(Outcome) ─► Verdict
//!                    ▲           │ NoPeer                    │ Failed, and tries are left
//!                    │           └─► wait (queue), or 502    │
//!                    └───────────────────────────────────────┘
//! ```
//!
//! No protocol, no I/O and no clock: time is an argument, in milliseconds of a clock that never goes back, and so are random
//! numbers. A [`Group`] is shared by all loops behind an `Arc`. The sequences of all methods are nginx's; `tests/nginx.rs`
//! has what nginx did with the same servers.
//!
//! What changes with requests is the [`State`] of a peer, in atomics; what an operator or DNS changes is the [`List`], which is
//! replaced as a whole. A reload makes another group with the states of the old one.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod attempt;
mod balance;
mod group;
mod health;
mod lease;
mod list;
mod peer;
mod rng;
mod server;
mod session;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod wait;

pub use attempt::{Attempt, Key};
pub use balance::{LeastTime, Method, Time, Two, Wants};
pub use group::{Exists, Group, NoPeer, Unknown};
pub use health::{CheckParams, Checker, Next};
pub use lease::{Lease, Outcome, Verdict};
pub use list::List;
pub use peer::{Peer, PeerId, ServerId, Status};
pub use rng::Rng;
pub use server::{Address, Admin, Params, Place, Server};
pub use session::{Learned, Sessions};
pub use snapshot::{Checks, GroupSnapshot, PeerSnapshot};
pub use state::{Counters, Health, State};
pub use wait::Waiting;

/// What bounds a group that DNS can make large.
pub const LIMITS: &[tw_base::Limit] = balance::LIMITS;
