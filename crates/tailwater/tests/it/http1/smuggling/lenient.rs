//! Two lenient readers with bad habits that real servers have had, different ones wherever it matters.

use super::{End, ObservedRequest, Reading};

/// Deviation of a reader where requests are malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Habit {
    /// The first `Content-Length` counts, read as far as it makes sense, even beside a `Transfer-Encoding`. LF ends a line; a
    /// line that begins with a blank is one like any other. `Host` is the first field of that name.
    Length,
    /// Whatever looks like a `Transfer-Encoding` and has `chunked` in it counts, else the last `Content-Length`. CR ends a line,
    /// too; a line that begins with a blank belongs to the one before. `Host` is the target's or the last field of that name.
    Coding,
}

/// All requests of one connection.
pub(super) fn read(bytes: &[u8], habit: Habit) -> Reading {
    let mut lines = Lines { rest: bytes, habit };
    let mut reading = Reading::default();
    loop {
        while lines.rest.first().is_some_and(|b| matches!(b, b'\r' | b'\n')) {
            lines.rest = &lines.rest[1..];
        }
        if lines.rest.is_empty() {
            return reading;
        }
        match lines.request() {
            Ok(observed_request) => reading.requests.push(observed_request),
            Err(end) => {
                reading.end = end;
                return reading;
            }
        }
    }
}

struct Lines<'a> {
    rest: &'a [u8],
    habit: Habit,
}

impl Lines<'_> {
    fn request(&mut self) -> Result<ObservedRequest, End> {
        let start = self.line()?;
        let mut words = start.split_ascii_whitespace();
        let method = words.next().unwrap_or_default();
        let target = words.next().unwrap_or_default();
        let fields = self.fields()?;
        let of = |name: &'static str| fields.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str());
        let (lengths, codings) = match self.habit {
            Habit::Length => ("content-length", "transfer-encoding"),
            Habit::Coding => ("contentlength", "transferencoding"),
        };
        let is_chunked = of(codings).any(|value| value.to_ascii_lowercase().contains("chunked"));
        let body = match self.habit {
            Habit::Length if of(lengths).next().is_some() => {
                self.counted(of(lengths).next().map_or(0, first_number))?
            }
            _ if is_chunked => self.chunks()?,
            _ => self.counted(of(lengths).next_back().map_or(0, last_number))?,
        };
        let authority = target.split_once("://").filter(|_| self.habit == Habit::Coding);
        let (host, target) = match authority {
            Some((_, rest)) => {
                let at = rest.find('/').unwrap_or(rest.len());
                (rest[..at].to_owned(), rest[at..].to_owned())
            }
            None => {
                let mut hosts = of("host");
                let host = if self.habit == Habit::Length { hosts.next() } else { hosts.next_back() };
                (host.unwrap_or_default().to_owned(), target.to_owned())
            }
        };
        Ok(ObservedRequest { method: method.to_owned(), target, host, body })
    }

    /// The fields of a head, their names as this reader compares them.
    fn fields(&mut self) -> Result<Vec<(String, String)>, End> {
        let mut fields: Vec<(String, String)> = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            if self.habit == Habit::Coding
                && line.starts_with([' ', '\t'])
                && let Some((_, value)) = fields.last_mut()
            {
                value.push_str(&line);
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            let name = match self.habit {
                Habit::Length => name.trim().to_ascii_lowercase(),
                Habit::Coding => {
                    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
                }
            };
            fields.push((name, value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> Result<String, End> {
        let ends = |b: &u8| *b == b'\n' || self.habit == Habit::Coding && *b == b'\r';
        let at = self.rest.iter().position(ends).ok_or(End::Short)?;
        let (line, rest) = self.rest.split_at(at);
        self.rest = if rest.starts_with(b"\r\n") { &rest[2..] } else { &rest[1..] };
        Ok(line.iter().map(|b| char::from(*b)).collect::<String>().trim_end_matches('\r').to_owned())
    }

    fn counted(&mut self, length: usize) -> Result<Vec<u8>, End> {
        let (body, rest) = self.rest.split_at_checked(length).ok_or(End::Short)?;
        self.rest = rest;
        Ok(body.to_vec())
    }

    /// A chunked body: extensions, blanks, `0x` and missing line ends are all the same to these readers.
    fn chunks(&mut self) -> Result<Vec<u8>, End> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let hex = line.trim().trim_start_matches("0x");
            let digits = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            let size = usize::from_str_radix(&hex[..digits], 16).map_err(|_| End::Wrong(line.clone()))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.counted(size)?);
            for end in [b'\r', b'\n'] {
                self.rest = self.rest.strip_prefix(&[end]).unwrap_or(self.rest);
            }
        }
    }
}

/// Number as `strtol` reads it: signs, blanks and `0x` in front, and anything behind.
fn first_number(text: &str) -> usize {
    let text = text.trim_start_matches(['+', ' ', '\t']);
    let (text, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    let digits = text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len());
    usize::from_str_radix(&text[..digits], radix).unwrap_or(0)
}

/// The last of a list, and its digits whatever is between them.
fn last_number(text: &str) -> usize {
    let last = text.rsplit(',').next().unwrap_or_default();
    last.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}
