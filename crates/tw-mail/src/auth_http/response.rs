//! Response of the auth server, without I/O. The status line is not looked at, as in nginx.

use std::fmt;

use crate::secret::Secret;

/// Decision of the auth server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthStatus {
    /// The login is right.
    Ok,
    /// The auth server is to be asked again after a pause.
    Wait,
    /// The login is refused, with a text for the client.
    Refused(Vec<u8>),
}

/// Response of the auth server.
#[derive(Debug, PartialEq, Eq)]
pub struct AuthResponse {
    /// `Auth-Status`
    pub status: AuthStatus,
    /// `Auth-Server`
    pub server: Vec<u8>,
    /// `Auth-Port`
    pub port: Vec<u8>,
    /// `Auth-User`
    pub user: Option<Secret>,
    /// `Auth-Pass`
    pub password: Option<Secret>,
    /// `Auth-Wait`, in seconds.
    pub wait_secs: u64,
    /// `Auth-Error-Code`
    pub error_code: Option<Vec<u8>>,
    /// Status of the response; the decision does not depend on it.
    pub http_status: u16,
    /// Bytes of the body, if the head says how many; the connection can be used again behind them.
    pub body_len: Option<usize>,
}

/// Status of a response whose head does not say it.
const STATUS_OK: u16 = 200;
/// Status of a response without a body.
const STATUS_NO_CONTENT: u16 = 204;

/// A response that cannot be read. Displayed as the end of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHeader;

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sent invalid header in response")
    }
}

/// Length of the head of a response with the empty line; `None` if its end has not arrived. `scanned` are bytes that were looked at.
pub fn head_len(bytes: &[u8], scanned: &mut usize) -> Option<usize> {
    loop {
        let rest = bytes.get(*scanned..)?;
        let at = *scanned + rest.iter().position(|byte| *byte == b'\n')?;
        match bytes.get(at + 1..)? {
            [b'\n', ..] => return Some(at + 2),
            [b'\r', b'\n', ..] => return Some(at + 3),
            // The bytes that decide have not arrived.
            [] | [b'\r'] => {
                *scanned = at;
                return None;
            }
            _ => *scanned = at + 1,
        }
    }
}

/// Reads the head of a response.
///
/// # Errors
/// A line that is no field.
pub fn parse(head: &[u8]) -> Result<AuthResponse, InvalidHeader> {
    let mut response = AuthResponse {
        status: AuthStatus::Ok,
        server: Vec::new(),
        port: Vec::new(),
        user: None,
        password: None,
        wait_secs: 0,
        error_code: None,
        http_status: STATUS_OK,
        body_len: None,
    };
    let mut lines =
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).peekable();
    let mut is_kept = lines.peek().is_some_and(|line| line.starts_with(b"HTTP/1.1 "));
    response.http_status = lines.peek().and_then(|line| http_status(line)).unwrap_or(STATUS_OK);
    lines.next_if(|line| line.starts_with(b"HTTP/"));
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = field(line)?;
        let is = |expected: &str| name.eq_ignore_ascii_case(expected.as_bytes());
        if is("Auth-Status") {
            match value {
                b"OK" => {}
                b"WAIT" => response.status = AuthStatus::Wait,
                text => response.status = AuthStatus::Refused(text.to_vec()),
            }
        } else if is("Auth-Server") {
            response.server = value.to_vec();
        } else if is("Auth-Port") {
            response.port = value.to_vec();
        } else if is("Auth-User") {
            response.user = Some(Secret::copy(value));
        } else if is("Auth-Pass") {
            response.password = Some(Secret::copy(value));
        } else if is("Auth-Wait") {
            response.wait_secs = number(value).unwrap_or(response.wait_secs);
        } else if is("Auth-Error-Code") {
            response.error_code = Some(value.to_vec());
        } else if is("Content-Length") {
            response.body_len = number(value).and_then(|len| usize::try_from(len).ok());
        } else if is("Connection") && !value.eq_ignore_ascii_case(b"keep-alive") || is("Transfer-Encoding") {
            is_kept = false;
        }
    }
    if response.http_status == STATUS_NO_CONTENT {
        response.body_len = Some(0);
    }
    response.body_len = response.body_len.filter(|_| is_kept);
    Ok(response)
}

