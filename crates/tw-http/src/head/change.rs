//! Changes of the fields of a complete head by the server, as for `more_set_input_headers` and for subrequests with a body of their own.
//!
//! New text is inserted behind the head, before the bytes that follow it, so all accessors and copies of the head see it.

use super::field_list::FieldSpan;
use super::{Framing, HostAt, RequestHead, Span};
use crate::header_name::HeaderName;
use crate::method::Method;
use crate::scan;

impl RequestHead {
    /// Removes the fields with a name for which `is_meant` is true.
    pub fn remove_fields(&mut self, is_meant: impl Fn(&[u8]) -> bool) {
        let bytes = self.buf.get(self.start..).unwrap_or(b"");
        self.fields.retain_mut(|field| !is_meant(field.name.of(bytes)));
    }

    /// Forgets the host and port that the request names, as if it had none.
    pub fn remove_host(&mut self) {
        self.line.host = HostAt::None;
        self.line.host_port = None;
    }

    /// Replaces the first field of a name, in any case, and removes the others; adds one at the end if there is none. CR, LF
    /// and NUL in the value become spaces. Cost: moves the bytes behind the head.
    pub fn set_field(&mut self, name: &[u8], value: &[u8]) {
        let known_name = HeaderName::find(name);
        let mut fresh = Some(self.insert(name, value, known_name));
        let bytes = self.buf.get(self.start..).unwrap_or(b"");
        self.fields.retain_mut(|field| {
            if field.known != known_name || !field.name.of(bytes).eq_ignore_ascii_case(name) {
                return true;
            }
            fresh.take().map(|new| field.value = new.value).is_some()
        });
        if let Some(field) = fresh {
            self.fields.push(field);
        }
    }

    /// Announces a body of `length` bytes, or none, in place of the one that the client has announced.
    pub fn announce_body(&mut self, length: Option<u64>) {
        self.remove_fields(|name| {
            matches!(HeaderName::find(name), Some(HeaderName::ContentLength | HeaderName::TransferEncoding))
        });
        self.line.framing = length.map_or(Framing::None, Framing::Length);
        if let Some(length) = length {
            self.set_field(HeaderName::ContentLength.as_str().as_bytes(), length.to_string().as_bytes());
        }
    }

    /// Replaces the method by `name`, which has to be a token. The request line stays as it was sent.
    pub fn set_method(&mut self, name: &[u8]) {
        self.line.method_word = self.append(name.iter().copied(), name.len());
        self.line.method = Method::of(name);
    }

    /// Adds the text of a field to the head.
    fn insert(&mut self, name: &[u8], value: &[u8], known_name: Option<HeaderName>) -> FieldSpan {
        let name = self.append(name.iter().copied(), name.len());
        let text = value.iter().map(|&byte| if scan::value_len(&[byte]) == 1 { byte } else { b' ' });
        let value = self.append(text, value.len());
        FieldSpan { name, value, known: known_name }
    }

    /// Adds a text of `size` bytes behind the head.
    fn append(&mut self, text: impl Iterator<Item = u8>, size: usize) -> Span {
        let span = Span::new(self.head_len, self.head_len + size);
        let at = (self.start + self.head_len).min(self.buf.len());
        self.buf.splice(at..at, text);
        self.head_len = span.end();
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{HeadLimits, Progress};

    fn head(text: &str) -> RequestHead {
        let mut head = RequestHead::new();
        head.push(text.as_bytes());
        assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
        head
    }

    fn fields(head: &RequestHead) -> String {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        head.fields().map(|(name, value)| format!("{}={};", text(name), text(value))).collect()
    }

    #[test]
    fn fields_are_replaced_added_and_removed() {
        let mut head = head("GET /a HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nCookie: c\r\nx-a: 2\r\n\r\nGET /b");
        head.set_field(b"x-A", b"new");
        assert_eq!(fields(&head), "Host=a;X-A=new;Cookie=c;");
        head.set_field(b"X-B", b"b\r\nX-C: c\0");
        head.set_field(b"Cookie", b"");
        assert_eq!(fields(&head), "Host=a;X-A=new;Cookie=;X-B=b  X-C: c ;");
        head.remove_fields(|name| name.starts_with(b"X-"));
        assert_eq!(fields(&head), "Host=a;Cookie=;");
        assert_eq!(head.field_known(HeaderName::Cookie), Some(&b""[..]));
        head.remove_fields(|name| name.eq_ignore_ascii_case(b"host"));
        assert!(!head.has(HeaderName::Host));
        head.set_field(b"User-Agent", b"u");
        assert_eq!(head.field_known(HeaderName::UserAgent), Some(&b"u"[..]));
        assert_eq!((head.rest(), head.path()), (&b"GET /b"[..], &b"/a"[..]));
        let mut copy = RequestHead::new();
        copy.copy_head(&head);
        assert_eq!(fields(&copy), "Cookie=;User-Agent=u;");
        head.next_request();
        head.push(b" HTTP/1.0\r\n\r\n");
        assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
        assert_eq!(head.path(), b"/b");
    }

    #[test]
    fn method_is_replaced() {
        let mut head = head("GET /a HTTP/1.1\r\nHost: a\r\n\r\nrest");
        head.set_method(b"PURGE");
        assert_eq!((head.method(), head.method_bytes()), (Method::Other, &b"PURGE"[..]));
        head.set_method(b"PUT");
        assert_eq!((head.method(), head.method_bytes()), (Method::Put, &b"PUT"[..]));
        assert_eq!((head.path(), head.rest(), &*fields(&head)), (&b"/a"[..], &b"rest"[..], "Host=a;"));
    }

    #[test]
    fn announced_body_replaces_that_of_the_client() {
        let mut head = head("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        head.announce_body(Some(5));
        assert_eq!((head.framing(), &*fields(&head)), (Framing::Length(5), "Host=a;Content-Length=5;"));
        head.announce_body(None);
        assert_eq!((head.framing(), &*fields(&head)), (Framing::None, "Host=a;"));
    }
}
