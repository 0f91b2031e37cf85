//! HTTP on the loops: from an accepted connection to a logged response. A request goes down this list, and seldom back.
//!
//! ```text
//! greet    what comes before the first request: PROXY protocol, TLS
//! h1, h2   reading: bytes of a connection become the head of a request; sending is here, too, because it is the same wire
//! course   deciding: server, location, phases, until something answers
//! answer   answering: conditions, filters, ranges, bodies
//! files    what a loop knows of files
//! gateway  passing on: a server behind this one answers
//! cache    keeping: what such a server has answered
//! facts    what can be asked about a request: variables, its client
//! ```
//! Beside the rooms stands what all of them share: the request, its wire, its body, the plan it runs by.

mod answer;
pub mod cache;
mod course;
mod facts;
mod failure;
pub mod files;
pub mod gateway;
pub mod generation;
pub(crate) mod greet;
pub mod h1;
pub mod h2;
pub mod history;
mod linger;
mod log_file;
pub(crate) mod nobody;
mod pace;
mod pieces;
pub mod plan;
mod protocol;
pub mod request;
pub mod request_body;
mod served;
mod session;
pub mod side;
pub mod spool;
mod staples;
pub(crate) mod waiting;
pub mod wire;

pub use answer::{beside, body, coding, early_subrequest, respond, subrequest};
pub(crate) use course::{entry, post_action};
pub use course::{phases, route, special};
pub use facts::{agent, client, variables};
pub use protocol::Http;
pub(crate) use protocol::LIMITS;
