//! State of the program: the last two snapshots, and what is selected. Keys and snapshots change it; there is no clock in it.

use crate::keys::{Action, Mode};
use crate::model::Report;
use crate::source::Snapshot;
use crate::table::{Sorting, Table};
use crate::views::Pane;

/// A snapshot, or the reason why there is none, and the time of the answer in seconds since any moment.
pub type Answer = (f64, Result<Snapshot, String>);

/// State of the program.
pub struct App {
    /// URL as the user has written it.
    pub url: String,
    /// Selected table.
    pub pane: Pane,
    /// Meaning of keys.
    pub mode: Mode,
    /// Text that rows must have.
    pub filter: String,
    /// True while new snapshots are not shown.
    pub is_paused: bool,
    /// True while the help is shown.
    pub shows_help: bool,
    /// Report that is shown; `None` before the first snapshot.
    pub report: Option<Report>,
    /// State of the server.
    pub contact: Contact,
    sortings: [Sorting; Pane::ALL.len()],
    selected: usize,
    /// First row of the selected table on the screen, as it was drawn last.
    offset: usize,
    /// Rows of the selected table on the screen, as it was drawn last.
    page: usize,
    last: Option<(f64, Snapshot)>,
}

/// State of the server as the answers tell it.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Contact {
    /// No answer yet.
    #[default]
    None,
    /// The last answer was a snapshot.
    Fine,
    /// The last answer was a snapshot of another process than the one before.
    Restarted,
    /// The last answer was a snapshot with another configuration than the one before.
    Reloaded,
    /// There is no answer.
    Lost {
        /// Time of the first error.
        since: f64,
        /// Time of the last one.
        now: f64,
        /// Reason of the last one.
        reason: String,
    },
}

/// Result of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The program goes on.
    GoesOn,
    /// The program ends.
    Ends,
}

impl App {
    /// State before the first answer.
    pub fn new(url: String, pane: Pane, filter: String) -> Self {
        Self {
            url,
            pane,
            filter,
            mode: Mode::default(),
            is_paused: false,
            shows_help: false,
            report: None,
            contact: Contact::default(),
            sortings: Default::default(),
            selected: 0,
            offset: 0,
            page: 1,
            last: None,
        }
    }

    /// Takes an answer of the server.
    pub fn receive(&mut self, (at, answer): Answer) {
        if self.is_paused {
            return;
        }
        match answer {
            Ok(snapshot) => {
                let old = self.last.as_ref();
                let seconds = old.map_or(0.0, |(before, _)| at - before);
                let differs =
                    |name| old.is_some_and(|(_, old)| old.number(name, &[]) != snapshot.number(name, &[]));
                self.contact = if differs("process_start_time_seconds") {
                    Contact::Restarted
                } else if differs("generation") {
                    Contact::Reloaded
                } else {
                    Contact::Fine
                };
                self.report = Some(Report::new(old.map(|(_, old)| old), &snapshot, seconds));
                self.last = Some((at, snapshot));
            }
            Err(reason) => {
                let since = match self.contact {
                    Contact::Lost { since, .. } => since,
                    _ => at,
                };
                self.contact = Contact::Lost { since, now: at, reason };
            }
        }
    }

    /// Does what a key asks for.
    pub fn act(&mut self, action: Action) -> Outcome {
        match action {
            Action::Quit => return Outcome::Ends,
            Action::Pane(steps) => self.select(self.pane.step(steps)),
            Action::Select(pane) => self.select(pane),
            Action::Row(rows) => self.go(rows),
            Action::Page(pages) => self.go(pages.saturating_mul(isize::try_from(self.page).unwrap_or(1))),
            Action::First => self.selected = 0,
            Action::Last => self.selected = usize::MAX,
            Action::Sort(steps) => self.sort(steps),
            Action::Invert => self.sortings[self.pane.index()].is_inverted ^= true,
            Action::Filter => self.mode = Mode::Filter,
            Action::Type(c) => self.filter.push(c),
            Action::Erase => drop(self.filter.pop()),
            Action::Accept => self.mode = Mode::Commands,
            Action::Cancel if self.shows_help => self.shows_help = false,
            Action::Cancel => {
                self.mode = Mode::Commands;
                self.filter.clear();
            }
            Action::Pause => self.is_paused ^= true,
            Action::Help => self.shows_help ^= true,
        }
        Outcome::GoesOn
    }

    fn select(&mut self, pane: Pane) {
        self.pane = pane;
        self.selected = 0;
    }

    fn go(&mut self, rows: isize) {
        let last = self.rows().saturating_sub(1);
        self.selected = self.selected.min(last).saturating_add_signed(rows).min(last);
    }

    /// Selects the column for the order: the order of the report, and then one column after the other.
    fn sort(&mut self, steps: isize) {
        let Some(report) = &self.report else { return };
        let places = self.pane.table(report).columns.len() as isize + 1;
        let sorting = &mut self.sortings[self.pane.index()];
        let place = sorting.column.map_or(0, |column| column as isize + 1);
        let place = (place + steps).rem_euclid(places);
        sorting.column = usize::try_from(place - 1).ok();
    }

    fn rows(&self) -> usize {
        self.table(self.pane).map_or(0, |table| table.rows.len())
    }

    /// Order of the rows of a table.
    pub fn sorting(&self, pane: Pane) -> Sorting {
        self.sortings[pane.index()]
    }

