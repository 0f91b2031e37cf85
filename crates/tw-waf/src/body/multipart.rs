//! Parts of `multipart/form-data`, and what is odd about them.
//!
//! Programs behind the firewall read odd forms in their own ways, so every oddity is a flag that a rule can look at.

mod boundary;
mod disposition;

pub(crate) use self::boundary::boundary;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    use boundary::LIMITS;
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

/// Oddities of a form.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Oddities {
    /// Variables whose value is 1.
    pub(crate) flags: Vec<Variable>,
    /// Value of `MULTIPART_UNMATCHED_BOUNDARY`: 1 if a line looks like a boundary and is none, 2 if a boundary follows it.
    pub(crate) unmatched_boundary: u8,
}

impl Oddities {
    fn add(&mut self, flag: Variable) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }

    /// Flags that make the form one that programs read in different ways.
    pub(crate) fn is_strict_error(&self) -> bool {
        self.flags.iter().any(|flag| *flag != Variable::MultipartCrlfLfLines)
    }
}

/// Variables of all flags.
pub(crate) const FLAGS: [Variable; 12] = [
    Variable::MultipartBoundaryQuoted,
    Variable::MultipartBoundaryWhitespace,
    Variable::MultipartDataBefore,
    Variable::MultipartDataAfter,
    Variable::MultipartHeaderFolding,
    Variable::MultipartCrlfLfLines,
    Variable::MultipartLfLine,
    Variable::MultipartMissingSemicolon,
    Variable::MultipartInvalidQuoting,
    Variable::MultipartInvalidPart,
    Variable::MultipartInvalidHeaderFolding,
    Variable::MultipartFileLimitExceeded,
];

/// Warning about an oddity, in the words of ModSecurity's debug log.
pub(crate) fn warning(flag: Variable) -> &'static str {
    match flag {
        Variable::MultipartBoundaryQuoted => "boundary was quoted.",
        Variable::MultipartBoundaryWhitespace => "boundary whitespace in C-T header.",
        Variable::MultipartDataBefore => "seen data before first boundary.",
        Variable::MultipartDataAfter => "seen data after last boundary.",
        Variable::MultipartHeaderFolding => "header folding used.",
        Variable::MultipartCrlfLfLines => "mixed line endings used (CRLF/LF).",
        Variable::MultipartLfLine => "incorrect line endings used (LF).",
        Variable::MultipartMissingSemicolon => "missing semicolon in C-T header.",
        Variable::MultipartInvalidQuoting => "invalid quoting used.",
        Variable::MultipartInvalidPart => "invalid part parsing.",
        Variable::MultipartInvalidHeaderFolding => "invalid header folding used.",
        Variable::MultipartFileLimitExceeded => "file limit exceeded.",
        _ => "possible boundary in the data of a part.",
    }
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
    /// The line begins like a boundary and goes on.
    Invalid,
}

fn mark(line: &[u8], boundary: &[u8]) -> Mark {
    let Some(rest) = line.strip_prefix(b"--").filter(|rest| !rest.is_empty()) else {
        let whole = [b"--", boundary].concat();
        return if memchr::memmem::find(line, &whole).is_some() { Mark::Unmatched } else { Mark::None };
    };
    match rest.strip_prefix(boundary) {
        Some(b"") => Mark::Begin,
        Some(b"--") => Mark::End,
        Some(_) => Mark::Invalid,
        None if rest.trim_ascii_start().len() < rest.len()
            && rest.trim_ascii_start().starts_with(boundary) =>
        {
            Mark::Invalid
        }
        None => Mark::Unmatched,
    }
}

/// Ends of the lines that are no data.
#[derive(Default)]
struct LineEnds {
    has_lf: bool,
    has_crlf: bool,
}

impl LineEnds {
    fn add(&mut self, end: LineEnd) {
        match end {
            LineEnd::Lf => self.has_lf = true,
            LineEnd::CrLf => self.has_crlf = true,
            LineEnd::None => {}
        }
    }
}

/// Parses a body: calls `take` with each part and the bytes of its value. The error is a reason.
pub(crate) fn parse(
    body: &[u8],
    boundary: &[u8],
    oddities: &mut Oddities,
    take: impl FnMut(&Part, &[u8]),
) -> Result<(), String> {
    let mut ends = LineEnds::default();
    let result = parse_lines(body, boundary, oddities, &mut ends, take);
    if ends.has_lf {
        oddities.add(Variable::MultipartLfLine);
    }
    if ends.has_lf && ends.has_crlf {
        oddities.add(Variable::MultipartCrlfLfLines);
    }
    result
}

