//! Scripts: module `js` (nginx: njs). The engine runs in script processes, which this crate talks to; it never links the engine.
//!
//! ```text
//! directives, raw, common, block_scripts      directives, modules and their sources
//! http_scripts, stream_scripts     modules of http and stream
//! content, access, filter, session_phase, session_filter, script_variable, after_response      places in which a function is called
//! request_call, session_call       one call for a request or session: operations are answered, effects applied
//! script_call      one call: sent, sent again if its process ends before it begins
//! connection, loaded_scripts, loop_scripts, process_links      sockets to script processes
//! ```
//! A script gets nothing but what its own request may have. A process that uses too much time ends itself, one that does not answer is ended
//! by the master; the loop waits for neither.

mod access;
mod after_response;
mod block_scripts;
mod block_variables;
mod call_report;
mod call_state;
mod common;
mod connection;
mod content;
mod counters;
mod dictionary;
mod directives;
mod fetch_settings;
mod filter;
mod held_contexts;
mod http_periodic;
mod http_scripts;
mod http_session;
mod imports;
mod limits;
mod loaded_scripts;
mod loop_scripts;
mod operations;
mod outgoing;
mod periodic;
mod process_links;
mod raw;
mod request_call;
mod request_scripts;
mod response_fields;
mod script_call;
mod script_session;
mod script_set;
mod script_variable;
mod script_variables;
mod sent_body;
mod session_call;
mod session_exit;
mod session_filter;
mod session_phase;
mod set_of_plan;
mod silence;
mod snapshot;
mod stream_periodic;
mod stream_scripts;
mod stream_session;

pub use common::{SCRIPT_USE, ScriptUse};
pub use http_scripts::HttpScripts;
pub use process_links::{ScriptLink, hand_over, silence_fd, take_silent};
pub use stream_scripts::StreamScripts;
