//! One line of an error log in JSON (`error_log … json`): an object without line breaks, valid for any bytes of a peer.
//!
//! ```json
//! {"time":"2026-11-20T11:00:00.123+00:00","level":"error","pid":1,"tid":2,"connection":3,"message":"…","client":"…","tags":{"a":"b"}}
//! ```
//! A value that does not fit is cut, and the object says so (`"cut":true`).

use std::fmt::{self, Write as _};

use crate::context::{ContextVisitor, LineContext};
use crate::text_line::{LINE_MAX, Text};
use crate::{Level, time};

/// Bytes of the message as it is written, so that what follows it has room.
const MESSAGE_MAX: usize = LINE_MAX;
/// Bytes kept for the end of the line: of a string, of the tags, of the object.
const END: &str = "\"},\"cut\":true}\n";
const HEX: [u8; 16] = *b"0123456789abcdef";
/// End of the room for members.
const ROOM: usize = JSON_LINE_MAX - END.len();

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of one line of an error log in JSON.
    pub const JSON_LINE_MAX: usize = 2 * LINE_MAX, bytes, "values are cut, and the line has a member that says so";
}

/// A line under construction, on the stack.
pub(crate) struct JsonLine {
    bytes: [u8; JSON_LINE_MAX],
    len: usize,
    /// The object has a member.
    has_member: bool,
    tags: Tags,
    is_cut: bool,
}

/// Progress of the tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tags {
    None,
    Open,
}

/// Time of a line: seconds since 1970, and milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct LineTime {
    pub(crate) unix_s: i64,
    pub(crate) ms: u32,
}

impl JsonLine {
    pub(crate) fn new(
        time: LineTime,
        level: Level,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) -> Self {
        let mut line =
            Self { bytes: [0; JSON_LINE_MAX], len: 0, has_member: false, tags: Tags::None, is_cut: false };
        line.put(b"{");
        let iso = time::time_iso8601(time.unix_s);
        let (seconds, zone) = iso.split_at(19);
        let seconds = Text(seconds);
        let zone = Text(zone);
        line.string("time", format_args!("{seconds}.{:03}{zone}", time.ms), ROOM);
        line.string("level", format_args!("{level}"), ROOM);
        // These system calls never wait; a cached value would be wrong after fork().
        line.number("pid", std::process::id().into());
        line.number("tid", rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into());
        if let Some(connection) = connection {
            line.number("connection", connection);
        }
        line.string("message", message, line.len + MESSAGE_MAX);
        if let Some(context) = context {
            context.visit(&mut line);
        }
        line.end();
        line
    }

    /// The line with its line feed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Ends the line, for which there is always room.
    fn end(&mut self) {
        if self.tags == Tags::Open {
            self.put(b"}");
        }
        self.put(if self.is_cut { b",\"cut\":true}\n" } else { b"}\n" });
    }

    /// Appends bytes if they fit before the end of the line.
    fn put(&mut self, bytes: &[u8]) -> bool {
        self.put_before(bytes, JSON_LINE_MAX)
    }

    /// Appends bytes if they fit before `end`.
    fn put_before(&mut self, bytes: &[u8], end: usize) -> bool {
        let fits = self.len + bytes.len() <= end;
        if fits {
            self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
        fits
    }

    /// Begins a member; leaves it out if not even its name has room.
    fn begin(&mut self, name: &str) -> bool {
        let start = self.len;
        let comma: &[u8] = if self.has_member { b"," } else { b"" };
        let mut is_whole = self.put_before(comma, ROOM) && self.put_before(b"\"", ROOM);
        is_whole = is_whole && Escaped { line: self, end: ROOM }.write_str(name).is_ok();
        // The shortest value.
        if !is_whole || !self.put_before(b"\":", ROOM.saturating_sub(2)) {
            self.len = start;
            self.is_cut = true;
            return false;
        }
        self.has_member = true;
        true
    }

    fn number(&mut self, name: &str, value: u64) {
        if self.begin(name) {
            // The members with numbers are the first ones, so there is room.
            let _ = write!(Escaped { line: self, end: ROOM }, "{value}");
        }
    }

    /// Adds a member whose value ends before `end`.
    fn string(&mut self, name: &str, value: fmt::Arguments<'_>, end: usize) {
        if !self.begin(name) {
            return;
        }
        self.put_before(b"\"", ROOM);
        if (Escaped { line: self, end: end.min(ROOM) }).write_fmt(value).is_err() {
            self.is_cut = true;
        }
        // The end of the line has kept room for it.
        self.put(b"\"");
    }
}

impl ContextVisitor for JsonLine {
    fn text(&mut self, _: fmt::Arguments<'_>) {}

    fn member(&mut self, name: &str, value: fmt::Arguments<'_>) {
        if self.tags == Tags::None {
            self.string(name, value, ROOM);
        }
    }

    fn tag(&mut self, name: &str, value: &[u8]) {
        if self.tags == Tags::None {
            if !self.begin("tags") {
                return;
            }
            self.put_before(b"{", ROOM);
            self.tags = Tags::Open;
            self.has_member = false;
        }
        self.string(name, format_args!("{}", Text(value)), ROOM);
    }

    fn has_tags(&self) -> bool {
        true
    }
}

/// Content of a JSON string (RFC 8259, section 7).
struct Escaped<'a> {
    line: &'a mut JsonLine,
    end: usize,
}

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut buffer = [0; 4];
            let fits = match character {
                '"' => self.line.put_before(b"\\\"", self.end),
                '\\' => self.line.put_before(b"\\\\", self.end),
                '\n' => self.line.put_before(b"\\n", self.end),
                '\r' => self.line.put_before(b"\\r", self.end),
                '\t' => self.line.put_before(b"\\t", self.end),
                // Line breaks and commands of terminals in any encoding.
                character if character.is_control() => {
                    // All control characters are below U+00A0.
                    let code = u32::from(character) as usize;
                    let digits = [HEX[code >> 4 & 15], HEX[code & 15]];
                    self.line.put_before(&[b'\\', b'u', b'0', b'0', digits[0], digits[1]], self.end)
                }
                character => self.line.put_before(character.encode_utf8(&mut buffer).as_bytes(), self.end),
            };
            if !fits {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Facts<'a>(&'a [(&'a str, &'a [u8])], &'a [(&'a str, &'a [u8])]);

    impl LineContext for Facts<'_> {
        fn visit(&self, visitor: &mut dyn ContextVisitor) {
            self.0.iter().for_each(|(name, value)| visitor.quoted(name, format_args!("{}", Text(value))));
            self.1.iter().for_each(|(name, value)| visitor.tag(name, value));
        }
    }

