//! Stub resolver of the event loops: names to addresses, without blocking.
//!
//! ```text
//! lookup ─► cache of all loops ─► fresh: answered
//!                │ no, or stale
//!                ▼
//!           flight: one query for all waiters ─► tries: next server, and when
//!                │                               └─► exchange: UDP, then TCP if need be
//!                ▼
//!           the cache, and all waiters
//! ```
//!
//! The parts without I/O and clock are `wire` (queries, and matching responses to them), `answer` (interpretation of
//! responses), `cache` (lifetimes) and `servers` (selection of the next server). `exchange` and `flight` run on the
//! loop that looks a name up. Only `system` opens files, `/etc/resolv.conf` and `/etc/hosts`, and never on a loop;
//! their rules are in `search`.

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
pub use error::{ResolveError, ResolveFailure};
pub use hosts::Hosts;
pub use name::Name;
pub use resolv_conf::ResolvConf;
pub use resolver::{Addresses, Families, Resolver, Services, Settings, Target};
pub use stats::Stats;
pub use system::{NameService, Refresh, SystemFiles, SystemResolver};

tw_base::limits! {
    /// Limits of everything here that a peer can fill.
    pub const LIMITS;

    section "DNS";
    use answer::LIMITS;
    use wire::LIMITS;
    use cache::LIMITS;
    use servers::LIMITS;
    use exchange::LIMITS;
    use flight::LIMITS;
}
