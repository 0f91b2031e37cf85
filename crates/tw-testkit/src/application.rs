//! Scripted application servers for FastCGI, uwsgi and SCGI, built on [`origin`](crate::origin): parsed requests, and
//! FastCGI records for responses.

use std::io::{Read, Write};

use crate::origin::Conn;

/// Type of a record with output.
pub const STDOUT: u8 = 6;
/// Type of a record for the error log.
pub const STDERR: u8 = 7;
/// Type of the record that ends a request.
pub const END_REQUEST: u8 = 3;

/// Request as an application received it.
#[derive(Debug, Default)]
pub struct ApplicationRequest {
    /// Names and values, in order.
    pub params: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// True if the connection is to stay open (FastCGI).
    pub keeps_open: bool,
    /// Both modifiers (uwsgi).
    pub modifiers: [u8; 2],
}

impl ApplicationRequest {
    /// The value of a parameter.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| &**value)
    }

    /// All of them, one a line: `NAME=value`.
    #[must_use]
    pub fn lines(&self) -> String {
        self.params.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// Bytes of the body.
    #[must_use]
    pub fn content_length(&self) -> usize {
        self.param("CONTENT_LENGTH").and_then(|length| length.parse().ok()).unwrap_or_default()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A record of FastCGI.
///
/// # Panics
/// The content is too long for one.
#[must_use]
pub fn record(kind: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let [high, low] = u16::try_from(content.len()).expect("a record has 64 KiB at most").to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
}

/// A response in FastCGI, with its end: `output` is fields, an empty line and a body.
#[must_use]
pub fn response(output: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes: Vec<u8> = output.as_ref().chunks(32_768).flat_map(|chunk| record(STDOUT, chunk)).collect();
    bytes.extend(record(STDOUT, ""));
    bytes.extend(record(END_REQUEST, [0; 8]));
    bytes
}

impl<S: Read + Write> Conn<S> {
    /// The next `len` bytes; `None` if there are fewer.
    pub fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The next request in FastCGI without its body; `None` when there is none.
    pub fn fastcgi_head(&mut self) -> Option<ApplicationRequest> {
        let mut request = ApplicationRequest::default();
        let mut params = Vec::new();
        loop {
            let (kind, content) = self.fastcgi_record()?;
            match (kind, content.is_empty()) {
                (1, _) => request.keeps_open = content.get(2) == Some(&1),
                (4, true) => break,
                (4, false) => params.extend(content),
                _ => return None,
            }
        }
        let mut rest = &params[..];
        while !rest.is_empty() {
            let name = length(&mut rest)?;
            let value = length(&mut rest)?;
            let (pair, more) = rest.split_at_checked(name + value)?;
            let (name, value) = pair.split_at(name);
            request.params.push((text(name), text(value)));
            rest = more;
        }
        Some(request)
    }

    /// The next piece of the body in FastCGI; `None` at its end.
    pub fn fastcgi_piece(&mut self) -> Option<Vec<u8>> {
        let (kind, content) = self.fastcgi_record()?;
        (kind == 5 && !content.is_empty()).then_some(content)
    }

    /// The next request in FastCGI; `None` when there is none.
    pub fn fastcgi(&mut self) -> Option<ApplicationRequest> {
        let mut request = self.fastcgi_head()?;
        request.body = self.fastcgi_body()?;
        Some(request)
    }

    /// The rest of the body in FastCGI; `None` if it has no end.
    pub fn fastcgi_body(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let (kind, content) = self.fastcgi_record()?;
            match (kind, content.is_empty()) {
                (5, false) => body.extend(content),
                (5, true) => return Some(body),
                _ => return None,
            }
        }
    }

    fn fastcgi_record(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.exactly(8)?;
        let [1, kind, 0, 1, high, low, padding, _] = head[..] else { return None };
        let content = self.exactly(usize::from(u16::from_be_bytes([high, low])))?;
        self.exactly(padding.into())?;
        Some((kind, content))
    }

    /// The request in uwsgi; `None` when there is none.
    pub fn uwsgi(&mut self) -> Option<ApplicationRequest> {
        let mut request = self.uwsgi_head()?;
        request.body = self.exactly(request.content_length())?;
        Some(request)
    }

    /// The request in uwsgi without its body; `None` when there is none.
    pub fn uwsgi_head(&mut self) -> Option<ApplicationRequest> {
        let head = self.exactly(4)?;
        let params = self.exactly(usize::from(u16::from_le_bytes([head[1], head[2]])))?;
        let mut request =
            ApplicationRequest { modifiers: [head[0], head[3]], ..ApplicationRequest::default() };
        let mut rest = &params[..];
        let mut word = || {
            let (len, more) = rest.split_first_chunk()?;
            let (word, more) = more.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
            rest = more;
            Some(text(word))
        };
        while let Some(name) = word() {
            request.params.push((name, word()?));
        }
        Some(request)
    }

    /// The request in SCGI; `None` when there is none.
    pub fn scgi(&mut self) -> Option<ApplicationRequest> {
        let mut request = self.scgi_head()?;
        request.body = self.exactly(request.content_length())?;
        Some(request)
    }

    /// The request in SCGI without its body; `None` when there is none.
    pub fn scgi_head(&mut self) -> Option<ApplicationRequest> {
        let mut len = 0;
        loop {
            match self.exactly(1)?[0] {
                b':' => break,
                digit => len = len * 10 + usize::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?),
            }
        }
        let params = self.exactly(len)?;
        if self.exactly(1)? != b"," {
            return None;
        }
        let mut request = ApplicationRequest::default();
        let mut words = params.strip_suffix(b"\0")?.split(|byte| *byte == 0);
        while let Some(name) = words.next() {
            request.params.push((text(name), text(words.next()?)));
        }
        Some(request)
    }

    /// Answers in FastCGI with fields, an empty line and a body.
    pub fn answer_fastcgi(&mut self, output: impl AsRef<[u8]>) {
        self.send(response(output));
    }
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    let (first, more) = rest.split_first()?;
    if *first < 128 {
        *rest = more;
        return Some((*first).into());
    }
    let (long, more) = rest.split_first_chunk()?;
    *rest = more;
    usize::try_from(u32::from_be_bytes(*long) & !(1 << 31)).ok()
}
