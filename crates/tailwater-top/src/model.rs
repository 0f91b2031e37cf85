//! Report of two snapshots of a server: levels of the newer one, and rates and latencies of the time between them.

mod caches;
mod change;
mod connections;
mod disks;
mod loops;
mod requests;
mod summary;
mod upstreams;

pub use caches::CacheRow;
pub use connections::ConnectionRow;
pub use disks::{DiskKind, DiskRow};
pub use loops::LoopRow;
pub use requests::RequestRow;
pub use summary::Summary;
pub use upstreams::UpstreamRow;

use change::Change;

use crate::source::Snapshot;

/// Everything that is shown of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Numbers of the whole process.
    pub summary: Summary,
    /// Event loops.
    pub loops: Vec<LoopRow>,
    /// Thread pools and devices.
    pub disks: Vec<DiskRow>,
    /// Caches.
    pub caches: Vec<CacheRow>,
    /// Upstream servers.
    pub upstreams: Vec<UpstreamRow>,
    /// The slowest requests of the last minute; `None` if the document does not have them.
    pub requests: Option<Vec<RequestRow>>,
    /// Connections by protocol.
    pub connections: Vec<ConnectionRow>,
}

impl Report {
    /// Report of `new`. `seconds` have passed since `old` was fetched. Rates are unknown without an earlier snapshot of the same
    /// process.
    pub fn new(old: Option<&Snapshot>, new: &Snapshot, seconds: f64) -> Self {
        let change = Change::new(old, new, seconds);
        let loops = loops::rows(&change);
        Self {
            summary: Summary::of(&change, &loops),
            loops,
            disks: disks::rows(&change),
            caches: caches::rows(&change),
            upstreams: upstreams::rows(&change),
            requests: requests::rows(new),
            connections: connections::rows(&change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    #[test]
    fn reports_of_odd_documents_never_panic() {
        let full = include_str!("../testdata/second.json");
        let first = parse(include_bytes!("../testdata/first.json")).unwrap();
        for (from, to) in [
            ("\"worker\"", "\"other\""),
            ("0.00001", "\"x\""),
            ("\"samples\":[[", "\"samples\":[[7],["),
            ("\"labels\":[\"protocol\",", "\"labels\":["),
            ("_seconds\"", "_odd\""),
            ("\"kind\"", "\"labels\""),
            ("1", "-1"),
            ("0", "9e300"),
        ] {
            let Ok(odd) = parse(full.replace(from, to).as_bytes()) else { continue };
            for old in [None, Some(&first), Some(&odd)] {
                for seconds in [0.0, -1.0, 1e-300, 1.0, f64::NAN] {
                    let _ = Report::new(old, &odd, seconds);
                }
            }
        }
    }

    #[test]
    fn restarted_server_has_no_rates_at_first() {
        let first = parse(include_bytes!("../testdata/first.json")).unwrap();
        let second = include_str!("../testdata/second.json");
        let before = Report::new(Some(&first), &parse(second.as_bytes()).unwrap(), 2.0);
        assert!(before.summary.requests.is_some() && before.loops.iter().all(|row| row.busy.is_some()));
        let start = "\"process_start_time_seconds\":{\"kind\":\"gauge\",\"labels\":[],\"samples\":[[[],";
        let restarted = second.replace(start, &format!("{start}9"));
        let after = Report::new(Some(&first), &parse(restarted.as_bytes()).unwrap(), 2.0);
        assert!(after.summary.requests.is_none() && after.loops.iter().all(|row| row.busy.is_none()));
    }
}
