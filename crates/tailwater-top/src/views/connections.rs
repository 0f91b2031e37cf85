//! Table of connections by protocol.

use crate::format::{count, percent};
use crate::model::ConnectionRow;
use crate::table::{Cell, Column, FILL, Row, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    name("PROTOCOL", 10, 0, "HTTP/1.1 includes connections that have not chosen yet; stream: TCP and UDP"),
    figure("OPEN", 8, 0, "open connections"),
    figure("SHARE", 6, 0, "share of all connections"),
    name("", FILL, 0, ""),
];
/// Characters of the longest bar.
const BAR: f64 = 40.0;

pub(super) fn row(row: &ConnectionRow) -> Row {
    let bar = "|".repeat((row.share.unwrap_or_default().clamp(0.0, 1.0) * BAR).round() as usize);
    vec![
        Cell::text(row.protocol),
        Cell::number(row.open, count),
        Cell::number(row.share, percent),
        Cell::text(bar),
    ]
}
