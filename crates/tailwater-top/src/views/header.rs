//! Lines above the tables: the process, its load and what is wrong with it.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::format::{UNKNOWN, age, bytes, count, number, percent, span, text_if_known};
use crate::model::{LoopRow, Report, Summary};
use crate::table::Tone;
use crate::theme::Theme;

/// Narrowest meter of a loop, with its number.
const METER_WIDTH: u16 = 36;
/// Most lines of meters; more loops than fit have one for their average.
const METER_LINES: usize = 4;

/// The lines for a terminal of this width. Longer ones are cut off by it.
pub fn lines(report: &Report, width: u16, theme: Theme) -> Vec<Line<'static>> {
    let summary = &report.summary;
    let mut lines = vec![title(summary, width, theme)];
    lines.extend(meters(&report.loops, width, theme));
    lines.push(traffic(summary, theme));
    lines.push(connections(report, theme));
    lines.push(health(summary, theme));
    lines
}

fn title(summary: &Summary, width: u16, theme: Theme) -> Line<'static> {
    let host = if summary.host.is_empty() { String::new() } else { format!(" on {}", summary.host) };
    let left = format!("tailwater {}{host}", summary.version);
    let right = format!(
        "up {}, configuration {}, memory {}",
        text_if_known(summary.uptime, age),
        text_if_known(summary.generation, count),
        text_if_known(summary.memory, bytes)
    );
    let gap = usize::from(width).saturating_sub(Span::raw(left.as_str()).width() + right.len()).max(2);
    Line::from(vec![Span::styled(left, theme.strong()), Span::raw(" ".repeat(gap)), Span::raw(right)])
}

/// A bar for each loop, or one for all of them.
fn meters(loops: &[LoopRow], width: u16, theme: Theme) -> Vec<Line<'static>> {
    let across = usize::from(width / METER_WIDTH).min(loops.len()).max(1);
    let own = usize::from(width) / across;
    let mut all: Vec<(String, Option<f64>)> =
        loops.iter().map(|row| (row.worker.clone(), row.busy)).collect();
    if all.len() > across * METER_LINES {
        let busy: Vec<f64> = loops.iter().filter_map(|row| row.busy).collect();
        let most = busy.iter().copied().reduce(f64::max);
        let mean = busy.iter().copied().reduce(|sum, busy| sum + busy).map(|sum| sum / busy.len() as f64);
        all = vec![(format!("{} loops", loops.len()), mean), ("busiest".to_owned(), most)];
    }
    let label = all.iter().map(|(label, _)| label.len()).max().unwrap_or_default().max(3);
    let lines = all.len().div_ceil(across);
    let line = |at: usize| {
        // Down and then to the right, as in htop.
        let column = (0..across).filter_map(|column| all.get(column * lines + at));
        Line::from(
            column
                .flat_map(|(text, busy)| meter(&format!("{text:>label$}"), *busy, own, theme))
                .collect::<Vec<_>>(),
        )
    };
    (0..lines).map(line).collect()
}

/// `  0[||||||       45%]`
fn meter(label: &str, busy: Option<f64>, width: usize, theme: Theme) -> Vec<Span<'static>> {
    let text = text_if_known(busy, percent);
    let room = width.saturating_sub(label.len() + 3);
    let filled = (busy.unwrap_or_default().clamp(0.0, 1.0) * room as f64).round() as usize;
    let filled = filled.min(room.saturating_sub(text.len() + 1));
    let blanks = room.saturating_sub(filled + text.len());
    let tone = match busy {
        Some(busy) if busy >= 0.9 => Tone::Bad,
        Some(busy) if busy >= 0.7 => Tone::Warning,
        _ => Tone::Good,
    };
    vec![
        Span::styled(label.to_owned(), theme.label()),
        Span::styled("[", theme.strong()),
        Span::styled("|".repeat(filled), theme.tone(tone)),
        Span::raw(format!("{}{text}", " ".repeat(blanks))),
        Span::styled("]", theme.strong()),
        Span::raw(" "),
    ]
}

fn traffic(summary: &Summary, theme: Theme) -> Line<'static> {
    let rate = |value| text_if_known(value, |value| format!("{}/s", number(value)));
    let byte_rate = |value| text_if_known(value, |value| format!("{}/s", bytes(value)));
    let bad = if summary.server_errors > Some(0.0) { theme.tone(Tone::Bad) } else { theme.strong() };
    labelled(
        theme,
        [
            ("Requests", rate(summary.requests), theme.strong()),
            ("4xx", rate(summary.client_errors), theme.strong()),
            ("5xx", rate(summary.server_errors), bad),
            ("Received", byte_rate(summary.received), theme.strong()),
            ("Sent", byte_rate(summary.sent), theme.strong()),
        ],
    )
}

fn connections(report: &Report, theme: Theme) -> Line<'static> {
    let summary = &report.summary;
    let mut parts = vec![("Connections", text_if_known(summary.connections, count), theme.strong())];
    for row in &report.connections {
        parts.push((row.protocol, text_if_known(row.open, count), theme.strong()));
    }
    parts.push((
        "Accepted",
        text_if_known(summary.accepted, |value| format!("{}/s", number(value))),
        theme.strong(),
    ));
    if summary.refused > Some(0.0) {
        parts.push(("Refused", text_if_known(summary.refused, count), theme.tone(Tone::Bad)));
    }
    labelled(theme, parts)
}

/// `Name: value` of each part.
fn labelled(theme: Theme, parts: impl IntoIterator<Item = (&'static str, String, Style)>) -> Line<'static> {
    let mut spans = Vec::new();
    for (name, text, style) in parts {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        spans.extend([Span::styled(format!("{name}: "), theme.label()), Span::styled(text, style)]);
    }
    Line::from(spans)
}

/// Faults, the worst first; else that there are none.
fn health(summary: &Summary, theme: Theme) -> Line<'static> {
    let mut faults = Vec::new();
    if !summary.hung.is_empty() {
        faults.push(format!("{} does not answer", summary.hung.join(", ")));
    }
    for (number, what) in [(summary.panics, "panics"), (summary.lines_dropped, "log lines lost")] {
        if let Some(number) = number.filter(|number| *number > 0.0) {
            faults.push(format!("{what}: {}", count(number)));
        }
    }
    if let Some(blocked) = summary.blocked.filter(|blocked| *blocked > 0.0) {
        faults.push(format!("loops were blocked {} times", count(blocked)));
    }
    let worst = summary.worst.as_ref().map(|(turn, cause)| format!("longest stall {}, {cause}", span(*turn)));
    if faults.is_empty() {
        let text = match summary.blocked {
            None => format!("Blocked loops: {UNKNOWN}"),
            Some(_) => "No loop was ever blocked".to_owned(),
        };
        let worst = worst.map(|worst| format!("; {worst}")).unwrap_or_default();
        return Line::from(vec![Span::styled(text, theme.tone(Tone::Good)), Span::raw(worst)]);
    }
    let worst = worst.map(|worst| format!("; {worst}")).unwrap_or_default();
    Line::from(vec![
        Span::styled("Attention: ", theme.tone(Tone::Bad)),
        Span::styled(faults.join("; "), theme.tone(Tone::Bad)),
        Span::raw(worst),
    ])
}
