//! Invariants for any page with SSI commands: no panic, the same tokens however the page is split, unchanged text,
//! and limited texts inside commands.
//!
//! The first byte limits the length of a value.

use super::parser::{COMMAND_LEN_MAX, Command, PARAMETER_LEN_MAX, PARAMETERS_MAX, Parser, START, SsiToken};
use super::words::{Expression, SSI_TEXT_MAX, evaluate, expression, parse_uri};

/// Largest length of a value.
const VALUE_LEN_MAX: usize = 64;

pub(crate) fn check(data: &[u8]) {
    let Some((limit, page)) = data.split_first() else { return };
    let value_len_max = usize::from(*limit) % VALUE_LEN_MAX;
    let whole = parsed(&[page], value_len_max);
    let step = (page.len() / 200).max(1);
    for at in (0..page.len()).step_by(step) {
        let (first, second) = page.split_at(at);
        assert_eq!(parsed(&[first, second], value_len_max), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = page.chunks(1).collect();
    assert_eq!(parsed(&bytes, value_len_max), whole, "byte by byte");
    if !page.windows(START.len() + 1).any(|part| part == b"<!--#") {
        let Page { text, commands, complaints, .. } = &whole;
        assert!(commands.is_empty() && complaints.is_empty());
        // The beginning of what may be a command is held back.
        assert!(page.starts_with(text) && START.starts_with(&page[text.len()..]));
    }
    for (_, command) in &whole.commands {
        let Some(command) = command else { continue };
        assert!((1..=COMMAND_LEN_MAX).contains(&command.name.len()));
        assert!(command.parameters.len() <= PARAMETERS_MAX + 1);
        for (name, value) in &command.parameters {
            assert!((1..=PARAMETER_LEN_MAX).contains(&name.len()) && value.len() <= value_len_max);
            words(value);
        }
    }
    words(page);
}

/// Parsed page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    text: Vec<u8>,
    /// Offsets of commands in the text; `None` is a broken one.
    commands: Vec<(usize, Option<Command>)>,
    complaints: Vec<String>,
}

fn parsed(pieces: &[&[u8]], value_len_max: usize) -> Page {
    let mut parser = Parser::new(value_len_max);
    let mut page = Page::default();
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (taken, token) = parser.next(rest);
            assert!(taken > 0 && taken <= rest.len());
            match token {
                Some(SsiToken::Text { saved, len }) => {
                    assert!(len <= taken && saved + len > 0);
                    page.text.extend_from_slice(&START[..saved]);
                    page.text.extend_from_slice(&rest[..len]);
                }
                Some(SsiToken::Command) => {
                    page.commands.push((page.text.len(), Some(parser.command.clone())))
                }
                Some(SsiToken::Broken) => page.commands.push((page.text.len(), None)),
                // The rest may begin inside a command.
                None => {}
            }
            page.complaints.extend(parser.error.take());
            rest = &rest[taken..];
        }
    }
    page
}

fn words(text: &[u8]) {
    let mut lookup = |name: &[u8], out: &mut Vec<u8>| {
        assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_uppercase));
        // A variable may be as long as a text.
        out.resize(out.len() + if name == b"l" { SSI_TEXT_MAX / 2 } else { name.len() }, b'x');
    };
    if let Ok(value) = evaluate(text, &mut lookup) {
        assert!(value.len() <= SSI_TEXT_MAX);
    }
    if let Ok(Expression::Text(left) | Expression::Equal { left, .. } | Expression::Matches { left, .. }) =
        expression(text)
    {
        assert!(text.to_ascii_lowercase().starts_with(&left));
    }
    if let Ok((path, _)) = parse_uri(text) {
        assert!(
            !path.is_empty() && !path.contains(&0) && !path.split(|b| *b == b'/').any(|name| name == b"..")
        );
    }
}
