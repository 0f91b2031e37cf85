//! `proxy_connect_response`: head of the response that opens a tunnel. The server frames it: the text sets the reason
//! phrase and adds fields.

use bytes::Bytes;
use tw_conf::{ConfError, Word};
use tw_http::{HeaderName, fields, hop};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// End of a head.
const END: &[u8] = b"\r\n\r\n";

/// Additions to the response.
pub(super) struct ConnectResponse {
    /// Status and reason phrase; empty for those of the server.
    status_line: Bytes,
    fields: Box<[(Bytes, Template)]>,
}

impl ConnectResponse {
    /// Parses the head written in `word`.
    ///
    /// # Errors
    /// The text is no head that opens a tunnel.
    pub(super) fn parse(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let (status_line, written_values) = parse_head(&word.bytes).map_err(|message| {
            ConfError::new(format!("\"proxy_connect_response\" {message}")).at(word.span)
        })?;
        let mut fields = Vec::with_capacity(written_values.len());
        for (name, value) in written_values {
            let value = Word { bytes: value.into(), ..word.clone() };
            fields.push((Bytes::copy_from_slice(name), cx.template(&value)?));
        }
        Ok(Self { status_line: Bytes::copy_from_slice(status_line), fields: fields.into() })
    }

    /// Adds it to the response of `r`.
    pub(super) fn apply(&self, r: &mut Request) {
        r.response.status_line = self.status_line.clone();
        for (name, value) in &self.fields {
            let value = value.value(r);
            if !value.is_empty() {
                r.response.fields.append(name.clone(), Bytes::from(value));
            }
        }
    }
}

/// Names and values.
type Fields<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Status with reason phrase, and fields of a head. The error is the rest of a sentence about the directive.
fn parse_head(text: &[u8]) -> Result<(&[u8], Fields<'_>), &'static str> {
    const NO_END: &str =
        "must end with an empty line: every line with \"\\r\\n\", and \"\\r\\n\" behind the last one";
    let mut rest = text.strip_suffix(&END[2..]).ok_or(NO_END)?;
    let mut lines = Vec::new();
    while !rest.is_empty() {
        let end = rest.windows(2).position(|two| two == b"\r\n").ok_or(NO_END)?;
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    if lines.iter().any(|line| line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')) {
        return Err("must not hold control characters");
    }
    let (first, lines) = lines.split_first().ok_or(NO_END)?;
    let status = first.strip_prefix(b"HTTP/1.1 ").or(first.strip_prefix(b"HTTP/1.0 "));
    let status_line = status
        .filter(|status| *status == b"200" || status.starts_with(b"200 "))
        .filter(|status| !status.contains(&b'$'))
        .ok_or("must begin with \"HTTP/1.1 200\" and a reason without variables")?;
    let fields = lines.iter().map(|line| parse_field(line)).collect::<Result<_, _>>()?;
    Ok((if status_line.len() > 4 { status_line } else { b"" }, fields))
}

fn parse_field(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    if line.is_empty() {
        return Err("must hold nothing behind the empty line: it would become a part of the tunnel");
    }
    let colon = line.iter().position(|&byte| byte == b':').ok_or("has a line without \":\"")?;
    let name = &line[..colon];
    let value = line[colon + 1..].trim_ascii();
    // `$` is allowed in names, but here it stands for a variable, which a name cannot have.
    if !fields::is_name(name) || name.contains(&b'$') {
        return Err("has an invalid name of a field (only values may hold variables)");
    }
    if HeaderName::find(name)
        .is_some_and(|known_name| hop::is_framing(known_name) || hop::is_hop_by_hop(known_name))
    {
        return Err("must not hold fields that frame the response or belong to the connection");
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed() {
        let (status, fields) =
            parse_head(b"HTTP/1.0 200 Connection Established\r\nProxy-agent: x\r\nA:$b c\r\n\r\n").unwrap();
        assert_eq!(status, b"200 Connection Established");
        assert_eq!(fields, [(&b"Proxy-agent"[..], &b"x"[..]), (b"A", b"$b c")]);
        assert_eq!(parse_head(b"HTTP/1.1 200\r\n\r\n"), Ok((&b""[..], Vec::new())));
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, part) in [
            ("", "empty line"),
            ("\r\n", "empty line"),
            ("HTTP/1.1 200 OK\r\n", "empty line"),
            ("HTTP/1.1 200 OK", "empty line"),
            ("HTTP/1.1 200 OK\r\nA: b\r\n", "empty line"),
            ("HTTP/1.1 200 OK\r\n\r\nbytes", "empty line"),
            ("HTTP/1.1 200 OK\r\n\r\nbytes\r\n\r\n", "part of the tunnel"),
            ("HTTP/1.1 200 OK\nA: b\r\n\r\n", "control characters"),
            ("HTTP/2 200\r\n\r\n", "begin"),
            ("HTTP/1.1 2000\r\n\r\n", "begin"),
            ("HTTP/1.1 403 Forbidden\r\n\r\n", "begin"),
            ("HTTP/1.1 $status\r\n\r\n", "begin"),
            ("HTTP/1.1 200 $reason\r\n\r\n", "begin"),
            ("HTTP/1.1 200 OK\r\nA\r\n\r\n", "without"),
            ("HTTP/1.1 200 OK\r\n$a: b\r\n\r\n", "name"),
            ("HTTP/1.1 200 OK\r\n: b\r\n\r\n", "name"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", "frame"),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "frame"),
        ] {
            let refused = parse_head(text.as_bytes()).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
