//! `tailwater-top`: a running server in a terminal, live. A program of its own, because the server needs no terminal.
//!
//! ```text
//! source    fetches a document of the status page, of `metrics` or of the control API, and parses it into a Snapshot
//! model     differences of two snapshots: rates and latencies of the time between them, as a Report
//! views     a table for each part of a report
//! screen    header, tables and keys in the cells of a terminal; plain writes the same as text
//! app       selected table, order, filter, pause; changed by keys and snapshots only
//! terminal  the loop: keys and new snapshots in, screens out
//! ```
//! Everything but `source::fetch`, `source::trust` and `terminal` is free of I/O and of clocks, and is tested with recorded documents. What a server
//! answers is not trusted: unknown, missing and odd values show as missing ones.

pub mod app;
pub mod format;
pub mod keys;
pub mod model;
pub mod options;
pub mod plain;
pub mod screen;
pub mod source;
pub mod table;
pub mod terminal;
pub mod theme;
pub mod views;
