//! Records of QUIC connections (`quic_log`): a file for each, written by the thread of a log. What does not fit into its ring is dropped
//! and counted there, and no error of a disk reaches a connection.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use tw_core::log::{OPENER, SinkRef};
use tw_log::{CacheConfig, Links, NamedFiles, Target};
use tw_quic::{IncomingConnection, RecordWriter};

/// Time without a record after which a file is closed, and after which its name is looked at again.
const FILE_TIMES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

tw_base::limits! {
    /// Limits of `quic_log`.
    pub(crate) const LIMITS;

    /// Files of a quic_log that are open at the same time.
    const RECORDS_OPEN_MAX: usize = 256, count, "the one without a record for longest is closed, and opened again for its next one";
}

/// `quic_log`: the directory of the files, and the log that writes them.
#[derive(Debug)]
pub struct QuicLog {
    directory: Vec<u8>,
    sink: SinkRef,
}

/// `quic_log` for one connection.
#[derive(Debug)]
pub struct ConnectionLog {
    log: Arc<QuicLog>,
    /// Number of the connection.
    number: u64,
}

impl QuicLog {
    /// Records in a directory, by the sink of its [`target`](Self::target).
    pub fn new(directory: Vec<u8>, sink: SinkRef) -> Self {
        Self { directory, sink }
    }

    /// Target of the sink for a directory.
    pub fn target(directory: &[u8]) -> Target {
        let [inactive, valid] = FILE_TIMES;
        Target::Files(NamedFiles {
            name: String::from_utf8_lossy(directory).into_owned(),
            cache: Some(CacheConfig { max: RECORDS_OPEN_MAX, inactive, min_uses: 1, valid }),
            opener: OPENER,
        })
    }

    /// Directory of the files.
    pub fn directory(&self) -> &[u8] {
        &self.directory
    }

    /// Log of the connection with this number.
    pub fn connection(self: &Arc<Self>, number: u64) -> ConnectionLog {
        ConnectionLog { log: self.clone(), number }
    }
}

impl ConnectionLog {
    /// Records a connection from now on.
    pub(super) fn record(self, incoming: &mut IncomingConnection) {
        let Self { log, number } = self;
        let Some(sink) = log.sink.sink().cloned() else { return };
        let mut name = String::new();
        for byte in incoming.original_destination() {
            // A string takes everything.
            let _ = write!(name, "{byte:02x}");
        }
        let path =
            [&log.directory[..], b"/", name.as_bytes(), format!("-{number}.sqlog").as_bytes()].concat();
        let write: RecordWriter = Box::new(move |records| {
            // Whatever has no place is counted by the sink.
            let _ = sink.push_to(&path, &log.directory, Links::Follow, records);
        });
        let unix = tw_rt::clock::unix();
        let unix = Duration::from_secs(unix.secs.unsigned_abs()) + Duration::from_millis(unix.msec.into());
        incoming.record(tw_rt::clock::now(), unix, write);
    }
}
