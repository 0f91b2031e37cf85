//! Styles of the screen, with and without colours.

use ratatui::style::{Color, Modifier, Style};

use crate::table::Tone;

/// Styles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// With the colours of the terminal.
    Colours,
    /// With bold and reversed text only.
    Plain,
}

impl Theme {
    /// A value by its meaning.
    pub fn tone(self, tone: Tone) -> Style {
        match (self, tone) {
            (_, Tone::Plain) => Style::new(),
            (Self::Colours, Tone::Good) => Style::new().fg(Color::Green),
            (Self::Colours, Tone::Warning) => Style::new().fg(Color::Yellow),
            (Self::Colours, Tone::Bad) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            (Self::Plain, Tone::Good) => Style::new(),
            (Self::Plain, Tone::Warning | Tone::Bad) => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    /// Name of a number.
    pub fn label(self) -> Style {
        match self {
            Self::Colours => Style::new().fg(Color::Cyan),
            Self::Plain => Style::new(),
        }
    }

    /// Number that matters most.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Headings of columns.
    pub fn heading(self) -> Style {
        self.on(Color::Green)
    }

    /// Heading of the column by which rows are sorted, and the selected row.
    pub fn selected(self) -> Style {
        self.on(Color::Cyan)
    }

    /// Meaning of a key.
    pub fn key_label(self) -> Style {
        self.on(Color::Cyan)
    }

    fn on(self, background: Color) -> Style {
        match self {
            Self::Colours => Style::new().fg(Color::Black).bg(background),
            Self::Plain => Style::new().add_modifier(Modifier::REVERSED),
        }
    }
}
