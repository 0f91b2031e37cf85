//! Contract of an engine: a log that all nodes read in one order, and a store of small values.

use std::fmt;

use tw_base::Errno;

use crate::store::{Store, StoreSettings};

/// Failure of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The connection is gone or could not be made; the text says why.
    Lost(String),
    /// The engine refused the operation, with its words.
    Refused(String),
    /// A compare-and-set found another version.
    Conflict,
}

impl EngineError {
    /// Failure of a system call.
    pub(crate) fn io(call: &str, error: &std::io::Error) -> Self {
        Self::Lost(match error.raw_os_error() {
            Some(_) => format!("{call} failed ({})", Errno::from(error)),
            None => format!("{call} failed ({error})"),
        })
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => f.write_str(why),
            Self::Refused(why) => write!(f, "the engine refuses: {why}"),
            Self::Conflict => f.write_str("the value has changed"),
        }
    }
}

impl std::error::Error for EngineError {}

/// State of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogState {
    /// Identity of the log; another one after it was made anew.
    pub identity: String,
    /// Sequence of the first record that is left; one more than the last if none is.
    pub first: u64,
    /// Sequence of the last record that ever was; 0 before the first one.
    pub last: u64,
}

/// Record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Place in the log, from 1.
    pub sequence: u64,
    /// Time at which the engine took it, in nanoseconds since 1970, or another number that tells it from others with the same sequence.
    pub time_ns: u64,
    /// Number of records behind it that are still to be read.
    pub pending: u64,
    /// Content; `None` if it is larger than any of ours.
    pub payload: Option<Vec<u8>>,
}

/// Ordered log.
pub trait Log {
    /// Reader of records in order.
    type Reader: LogReader;

    /// State of the log.
    fn state(&self) -> impl Future<Output = Result<LogState, EngineError>>;

    /// Time of the record with this sequence in nanoseconds since 1970; `None` if it is not there.
    fn record_time(&self, sequence: u64) -> impl Future<Output = Result<Option<u64>, EngineError>>;

    /// Appends a record and returns its sequence. The same `id` again, soon after, adds nothing.
    fn append(&self, id: &str, payload: &[u8]) -> impl Future<Output = Result<u64, EngineError>>;

    /// Reads records from this sequence on, and those that follow.
    fn read_from(&self, sequence: u64) -> impl Future<Output = Result<Self::Reader, EngineError>>;
}

/// Reader of a log.
pub trait LogReader {
    /// The next records, in order. Waits until there are some.
    fn next(&mut self) -> impl Future<Output = Result<Vec<LogRecord>, EngineError>>;
}

/// Connection to an engine: the log, and stores that are opened by their settings.
pub trait Session: Log {
    /// Store of the engine.
    type Store: Store + 'static;

    /// Reader of announcements.
    type Announcements: AnnouncementReader;

    /// Opens a store, and creates it if it does not exist.
    fn open_store(&self, settings: &StoreSettings) -> impl Future<Output = Result<Self::Store, EngineError>>;

    /// Sends a message to all nodes that are connected now, with this one. Nothing is stored, it may be lost, and nothing waits for it.
    fn announce(&self, payload: &[u8]) -> Result<(), EngineError>;

    /// Reads announcements from now on. Those for which there is no room are lost.
    fn announcements(&self) -> impl Future<Output = Result<Self::Announcements, EngineError>>;
}

/// Reader of announcements.
pub trait AnnouncementReader {
    /// The next announcement. Waits until there is one.
    fn next(&mut self) -> impl Future<Output = Result<Vec<u8>, EngineError>>;
}

/// Engine that can be connected to.
pub trait Engine {
    /// Connection with log and stores.
    type Session: Session + 'static;

    /// Connects, and makes sure that the log exists.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, EngineError>>;

    /// Name and version of the server at the other end of a connection.
    fn server(&self, session: &Self::Session) -> String;
}
