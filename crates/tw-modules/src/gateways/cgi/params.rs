//! Parameters of a request to an application server: those of the configuration, and the fields of the request as those
//! of CGI (RFC 3875 section 4.1.18).

use tw_conf::{ConfError, HTTP, LOCATION, Node, SERVER, Word};
use tw_http::{Framing, HeaderName};
use tw_http_cache::{CONDITIONAL, UpstreamConditions};
use tw_otel::context::{self, InjectedContext};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Contexts of the directives of parameters.
pub(crate) const ALL: u32 = HTTP | SERVER | LOCATION;

/// Prefix of the name of a parameter that is a field of the request.
const FIELD: &[u8] = b"HTTP_";
/// Parameter that is sent unless the configuration has one of that name.
const HOST: (&[u8], &[u8]) = (b"HTTP_HOST", b"$host$is_request_port$request_port");

/// One parameter as written.
pub(crate) struct RawParam {
    name: Word,
    value: Word,
    if_not_empty: bool,
}

/// The parameters of one location.
pub(crate) struct Params {
    /// Parameters in the order in which they are sent.
    list: Vec<Param>,
    /// Fields that are not taken from the request: a bit for each known one, the others by names of parameters.
    known_bits: u64,
    others: Vec<Box<[u8]>>,
}

struct Param {
    name: Box<[u8]>,
    value: Template,
    if_not_empty: bool,
}

/// Parameters of one request.
pub(crate) struct RequestParams<'a> {
    /// Parameters of the configuration.
    pub(crate) params: &'a Params,
    /// Set if the client's fields are passed on.
    pub(crate) is_client_passed: bool,
    /// Conditions of a cache, in the place of the client's.
    pub(crate) conditions: Option<UpstreamConditions>,
    /// Framing of the body that is passed on.
    pub(crate) body: Framing,
}

impl RawParam {
    pub(crate) fn read(node: &Node) -> Result<Self, ConfError> {
        let if_not_empty = match node.args.get(2) {
            None => false,
            Some(word) if word.is("if_not_empty") => true,
            Some(word) => {
                return Err(node.fail(format!("invalid parameter \"{word}\"")).at(word.span));
            }
        };
        Ok(Self { name: node.arg(0)?.clone(), value: node.arg(1)?.clone(), if_not_empty })
    }
}

impl Params {
    pub(crate) fn resolve(raw_params: Vec<RawParam>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut params = Self { list: Vec::new(), known_bits: 0, others: Vec::new() };
        let has_host = raw_params.iter().any(|param| param.name.bytes.eq_ignore_ascii_case(HOST.0));
        for RawParam { name, value, if_not_empty } in raw_params {
            let name = name.bytes;
            if let Some(field) = name.strip_prefix(FIELD).filter(|field| !field.is_empty()) {
                params.replace(field);
                // The field is not passed on, and nothing is in its place.
                if value.bytes.is_empty() {
                    continue;
                }
            }
            params.list.push(Param { value: cx.template(&value)?, name, if_not_empty });
        }
        if !has_host {
            let (name, value) = HOST;
            params.replace(&name[FIELD.len()..]);
            let value = cx.template_text(value, None)?;
            params.list.push(Param { name: name.into(), value, if_not_empty: true });
        }
        Ok(params)
    }

    /// Notes that the field with this name, as names of parameters have it, is not taken from the request.
    fn replace(&mut self, field: &[u8]) {
        let field = field.to_ascii_uppercase();
        let name: Vec<u8> = field.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
        match HeaderName::find(&name) {
            Some(known_name) => self.known_bits |= known_name.bit(),
            None => self.others.push(field.into()),
        }
    }

    /// Returns `true` if a field of the request is not passed on.
    fn replaces(&self, name: &[u8], known_name: Option<HeaderName>) -> bool {
        match known_name {
            Some(known_name) => self.known_bits & known_name.bit() != 0,
            None => self.others.iter().any(|other| {
                other.len() == name.len() && name.iter().zip(other).all(|(byte, of)| as_param(*byte) == *of)
            }),
        }
    }

    /// Value of a parameter, as it is written.
    pub(crate) fn value(&self, name: &[u8]) -> Option<&Template> {
        self.list.iter().find(|param| *param.name == *name).map(|param| &param.value)
    }
}

/// A byte of the name of a field, in that of a parameter.
fn as_param(byte: u8) -> u8 {
    if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() }
}

/// Makes `out` the name of the parameter for a field.
fn param_of(field: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(FIELD.len() + field.len());
    out.extend_from_slice(FIELD);
    out.extend(field.iter().map(|byte| as_param(*byte)));
}

/// Writes parameters in the format of a protocol. A value is written directly into the buffer that is sent: most
/// requests have dozens.
pub(crate) trait Writer {
    /// Begins a parameter: its value is appended to [`out`](Self::out) afterwards. Returns the position of its length,
    /// if the format has one.
    fn begin(&mut self, name: &[u8]) -> usize;

    /// Text written so far.
    fn out(&mut self) -> &mut Vec<u8>;

    /// Ends a parameter whose value begins at `value_at`.
    fn end(&mut self, room: usize, value_at: usize);
}

/// Writes one parameter, whose value `value` appends.
fn write(writer: &mut impl Writer, name: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
    let room = writer.begin(name);
    let value_at = writer.out().len();
    value(writer.out());
    writer.end(room, value_at);
}

impl RequestParams<'_> {
    /// Writes every parameter of `r`, in order.
    pub(crate) fn write(&self, r: &Request, writer: &mut impl Writer) {
        for param in &self.params.list {
            let at = writer.out().len();
            let room = writer.begin(&param.name);
            let value_at = writer.out().len();
            param.value.eval(r, writer.out());
            if param.if_not_empty && writer.out().len() == value_at {
                writer.out().truncate(at);
            } else {
                writer.end(room, value_at);
            }
        }
        let mut name = Vec::new();
        if let Some(conditions) = &self.conditions {
            for (field, value) in conditions.fields() {
                if !value.is_empty() && !self.params.replaces(field, HeaderName::find(field)) {
                    param_of(field, &mut name);
                    write(writer, &name, |out| out.extend_from_slice(value));
                }
            }
        }
        if !self.is_client_passed {
            return;
        }
        let injected = context::injected(r);
        for (field, value) in injected.iter().flat_map(InjectedContext::fields) {
            if !value.is_empty() && !self.params.replaces(field, None) {
                param_of(field, &mut name);
                write(writer, &name, |out| out.extend_from_slice(value));
            }
        }
        for (field, known_name, first) in r.head.fields_known() {
            let is_injected = injected.as_ref().is_some_and(|injected| injected.replaces(field));
            let is_ours = self.conditions.is_some()
                && known_name.is_some_and(|known_name| CONDITIONAL.contains(&known_name));
            // DIFF(nginx): it is about the client's connection (RFC 7540 section 3.2.1).
            let is_of_connection = known_name == Some(HeaderName::Http2Settings);
            if is_ours || is_injected || is_of_connection || self.params.replaces(field, known_name) {
                continue;
            }
            // Several lines of one name are one value (RFC 3875 section 4.1.18), which stands where the first line does.
            let mut lines = r.head.field_all(field);
            if lines.next().is_none_or(|line| !std::ptr::eq(line, first)) {
                continue;
            }
            param_of(field, &mut name);
            let between: &[u8] = if known_name == Some(HeaderName::Cookie) { b"; " } else { b", " };
            write(writer, &name, |out| {
                out.extend_from_slice(first);
                for line in lines {
                    out.extend_from_slice(between);
                    out.extend_from_slice(line);
                }
            });
        }
    }
}
