//! Script process of the server: JavaScript as nginx's njs has it, in a process without rights beside the worker.
//!
//! ```text
//! builtin    JavaScript of the API: request, session, Buffer, fetch, …
//! native     functions in Rust that it calls
//! realm      one context: memory, modules, calls
//! session    one loop: its scripts, contexts and calls, without I/O
//! link       the socket of one loop
//! watch      CPU time of callbacks
//! serve      the process: sockets and timers
//! sandbox    rights that the process gives up before the first script
//! ```
//! A context is a QuickJS runtime of its own, so that its memory has a limit of its own. It serves one request at a time and is used again
//! afterwards (`js_context_reuse`). A script that asks something that JavaScript answers at once, such as a variable, makes the process wait
//! for the answer; whatever arrives meanwhile stays in a queue.

mod check_link;
mod console;
mod exception;
mod link;
mod native;
mod realm;
mod sandbox;
mod serve;
mod session;
mod state;
mod watch;

pub use console::run_file;
pub use serve::{check, serve, serve_confined};

tw_base::limits! {
    /// Limits of the script process.
    pub const LIMITS;

    use state::LIMITS;
    use session::LIMITS;
    use native::LIMITS;
    use realm::LIMITS;
    use watch::LIMITS;
    use sandbox::LIMITS;
}
