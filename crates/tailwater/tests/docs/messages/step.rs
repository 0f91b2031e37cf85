//! Steps that cause a message: files beside the configuration, and what clients and upstream servers do.

/// Step before or after the start of the program.
#[derive(Debug)]
pub(super) enum Step {
    /// `certificate NAME`: files `NAME.crt` and `NAME.key`.
    Certificate(String),
    /// `file NAME CONTENT`: a file; the content may have bytes as `\xNN`.
    File(String, Vec<u8>),
    /// `start`: the program is started, and ends with the message.
    Start,
    /// `occupied PORT`: another process listens at the port, and never accepts.
    Occupied(String),
    /// `fastcgi PORT TEXT`: an application listens at the port, and writes a text for the error log.
    Application(String, String),
    /// `GET TARGET [FIELD]`: a request; the next one is sent when its response is there.
    Get(String, Option<String>),
    /// `begin TARGET`: a request whose response is not awaited.
    Begin(String),
    /// `POST TARGET LENGTH`: a request with a body.
    Post(String, usize),
    /// `expect TEXT`: a part of the message, if others precede it.
    Expect(String),
}

impl Step {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let (first, more) = (first.to_owned(), more.to_owned());
        Some(match word {
            "certificate" => Self::Certificate(first),
            "file" => Self::File(first, bytes(&more)?),
            "start" => Self::Start,
            "occupied" => Self::Occupied(first),
            "fastcgi" => Self::Application(first, more),
            "GET" => Self::Get(first, (!more.is_empty()).then_some(more)),
            "begin" => Self::Begin(first),
            "POST" => Self::Post(first, more.parse().ok()?),
            "expect" => Self::Expect(rest.to_owned()),
            _ => return None,
        })
    }

    /// Head and body of a request; `None` for other steps.
    pub(super) fn request(&self) -> Option<Vec<u8>> {
        let host = "Host: www.example.com\r\n";
        let (line, fields, body) = match self {
            Self::Get(target, None) | Self::Begin(target) => (format!("GET {target}"), host.to_owned(), 0),
            Self::Get(target, Some(field)) if field.starts_with("Host:") => {
                (format!("GET {target}"), format!("{field}\r\n"), 0)
            }
            Self::Get(target, Some(field)) => (format!("GET {target}"), format!("{host}{field}\r\n"), 0),
            Self::Post(target, length) => {
                (format!("POST {target}"), format!("{host}Content-Length: {length}\r\n"), *length)
            }
            _ => return None,
        };
        let mut request = format!("{line} HTTP/1.1\r\n{fields}\r\n").into_bytes();
        request.resize(request.len() + body, b'x');
        Some(request)
    }
}

/// A text with `\xNN` for bytes.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}
