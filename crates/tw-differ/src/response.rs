//! Responses as a client reads them: heads, bodies by their framing, and how the connection ends.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for the next bytes of a server.
const PATIENCE: Duration = Duration::from_secs(3);

/// A response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Response {
    /// Status line without its line end.
    pub(crate) status_line: String,
    /// Name in lower case, and value, in their order.
    pub(crate) fields: Vec<(String, String)>,
    /// Body, without its framing.
    pub(crate) body: Vec<u8>,
    /// Body framing as read; a body that ends early is `cut`.
    pub(crate) framing: &'static str,
}

/// End of a connection after the last expected response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The server keeps it, by its own words.
    Kept,
    /// The server closed it.
    #[default]
    Closed,
    /// The server closed it with a reset.
    Reset,
    /// The server neither sent what was expected nor closed it.
    Silent,
}

/// Responses on one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) responses: Vec<Response>,
    pub(crate) fate: Fate,
}

/// Connection with the bytes that were read ahead.
struct Input<'a> {
    stream: &'a mut TcpStream,
    bytes: Vec<u8>,
    end: Option<Fate>,
}

impl Input<'_> {
    /// Reads more; `false` at the end.
    fn fill(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let mut buffer = [0; 16384];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.end = Some(Fate::Closed),
            Ok(count) => self.bytes.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => self.end = Some(Fate::Reset),
            Err(_) => self.end = Some(Fate::Silent),
        }
        self.end.is_none()
    }

    fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.bytes.windows(end.len()).position(|window| window == end) {
                let rest = self.bytes.split_off(at + end.len());
                let mut head = std::mem::replace(&mut self.bytes, rest);
                head.truncate(at);
                return Some(head);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// So many bytes, or fewer at the end.
    fn take(&mut self, len: usize) -> Vec<u8> {
        while self.bytes.len() < len && self.fill() {}
        let rest = self.bytes.split_off(len.min(self.bytes.len()));
        std::mem::replace(&mut self.bytes, rest)
    }

    fn chunks(&mut self) -> (Vec<u8>, &'static str) {
        let mut body = Vec::new();
        loop {
            let Some(size) = self.until(b"\r\n") else { return (body, "cut") };
            let size = String::from_utf8_lossy(&size).into_owned();
            let Ok(size) = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            else {
                return (body, "invalid chunk");
            };
            if size == 0 {
                while self.until(b"\r\n").is_some_and(|line| !line.is_empty()) {}
                return (body, "chunked");
            }
            let mut chunk = self.take(size + 2);
            if chunk.len() < size + 2 {
                body.append(&mut chunk);
                return (body, "cut");
            }
            chunk.truncate(size);
            body.append(&mut chunk);
        }
    }

    fn response(&mut self, method: &str) -> Option<Response> {
        let head = self.until(b"\r\n\r\n");
        let Some(head) = head else {
            // A response of HTTP/0.9 has no head.
            let body = std::mem::take(&mut self.bytes);
            return (!body.is_empty()).then(|| Response { body, framing: "no head", ..Response::default() });
        };
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or_default().to_owned();
        let fields: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").or_else(|| line.split_once(':')).unwrap_or((line, "")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let status = status_line.split(' ').nth(1).unwrap_or_default().to_owned();
        let value = |wanted_name: &str| {
            fields.iter().find(|(name, _)| name == wanted_name).map(|(_, value)| value.as_str())
        };
        let (body, framing) =
            if method == "HEAD" || status.starts_with('1') || status == "204" || status == "304" {
                (Vec::new(), "none")
            } else if value("transfer-encoding").is_some() {
                self.chunks()
            } else if let Some(len) = value("content-length").and_then(|value| value.parse().ok()) {
                let body = self.take(len);
                let framing = if body.len() == len { "length" } else { "cut" };
                (body, framing)
            } else {
                while self.fill() {}
                (std::mem::take(&mut self.bytes), "until close")
            };
        Some(Response { status_line, fields, body, framing })
    }
}

/// Reads one response for each method, or until the connection ends.
pub(crate) fn read(stream: &mut TcpStream, methods: &[&str]) -> Reading {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut input = Input { stream, bytes: Vec::new(), end: None };
    let mut responses = Vec::new();
    let mut is_kept = true;
    for method in methods {
        while let Some(response) = input.response(method) {
            let is_interim =
                response.status_line.split(' ').nth(1).is_some_and(|status| status.starts_with('1'));
            is_kept = keeps(&response);
            responses.push(response);
            if !is_interim {
                break;
            }
        }
        if !is_kept || input.end.is_some() {
            break;
        }
    }
    // A server that says that it closes does so; one that keeps the connection is taken at its word.
    if !is_kept {
        while input.fill() {}
        if !input.bytes.is_empty() {
            let body = std::mem::take(&mut input.bytes);
            responses.push(Response { body, framing: "superfluous", ..Response::default() });
        }
    }
    Reading { responses, fate: input.end.unwrap_or(Fate::Kept) }
}

fn keeps(response: &Response) -> bool {
    let connection =
        response.fields.iter().find(|(name, _)| name == "connection").map(|(_, value)| value.as_str());
    connection.map_or(response.status_line.starts_with("HTTP/1.1"), |value| value != "close")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn read_text(text: &'static str, methods: &[&str]) -> Reading {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.write_all(text.as_bytes()).unwrap();
        drop(server);
        read(&mut client, methods)
    }

    #[test]
    fn responses_are_read_by_their_framing() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n\
                    Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\nrest";
        let reading = read_text(text, &["GET", "GET", "GET"]);
        let results: Vec<_> = reading
            .responses
            .iter()
            .map(|response| (response.framing, String::from_utf8_lossy(&response.body).into_owned()))
            .collect();
        let expected = [("none", ""), ("length", "ab"), ("chunked", "abc"), ("until close", "rest")];
        assert_eq!(results, expected.map(|(framing, body)| (framing, body.to_owned())));
        assert_eq!(reading.fate, Fate::Closed);
    }

    #[test]
    fn bodies_that_end_early_are_cut() {
        let reading = read_text("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", &["GET"]);
        assert_eq!(reading.responses.first().unwrap().framing, "cut");
        let reading = read_text("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", &["HEAD"]);
        assert_eq!((reading.responses.first().unwrap().framing, reading.fate), ("none", Fate::Kept));
    }
}