    fn line(message: &str, context: &Facts<'_>) -> String {
        let time = LineTime { unix_s: 0, ms: 7 };
        let line = JsonLine::new(time, Level::Error, Some(5), format_args!("{message}"), Some(context));
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    /// The members behind `tid`.
    fn rest(line: &str) -> &str {
        &line[line.find(",\"connection\"").unwrap()..]
    }

    #[test]
    fn line_has_all_members() {
        let line = line(
            "open() failed",
            &Facts(&[("client", b"192.0.2.1"), ("host", b"a")], &[("a", b"b"), ("c", b"")]),
        );
        assert!(line.contains(".007"), "{line}");
        let expected = format!(
            "\",\"level\":\"error\",\"pid\":{},\"tid\":{}{}",
            std::process::id(),
            rustix::thread::gettid().as_raw_nonzero(),
            rest(&line)
        );
        assert!(line.starts_with("{\"time\":\"") && line.ends_with(&expected), "{line}");
        assert_eq!(
            rest(&line),
            ",\"connection\":5,\"message\":\"open() failed\",\"client\":\"192.0.2.1\",\"host\":\"a\",\
             \"tags\":{\"a\":\"b\",\"c\":\"\"}}\n"
        );
        let time = LineTime { unix_s: 0, ms: 0 };
        let short = JsonLine::new(time, Level::Debug, None, format_args!("m"), None);
        assert!(short.bytes().ends_with(b",\"message\":\"m\"}\n"), "{}", Text(short.bytes()));
    }

    #[test]
    fn any_bytes_are_one_valid_object() {
        let line = line(
            "a\"b\\c\n\r\t\0\x1b\x7f\u{85}\u{2028}é",
            &Facts(&[("host", b"\xff\"\n")], &[("a\"\n", b"\xc3")]),
        );
        assert_eq!(
            rest(&line),
            ",\"connection\":5,\"message\":\"a\\\"b\\\\c\\n\\r\\t\\u0000\\u001b\\u007f\\u0085\u{2028}é\",\
             \"host\":\"\\\\xFF\\\"\\n\",\"tags\":{\"a\\\"\\n\":\"\\\\xC3\"}}\n"
        );
    }

    /// Checks that braces and quotes of a line match.
    fn is_balanced(line: &str) -> bool {
        let mut depth = 0;
        let mut in_string = false;
        let mut chars = line.chars();
        while let Some(character) = chars.next() {
            match (in_string, character) {
                (true, '\\') => drop(chars.next()),
                (_, '"') => in_string = !in_string,
                (false, '{') => depth += 1,
                (false, '}') => depth -= 1,
                _ => {}
            }
        }
        depth == 0 && !in_string
    }

    #[test]
    fn lines_are_cut_at_every_length() {
        for text in ["x", "\"", "\0", "é"] {
            for len in (0..60).chain(1000..1040).chain([5000]) {
                let message = text.repeat(len);
                for fact in [0, 1, 900, 1900, 5000] {
                    let fact = vec![b'y'; fact];
                    let tags: Vec<(&str, &[u8])> = (0..40).map(|_| ("tag", &b"value"[..])).collect();
                    let line = line(&message, &Facts(&[("request", &fact), ("host", &fact)], &tags));
                    assert!(line.len() <= JSON_LINE_MAX, "{} {len}", line.len());
                    assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
                    assert!(is_balanced(&line), "{line}");
                    if !line.ends_with(",\"cut\":true}\n") {
                        assert_eq!(line.matches("\"tag\":\"value\"").count(), 40, "{line}");
                        assert_eq!(line.matches('y').count(), 2 * fact.len(), "{line}");
                        assert!(len < 5000, "{line}");
                    }
                }
            }
        }
    }
}
