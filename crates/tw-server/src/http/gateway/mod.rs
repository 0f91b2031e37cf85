//! Gateways: a request goes to a server behind this one, and its response comes back. One engine for all languages that
//! upstream servers speak.
//!
//! ```text
//! recall: the body of the request, what a cache has
//! Order ─► exchange: a peer of the group ─► link: idle or new (secure) ─► sending ┐   answer: the head as the client gets it
//!            ▲                                                 codec ◄───┴─► body: pulled, or read ahead of a slow client
//!            └──────────────── fault: the next peer ──────────────┘         tunnel: both ways, after an upgrade
//! ```
//! Requests in HTTP/2 share connections (`trunk`). Beside requests, `health` asks peers whether they are well.

mod answer;
pub mod attempts;
mod backlog;
pub mod bind;
mod body;
pub mod codec;
pub mod directives;
pub(crate) mod exchange;
mod fault;
pub mod health;
pub mod idle;
pub(crate) mod inquiry;
mod link;
pub mod names;
mod pace;
mod recall;
pub(crate) mod resolve;
pub mod secure;
mod sending;
pub mod settings;
pub mod sticky;
pub mod store;
pub mod trunk;
mod tunnel;
pub mod waiting;
pub mod words;

pub use exchange::{Group, Made, Order, Passed, Remake, Rewrite, pass};
pub use fault::{Fault, Stage};
pub use recall::{CONDITIONAL, read_body, recall};
pub use settings::Gateway;
