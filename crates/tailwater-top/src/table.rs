//! A table of any part of a report: cells with a text to show and a key to sort by.

use std::cmp::Ordering;

use ratatui::text::Span;

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Columns.
    pub columns: &'static [Column],
    /// Rows, each with a cell for every column.
    pub rows: Vec<Row>,
    /// Text in the place of rows if there are none.
    pub empty: &'static str,
}

/// Column of a table.
#[derive(Debug, PartialEq)]
pub struct Column {
    /// Heading.
    pub title: &'static str,
    /// Width in characters; the rest of the line for the last of the columns with [`FILL`].
    pub width: u16,
    /// Side at which texts stand.
    pub side: Side,
    /// Columns of the terminal from which on it is shown.
    pub from: u16,
    /// Meaning, for the help.
    pub doc: &'static str,
}

/// Width of a column that takes the rest of the line.
pub const FILL: u16 = 0;

/// Side of a column at which texts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Left, for names.
    Left,
    /// Right, for numbers.
    Right,
}

/// Column for names.
pub const fn name(title: &'static str, width: u16, from: u16, doc: &'static str) -> Column {
    Column { title, width, side: Side::Left, from, doc }
}

/// Column for numbers.
pub const fn figure(title: &'static str, width: u16, from: u16, doc: &'static str) -> Column {
    Column { title, width, side: Side::Right, from, doc }
}

/// Row of a table.
pub type Row = Vec<Cell>;

/// Cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Text.
    pub text: String,
    /// Key by which rows are sorted.
    pub key: Key,
    /// Meaning of the value.
    pub tone: Tone,
}

/// Key of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    /// Unknown; after everything else.
    None,
    /// A number; larger ones are first.
    Number(f64),
    /// A text, in the order of the alphabet.
    Text,
}

/// Meaning of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// None.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// A fault.
    Bad,
}

impl Cell {
    /// Cell with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), key: Key::Text, tone: Tone::Plain }
    }

    /// Cell with a number in the form that `form` gives it.
    pub fn number(value: Option<f64>, form: impl Fn(f64) -> String) -> Self {
        let key = value.filter(|value| value.is_finite()).map_or(Key::None, Key::Number);
        Self { text: crate::format::text_if_known(value, form), key, tone: Tone::Plain }
    }

    /// Gives the cell a meaning.
    pub fn with(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// Makes the cell a fault if its number is more than 0.
    pub fn bad_above_zero(self) -> Self {
        match self.key {
            Key::Number(number) if number > 0.0 => self.with(Tone::Bad),
            _ => self,
        }
    }

    /// Order of two cells of a column.
    fn order(&self, other: &Self) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(one), Key::Number(two)) => two.total_cmp(one),
            (Key::Text, Key::Text) => self.text.cmp(&other.text),
            (Key::None, Key::None) => Ordering::Equal,
            (Key::None, _) => Ordering::Greater,
            (_, Key::None) => Ordering::Less,
            (Key::Number(_), Key::Text) => Ordering::Less,
            (Key::Text, Key::Number(_)) => Ordering::Greater,
        }
    }
}

/// Order of the rows of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sorting {
    /// Column by which rows are sorted; `None` for the order of the report.
    pub column: Option<usize>,
    /// True if the order is inverted.
    pub is_inverted: bool,
}

impl Table {
    /// Keeps rows in which `filter` occurs, in any case.
    pub fn filter(&mut self, filter: &str) {
        let wanted_name = filter.to_lowercase();
        self.rows.retain(|row| row.iter().any(|cell| cell.text.to_lowercase().contains(&wanted_name)));
    }

    /// Puts the rows in order. Rows that are equal stay in the order of the report.
    pub fn sort(&mut self, Sorting { column, is_inverted }: Sorting) {
        if let Some(column) = column {
            let order = |one: &Row, two: &Row| match (one.get(column), two.get(column)) {
                (Some(one), Some(two)) => one.order(two),
                _ => Ordering::Equal,
            };
            self.rows.sort_by(order);
        }
        if is_inverted {
            self.rows.reverse();
        }
    }

