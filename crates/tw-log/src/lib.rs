//! Logs that never block an event loop.
//!
//! A line is copied into the bounded ring of its [`Sink`]. One writer thread per sink takes whole batches from the
//! ring and makes every system call on the log. When the log cannot keep up, lines are dropped, counted and reported;
//! the logging thread never waits. [`ErrorLog`] makes nginx's error lines for any number of sinks, [`time`] the times
//! of both logs, and [`escape`] nginx's access log escapes. A sink writes to its [`Target`].
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::{Duration, Instant};
//! use tw_log::{ErrorLog, Level, SinkConfig, Sinks, error};
//!
//! let sinks = Sinks::new();
//! let sink = sinks.open(Path::new("logs/error.log"), SinkConfig::default())?;
//! let log = ErrorLog::new(vec![(sink, Level::Error)]);
//! sinks.report_to(log.clone());
//! sinks.start()?; // after the last fork; from here on, each sink has its thread
//!
//! error!(log, *7, "open() \"{}\" failed", "/srv/a"); // 2026/11/20 11:00:00 [error] 1#2: *7 open() "/srv/a" failed
//!
//! sinks.reopen(); // SIGUSR1
//! let _ = sinks.flush_and_close(Instant::now() + Duration::from_secs(5));
//! # Ok::<(), tw_log::OpenError>(())
//! ```

mod commands;
mod context;
mod error_log;
pub mod escape;
mod files;
mod frame;
mod gzip;
mod json_line;
mod level;
mod memory;
mod open_error;
mod output;
mod ring;
mod sink;
mod sinks;
mod syslog;
mod target;
mod text_line;
pub mod time;
mod writer;

tw_base::limits! {
    /// The limits kept here, for documents.
    pub const LIMITS;

    section "logs and the configuration";
    use ring::LIMITS;
    use text_line::LIMITS;
    use json_line::LIMITS;
}

pub use commands::CloseResult;
pub use context::{ContextText, ContextVisitor, LineContext};
pub use error_log::{ErrorLog, ErrorTarget, LineFormat};
pub use json_line::JSON_LINE_MAX;
pub use level::Level;
pub use memory::SIZE_MIN as MEMORY_SIZE_MIN;
pub use open_error::OpenError;
pub use ring::{PushResult, RING_SIZE_DEFAULT, RING_SIZE_MIN};
pub use sink::{Batch, Counts, Sink, SinkConfig, open_log};
pub use sinks::Sinks;
pub use syslog::{Facility, SyslogHead};
pub use target::{CacheConfig, Links, Memory, NamedFiles, OpenFailure, Opener, SyslogServer, Target};
pub use text_line::{LINE_MAX, Text};
