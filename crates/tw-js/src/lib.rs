//! Scripts: module `js` (nginx: njs). The engine runs in script processes, which this crate talks to; it never links the engine.
//!
//! ```text
//! raw, common      directives, modules and their sources       http_scripts   module of http
//! content, access, filter, script_variable                     places in which a function is called
//! request_call     one call for a request: operations are answered, effects applied
//! script_call      one call: sent, sent again if its process ends before it begins
//! connection, loop_scripts, process_links                      sockets to script processes
//! ```
//! A script gets nothing but what its own request may have. A process that uses too much time ends itself, one that does not answer is ended
//! by the master; the loop waits for neither.

mod access;
mod common;
mod connection;
mod content;
mod counters;
mod dictionary;
mod fetch_settings;
mod filter;
mod http_scripts;
mod imports;
mod limits;
mod loop_scripts;
mod operations;
mod process_links;
mod raw;
mod request_call;
mod request_scripts;
mod response_fields;
mod script_call;
mod script_set;
mod script_variable;
mod script_variables;
mod set_of_plan;
mod snapshot;

pub use common::{SCRIPT_USE, ScriptUse};
pub use http_scripts::HttpScripts;
pub use process_links::{ScriptLink, hand_over, silence_fd, take_silent};