/// Status in the first line of a response; `None` if it is no status line.
pub fn http_status(line: &[u8]) -> Option<u16> {
    let code = line.strip_prefix(b"HTTP/1.")?.get(1..5)?.strip_prefix(b" ")?;
    let is_end = matches!(line.get(12..)?, [] | [b' ' | b'\r', ..]);
    number(code)?.try_into().ok().filter(|_| is_end)
}

/// Name and value of a line.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), InvalidHeader> {
    let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end).ok_or(InvalidHeader)?;
    let begins_well = name.first().is_some_and(u8::is_ascii_alphanumeric);
    if !begins_well || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
        return Err(InvalidHeader);
    }
    Ok((name, rest.strip_prefix(b":").unwrap_or(rest).trim_ascii()))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_end_with_an_empty_line() {
        for (text, expected) in [
            ("HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody", Some(25)),
            ("A: b\n\n", Some(6)),
            ("A: b\n\r\n", Some(7)),
            ("A: b\r\n\r", None),
            ("A: b\r\n", None),
            ("", None),
        ] {
            let mut scanned = 0;
            assert_eq!(head_len(text.as_bytes(), &mut scanned), expected, "{text:?}");
            let mut scanned = 0;
            let in_pieces = (0..=text.len()).find_map(|end| head_len(&text.as_bytes()[..end], &mut scanned));
            assert_eq!(in_pieces, expected, "{text:?} in pieces");
        }
    }

    #[test]
    fn fields_of_a_login() {
        let head = b"HTTP/1.1 200 OK\r\nauth-status: OK\r\nAuth-Server:  192.0.2.1 \r\nAuth-Port: 143\r\nAuth-User: u\r\n\
            Auth-Pass: p w\r\nAuth-Wait: 3\r\nX-Other: x\r\nContent-Length: 2\r\n\r\n";
        let response = parse(head).unwrap();
        assert_eq!(
            (response.status, &*response.server, &*response.port),
            (AuthStatus::Ok, &b"192.0.2.1"[..], &b"143"[..])
        );
        assert_eq!(response.user, Some(Secret::copy(b"u")));
        assert_eq!(response.password, Some(Secret::copy(b"p w")));
        assert_eq!((response.wait_secs, response.body_len), (3, Some(2)));
    }

    #[test]
    fn refusals_and_pauses() {
        let status = |text: &str| parse(text.as_bytes()).map(|response| response.status);
        assert_eq!(status("HTTP/1.0 200 OK\r\nAuth-Status: WAIT\r\n\r\n"), Ok(AuthStatus::Wait));
        let refused = AuthStatus::Refused(b"Invalid login or password".to_vec());
        assert_eq!(status("Auth-Status: Invalid login or password\n\n"), Ok(refused));
        assert_eq!(status("HTTP/1.0 500\r\n\r\n"), Ok(AuthStatus::Ok), "the status line is not looked at");
        for broken in
            ["HTTP/1.0 200\r\nA_b: c\r\n\r\n", "HTTP/1.0 200\r\n: c\r\n\r\n", "HTTP/1.0 200\r\n a: b\r\n\r\n"]
        {
            assert_eq!(status(broken), Err(InvalidHeader), "{broken:?}");
        }
    }

    #[test]
    fn status_lines() {
        for (line, expected) in [
            ("HTTP/1.1 200 OK", Some(200)),
            ("HTTP/1.0 503 Service Unavailable\r", Some(503)),
            ("HTTP/1.0 404", Some(404)),
            ("HTTP/1.0 404\r", Some(404)),
            ("HTTP/1.0 2000", None),
            ("HTTP/1.0 20", None),
            ("HTTP/1.0 +20 x", None),
            ("HTTP/2 200", None),
            ("Auth-Status: OK", None),
            ("", None),
        ] {
            assert_eq!(http_status(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn connections_are_kept_behind_a_body_of_known_length() {
        let kept = |text: &str| parse(text.as_bytes()).unwrap().body_len;
        assert_eq!(kept("HTTP/1.1 204 No Content\r\n\r\n"), Some(0));
        assert_eq!(kept("HTTP/1.0 204 No Content\r\n\r\n"), None);
        assert_eq!(kept("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), None);
        assert_eq!(kept("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), None);
    }
}
