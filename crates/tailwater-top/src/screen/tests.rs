//! Whole screens, compared with files in `testdata`; `UPDATE=1` writes these.

use std::fs;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::keys::Action;
use crate::source::parse;

fn app() -> App {
    let mut app = App::new("http://127.0.0.1/status".to_owned(), Pane::Loops, String::new());
    app.receive((1.0, Ok(parse(include_bytes!("../../testdata/first.json")).unwrap())));
    app.receive((3.0, Ok(parse(include_bytes!("../../testdata/second.json")).unwrap())));
    app
}

/// Text of a screen, without blanks at the ends of lines.
fn text(app: &mut App, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, Theme::Plain)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer.cell((x, y)).unwrap().symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

fn check(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("UPDATE").is_some_and(|value| !value.is_empty()) {
        fs::write(&path, shown).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(shown == expected, "{name} differs, UPDATE=1 writes it:\n{shown}");
}

#[test]
fn screens_of_all_tables() {
    for pane in Pane::ALL {
        let mut app = app();
        app.act(Action::Select(pane));
        for size in [(80, 24), (120, 40)] {
            let name = format!("{}-{}x{}.txt", pane.title().to_lowercase(), size.0, size.1);
            check(&name, &text(&mut app, size));
        }
    }
}

#[test]
fn screens_of_help_filter_and_errors() {
    let mut app = app();
    app.act(Action::Help);
    check("help-80x24.txt", &text(&mut app, (80, 24)));
    app.act(Action::Help);
    app.act(Action::Select(Pane::Upstreams));
    app.act(Action::Filter);
    for c in "10.0.0.1".chars() {
        app.act(Action::Type(c));
    }
    check("filter-80x24.txt", &text(&mut app, (80, 24)));
    app.act(Action::Cancel);
    app.receive((4.0, Err("Connection refused (os error 111)".to_owned())));
    app.receive((9.0, Err("Connection refused (os error 111)".to_owned())));
    check("lost-80x24.txt", &text(&mut app, (80, 24)));
}

#[test]
fn first_screen_waits_for_the_server() {
    let mut app = App::new("http://a/status".to_owned(), Pane::Loops, String::new());
    let shown = text(&mut app, (80, 24));
    assert!(shown.starts_with("tailwater-top: http://a/status\nWaiting for the first answer\n"), "{shown}");
    app.receive((1.0, Err("refused".to_owned())));
    assert!(text(&mut app, (80, 24)).contains("\nNo answer for 0s: refused\n"));
}

#[test]
fn screens_of_any_size_are_drawn() {
    let mut app = app();
    for pane in Pane::ALL {
        app.act(Action::Select(pane));
        for size in [(1, 1), (2, 2), (10, 3), (39, 9), (80, 5), (300, 100), (5, 200)] {
            for _ in 0..2 {
                text(&mut app, size);
                app.act(Action::Help);
            }
        }
    }
}

#[test]
fn every_row_can_be_reached() {
    let mut app = app();
    app.act(Action::Select(Pane::Requests));
    let table = app.table(Pane::Requests).unwrap();
    for row in &table.rows {
        let shown = text(&mut app, (80, 12));
        let path = row.last().unwrap().text.split(' ').next_back().unwrap();
        assert!(shown.contains(path), "{path} is not in:\n{shown}");
        app.act(Action::Row(1));
    }
}

#[test]
fn colours_are_left_out_without_them() {
    let styles = |theme| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut app(), theme)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != ratatui::style::Color::Reset || cell.bg != ratatui::style::Color::Reset)
            .count()
    };
    assert_eq!(styles(Theme::Plain), 0);
    assert!(styles(Theme::Colours) > 100);
}
