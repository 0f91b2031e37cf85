//! Parts of `multipart/form-data`, and what is odd about them.
//!
//! Programs behind the firewall read odd forms in their own ways, so every oddity is a flag that a rule can look at.

use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Lines in the head of a part of a form that the firewall reads.
    const HEAD_LINES_MAX: usize = 64, count, "the body is malformed";
    /// Parts of a form that the firewall reads.
    const PARTS_MAX: usize = 4096, count, "the body is malformed";
}

/// Part of a form.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Lines of its head, unfolded.
    pub(crate) head: Vec<Vec<u8>>,
    /// Name of the field.
    pub(crate) name: Option<Vec<u8>>,
    /// Name of the file, if it is one.
    pub(crate) file: Option<Vec<u8>>,
}

/// Oddities of a form: variables whose value is 1.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Oddities(pub(crate) Vec<Variable>);

impl Oddities {
    fn add(&mut self, flag: Variable) {
        if !self.0.contains(&flag) {
            self.0.push(flag);
        }
    }
}

/// Boundary of a media type. The error is a reason.
pub(crate) fn boundary(media_type: &[u8], oddities: &mut Oddities) -> Result<Vec<u8>, String> {
    let lower = media_type.to_ascii_lowercase();
    let at = memchr::memmem::find(&lower, b"boundary").ok_or("there is no boundary in the media type")?;
    let before = media_type.get(..at).unwrap_or_default().trim_ascii_end();
    if before.last().is_some_and(|byte| !matches!(byte, b';' | b',')) {
        oddities.add(Variable::MultipartMissingSemicolon);
    }
    let rest = media_type.get(at + b"boundary".len()..).unwrap_or_default();
    let trimmed = rest.trim_ascii_start();
    let value = trimmed.strip_prefix(b"=").ok_or("the boundary has no value")?;
    if trimmed.len() < rest.len() || value.first().is_some_and(u8::is_ascii_whitespace) {
        oddities.add(Variable::MultipartBoundaryWhitespace);
    }
    let value = value.trim_ascii_start();
    let (boundary, behind) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            oddities.add(Variable::MultipartBoundaryQuoted);
            let end = memchr::memchr(b'"', quoted).ok_or("the boundary has no last quote")?;
            quoted.split_at(end)
        }
        None => {
            let end = value.iter().position(|byte| matches!(byte, b';' | b',')).unwrap_or(value.len());
            let (boundary, behind) = value.split_at(end);
            (boundary.trim_ascii_end(), behind)
        }
    };
    if memchr::memmem::find(&behind.to_ascii_lowercase(), b"boundary").is_some() {
        return Err("there are several boundaries in the media type".to_owned());
    }
    if boundary.is_empty() {
        return Err("the boundary is empty".to_owned());
    }
    if boundary.iter().any(u8::is_ascii_whitespace) {
        oddities.add(Variable::MultipartBoundaryWhitespace);
    }
    Ok(boundary.to_vec())
}

/// Line of a body, its end apart.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    text: &'a [u8],
    begin: usize,
    end: LineEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    CrLf,
    Lf,
    None,
}

struct Lines<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        let begin = self.at;
        let Some(length) = memchr::memchr(b'\n', rest) else {
            self.at = self.body.len();
            return Some(Line { text: rest, begin, end: LineEnd::None });
        };
        self.at += length + 1;
        let text = rest.get(..length).unwrap_or_default();
        Some(match text.strip_suffix(b"\r") {
            Some(text) => Line { text, begin, end: LineEnd::CrLf },
            None => Line { text, begin, end: LineEnd::Lf },
        })
    }
}

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    /// A part begins.
    Begin,
    /// The form ends.
    End,
    /// The line looks like a boundary and is none.
    Unmatched,
}

fn mark(line: &[u8], boundary: &[u8]) -> Mark {
    let Some(rest) = line.strip_prefix(b"--") else { return Mark::None };
    match rest.strip_prefix(boundary) {
        Some(b"") => Mark::Begin,
        Some(b"--") => Mark::End,
        Some(rest) if rest.trim_ascii().is_empty() => Mark::Begin,
        Some(rest) if rest.trim_ascii() == b"--" => Mark::End,
        // Text of a value may begin with hyphens; a boundary follows an empty line at most.
        Some(_) => Mark::Unmatched,
        None => Mark::None,
    }
}

