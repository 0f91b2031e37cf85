//! Fields of a request to an upstream server: those of the client, and those of `proxy_set_header` instead.

use tw_conf::{ConfError, Word};
use tw_http::origin::{RequestWriter, WriteError};
use tw_http::{Framing, HeaderName, hop};
use tw_http_cache::{CONDITIONAL, UpstreamConditions};
use tw_otel::context::{self, InjectedContext};
use tw_request::header_names::HeaderNames;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Template, Value};

/// Bytes that the head of a request usually has at most.
pub(crate) const HEAD_SIZE: usize = 1024;

/// Fields that are set here and not taken from the client.
const USUAL: &[&str] = &[
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Connection",
    "Proxy-Connection",
    "TE",
    "Keep-Alive",
    "HTTP2-Settings",
    "Expect",
    "Upgrade",
    "Trailer",
];

/// Parts of a request that are passed on, besides the fields that `proxy_set_header` sets.
pub(crate) struct ForwardedFields<'a> {
    /// Set if the client's fields are passed on.
    pub(crate) is_client_passed: bool,
    /// `Host`, unless it is set.
    pub(crate) host: &'a [u8],
    /// Conditions of a cache, in the place of the client's.
    pub(crate) conditions: Option<UpstreamConditions>,
}

/// Fields that `proxy_set_header` sets at one location.
pub(crate) struct RequestFields {
    /// Fields in the order in which they are written.
    set: Vec<(Box<[u8]>, Template)>,
    /// `Host`, if something else than the target's is to be sent.
    host: Option<Template>,
    /// Fields that are not taken from the client.
    replaced: HeaderNames,
}

impl RequestFields {
    pub(crate) fn resolve(
        written_values: Vec<(Word, Word)>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let mut fields = Self { set: Vec::new(), host: None, replaced: USUAL.iter().collect() };
        for (name, value) in written_values {
            let template = cx.template(&value)?;
            if name.bytes.eq_ignore_ascii_case(b"Host") {
                fields.host = Some(template);
                continue;
            }
            fields.replaced.add(&name.bytes);
            fields.set.push((name.bytes, template));
        }
        Ok(fields)
    }

    /// Returns `true` if `proxy_set_header` sets this field.
    pub(crate) fn sets(&self, name: &[u8]) -> bool {
        self.set.iter().any(|(set, _)| set.eq_ignore_ascii_case(name))
    }

    /// Writes all fields; `announced` is the framing of the body.
    pub(crate) fn write(
        &self,
        r: &Request,
        writer: &mut RequestWriter<'_>,
        announced: Framing,
        passed: &ForwardedFields<'_>,
    ) -> Result<(), WriteError> {
        let ForwardedFields { is_client_passed, host, ref conditions } = *passed;
        let mut value = Vec::new();
        if let Some(template) = &self.host {
            template.eval(r, &mut value);
        }
        // HTTP/1.1 needs one.
        let host = if value.is_empty() { host } else { &value };
        writer.field_known(b"Host", Some(HeaderName::Host), host)?;
        for (name, template) in &self.set {
            value.clear();
            template.eval(r, &mut value);
            if value.is_empty() {
                continue;
            }
            let known_name = HeaderName::find(name);
            // The length of the body must agree with its framing.
            if matches!(known_name, Some(HeaderName::ContentLength | HeaderName::TransferEncoding)) {
                continue;
            }
            // DIFF(nginx): requests that nobody here would see are not asked for, whatever the client wishes. `HTTP2-Settings` is a
            // part of asking for them, and about the client's connection (RFC 7540 section 3.2.1).
            let asks_for_them = known_name == Some(HeaderName::Upgrade) && hop::carries_requests(&value);
            if asks_for_them || known_name == Some(HeaderName::Http2Settings) {
                continue;
            }
            writer.field_known(name, known_name, &value)?;
        }
        writer.framing(announced)?;
        if let Some(conditions) = conditions {
            for (name, value) in conditions.fields() {
                if !value.is_empty() && !self.sets(name) {
                    writer.field(name, value)?;
                }
            }
        }
        if is_client_passed {
            let injected = context::injected(r);
            for (name, value) in injected.iter().flat_map(InjectedContext::fields) {
                if !value.is_empty() && !self.sets(name) {
                    writer.field(name, value)?;
                }
            }
            let connection = || r.head.field_all(b"Connection");
            for (name, known_name, value) in r.head.fields_known() {
                // DIFF(nginx): fields that the client has for this connection only end here (RFC 9110 section 7.6.1).
                let is_ours = conditions.is_some()
                    && known_name.is_some_and(|known_name| CONDITIONAL.contains(&known_name));
                if is_ours
                    || self.replaced.has(name, known_name)
                    || injected.as_ref().is_some_and(|injected| injected.replaces(name))
                    || known_name.is_none() && hop::is_named(connection(), name)
                {
                    continue;
                }
                writer.field_known(name, known_name, value)?;
            }
        }
        Ok(())
    }
}

/// `$proxy_add_x_forwarded_for`
pub(crate) fn forwarded_for(r: &Request, out: &mut Vec<u8>) -> Value {
    for value in r.head.field_all(b"X-Forwarded-For") {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(r.client_text().as_bytes());
    Value::Found
}
