//! The kernel of running: what a server is made of, whatever protocol it speaks.
//!
//! Nothing here knows a protocol. What decides about clients is written against a [`Session`](session::Session); what serves
//! them on the loops is an [`Application`](event_loop::Application).
//!
//! **A loop** is a [`LoopCore`](event_loop::LoopCore): connections, counters, buffers, the settings of the process. Each protocol has its state beside
//! it and its own generation; a connection goes to the protocol that owns its listening address. A listening socket is known by its address and its kind,
//! because TCP 443 and UDP 443 are two.
//!
//! **Loading** is a walk over the tree ([`load`]): `main`, `events`, diagnostics. The block of a protocol reads and resolves itself.
//!
//! **A module of every protocol** (`map`, `geo`, `limit_conn`, `access`, `log` …) is written against `Session`: an address, variables, a log. It adds an
//! `AccessCheck` or a `SessionLogger` to the plan. Each protocol registers it with one line in its list (`tw-modules`).

pub mod access_check;
pub mod config_thread;
pub mod event_loop;
pub mod generation;
pub mod host_names;
pub mod load;
pub mod log;
pub mod metrics;
pub mod module;
pub mod pools;
pub mod process;
pub mod reach;
pub mod regex;
pub mod reloaded_file;
pub mod server_names;
pub mod session;
pub mod session_meter;
pub mod shared_objects;
#[cfg(test)]
mod testing;
pub mod vars;

/// The version of nginx whose configuration, variables and texts these are: `$nginx_version`, `-v`.
pub const NGINX_VERSION: &str = "1.31.5";

tw_base::limits! {
    /// Limits of what a server of any protocol has.
    pub const LIMITS;

    section "connections and loops";
    use process::LIMITS;
    use event_loop::LIMITS;

    section "request processing";
    use regex::LIMITS;
    use vars::LIMITS;

    section "disks and files";
    use pools::LIMITS;

    section "logs and the configuration";
    use load::LIMITS;

    section "metrics and the status page";
    use metrics::LIMITS;
}
