//! Table of caches.

use super::load_tone;
use crate::format::{bytes, count, number, percent};
use crate::model::CacheRow;
use crate::table::{Cell, Column, FILL, Row, figure, name};

pub(super) const COLUMNS: &[Column] = &[
    name("CACHE", FILL, 0, "name of its keys_zone"),
    figure("ENTRIES", 7, 0, "stored responses"),
    figure("SIZE", 6, 0, "bytes of its files"),
    figure("LIMIT", 6, 0, "max_size"),
    figure("FULL", 5, 0, "share of the limit"),
    figure("REQ/s", 6, 0, "requests a second"),
    figure("HIT", 5, 0, "share of responses that came from the cache"),
    figure("HIT ALL", 7, 0, "the same since the start"),
    figure("FILLING", 7, 0, "responses that are being fetched"),
    figure("EVICT/s", 7, 100, "responses a second that were removed to make room"),
    figure("FAILURES", 8, 100, "failures of its disk since the start"),
];

pub(super) fn row(row: &CacheRow) -> Row {
    let full = row.size.zip(row.limit).map(|(size, limit)| size / limit);
    vec![
        Cell::text(&row.name),
        Cell::number(row.entries, count),
        Cell::number(row.size, bytes),
        Cell::number(row.limit, bytes),
        Cell::number(full, percent).with(load_tone(full)),
        Cell::number(row.requests, number),
        Cell::number(row.hit_ratio, percent),
        Cell::number(row.total_hit_ratio, percent),
        Cell::number(row.filling, count),
        Cell::number(row.evicted, number),
        Cell::number(row.failures, count).bad_above_zero(),
    ]
}
