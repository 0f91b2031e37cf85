//! Messages between master and worker process.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailwater_commands::cli::Purge;
use tailwater_commands::configuration::conf::Source;
use tailwater_commands::configuration::user::Identity;
use zeroize::Zeroize;

use crate::sockets::SocketsOf;

/// From the master.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerCommand {
    /// Serve by this configuration from now on. Comes with the descriptors of the sockets and of the logs. Is answered.
    Configure(Box<Configure>),
    /// Accept connections. Until a started process receives this, it has served no client, and may be killed.
    Begin,
    /// Go on in these log files. Comes with their descriptors.
    Reopen(Vec<Vec<u8>>),
    /// Use these files in the place of those of the same names: a certificate, its key, and what opens it.
    Renew(Vec<Text>),
    /// Purge. Is answered with the number ([`WorkerReply::Purged`]).
    Purge(u64, Purge),
    /// Send the numbers of the process to the client of the control API whose connection comes with this message.
    SendMetrics,
    /// Send the state of the fleets to the client whose connection comes with this message.
    SendFleetStatus,
    /// Numbers of reloads, for metrics.
    Reloads {
        /// Configurations that were taken over.
        succeeded: u64,
        /// Configurations that were refused.
        failed: u64,
        /// True if the last one was refused.
        has_last_failed: bool,
        /// Time of the last one that was taken over, in seconds since 1970.
        last_success: u64,
    },
    /// Be known by this identity to other worker processes, and take the datagrams that arrive on the descriptor with this message.
    JoinProcesses(u32),
    /// Pass datagrams to the worker process with this identity on the descriptor with this message. Without one, the process has ended.
    AddProcess(u32),
    /// Receive the datagrams of connections, or leave that to another worker process.
    ReceiveDatagrams(bool),
    /// Use a script process, which is at the other ends of the descriptors with this message, one for each of these loops.
    AddScriptProcess {
        /// Set of script processes. Those of a set replace those of the sets before.
        set: u64,
        /// Number of the process.
        pid: u32,
        /// Numbers of the loops.
        loops: Vec<usize>,
    },
    /// Take over the sessions over datagrams that arrive on the descriptor with this message.
    TakeSessions,
    /// Hand over sessions over datagrams on the descriptor with this message, when [`Quit`](Self::Quit) follows.
    HandOverSessions,
    /// Accept nothing more, finish what is going on, end.
    Quit {
        /// True if another process receives from the same sockets now, and passes nothing on.
        is_replaced: bool,
    },
    /// End now.
    Stop,
}

/// A configuration and what the master has opened for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Configure {
    /// Source of the configuration.
    pub(crate) source: Source,
    /// Every file that was read.
    pub(crate) files: Vec<Text>,
    /// Names of the files of data, whose descriptors come first.
    pub(crate) data: Vec<Vec<u8>>,
    /// Sockets of each listening address, in the order of the descriptors, which follow.
    pub(crate) sockets: Vec<SocketsOf>,
    /// Names of the log files, whose descriptors follow.
    pub(crate) logs: Vec<Vec<u8>>,
    /// Keys of session tickets that were in use before.
    pub(crate) keys: Keys,
    /// User and group to become.
    pub(crate) identity: Option<Identity>,
    /// Set if standard error is not read.
    pub(crate) is_daemon: bool,
    /// Interval of the message that all loops turn ([`WorkerReply::Turning`]).
    pub(crate) sign_interval: Duration,
}

/// Keys of session tickets, as one worker process gives them to the next. The master only keeps them. Wiped at the end.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keys(#[serde(with = "serde_bytes")] pub(crate) Vec<u8>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A file of the configuration. Wiped at the end: it may be a private key.
#[derive(Serialize, Deserialize)]
pub(crate) struct Text {
    /// As the reader asks for it.
    #[serde(with = "serde_bytes")]
    pub(crate) name: Vec<u8>,
    /// All of it.
    #[serde(with = "serde_bytes")]
    pub(crate) text: Vec<u8>,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes", String::from_utf8_lossy(&self.name), self.text.len())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.text.zeroize();
    }
}

/// From the worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerReply {
    /// The configuration is served; by a process that was just started, as soon as it is told to begin.
    Serving,
    /// The order was refused; everything is as before.
    Refused {
        /// The line of the log.
        message: String,
        /// Advice to the operator.
        hint: Option<String>,
    },
    /// Result of the purge with this number: `is_done` if the entries are not used again, and a text to print.
    Purged { number: u64, is_done: bool, said: Option<String> },
    /// The order needs more open files than this process may have. Everything is as before.
    Full,
    /// Every loop has turned lately.
    Turning,
    /// Tickets are sealed with these keys from now on: for the process that comes next.
    Keys(Keys),
    /// A script process does not answer: it has to be ended.
    ScriptProcessHangs(u32),
    /// The process accepts nothing more, though no order asked for that: a signal did.
    Leaving,
}
