//! Table of upstream servers.

use crate::format::{bytes, count, number, span};
use crate::model::UpstreamRow;
use crate::table::{Cell, Column, FILL, Row, Tone, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    name("GROUP", 12, 0, "upstream block"),
    name("SERVER", FILL, 0, "address"),
    name("STATE", 9, 0, "up, down, draining, unavail(able), unhealthy, checking"),
    figure("ACTIVE", 6, 0, "requests, tunnels and sessions under way"),
    figure("REQ/s", 6, 0, "requests or sessions a second"),
    figure("ERR/s", 6, 0, "failed attempts and responses 5xx a second"),
    figure("MEAN", 7, 0, "average time until the response is complete"),
    figure("99%", 7, 0, "99 % of the responses were complete no later"),
    figure("HEAD99", 7, 100, "99 % of the response heads were there no later"),
    figure("IN/s", 6, 100, "bytes a second from it"),
    name("KIND", 13, 110, "http or stream; backup"),
];

pub(super) fn row(row: &UpstreamRow) -> Row {
    let tone = match &*row.state {
        "up" => Tone::Good,
        "unavailable" | "unhealthy" => Tone::Bad,
        _ => Tone::Warning,
    };
    let backup = if row.is_backup { ", backup" } else { "" };
    // The word of the API, which is shorter.
    let state = if row.state == "unavailable" { "unavail" } else { &row.state };
    vec![
        Cell::text(&row.group),
        Cell::text(&row.peer),
        Cell::text(state).with(tone),
        Cell::number(row.active, count),
        Cell::number(row.requests, number),
        Cell::number(row.errors, number).bad_above_zero(),
        Cell::number(row.response_mean, span),
        Cell::number(row.response_p99, span),
        Cell::number(row.header_p99, span),
        Cell::number(row.received, bytes),
        Cell::text(format!("{}{backup}", row.protocol)),
    ]
}
