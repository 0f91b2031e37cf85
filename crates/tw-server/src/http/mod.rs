//! HTTP on the loops: from an accepted connection to a logged response.
//!
//! ```text
//! conn ─ head ─→ route ─ plan ─→ phases ─ response ─→ respond (filters, framing) ─→ send ─→ log ─→ conn
//! ```

pub mod agent;
pub mod body;
pub mod client;
pub mod coding;
mod decision;
pub(crate) mod entry;
pub mod files;
pub mod generation;
pub mod h1;
pub mod log_file;
pub mod phases;
pub mod plan;
mod protocol;
mod realpath_root;
pub mod request;
pub mod request_body;
pub mod respond;
pub mod route;
mod session;
pub mod special;
pub mod spool;
pub mod subrequest;
pub mod variables;
pub mod wire;

pub use protocol::Http;
pub(crate) use protocol::LIMITS;
