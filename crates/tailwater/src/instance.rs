//! The running server: what the main thread holds while loops serve.

use std::time::{Duration, Instant};

use tw_disk::Pool;
use tw_log::{Level, Sinks};
use tw_net::Addr;
use tw_rt::affinity::Affinity;
use tw_server::config_thread::{ConfigThread, Live};

use crate::conf::Source;
use crate::console::Console;
use crate::pid::PidFile;
use crate::sockets::Sockets;
use crate::workers::{Wanted, Workers};

/// How long a fast stop waits for loops. They need a few milliseconds, unless one hangs.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end waits for logs. A disk that takes longer loses their last lines.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// Everything that lives as long as the server.
pub(crate) struct Instance {
    pub(crate) mode: Mode,
    pub(crate) source: Source,
    pub(crate) console: Console,
    pub(crate) sinks: Sinks,
    pub(crate) config_thread: ConfigThread,
    pub(crate) generation: Live,
    pub(crate) sockets: Sockets,
    pub(crate) pools: Vec<Pool>,
    pub(crate) affinity: Affinity,
    pub(crate) workers: Workers,
    pub(crate) pid: Option<PidFile>,
}

/// How the server lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As its starter's child: under systemd, in a container, in a terminal.
    Foreground,
    /// On its own (`daemon on`).
    Background,
    /// In somebody's terminal for a while: without files of its own, and Ctrl-C lets requests finish.
    Session,
}

impl Instance {
    /// Whether connections are open.
    pub(crate) fn connections(&self) -> u64 {
        self.workers.connections()
    }

    /// The addresses it listens on.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Addr> {
        self.sockets.addresses()
    }

    /// Lets all loops leave, which end with their last connection, or after `worker_shutdown_timeout`. The sockets stay
    /// open for the next loops.
    pub(crate) fn release_loops(&mut self) {
        self.workers.quit(self.generation.main.shutdown_timeout);
    }

    /// Lets all loops leave, and closes the sockets: another server may have the addresses.
    pub(crate) fn quit(&mut self) {
        self.release_loops();
        self.close_sockets();
    }

    fn close_sockets(&mut self) {
        std::mem::take(&mut self.sockets).remove_files(&self.console);
    }

    /// Looks after loops that have ended.
    pub(crate) fn reap(&mut self) {
        let wanted =
            Wanted { generation: &self.generation, sockets: &self.sockets, affinity: &self.affinity };
        self.workers.reap(&wanted, &self.console);
    }

    /// Opens all logs again.
    pub(crate) fn reopen_logs(&self) {
        self.sinks.reopen();
    }

    /// Ends everything that still runs, and writes the logs to their end.
    pub(crate) fn end(mut self) {
        self.workers.stop(STOP_PATIENCE);
        self.close_sockets();
        drop(self.pid.take());
        self.console.say(Level::Notice, format_args!("exit"));
        // Lines that cannot be written in time were counted by their log; there is nobody left to tell.
        let _ = self.sinks.flush_and_close(Instant::now() + LOG_PATIENCE);
    }
}