/// Parses a body: calls `take` with each part and the bytes of its value. The error is a reason.
pub(crate) fn parse(
    body: &[u8],
    boundary: &[u8],
    oddities: &mut Oddities,
    mut take: impl FnMut(&Part, &[u8]),
) -> Result<(), String> {
    let mut lines = Lines { body, at: 0 };
    let mut state = State::Before;
    let mut ends = (false, false);
    let mut parts = 0;
    for line in &mut lines {
        match line.end {
            LineEnd::Lf => {
                ends.0 = true;
                oddities.add(Variable::MultipartLfLine);
            }
            LineEnd::CrLf => ends.1 = true,
            LineEnd::None => {}
        }
        let mark = mark(line.text, boundary);
        match mark {
            Mark::Begin | Mark::End => {
                match std::mem::replace(&mut state, State::After) {
                    State::Before | State::After => {}
                    State::Head(_) => {
                        oddities.add(Variable::MultipartInvalidPart);
                        return Err("a part ends in its head".to_owned());
                    }
                    State::Value(part, begin) => take(&part, value(body, begin, line.begin)),
                }
                if mark == Mark::Begin {
                    parts += 1;
                    if parts > PARTS_MAX {
                        return Err("too many parts".to_owned());
                    }
                    state = State::Head(Part::default());
                }
                continue;
            }
            Mark::Unmatched => oddities.add(Variable::MultipartUnmatchedBoundary),
            Mark::None => {}
        }
        match &mut state {
            State::Before => oddities.add(Variable::MultipartDataBefore),
            State::After if !line.text.is_empty() => oddities.add(Variable::MultipartDataAfter),
            State::After | State::Value(..) => {}
            State::Head(part) if line.text.is_empty() => {
                read_head(part, oddities)?;
                let part = std::mem::take(part);
                state = State::Value(
                    part,
                    line.begin + line.text.len() + if line.end == LineEnd::CrLf { 2 } else { 1 },
                );
            }
            State::Head(part) => head_line(part, line.text, oddities)?,
        }
    }
    if ends == (true, true) {
        oddities.add(Variable::MultipartCrlfLfLines);
    }
    match state {
        State::After => Ok(()),
        State::Before if parts == 0 => Err("there is no part".to_owned()),
        State::Before => Ok(()),
        State::Head(_) => Err("the last part ends in its head".to_owned()),
        State::Value(part, begin) => {
            take(&part, value(body, begin, body.len()));
            Err("the last boundary is missing".to_owned())
        }
    }
}

enum State {
    Before,
    Head(Part),
    /// The part, and where its value begins.
    Value(Part, usize),
    After,
}

/// Value between two positions, without the line end before the boundary.
fn value(body: &[u8], begin: usize, end: usize) -> &[u8] {
    let value = body.get(begin..end).unwrap_or_default();
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    value.strip_suffix(b"\r").unwrap_or(value)
}

fn head_line(part: &mut Part, line: &[u8], oddities: &mut Oddities) -> Result<(), String> {
    if line.first().is_some_and(u8::is_ascii_whitespace) {
        oddities.add(Variable::MultipartHeaderFolding);
        let Some(last) = part.head.last_mut() else {
            oddities.add(Variable::MultipartInvalidHeaderFolding);
            return Err("the head of a part begins with a folded line".to_owned());
        };
        if line.first().is_some_and(|byte| !matches!(byte, b' ' | b'\t')) {
            oddities.add(Variable::MultipartInvalidHeaderFolding);
        }
        last.push(b' ');
        last.extend_from_slice(line.trim_ascii_start());
        return Ok(());
    }
    if part.head.len() == HEAD_LINES_MAX {
        return Err("the head of a part is too long".to_owned());
    }
    part.head.push(line.to_vec());
    Ok(())
}

/// Reads the names out of the head of a part.
fn read_head(part: &mut Part, oddities: &mut Oddities) -> Result<(), String> {
    let mut found = None;
    for line in &part.head {
        let Some(colon) = memchr::memchr(b':', line) else {
            oddities.add(Variable::MultipartInvalidPart);
            return Err("a line in the head of a part has no colon".to_owned());
        };
        let (name, value) = line.split_at(colon);
        if name.trim_ascii().eq_ignore_ascii_case(b"content-disposition") {
            if found.is_some() {
                return Err("a part has several dispositions".to_owned());
            }
            found = Some(value.get(1..).unwrap_or_default().trim_ascii().to_vec());
        }
    }
    let Some(disposition) = found else {
        oddities.add(Variable::MultipartInvalidPart);
        return Err("a part has no disposition".to_owned());
    };
    let result = parameters(&disposition, part, oddities);
    if result.is_err() {
        oddities.add(Variable::MultipartInvalidPart);
    }
    result
}

