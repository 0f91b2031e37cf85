//! Table of thread pools and devices.

use super::load_tone;
use crate::format::{UNKNOWN, count, number, percent, span};
use crate::model::{DiskKind, DiskRow};
use crate::table::{Cell, Column, FILL, Key, Row, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    name("KIND", 6, 0, "thread pool or device"),
    name("NAME", FILL, 0, "name of the pool; mount point and number of the device"),
    figure("THREADS", 7, 0, "busy threads of all threads"),
    figure("QUEUE", 6, 0, "jobs that wait for a thread"),
    figure("JOBS/s", 6, 0, "operations a second that a thread had to do"),
    figure("MEMORY", 6, 0, "share of operations that needed no thread"),
    figure("WAIT99", 7, 0, "99 % of the jobs waited no longer for a thread"),
    figure("TIME50", 7, 100, "half of the jobs took no longer once begun"),
    figure("TIME99", 7, 0, "99 % of the jobs took no longer once begun"),
    figure("HUNG", 4, 0, "operations that make no progress"),
    figure("REFUSED", 7, 100, "jobs refused since the start: full queue, or device that hangs"),
];

pub(super) fn row(row: &DiskRow) -> Row {
    let threads = row.threads.map(|(busy, all)| Cell {
        text: format!("{busy:.0}/{all:.0}"),
        key: Key::Number(busy),
        tone: load_tone(Some(busy / all)),
    });
    vec![
        Cell::text(match row.kind {
            DiskKind::Pool => "pool",
            DiskKind::Device => "device",
        }),
        Cell::text(&row.name),
        threads.unwrap_or_else(|| Cell { key: Key::None, ..Cell::text(UNKNOWN) }),
        Cell::number(row.queue, count),
        Cell::number(row.jobs, number),
        Cell::number(row.inline, percent),
        Cell::number(row.wait_p99, span),
        Cell::number(row.service_p50, span),
        Cell::number(row.service_p99, span),
        Cell::number(row.hung, count).bad_above_zero(),
        Cell::number(row.refused, count).bad_above_zero(),
    ]
}
