//! The command line of `tailwater`, the commands that are no server, and what they share with one: the texts of a configuration
//! and the things that it names, and messages.
//!
//! ```text
//! cli: the words ─► commands: what ends by itself, or needs no configuration file ─► server: what they need of master and worker
//!                       ├─► configuration: the texts, and what they name
//!                       └─► output: messages
//! ```
//! Master and worker process are in the program `tailwater`, which hands them over as a [`Server`](server::Server).

pub mod cli;
pub mod commands;
pub mod configuration;
pub mod options;
pub mod output;
pub mod server;
