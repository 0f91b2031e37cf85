//! Head of a response as a list of fields (HTTP/2, RFC 9113 section 8.3.2), in nginx's order.

use super::{EncodeContext, ResponseHead};
use crate::fields::Fields;
use crate::header_name::HeaderName;
use crate::num;

/// Function that gets a name, in any case, the result of [`HeaderName::find`] for it, and the value.
pub type FieldVisitor<'a> = dyn FnMut(&[u8], Option<HeaderName>, &[u8]) + 'a;

impl ResponseHead {
    /// Calls `each` for every field but the status. Connection-specific fields and `Transfer-Encoding` are left out, so their settings in
    /// `context` do not matter. Values are not checked: the caller handles invalid bytes.
    ///
    /// Cost: one buffer for composed values.
    pub fn list(&self, context: &EncodeContext<'_>, each: &mut FieldVisitor<'_>) {
        let has_content = self.status != 204;
        let mut text = Vec::new();
        if !context.server.is_empty() && self.writes(HeaderName::Server) {
            each(b"server", Some(HeaderName::Server), context.server);
        }
        if self.writes(HeaderName::Date) {
            each(b"date", Some(HeaderName::Date), &context.dates.text(context.now));
        }
        if has_content && !self.content_type.is_empty() {
            if self.charset.is_empty() {
                each(b"content-type", Some(HeaderName::ContentType), &self.content_type);
            } else {
                text.extend_from_slice(&self.content_type);
                text.extend_from_slice(b"; charset=");
                text.extend_from_slice(&self.charset);
                each(b"content-type", Some(HeaderName::ContentType), &text);
            }
        }
        if let Some(length) = self.content_length
            && has_content
            && !self.fields.has(HeaderName::ContentLength)
        {
            text.clear();
            num::push_decimal(&mut text, length);
            each(b"content-length", Some(HeaderName::ContentLength), &text);
        }
        if let Some(seconds) = self.last_modified
            && matches!(self.status, 200 | 206 | 304)
            && !self.fields.has(HeaderName::LastModified)
        {
            each(b"last-modified", Some(HeaderName::LastModified), &context.dates.text(seconds));
        }
        if !self.location.is_empty() {
            match context.location_base.filter(|_| self.location.starts_with(b"/")) {
                Some(base) => {
                    text.clear();
                    base.write(&mut text);
                    text.extend_from_slice(&self.location);
                    each(b"location", Some(HeaderName::Location), &text);
                }
                None => each(b"location", Some(HeaderName::Location), &self.location),
            }
        }
        if context.vary_accept_encoding {
            each(b"vary", Some(HeaderName::Vary), b"Accept-Encoding");
        }
        list_fields(&self.fields, each);
    }
}

/// Gives `each` those fields that a list may have, as [`ResponseHead::list`] does.
pub fn list_fields(fields: &Fields, each: &mut FieldVisitor<'_>) {
    for (name, known_name, value) in fields.iter_known() {
        if !known_name.is_some_and(is_of_connection) {
            each(name, known_name, value);
        }
    }
}

/// RFC 9113 section 8.2.2.
fn is_of_connection(name: HeaderName) -> bool {
    use HeaderName::{Connection, KeepAlive, ProxyConnection, TransferEncoding, Upgrade};
    matches!(name, Connection | KeepAlive | ProxyConnection | TransferEncoding | Upgrade)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::LocationBase;
    use super::super::tests::context;
    use super::*;

    fn listed(head: &ResponseHead, context: &EncodeContext<'_>) -> Vec<String> {
        let mut all = Vec::new();
        head.list(context, &mut |name, _, value| {
            all.push(format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        });
        all
    }

    #[test]
    fn fields_come_in_the_order_of_nginx() {
        let mut head = ResponseHead::new(200);
        head.content_type = Bytes::from_static(b"text/html");
        head.charset = Bytes::from_static(b"utf-8");
        head.content_length = Some(1234);
        head.last_modified = Some(784_111_777);
        head.location = Bytes::from_static(b"/x");
        head.set_etag("\"5f\"");
        head.fields.append("Connection", "x");
        head.fields.append("X-Uri", "a");
        let base = LocationBase { https: true, host: b"a", port: Some(81) };
        let context = EncodeContext { location_base: Some(base), vary_accept_encoding: true, ..context() };
        let expected = [
            "server: tailwater",
            "date: Sun, 06 Nov 1994 08:49:37 GMT",
            "content-type: text/html; charset=utf-8",
            "content-length: 1234",
            "last-modified: Sun, 06 Nov 1994 08:49:37 GMT",
            "location: https://a:81/x",
            "vary: Accept-Encoding",
            "ETag: \"5f\"",
            "X-Uri: a",
        ];
        assert_eq!(listed(&head, &context), expected);
    }

    #[test]
    fn no_content_has_neither_type_nor_length() {
        let mut head = ResponseHead::new(204);
        head.content_type = Bytes::from_static(b"text/plain");
        head.content_length = Some(0);
        head.location = Bytes::from_static(b"/x");
        let context = EncodeContext { server: b"", ..context() };
        assert_eq!(listed(&head, &context), ["date: Sun, 06 Nov 1994 08:49:37 GMT", "location: /x"]);
    }
}
