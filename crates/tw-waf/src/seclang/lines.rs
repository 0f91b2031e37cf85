//! Logical lines of a file and their words.

/// Directive with its words and the number of its first line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Lines before it in the text.
    pub(crate) number: u32,
    /// Words without their quotes; the first one names the directive.
    pub(crate) words: Vec<Vec<u8>>,
}

/// Splits a text into directives. The error is the number of lines before it, and its reason.
pub(crate) fn split(text: &[u8]) -> Result<Vec<Line>, (u32, String)> {
    let mut lines = Vec::new();
    let mut joined: Vec<u8> = Vec::new();
    let mut first = 0;
    let mut is_continued = false;
    for (number, line) in (0u32..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !is_continued {
            let trimmed = line.trim_ascii_start();
            if trimmed.is_empty() || trimmed.starts_with(b"#") {
                continue;
            }
            first = number;
            joined.clear();
        }
        let end = line.trim_ascii_end();
        if let Some(part) = end.strip_suffix(b"\\").filter(|part| !part.ends_with(b"\\")) {
            joined.extend_from_slice(part);
            is_continued = true;
            continue;
        }
        is_continued = false;
        joined.extend_from_slice(line);
        if has_open_quote(&joined) {
            // A text of `modsecurity_rules` has lines without a backslash between them.
            joined.push(b'\n');
            is_continued = true;
            continue;
        }
        push(&mut lines, first, &joined)?;
    }
    if is_continued {
        push(&mut lines, first, &joined)?;
    }
    Ok(lines)
}

fn push(lines: &mut Vec<Line>, number: u32, line: &[u8]) -> Result<(), (u32, String)> {
    let words = words(line).map_err(|reason| (number, reason))?;
    if !words.is_empty() {
        lines.push(Line { number, words });
    }
    Ok(())
}

fn has_open_quote(line: &[u8]) -> bool {
    words(line).is_err()
}

/// Splits a logical line into its words.
fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'"' || first == b'\'' {
            let (word, behind) = quoted(after, first).ok_or("unterminated quoted string")?;
            words.push(word);
            rest = behind;
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            words.push(word.to_vec());
            rest = behind;
        }
        rest = rest.trim_ascii_start();
    }
    Ok(words)
}

/// The quoted word at the beginning of `text`, behind its first quote, and the rest behind it. A backslash before the quote is
/// removed; others belong to the word.
fn quoted(text: &[u8], quote: u8) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut bytes = text.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        if byte == b'\\' {
            let (_, &next) = bytes.next()?;
            if next != quote {
                word.push(byte);
            }
            word.push(next);
        } else if byte == quote {
            return Some((word, text.get(at + 1..)?));
        } else {
            word.push(byte);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_split_into_words() {
        let lines =
            split(b"# no\nSecAction \\\n  \"id:1,\\\n  pass\"\n\nSecRule ARGS '@rx a\\\"b \\'' \"x\"\n")
                .unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].number, 1);
        assert_eq!(lines[0].words, [b"SecAction".to_vec(), b"id:1,  pass".to_vec()]);
        assert_eq!(lines[1].number, 5);
        assert_eq!(lines[1].words[2], b"@rx a\\\"b '");
        assert_eq!(split(b"\nSecRule \"a").unwrap_err(), (1, "unterminated quoted string".into()));
    }
}
