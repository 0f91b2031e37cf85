//! One screen: header, names of the tables, the selected table, those after it as far as there is room, and the keys.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::app::{App, Contact};
use crate::format::age;
use crate::keys::Mode;
use crate::options::KEYS;
use crate::table::{Side, Table, Tone, fit};
use crate::theme::Theme;
use crate::views::{Pane, header};

/// Least lines of a further table: title, headings and a row, after an empty line.
const TABLE_LINES_MIN: u16 = 4;

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, app: &mut App, theme: Theme) {
    let area = frame.area();
    let mut canvas = Canvas { buffer: frame.buffer_mut(), area, line: 0, end: area.height.saturating_sub(1) };
    if app.shows_help {
        help(&mut canvas, app.pane, theme);
    } else {
        numbers(&mut canvas, app, theme);
    }
    canvas.last(keys(app, theme));
}

/// Header and tables.
fn numbers(canvas: &mut Canvas<'_>, app: &mut App, theme: Theme) {
    match &app.report {
        Some(report) => {
            for line in header::lines(report, canvas.area.width, theme) {
                canvas.put(line);
            }
        }
        None => canvas.put(Line::from(format!("tailwater-top: {}", app.url))),
    }
    if let Some((text, tone)) = contact(app) {
        canvas.put(Line::styled(text, theme.tone(tone)));
    }
    if app.report.is_some() {
        canvas.put(Line::default());
        canvas.put(tabs(app.pane, theme));
        tables(canvas, app, theme);
    }
}

/// Lines of a screen, from top to bottom.
struct Canvas<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    /// Next line.
    line: u16,
    /// Line after the last one that may be used.
    end: u16,
}

impl Canvas<'_> {
    /// Puts the next line, if there is room.
    fn put(&mut self, line: Line<'_>) {
        if self.line < self.end {
            self.put_at(self.line, &line);
            self.line += 1;
        }
    }

    /// Puts the last line of the screen.
    fn last(&mut self, line: Line<'_>) {
        if self.area.height > 0 {
            self.put_at(self.area.height - 1, &line);
        }
    }

    fn put_at(&mut self, at: u16, line: &Line<'_>) {
        self.buffer.set_line(self.area.x, self.area.y + at, line, self.area.width);
    }

    fn room(&self) -> u16 {
        self.end.saturating_sub(self.line)
    }
}

/// State of the server, if it is not as usual.
fn contact(app: &App) -> Option<(String, Tone)> {
    if app.is_paused {
        return Some(("Paused; p goes on".to_owned(), Tone::Warning));
    }
    match &app.contact {
        Contact::None => Some(("Waiting for the first answer".to_owned(), Tone::Plain)),
        Contact::Fine => None,
        Contact::Restarted => Some(("The server has been restarted".to_owned(), Tone::Warning)),
        Contact::Reloaded => Some(("The server has a new configuration".to_owned(), Tone::Good)),
        Contact::Lost { since, now, reason } => {
            Some((format!("No answer for {}: {reason}", age(now - since)), Tone::Bad))
        }
    }
}

fn tabs(selected: Pane, theme: Theme) -> Line<'static> {
    let tab = |pane: Pane| {
        let style = if pane == selected { theme.selected() } else { Style::new() };
        // The brackets mark the selected tab even without colours and reversed text, as on paper.
        let text =
            if pane == selected { format!("[{}]", pane.title()) } else { format!(" {} ", pane.title()) };
        Span::styled(text, style)
    };
    Line::from(Pane::ALL.map(tab).to_vec())
}