fn parse_lines(
    body: &[u8],
    boundary: &[u8],
    oddities: &mut Oddities,
    ends: &mut LineEnds,
    mut take: impl FnMut(&Part, &[u8]),
) -> Result<(), String> {
    let mut state = State::Before;
    let mut parts = 0;
    let mut last_end = LineEnd::None;
    for line in (Lines { body, at: 0 }) {
        if matches!(state, State::After) {
            if !line.text.is_empty() {
                oddities.add(Variable::MultipartDataAfter);
            }
            continue;
        }
        let before = std::mem::replace(&mut last_end, line.end);
        let mark = mark(line.text, boundary);
        match mark {
            Mark::Begin | Mark::End => {
                ends.add(line.end);
                if oddities.unmatched_boundary == 1 {
                    oddities.unmatched_boundary = 2;
                }
                match std::mem::replace(&mut state, State::After) {
                    State::Before | State::After => {}
                    State::Head(_) => {
                        oddities.add(Variable::MultipartInvalidPart);
                        return Err("Multipart: Invalid part (boundary in its head).".to_owned());
                    }
                    State::Value(part, begin) => {
                        ends.add(before);
                        if begin == line.begin {
                            oddities.add(Variable::MultipartInvalidPart);
                        }
                        take(&part, value(body, begin, line.begin));
                    }
                }
                if mark == Mark::Begin {
                    parts += 1;
                    if parts > PARTS_MAX {
                        return Err("Multipart: Too many parts.".to_owned());
                    }
                    state = State::Head(Part::default());
                }
                continue;
            }
            Mark::Invalid => return Err("Multipart: Invalid boundary.".to_owned()),
            Mark::Unmatched => oddities.unmatched_boundary = 1,
            Mark::None => {}
        }
        match &mut state {
            State::Before => oddities.add(Variable::MultipartDataBefore),
            State::After | State::Value(..) => {}
            State::Head(part) => {
                ends.add(line.end);
                if !line.text.is_empty() {
                    head_line(part, line.text, oddities)?;
                    continue;
                }
                read_head(part, oddities)?;
                let part = std::mem::take(part);
                let end = if line.end == LineEnd::CrLf { 2 } else { 1 };
                state = State::Value(part, line.begin + line.text.len() + end);
            }
        }
    }
    match state {
        State::After => Ok(()),
        State::Before if parts == 0 => Err("Multipart: No boundaries found in payload.".to_owned()),
        State::Before => Ok(()),
        State::Head(_) => Err("Multipart: Final boundary missing.".to_owned()),
        State::Value(part, begin) => {
            take(&part, value(body, begin, body.len()));
            Err("Multipart: Final boundary missing.".to_owned())
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
    let invalid = |what: &str| Err(format!("Multipart: Invalid part header ({what})."));
    if line.contains(&0) {
        return Err("Multipart: Nul byte in part headers.".to_owned());
    }
    if line.first().is_some_and(u8::is_ascii_whitespace) {
        oddities.add(Variable::MultipartHeaderFolding);
        let Some(last) = part.head.last_mut() else {
            oddities.add(Variable::MultipartInvalidHeaderFolding);
            return invalid("folding error");
        };
        if line.first().is_some_and(|byte| !matches!(byte, b' ' | b'\t')) {
            oddities.add(Variable::MultipartInvalidHeaderFolding);
        }
        last.push(b' ');
        last.extend_from_slice(line.trim_ascii_start());
        return Ok(());
    }
    if part.head.len() == HEAD_LINES_MAX {
        return Err("Multipart: Part header too long.".to_owned());
    }
    let Some(colon) = memchr::memchr(b':', line) else { return invalid("colon missing") };
    let name = line.get(..colon).unwrap_or_default();
    if name.is_empty() {
        return invalid("header name missing");
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return invalid("contains invalid character");
    }
    let is_same = |candidate: &Vec<u8>| {
        candidate
            .split(|byte| *byte == b':')
            .next()
            .is_some_and(|candidate| candidate.eq_ignore_ascii_case(name))
    };
    if part.head.iter().any(is_same) {
        return invalid("duplicate");
    }
    part.head.push(line.to_vec());
    Ok(())
}

/// Reads the names out of the head of a part.
fn read_head(part: &mut Part, oddities: &mut Oddities) -> Result<(), String> {
    let disposition = part.head.iter().find_map(|line| {
        let (name, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
        let is_disposition = name.eq_ignore_ascii_case(b"content-disposition");
        is_disposition.then(|| value.get(1..).unwrap_or_default().trim_ascii().to_vec())
    });
    let Some(disposition) = disposition else {
        return Err("Multipart: Part missing Content-Disposition header.".to_owned());
    };
    disposition::parameters(&disposition, part, oddities).map_err(|fault| match fault {
        14 => "Multipart: Invalid Content-Disposition header (-14): Duplicate Content-Disposition name."
            .to_owned(),
        15 => "Multipart: Invalid Content-Disposition header (-15): Duplicate Content-Disposition filename."
            .to_owned(),
        21 => "Multipart: Invalid Content-Disposition header (-21): Warning: no filename= but filename*."
            .to_owned(),
        fault => format!("Multipart: Invalid Content-Disposition header (-{fault})."),
    })?;
    if part.name.is_none() {
        return Err("Multipart: Content-Disposition header missing name field.".to_owned());
    }
    Ok(())
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
            (
                "--B\r\nContent-Disposition: form-data; name='a'\r\n\r\n1\r\n--B--\r\n".into(),
                Variable::MultipartInvalidQuoting,
            ),
        ];
        for (body, flag) in cases {
            let (_, _, oddities) = parts(&body);
            assert!(oddities.flags.contains(&flag), "{body:?} {oddities:?}");
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
            format!("--B \r\n{head}\r\n\r\n1\r\n--B--\r\n"),
            format!("--B\r\n{head}; x=y\r\n\r\n1\r\n--B--\r\n"),
            "--B\r\nContent-Disposition: form-data\r\n\r\n1\r\n--B--\r\n".into(),
            format!("--B\r\nA\x01: b\r\n{head}\r\n\r\n1\r\n--B--\r\n"),
        ] {
            assert!(parts(&body).0.is_err(), "{body:?}");
        }
    }

    #[test]
    fn lines_that_look_like_boundaries_are_noted() {
        let form = |data: &str| {
            format!("--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{data}\r\n--B--\r\n")
        };
        for (data, expected) in [("1", 0), ("--X", 2), ("x --B", 2), ("--", 0), ("l1\nl2", 0)] {
            let (result, parts, oddities) = parts(&form(data));
            assert_eq!((result, oddities.unmatched_boundary), (Ok(()), expected), "{data}");
            assert_eq!((parts, oddities.flags), (vec![format!("a||{data}")], Vec::new()));
        }
    }
}
