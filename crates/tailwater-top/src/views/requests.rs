//! Table of the slowest requests of the last minute.

use crate::format::{age, span};
use crate::model::RequestRow;
use crate::table::{Cell, Column, FILL, Key, Row, Tone, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    figure("TIME", 7, 0, "from the first byte to the end of the response"),
    figure("DISK", 7, 0, "part of it in which the request waited for the disk"),
    figure("STATUS", 6, 0, "status of the response"),
    figure("AGO", 6, 0, "time since its end"),
    name("CLIENT", 15, 0, "address of the client"),
    name("PROTOCOL", 8, 100, "protocol"),
    figure("LOOP", 4, 110, "number of the event loop"),
    name("REQUEST", FILL, 0, "method, host and path"),
];

pub(super) fn row(row: &RequestRow) -> Row {
    let request = &row.request;
    let disk = Cell::number(Some(request.disk_wait), span);
    let tone = match request.status {
        500.. => Tone::Bad,
        400.. => Tone::Warning,
        _ => Tone::Plain,
    };
    let (method, path) = request.request.split_once(' ').unwrap_or((&request.request, ""));
    vec![
        Cell::number(Some(request.time), span),
        // The disk took most of the time.
        if request.disk_wait > request.time / 2.0 { disk.with(Tone::Warning) } else { disk },
        Cell { key: Key::Number(request.status as f64), ..Cell::text(request.status.to_string()) }.with(tone),
        Cell::number(row.age, age),
        Cell::text(&request.client),
        Cell::text(&request.protocol),
        Cell::text(request.worker.to_string()),
        Cell::text(format!("{method} {}{path}", request.host)),
    ]
}