    /// The headings, or the cells of a row, in their columns; each with its style.
    pub fn texts<'a>(&'a self, row: Option<&'a Row>, layout: &[(usize, u16)]) -> Vec<(String, usize, Tone)> {
        let text = |(at, width): &(usize, u16)| {
            let column = &self.columns[*at];
            let (text, tone) = match row {
                None => (column.title, Tone::Plain),
                Some(row) => row.get(*at).map_or(("", Tone::Plain), |cell| (&*cell.text, cell.tone)),
            };
            (fit(text, *width, column.side), *at, tone)
        };
        layout.iter().map(text).collect()
    }

    /// Columns that are shown in a terminal of this width, with their widths.
    pub fn layout(&self, width: u16) -> Vec<(usize, u16)> {
        let shown = || self.columns.iter().enumerate().filter(|(_, column)| column.from <= width);
        let fixed: u16 = shown().map(|(_, column)| column.width + 1).sum();
        let fills = shown().filter(|(_, column)| column.width == FILL).count() as u16;
        let rest = width.saturating_add(1).saturating_sub(fixed);
        let fill = rest.checked_div(fills).unwrap_or_default();
        shown().map(|(at, column)| (at, if column.width == FILL { fill } else { column.width })).collect()
    }
}

/// Text in exactly `width` columns of a terminal: cut off, or filled with blanks.
pub fn fit(text: &str, width: u16, side: Side) -> String {
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let columns = if c.is_ascii() { 1 } else { Span::raw(c.to_string()).width() };
        if used + columns > usize::from(width) {
            break;
        }
        out.push(c);
        used += columns;
    }
    let blanks = " ".repeat(usize::from(width) - used);
    match side {
        Side::Left => out + &blanks,
        Side::Right => blanks + &out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        const COLUMNS: &[Column] =
            &[name("NAME", FILL, 0, ""), figure("N", 5, 0, ""), figure("X", 5, 100, "")];
        let row = |name: &str, number| vec![Cell::text(name), Cell::number(number, crate::format::number)];
        let rows = vec![row("b", Some(2.0)), row("Ab", None), row("c", Some(10.0))];
        Table { columns: COLUMNS, rows, empty: "none" }
    }

    fn names(table: &Table) -> String {
        table.rows.iter().map(|row| row[0].text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        for (column, is_inverted, expected) in [
            (None, false, "b Ab c"),
            (None, true, "c Ab b"),
            (Some(0), false, "Ab b c"),
            (Some(1), false, "c b Ab"),
            (Some(1), true, "Ab b c"),
            (Some(9), false, "b Ab c"),
        ] {
            let mut table = table();
            table.sort(Sorting { column, is_inverted });
            assert_eq!(names(&table), expected, "{column:?} {is_inverted}");
        }
        for (filter, expected) in [("B", "b Ab"), ("10", "c"), ("", "b Ab c"), ("z", "")] {
            let mut table = table();
            table.filter(filter);
            assert_eq!(names(&table), expected, "{filter}");
        }
    }

    #[test]
    fn texts_have_the_width_of_their_column() {
        for (text, width, side, expected) in [
            ("ab", 4, Side::Left, "ab  "),
            ("ab", 4, Side::Right, "  ab"),
            ("abcde", 4, Side::Right, "abcd"),
            ("\u{e4}b", 3, Side::Left, "\u{e4}b "),
            // Each of these characters takes two columns.
            ("\u{4e2d}\u{6587}", 3, Side::Left, "\u{4e2d} "),
            ("ab", 0, Side::Left, ""),
        ] {
            assert_eq!(fit(text, width, side), expected, "{text}");
        }
    }

    #[test]
    fn columns_fill_the_line() {
        let table = table();
        assert_eq!(table.layout(80), [(0, 74), (1, 5)]);
        assert_eq!(table.layout(100), [(0, 88), (1, 5), (2, 5)]);
        assert_eq!(table.layout(3), [(0, 0), (1, 5)]);
    }
}
