//! Rules for malformed messages (RFC 9113 sections 8.1.1, 8.2 and 8.3; RFC 9114 sections 4.1.2, 4.2 and 4.3).

use std::fmt;

/// Pseudo-header field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pseudo {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:protocol` (RFC 8441, RFC 9220)
    Protocol,
    /// `:status`
    Status,
}

impl Pseudo {
    pub(crate) const COUNT: usize = 6;

    fn find(name: &[u8]) -> Option<Self> {
        Some(match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Method => ":method",
            Self::Scheme => ":scheme",
            Self::Authority => ":authority",
            Self::Path => ":path",
            Self::Protocol => ":protocol",
            Self::Status => ":status",
        }
    }
}

/// Kinds of messages of a field section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Header section of a request.
    Request,
    /// Header section of a response.
    Response,
    /// Trailer section.
    Trailers,
}

/// Reasons for which a message is malformed. The text follows "client" or "upstream".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedReason {
    /// Unknown pseudo-field.
    UnknownPseudo,
    /// Pseudo-field behind other fields.
    PseudoBehind,
    /// Duplicate pseudo-field.
    PseudoTwice(Pseudo),
    /// Missing pseudo-field.
    NoPseudo(Pseudo),
    /// Pseudo-field with an empty or invalid value.
    InvalidPseudo(Pseudo),
    /// Empty name, or an invalid character in a name.
    InvalidName,
    /// A line end or NUL in a value.
    InvalidValue,
    /// Connection-specific field.
    OfConnection,
    /// Trailers that do not end the stream (HTTP/2).
    TrailersNotLast,
}

impl fmt::Display for MalformedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPseudo => f.write_str("sent unknown pseudo-header"),
            Self::PseudoBehind => f.write_str("sent out of order pseudo-headers"),
            Self::PseudoTwice(which) => write!(f, "sent duplicate {} header", which.name()),
            Self::NoPseudo(which) => write!(f, "sent no {} header", which.name()),
            Self::InvalidPseudo(which) => write!(f, "sent invalid {} header", which.name()),
            Self::InvalidName => f.write_str("sent invalid header name"),
            Self::InvalidValue => f.write_str("sent header with invalid value"),
            Self::OfConnection => f.write_str("sent connection-specific header"),
            Self::TrailersNotLast => f.write_str("sent trailer without end stream flag"),
        }
    }
}

/// Returns the pseudo-field of this name; `None` for any other field.
pub(crate) fn pseudo(name: &[u8], message: Message) -> Result<Option<Pseudo>, MalformedReason> {
    if name.first() != Some(&b':') {
        return Ok(None);
    }
    match (Pseudo::find(name), message) {
        (Some(Pseudo::Status), Message::Response) => Ok(Some(Pseudo::Status)),
        (Some(Pseudo::Status) | None, _) | (Some(_), Message::Response | Message::Trailers) => {
            Err(MalformedReason::UnknownPseudo)
        }
        (Some(which), Message::Request) => Ok(Some(which)),
    }
}

// DIFF(nginx): bytes above ASCII are none of a name (RFC 9113 section 8.2.1).
/// Checks a field that is no pseudo-field. Other unusual characters in names are left to the reader of the field.
pub(crate) fn field(name: &[u8], value: &[u8]) -> Result<(), MalformedReason> {
    let is_bad = |byte: &u8| matches!(byte, 0..=b' ' | b'A'..=b'Z' | b':' | 0x7f..);
    if name.is_empty() || name.iter().any(is_bad) {
        return Err(MalformedReason::InvalidName);
    }
    self::value(value)?;
    match name {
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
            Err(MalformedReason::OfConnection)
        }
        b"te" if !value.trim_ascii().eq_ignore_ascii_case(b"trailers") => Err(MalformedReason::OfConnection),
        _ => Ok(()),
    }
}

/// Checks the value of any field.
pub(crate) fn value(value: &[u8]) -> Result<(), MalformedReason> {
    let is_bad = |byte: &u8| matches!(byte, 0 | b'\r' | b'\n');
    if value.iter().any(is_bad) { Err(MalformedReason::InvalidValue) } else { Ok(()) }
}

/// Checks the pseudo-fields together.
pub(crate) fn all<'a>(
    message: Message,
    get: impl Fn(Pseudo) -> Option<&'a [u8]>,
) -> Result<(), MalformedReason> {
    let demand = |which| get(which).ok_or(MalformedReason::NoPseudo(which)).map(|_| ());
    match message {
        Message::Trailers => Ok(()),
        Message::Response => match get(Pseudo::Status) {
            None => Err(MalformedReason::NoPseudo(Pseudo::Status)),
            Some([b'1'..=b'9', rest @ ..]) if rest.len() == 2 && rest.iter().all(u8::is_ascii_digit) => {
                Ok(())
            }
            Some(_) => Err(MalformedReason::InvalidPseudo(Pseudo::Status)),
        },
        Message::Request => {
            demand(Pseudo::Method)?;
            // A tunnel leads to an authority, and to nothing there (RFC 9113 section 8.5, RFC 9114 section 4.4).
            if get(Pseudo::Method) == Some(b"CONNECT") && get(Pseudo::Protocol).is_none() {
                // Further fields of a CONNECT request are checked by the code that opens tunnels.
                return demand(Pseudo::Authority);
            }
            if get(Pseudo::Protocol).is_some() {
                if get(Pseudo::Method) != Some(b"CONNECT") {
                    return Err(MalformedReason::InvalidPseudo(Pseudo::Protocol));
                }
                demand(Pseudo::Authority)?;
            }
            demand(Pseudo::Scheme)?;
            demand(Pseudo::Path)?;
            let is_invalid = |which: &Pseudo| match (which, get(*which).unwrap_or_default()) {
                (Pseudo::Scheme, scheme) => !is_scheme(scheme),
                (_, value) => value.is_empty(),
            };
            match [Pseudo::Method, Pseudo::Scheme, Pseudo::Path].into_iter().find(is_invalid) {
                Some(which) => Err(MalformedReason::InvalidPseudo(which)),
                None => Ok(()),
            }
        }
    }
}

/// Returns true for a scheme of a URI (RFC 3986 section 3.1).
fn is_scheme(text: &[u8]) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    matches!(text, [b'a'..=b'z' | b'A'..=b'Z', rest @ ..] if rest.iter().all(is_inner))
}
