//! Memory of connections on which nothing happens, for protocols over TLS and QUIC.

use serde_json::{Value, json};

use super::Outcome;
use super::contestant::{Contestant, NGINX, OURS};
use super::exec::raise_open_files;
use super::report::{Report, Table, number};
use super::usage::Memory;

/// Connections opened and closed before the first measurement of memory.
pub(super) const WARM_COUNT: usize = 100;
/// Descriptors for this process and the server in addition to the connections.
const SPARE_FILES: u64 = 200;

/// Memory of one connection, in KiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryEach {
    dirty: f64,
    resident: f64,
}

impl MemoryEach {
    /// Difference between two looks at a server, of `count` connections.
    pub(super) fn between(before: &Memory, after: &Memory, count: usize) -> Self {
        let each = |before: u64, after: u64| (after as f64 - before as f64) / count as f64 / 1024.0;
        Self {
            dirty: each(before.private_dirty, after.private_dirty),
            resident: each(before.resident, after.resident),
        }
    }
}

/// Measures `contestants` one after the other, with `count` connections each; `kind` is the kind of connection in texts.
pub(super) fn run(
    report: &mut Report,
    title: &str,
    kind: &str,
    contestants: &[Contestant],
    count: usize,
    mut measure: impl FnMut(&Contestant) -> Outcome<MemoryEach>,
) -> Outcome {
    let files_max = raise_open_files()?;
    if count as u64 + SPARE_FILES > files_max {
        return Err(format!("only {files_max} open files are allowed: give fewer --idle").into());
    }
    let mut table = Table::new(title, &["KiB each", "resident KiB each"]);
    let mut numbers = Vec::new();
    for contestant in contestants {
        let MemoryEach { dirty, resident } = measure(contestant)?;
        table.row(&contestant.name, vec![number(dirty), number(resident)]);
        numbers.push(
            json!({ "name": contestant.name, "private_dirty_kib_each": dirty, "resident_kib_each": resident }),
        );
        if contestant.name == OURS {
            report.target(format!("memory of an idle {kind} ({NGINX} beside)"), dirty);
        }
    }
    report.case(&table, Value::Array(numbers));
    Ok(())
}