    /// A table with the rows that have the text of the filter, in order. `None` before the first snapshot.
    pub fn table(&self, pane: Pane) -> Option<Table> {
        let mut table = self.sorted_table(pane)?;
        table.filter(&self.filter);
        Some(table)
    }

    /// A table in order, with all its rows. `None` before the first snapshot.
    pub fn sorted_table(&self, pane: Pane) -> Option<Table> {
        let mut table = pane.table(self.report.as_ref()?);
        table.sort(self.sorting(pane));
        Some(table)
    }

    /// Number of the selected row of the selected table, which has `rows`.
    pub fn selected(&self, rows: usize) -> usize {
        self.selected.min(rows.saturating_sub(1))
    }

    /// First row of the selected table, of `rows`, on a screen with room for `page` of them: the selected row is on it.
    pub fn scroll(&mut self, rows: usize, page: usize) -> usize {
        self.page = page.max(1);
        let selected = self.selected(rows);
        self.offset = self.offset.min(rows.saturating_sub(self.page)).min(selected);
        self.offset = self.offset.max((selected + 1).saturating_sub(self.page));
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn app() -> App {
        let mut app = App::new("http://a".to_owned(), Pane::Loops, String::new());
        app.receive((1.0, Ok(parse(include_bytes!("../testdata/first.json")).unwrap())));
        app.receive((3.0, Ok(parse(include_bytes!("../testdata/second.json")).unwrap())));
        app
    }

    fn first_cell(app: &App) -> String {
        app.table(app.pane).unwrap().rows.first().map_or(String::new(), |row| row[0].text.clone())
    }

    #[test]
    fn rows_are_selected_within_the_table() {
        let mut app = app();
        app.act(Action::Select(Pane::Upstreams));
        let rows = app.table(app.pane).unwrap().rows.len();
        assert_eq!(app.scroll(rows, 4), 0);
        assert!(rows >= 5);
        for (action, expected) in [
            (Action::Row(-1), 0),
            (Action::Row(1), 1),
            (Action::Page(1), 5.min(rows - 1)),
            (Action::Page(100), rows - 1),
            (Action::Row(1), rows - 1),
            (Action::Row(-1), rows - 2),
            (Action::Last, rows - 1),
            (Action::Row(-1), rows - 2),
            (Action::First, 0),
        ] {
            assert_eq!(app.act(action), Outcome::GoesOn);
            assert_eq!(app.selected(rows), expected, "{action:?}");
        }
        app.act(Action::Last);
        assert_eq!(app.scroll(rows, 4), rows - 4);
        app.act(Action::Row(-1));
        assert_eq!(app.scroll(rows, 4), rows - 4);
        app.act(Action::First);
        assert_eq!((app.scroll(rows, 4), app.scroll(0, 4), app.selected(0)), (0, 0, 0));
        assert_eq!(app.act(Action::Quit), Outcome::Ends);
    }

    #[test]
    fn rows_are_filtered_and_sorted() {
        let mut app = app();
        app.act(Action::Select(Pane::Upstreams));
        app.act(Action::Filter);
        for c in "10.0.0.2".chars() {
            app.act(Action::Type(c));
        }
        assert_eq!((app.mode, app.rows()), (Mode::Filter, 1));
        app.act(Action::Erase);
        app.act(Action::Accept);
        assert_eq!((app.mode, app.filter.as_str()), (Mode::Commands, "10.0.0."));
        app.act(Action::Cancel);
        assert!(app.filter.is_empty() && app.rows() > 1);
        app.act(Action::Select(Pane::Loops));
        assert_eq!(first_cell(&app), "0");
        app.act(Action::Invert);
        assert_eq!(first_cell(&app), "1");
        app.act(Action::Invert);
        app.act(Action::Sort(1));
        assert_eq!(app.sorting(Pane::Loops).column, Some(0));
        app.act(Action::Sort(-2));
        assert_eq!(app.sorting(Pane::Loops).column, Some(9));
        app.act(Action::Sort(1));
        assert_eq!(app.sorting(Pane::Loops).column, None);
    }

    #[test]
    fn lost_and_restarted_servers_are_told() {
        let mut app = app();
        assert_eq!(app.contact, Contact::Fine);
        let shown = app.report.clone();
        for at in [4.0, 5.0] {
            app.receive((at, Err("refused".to_owned())));
            assert_eq!(app.contact, Contact::Lost { since: 4.0, now: at, reason: "refused".to_owned() });
        }
        // The last numbers stay.
        assert_eq!(app.report, shown);
        let second = include_str!("../testdata/second.json");
        for (name, expected) in
            [("generation", Contact::Reloaded), ("process_start_time_seconds", Contact::Restarted)]
        {
            let sample = format!("\"{name}\":{{\"kind\":\"gauge\",\"labels\":[],\"samples\":[[[],");
            assert!(second.contains(&sample));
            let changed = second.replace(&sample, &format!("{sample}9"));
            app.receive((6.0, Ok(parse(changed.as_bytes()).unwrap())));
            assert_eq!(app.contact, expected);
            app.receive((7.0, Ok(parse(second.as_bytes()).unwrap())));
        }
    }

    #[test]
    fn paused_screens_stay() {
        let mut app = app();
        app.act(Action::Pause);
        app.receive((4.0, Err("refused".to_owned())));
        assert_eq!(app.contact, Contact::Fine);
        app.act(Action::Pause);
        app.receive((5.0, Err("refused".to_owned())));
        assert!(matches!(app.contact, Contact::Lost { .. }));
    }
}
