//! Keys, as in htop, and the actions that they ask for.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::views::Pane;

/// Action that a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// End the program.
    Quit,
    /// Select the table so many steps further.
    Pane(isize),
    /// Select this table.
    Select(Pane),
    /// Select the row so many rows further.
    Row(isize),
    /// Select the row so many screens further.
    Page(isize),
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Sort by the column so many steps further.
    Sort(isize),
    /// Invert the order.
    Invert,
    /// Begin to write a filter.
    Filter,
    /// Add a character to it.
    Type(char),
    /// Remove its last character.
    Erase,
    /// Keep it.
    Accept,
    /// Remove it, or close the help.
    Cancel,
    /// Stop or go on.
    Pause,
    /// Show or hide the help.
    Help,
}

/// Meaning of keys that are characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Commands.
    #[default]
    Commands,
    /// Characters of the filter.
    Filter,
}

/// Action of a key; `None` for a key without a meaning.
pub fn action(key: KeyEvent, mode: Mode) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_command = key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    match (mode, key.code) {
        (_, KeyCode::Char('c')) if key.modifiers == KeyModifiers::CONTROL => Some(Action::Quit),
        (_, KeyCode::F(10)) => Some(Action::Quit),
        (_, KeyCode::Char(_)) if is_command => None,
        (Mode::Filter, KeyCode::Char(c)) => Some(Action::Type(c)),
        (Mode::Filter, KeyCode::Backspace) => Some(Action::Erase),
        (Mode::Filter, KeyCode::Enter) => Some(Action::Accept),
        (Mode::Commands, KeyCode::Char(c)) => of_character(c),
        (_, KeyCode::Esc) => Some(Action::Cancel),
        (_, code) => of_key(code),
    }
}

fn of_character(c: char) -> Option<Action> {
    match c {
        'q' => Some(Action::Quit),
        's' | '>' => Some(Action::Sort(1)),
        'S' | '<' => Some(Action::Sort(-1)),
        'i' | 'I' => Some(Action::Invert),
        '/' | '\\' => Some(Action::Filter),
        'p' | ' ' => Some(Action::Pause),
        'h' | '?' => Some(Action::Help),
        'j' => Some(Action::Row(1)),
        'k' => Some(Action::Row(-1)),
        '1'..='6' => {
            let at = c.to_digit(10).and_then(|digit| digit.checked_sub(1))?;
            Pane::ALL.get(at as usize).copied().map(Action::Select)
        }
        _ => None,
    }
}

fn of_key(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Tab | KeyCode::Right => Some(Action::Pane(1)),
        KeyCode::BackTab | KeyCode::Left => Some(Action::Pane(-1)),
        KeyCode::Down => Some(Action::Row(1)),
        KeyCode::Up => Some(Action::Row(-1)),
        KeyCode::PageDown => Some(Action::Page(1)),
        KeyCode::PageUp => Some(Action::Page(-1)),
        KeyCode::Home => Some(Action::First),
        KeyCode::End => Some(Action::Last),
        KeyCode::F(1) => Some(Action::Help),
        KeyCode::F(3 | 4) => Some(Action::Filter),
        KeyCode::F(6) => Some(Action::Sort(1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_htop() {
        let plain = |code| KeyEvent::new(code, KeyModifiers::NONE);
        for (key, mode, expected) in [
            (plain(KeyCode::Char('q')), Mode::Commands, Some(Action::Quit)),
            (plain(KeyCode::F(10)), Mode::Commands, Some(Action::Quit)),
            (plain(KeyCode::F(10)), Mode::Filter, Some(Action::Quit)),
            (plain(KeyCode::Char('q')), Mode::Filter, Some(Action::Type('q'))),
            (KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), Mode::Filter, Some(Action::Quit)),
            (KeyEvent::new(KeyCode::Char('x'), KeyModifiers::CONTROL), Mode::Filter, None),
            (KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT), Mode::Commands, None),
            (plain(KeyCode::Tab), Mode::Commands, Some(Action::Pane(1))),
            (KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT), Mode::Commands, Some(Action::Pane(-1))),
            (plain(KeyCode::Char('4')), Mode::Commands, Some(Action::Select(Pane::Upstreams))),
            (plain(KeyCode::Char('7')), Mode::Commands, None),
            (plain(KeyCode::PageDown), Mode::Commands, Some(Action::Page(1))),
            (plain(KeyCode::Down), Mode::Filter, Some(Action::Row(1))),
            (plain(KeyCode::Char('s')), Mode::Commands, Some(Action::Sort(1))),
            (plain(KeyCode::Char('/')), Mode::Commands, Some(Action::Filter)),
            (plain(KeyCode::Enter), Mode::Filter, Some(Action::Accept)),
            (plain(KeyCode::Esc), Mode::Filter, Some(Action::Cancel)),
            (plain(KeyCode::F(1)), Mode::Commands, Some(Action::Help)),
            (plain(KeyCode::Char('p')), Mode::Commands, Some(Action::Pause)),
            (plain(KeyCode::Insert), Mode::Commands, None),
        ] {
            assert_eq!(action(key, mode), expected, "{key:?} {mode:?}");
        }
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(released, Mode::Commands), None);
    }
}
