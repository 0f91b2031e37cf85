//! The application of the server: what its loops and its process carry, for all protocols.
//!
//! ```text
//! load ─► Config { process, http, stream, mail } ─ publish ─► Generation ─► App { http, stream, mail } on each loop
//! ```
//! A connection goes to the protocol that owns its listening address. Without a `stream` block there is nothing of `stream`, and so with `mail`.
//!
//! A protocol is added here: its blocks to [`load`], its configuration to [`Config`] and [`Generation`], its state on a
//! loop to [`App`]. The binary knows no protocol's types.

mod app;
mod config;
mod fleet;
mod generation;
mod load;

pub use app::App;
pub use config::Config;
pub use generation::Generation;
pub use load::{Modules, all_directives, all_metrics, load, structure_directives};
pub use tw_request::config::directories::{Directory, DirectoryPurpose};
pub use tw_request::config::location::TempPath;

/// Caches, for commands that concern all requests.
pub mod cache {
    pub use tw_cache::Purge;
    pub use tw_http_cache::{Cache, PURGES_MAX, PurgeOutcome, PurgeScope};
}

/// Explanation of the routing of one request, or of one session.
pub mod explain {
    pub use tw_mail::dialogue::MailProtocol;
    pub use tw_mail::explain::MailToExplain;
    pub use tw_phases::phases::explain::{Explanation, Line, RequestToExplain};
    pub use tw_request::client::Scheme;
    pub use tw_stream::explain::{ExplainedProtocol, SessionToExplain};
}