/// The selected table, and those after it.
fn tables(canvas: &mut Canvas<'_>, app: &mut App, theme: Theme) {
    let Some(table) = app.table(app.pane) else { return };
    let page = usize::from(canvas.room().saturating_sub(1));
    let offset = app.scroll(table.rows.len(), page);
    let selected = app.selected(table.rows.len());
    let view = TableView { pane: app.pane, table: &table, first: offset, selected: Some(selected) };
    rows(canvas, app, &view, theme);
    for steps in 1..Pane::ALL.len() as isize {
        let pane = app.pane.step(steps);
        if canvas.room() < TABLE_LINES_MIN {
            return;
        }
        let Some(table) = app.sorted_table(pane) else { return };
        canvas.put(Line::default());
        canvas.put(Line::styled(format!(" {}", pane.title()), theme.strong()));
        rows(canvas, app, &TableView { pane, table: &table, first: 0, selected: None }, theme);
    }
}

/// Part of a table that is shown.
struct TableView<'a> {
    pane: Pane,
    table: &'a Table,
    /// First row that is shown.
    first: usize,
    /// Row that is selected, if the table is.
    selected: Option<usize>,
}

/// Headings and rows of a table.
fn rows(canvas: &mut Canvas<'_>, app: &App, view: &TableView<'_>, theme: Theme) {
    let TableView { pane, table, first, selected } = *view;
    let layout = table.layout(canvas.area.width);
    let sorted = app.sorting(pane).column;
    let heading = |(text, column, _): (String, usize, Tone)| {
        let style = if sorted == Some(column) { theme.selected() } else { theme.heading() };
        [Span::styled(text, style), Span::styled(" ", theme.heading())]
    };
    canvas.put(Line::from(table.texts(None, &layout).into_iter().flat_map(heading).collect::<Vec<_>>()));
    if table.rows.is_empty() {
        let is_filtered = selected.is_some() && !app.filter.is_empty();
        let why = if is_filtered { "no row has the text of the filter" } else { table.empty };
        return canvas.put(Line::from(why));
    }
    for (at, row) in table.rows.iter().enumerate().skip(first) {
        let is_selected = selected == Some(at);
        let cell = |(text, _, tone): (String, usize, Tone)| {
            let (style, gap) = if is_selected {
                (theme.selected(), theme.selected())
            } else {
                (theme.tone(tone), Style::new())
            };
            [Span::styled(text, style), Span::styled(" ", gap)]
        };
        canvas
            .put(Line::from(table.texts(Some(row), &layout).into_iter().flat_map(cell).collect::<Vec<_>>()));
    }
}

/// Keys, and the columns of a table.
fn help(canvas: &mut Canvas<'_>, pane: Pane, theme: Theme) {
    let entry = |key: &str, width: u16, meaning: &str| {
        let key = format!(" {} ", fit(key, width, Side::Left));
        Line::from(vec![Span::styled(key, theme.label()), Span::raw(meaning.to_owned())])
    };
    for (key, meaning) in KEYS {
        canvas.put(entry(key, 30, meaning));
    }
    canvas.put(Line::default());
    canvas.put(Line::styled(format!(" {}", pane.title()), theme.strong()));
    for column in pane.columns().iter().filter(|column| !column.doc.is_empty()) {
        canvas.put(entry(column.title, 12, column.doc));
    }
}

/// The last line: keys, or the filter that is being written.
fn keys(app: &App, theme: Theme) -> Line<'static> {
    if app.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("Filter: ", theme.label()),
            Span::raw(app.filter.clone()),
            Span::styled(" ", theme.selected()),
            Span::raw("  Enter: keep  Esc: remove"),
        ]);
    }
    let mut spans = Vec::new();
    for (key, label) in [
        ("F1", "Help  "),
        ("F4", "Filter"),
        ("F6", "Sort  "),
        ("i ", "Invert"),
        ("Tab ", "Next "),
        ("p ", "Pause"),
        ("F10", "Quit  "),
    ] {
        spans.extend([Span::raw(key), Span::styled(label, theme.key_label()), Span::raw(" ")]);
    }
    if !app.filter.is_empty() {
        spans.extend([Span::styled("Filter: ", theme.label()), Span::raw(app.filter.clone())]);
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests;
