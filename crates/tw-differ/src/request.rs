//! Requests of a case: what they consist of, their bytes, and how they are made smaller.

use std::fmt::Write;

/// Protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Http1,
    /// HTTP/2 without TLS, known beforehand.
    Http2,
}

/// Requests of one connection: sent at once in HTTP/1, one after the other in HTTP/2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) wire: Wire,
    pub(crate) requests: Vec<Request>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// `HTTP/1.1` and its like.
    pub(crate) protocol: String,
    /// Name and value of each field, without those that frame the body.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: RequestBody,
}

/// Body of a request and its framing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// No body and no field about one.
    Absent,
    /// `Content-Length`.
    Sized(String),
    /// Chunks, without the last one.
    Chunked(Vec<String>),
}

impl Exchange {
    /// Bytes that are sent in HTTP/1. Those of HTTP/2 have the same content.
    pub(crate) fn bytes(&self) -> String {
        self.requests.iter().map(Request::bytes).collect()
    }

    /// Exchanges with one part less, the greatest parts first.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for at in 0..self.requests.len() {
            if self.requests.len() > 1 {
                let mut requests = self.requests.clone();
                requests.remove(at);
                all.push(Self { requests, ..*self });
            }
            for request in self.requests.get(at).into_iter().flat_map(Request::smaller) {
                let mut requests = self.requests.clone();
                if let Some(place) = requests.get_mut(at) {
                    *place = request;
                }
                all.push(Self { requests, ..*self });
            }
        }
        all
    }
}

impl Request {
    fn bytes(&self) -> String {
        let Self { method, target, protocol, fields, body } = self;
        let mut text = format!("{method} {target} {protocol}\r\n");
        for (name, value) in fields {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        match body {
            RequestBody::Absent => text += "\r\n",
            RequestBody::Sized(body) => {
                let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
            }
            RequestBody::Chunked(chunks) => {
                text += "Transfer-Encoding: chunked\r\n\r\n";
                for chunk in chunks {
                    let _ = write!(text, "{:x}\r\n{chunk}\r\n", chunk.len());
                }
                text += "0\r\n\r\n";
            }
        }
        text
    }

    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.body != RequestBody::Absent {
            all.push(Self { body: RequestBody::Absent, ..self.clone() });
        }
        for at in 0..self.fields.len() {
            // A request of HTTP/1.1 without a host is another case.
            if self.fields.get(at).is_some_and(|(name, _)| name != "Host") {
                let mut fields = self.fields.clone();
                fields.remove(at);
                all.push(Self { fields, ..self.clone() });
            }
        }
        if self.method != "GET" {
            all.push(Self { method: "GET".to_owned(), ..self.clone() });
        }
        if let Some((path, _)) = self.target.split_once('?') {
            all.push(Self { target: path.to_owned(), ..self.clone() });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post() -> Request {
        Request {
            method: "POST".to_owned(),
            target: "/a?b".to_owned(),
            protocol: "HTTP/1.1".to_owned(),
            fields: vec![("Host".to_owned(), "h".to_owned()), ("X".to_owned(), "1".to_owned())],
            body: RequestBody::Chunked(vec!["hello world".to_owned()]),
        }
    }

    #[test]
    fn requests_are_framed_by_their_body() {
        let chunked = "POST /a?b HTTP/1.1\r\nHost: h\r\nX: 1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n";
        assert_eq!(Exchange { wire: Wire::Http1, requests: vec![post()] }.bytes(), chunked);
        let sized = Request { body: RequestBody::Sized("ab".to_owned()), fields: Vec::new(), ..post() };
        assert_eq!(sized.bytes(), "POST /a?b HTTP/1.1\r\nContent-Length: 2\r\n\r\nab");
    }

    #[test]
    fn smaller_requests_lack_one_part_and_keep_their_host() {
        let smaller = post().smaller();
        assert_eq!(smaller.len(), 4);
        assert!(smaller.iter().all(|request| request.fields.iter().any(|(name, _)| name == "Host")));
        let two = Exchange { wire: Wire::Http2, requests: vec![post(), post()] };
        assert_eq!(two.smaller().len(), 2 + 2 * 4);
        assert!(two.smaller().iter().all(|one| one.wire == Wire::Http2));
    }
}
