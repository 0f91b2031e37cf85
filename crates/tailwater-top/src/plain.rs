//! Everything as plain text, for scripts and for pipes.

use std::fmt::Write as _;

use crate::app::App;
use crate::table::{FILL, Table};
use crate::theme::Theme;
use crate::views::{Pane, header};

/// Columns of the header, and from which on a table has all columns.
const WIDTH: u16 = 160;

/// Text of the header and of all tables, or of one table alone.
pub fn text(app: &App, only: Option<Pane>) -> String {
    let mut out = String::new();
    if let (Some(report), None) = (&app.report, only) {
        for line in header::lines(report, WIDTH, Theme::Plain) {
            put(&mut out, &line.to_string());
        }
    }
    for pane in Pane::ALL.into_iter().filter(|pane| only.is_none_or(|only| only == *pane)) {
        let Some(table) = app.table(pane) else { continue };
        if only.is_none() {
            // Writing into a String does not fail.
            let _ = writeln!(out, "\n{}", pane.title());
        }
        rows(&table, &mut out);
    }
    out
}

/// Headings and rows; the columns are as wide as their texts, and nothing is cut off.
fn rows(table: &Table, out: &mut String) {
    let layout = table.layout(WIDTH);
    let widths = layout.iter().map(|(at, width)| {
        let texts = table.rows.iter().filter_map(|row| row.get(*at)).map(|cell| cell.text.chars().count());
        let widest = texts.max().unwrap_or_default().max(table.columns[*at].title.len());
        let least = if table.columns[*at].width == FILL { 0 } else { usize::from(*width) };
        (*at, u16::try_from(widest.max(least)).unwrap_or(u16::MAX))
    });
    let widths: Vec<_> = widths.collect();
    let line = |row| {
        let texts = table.texts(row, &widths).into_iter().map(|(text, ..)| text);
        texts.collect::<Vec<_>>().join(" ")
    };
    put(out, &line(None));
    if table.rows.is_empty() {
        put(out, table.empty);
    }
    for row in &table.rows {
        put(out, &line(Some(row)));
    }
}

fn put(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}
