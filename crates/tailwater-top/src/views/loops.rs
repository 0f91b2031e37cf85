//! Table of event loops.

use super::load_tone;
use crate::format::{count, number, percent, span};
use crate::model::LoopRow;
use crate::table::{Cell, Column, FILL, Row, Tone, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    name("LOOP", 4, 0, "number of the event loop"),
    figure("BUSY", 6, 0, "share of the time in which it was not waiting for events"),
    figure("REQ/s", 6, 0, "requests a second"),
    figure("CONN", 6, 0, "open connections"),
    figure("TURN99", 7, 100, "99 % of its turns were not longer"),
    figure("LONGEST", 7, 0, "its longest turn since it began"),
    figure("STALLS", 6, 0, "turns longer than stall_threshold since the start"),
    figure("BLOCKED", 7, 0, "those of them in which it was asleep in the kernel"),
    figure("FAULTS", 6, 100, "pages that it had to wait for a disk for"),
    name("RECENT STALL", FILL, 0, "longest that is remembered: time, cause, operation, task"),
];

pub(super) fn row(row: &LoopRow) -> Row {
    let stalls = Cell::number(row.stalls, count);
    let stalls = if row.stalls > Some(0.0) { stalls.with(Tone::Warning) } else { stalls };
    vec![
        Cell::text(&row.worker),
        Cell::number(row.busy, percent).with(load_tone(row.busy)),
        Cell::number(row.requests, number),
        Cell::number(row.connections, count),
        Cell::number(row.turn_p99, span),
        Cell::number(row.longest, span),
        stalls,
        Cell::number(row.blocked, count).bad_above_zero(),
        Cell::number(row.faults, count).bad_above_zero(),
        Cell::text(if row.cause.is_empty() { "-" } else { &row.cause }),
    ]
}