fn parameters(disposition: &[u8], part: &mut Part, oddities: &mut Oddities) -> Result<(), String> {
    let end =
        disposition.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(disposition.len());
    let (kind, mut rest) = disposition.split_at(end);
    if !kind.eq_ignore_ascii_case(b"form-data")
        && !kind.eq_ignore_ascii_case(b"file")
        && !kind.eq_ignore_ascii_case(b"attachment")
    {
        return Err("a part is no form data".to_owned());
    }
    loop {
        rest = rest.trim_ascii_start();
        match rest.first() {
            None => return Ok(()),
            Some(b';') => rest = rest.get(1..).unwrap_or_default().trim_ascii_start(),
            Some(_) => oddities.add(Variable::MultipartMissingSemicolon),
        }
        if rest.is_empty() {
            return Ok(());
        }
        let equals = memchr::memchr(b'=', rest).ok_or("a parameter has no value")?;
        let (name, behind) = rest.split_at(equals);
        let name = name.trim_ascii().to_ascii_lowercase();
        let (value, behind) = parameter(behind.get(1..).unwrap_or_default().trim_ascii_start(), oddities)?;
        rest = behind;
        let slot = match &*name {
            b"name" => &mut part.name,
            b"filename" | b"filename*" => &mut part.file,
            _ => continue,
        };
        if slot.is_some() && &*name != b"filename*" {
            return Err("a parameter is there twice".to_owned());
        }
        *slot = Some(value);
    }
}

/// Value of a parameter, and what is behind it.
fn parameter<'a>(text: &'a [u8], oddities: &mut Oddities) -> Result<(Vec<u8>, &'a [u8]), String> {
    let Some(quote @ (b'"' | b'\'')) = text.first() else {
        let end = text.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return Ok((value.to_vec(), rest));
    };
    if *quote == b'\'' {
        oddities.add(Variable::MultipartInvalidQuoting);
    }
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate().skip(1).peekable();
    while let Some((at, byte)) = bytes.next() {
        if *byte == b'\\' && bytes.peek().is_some_and(|(_, next)| **next == *quote || **next == b'\\') {
            if let Some((_, next)) = bytes.next() {
                value.push(*next);
            }
        } else if byte == quote {
            return Ok((value, text.get(at + 1..).unwrap_or_default()));
        } else {
            value.push(*byte);
        }
    }
    oddities.add(Variable::MultipartInvalidQuoting);
    Err("a parameter has no last quote".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(body: &str) -> (Result<(), String>, Vec<String>, Oddities) {
        let mut oddities = Oddities::default();
        let mut parts = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let result = parse(body.as_bytes(), b"B", &mut oddities, |part, value| {
            let name = text(part.name.as_deref().unwrap_or_default());
            let file = part.file.as_deref().map(text).unwrap_or_default();
            parts.push(format!("{name}|{file}|{}", text(value)));
        });
        (result, parts, oddities)
    }

    #[test]
    fn parts_are_found() {
        let body = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B\r\n\
            Content-Disposition: form-data; name=\"f\"; filename=\"x\\\"y.txt\"\r\nContent-Type: text/plain\r\n\r\nl1\r\nl2\r\n--B--\r\n";
        let (result, parts, oddities) = parts(body);
        assert_eq!(result, Ok(()));
        assert_eq!(parts, ["a||1", "f|x\"y.txt|l1\r\nl2"]);
        assert_eq!(oddities, Oddities::default());
    }

    #[test]
    fn oddities_are_flags() {
        let head = "Content-Disposition: form-data; name=\"a\"";
        let cases = [
            (format!("--B\n{head}\n\n1\n--B--\n"), Variable::MultipartLfLine),
            (format!("x\r\n--B\r\n{head}\r\n\r\n1\r\n--B--\r\n"), Variable::MultipartDataBefore),
            (format!("--B\r\n{head}\r\n\r\n1\r\n--B--\r\nx"), Variable::MultipartDataAfter),
            (format!("--B\r\n{head}\r\n x: y\r\n\r\n1\r\n--B--\r\n"), Variable::MultipartHeaderFolding),
            (format!("--B\r\n{head}\r\n\r\n1\r\n--Bad\r\n--B--\r\n"), Variable::MultipartUnmatchedBoundary),
            (
                "--B\r\nContent-Disposition: form-data; name='a'\r\n\r\n1\r\n--B--\r\n".into(),
                Variable::MultipartInvalidQuoting,
            ),
        ];
        for (body, flag) in cases {
            let (_, _, oddities) = parts(&body);
            assert!(oddities.0.contains(&flag), "{body:?} {oddities:?}");
        }
    }

    #[test]
    fn malformed_forms_are_errors() {
        let head = "Content-Disposition: form-data; name=\"a\"";
        for body in [
            format!("--B\r\n{head}\r\n\r\n1\r\n"),
            "x".into(),
            "--B\r\nx\r\n\r\n--B--".into(),
            format!("--B\r\n{head}\r\n--B--"),
        ] {
            assert!(parts(&body).0.is_err(), "{body:?}");
        }
    }

    #[test]
    fn boundary_is_read_from_the_media_type() {
        let mut oddities = Oddities::default();
        assert_eq!(boundary(b"multipart/form-data; boundary=abc", &mut oddities), Ok(b"abc".to_vec()));
        assert_eq!(oddities, Oddities::default());
        assert_eq!(boundary(b"multipart/form-data boundary=\"a b\"", &mut oddities), Ok(b"a b".to_vec()));
        assert_eq!(oddities.0.len(), 3);
        assert!(boundary(b"multipart/form-data", &mut oddities).is_err());
    }
}
