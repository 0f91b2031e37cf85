//! Header fields of a response that a script sets. Those that frame the message stay the server's.

use bytes::Bytes;
use tw_http::fields::{Name, Value, is_name};
use tw_http::{HeaderName, hop};
use tw_request::request::Request;
use tw_script::ByteBuf;

/// Result of setting a field.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SetField {
    Done,
    /// The server alone writes this field, or it is none.
    Refused,
}

/// Replaces all fields of this name in the response to `r`; no values remove them.
pub(crate) fn set(r: &mut Request, name: &[u8], values: &[ByteBuf]) -> SetField {
    if !is_name(name) {
        return SetField::Refused;
    }
    let last = values.last().filter(|value| !value.is_empty());
    let response = &mut r.response;
    match HeaderName::find(name) {
        Some(HeaderName::ContentType) => {
            response.content_type = last.map_or_else(Bytes::new, |value| Bytes::copy_from_slice(value));
            response.charset = Bytes::new();
        }
        Some(HeaderName::ContentLength) => {
            response.fields.remove_known(HeaderName::ContentLength);
            response.content_length = match last {
                None => None,
                Some(value) => match str::from_utf8(value).ok().and_then(|text| text.parse().ok()) {
                    Some(length) => Some(length),
                    None => return SetField::Refused,
                },
            };
        }
        Some(HeaderName::Location) => {
            response.fields.remove_known(HeaderName::Location);
            response.location = last.map_or_else(Bytes::new, |value| Bytes::copy_from_slice(value));
        }
        Some(HeaderName::LastModified) => {
            response.last_modified = None;
            replace(r, name, last.into_iter());
        }
        Some(known) if hop::is_framing(known) => return SetField::Refused,
        _ => replace(r, name, values.iter().filter(|value| !value.is_empty())),
    }
    SetField::Done
}

fn replace<'a>(r: &mut Request, name: &[u8], values: impl Iterator<Item = &'a ByteBuf>) {
    let fields = &mut r.response.fields;
    fields.remove(name);
    for value in values {
        fields.append(Name::Copy(name), Value::Copy(value));
    }
}
