//! Names to addresses, without waiting: the stub resolver of the loops.
//!
//! ```text
//! lookup ─► cache of all loops ─► fresh: answered
//!                │ no, or stale
//!                ▼
//!           flight: one question, asked once for all who wait ─► tries: which server next, and when
//!                │                                                  └─► exchange: UDP, then TCP if need be
//!                ▼
//!           the cache, and everybody who waits
//! ```
//!
//! What has no I/O and no clock is in `wire` (questions and what is an answer to them), `answer` (what an answer says),
//! `cache` (what is kept, for how long) and `servers` (who is asked next). `exchange` and `flight` run on the loop that
//! asks. Only `system` opens files, `/etc/resolv.conf` and `/etc/hosts`, and never on a loop; the rules that they stand for
//! are in `search`.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod answer;
mod cache;
mod error;
mod exchange;
mod flight;
mod hosts;
mod name;
mod resolv_conf;
mod resolver;
mod search;
mod servers;
mod stats;
mod system;
pub mod wire;

pub use answer::{Reply, Service};
pub use error::{NotResolved, ResolveError};
pub use hosts::Hosts;
pub use name::Name;
pub use resolv_conf::ResolvConf;
pub use resolver::{Addresses, Families, Resolver, Services, Settings, Target};
pub use stats::Stats;
pub use system::{NameService, Refresh, SystemFiles, SystemResolver};

/// What bounds everything here that a peer can fill.
pub const LIMITS: &[&[tw_base::Limit]] =
    &[answer::LIMITS, wire::LIMITS, cache::LIMITS, servers::LIMITS, exchange::LIMITS, flight::LIMITS];
