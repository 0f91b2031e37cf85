//! Options of a command as records, and the help texts made of them.
//!
//! Each program has lists of its options, which `-h`, the manual page and the completions of shells are made of.

use std::fmt::Write as _;

/// Columns of a help text.
pub const COLUMNS: usize = 80;

/// An option.
pub struct Opt {
    /// Every way to write it; long names begin with two dashes.
    pub names: &'static [&'static str],
    /// Value of the option.
    pub value: Option<Value>,
    /// Description for `-h`; names in braces are replaced ([`listed`]).
    pub about: &'static str,
    /// Further description for the manual, in whole sentences.
    pub more: &'static str,
}

/// The word that follows an option.
pub struct Value {
    /// Name of the value.
    pub name: &'static str,
    /// Kind of the value.
    pub kind: Kind,
}

/// Kind of a value.
#[derive(Clone, Copy)]
pub enum Kind {
    /// The name of a file.
    File,
    /// The name of a directory.
    Directory,
    /// One of these.
    Words(&'static [&'static str]),
    /// Anything.
    Text,
}

/// Record of an option without a value.
pub const fn flag(names: &'static [&'static str], about: &'static str, more: &'static str) -> Opt {
    Opt { names, value: None, about, more }
}

/// Record of an option with a value.
pub const fn with(
    names: &'static [&'static str],
    (name, kind): (&'static str, Kind),
    about: &'static str,
    more: &'static str,
) -> Opt {
    Opt { names, value: Some(Value { name, kind }), about, more }
}

/// The line that shows how options are written: letters without a value together, long names of these left out.
pub fn usage(begin: &str, options: &[Opt]) -> String {
    let letter = |name: &&&str| !name.starts_with("--");
    let flags = options.iter().filter(|option| option.value.is_none());
    let letters: String = flags
        .flat_map(|option| option.names)
        .filter(letter)
        .map(|name| name.trim_start_matches('-'))
        .collect();
    let mut words = format!("[-{letters}]");
    for option in options {
        let first = option.names.first();
        let last = option.names.last();
        // Writing into a String does not fail.
        let _ = match (&option.value, first.zip(last)) {
            // Lines are wrapped only at blanks between options, so the blank inside an option is a no-break space.
            (Some(value), Some((_, name))) => write!(words, " [{name}\u{a0}{}]", value.name),
            (None, Some((name, _))) if name.starts_with("--") => write!(words, " [{name}]"),
            _ => Ok(()),
        };
    }
    wrapped(&words, &format!("{begin} "), &" ".repeat("Usage: tailwater ".len())).replace('\u{a0}', " ")
}

/// Each option with its description, in two columns. `names` are texts of descriptions with their replacements.
pub fn listed(options: &[Opt], names: &[(&str, &str)]) -> String {
    let written_values = options.iter().map(|option| {
        let value = option.value.as_ref().map(|value| format!(" {}", value.name)).unwrap_or_default();
        (format!("{}{value}", option.names.join(",")), option.about)
    });
    let written_values: Vec<_> = written_values.collect();
    let width = written_values.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = written_values.iter().map(|(name, about)| {
        let about = names.iter().fold((*about).to_owned(), |about, (name, text)| about.replace(name, text));
        wrapped(&about, &format!("  {name:<width$} : "), &" ".repeat(width + 5))
    });
    lines.collect()
}

/// Lines of at most [`COLUMNS`] with these words, where a word fits.
pub fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut out = String::new();
    let mut line = first.to_owned();
    let mut is_begin = true;
    for word in text.split(' ') {
        if !is_begin && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = others.to_owned();
            is_begin = true;
        }
        if !is_begin {
            line.push(' ');
        }
        line.push_str(word);
        is_begin = false;
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_where_a_word_fits() {
        assert_eq!(wrapped("a bc d", "> ", "  "), "> a bc d\n");
        let long = "x".repeat(COLUMNS - 3);
        assert_eq!(wrapped(&format!("a {long} d"), "> ", "  "), format!("> a\n  {long}\n  d\n"));
    }

    #[test]
    fn options_are_listed_with_their_values() {
        let options =
            [flag(&["-h", "--help"], "this help", ""), with(&["-f"], ("name", Kind::File), "a {x}", "")];
        assert_eq!(usage("Usage: tailwater", &options), "Usage: tailwater [-h] [-f name]\n");
        assert_eq!(listed(&options, &[("{x}", "y")]), "  -h,--help : this help\n  -f name   : a y\n");
    }
}
