//! The gRPC health checking protocol: the request and the judgement of the response
//! (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>).
//!
//! ```text
//! message HealthCheckRequest  { string service = 1; }
//! message HealthCheckResponse { ServingStatus status = 1; }      SERVING is 1
//! ```

use bytes::Bytes;
use tw_http::Fields;
use tw_log::Text;

use tw_request::upstream_response::UpstreamResponse;

/// Path of the method.
pub(super) const PATH: &[u8] = b"/grpc.health.v1.Health/Check";
/// Name of the field, or trailer, with the status of a call.
const STATUS: &[u8] = b"grpc-status";
/// Status of a call that has succeeded.
const OK: u32 = 0;
/// `ServingStatus` of a service that can be used.
const SERVING: u64 = 1;
/// Field 1 of a message, as a varint and as bytes.
const FIELD_1_VARINT: u64 = 1 << 3;
const FIELD_1_BYTES: u8 = 1 << 3 | 2;
/// Bytes in front of a message: whether it is compressed, and its length.
const PREFIX_SIZE: usize = 5;

/// Settings of one check.
pub struct GrpcCheck {
    /// Content of the request.
    message: Bytes,
    /// `grpc_status=`: the status of the call that a healthy server responds with.
    expected: Option<u32>,
}

impl GrpcCheck {
    /// Check of a service; an empty name is the server as a whole. With `expected`, the status of the call alone decides.
    pub fn new(service: &[u8], expected: Option<u32>) -> Self {
        let mut message = Vec::new();
        if !service.is_empty() {
            message.push(FIELD_1_BYTES);
            put_varint(service.len() as u64, &mut message);
            message.extend_from_slice(service);
        }
        let size = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let content = [&[0][..], &size.to_be_bytes(), &message].concat();
        Self { message: content.into(), expected }
    }

    /// Content of the request.
    pub(super) fn message(&self) -> Bytes {
        self.message.clone()
    }

    /// Describes the failure of a response with this body; `None` if the check has passed.
    pub(super) fn failure(&self, answer: &UpstreamResponse, body: &[u8]) -> Option<String> {
        if answer.status != 200 {
            return Some(format!("status {}", answer.status));
        }
        // A call that has no message ends with its head, which has the trailers then.
        let Some(status) = status_of(&answer.trailers).or_else(|| status_of(&answer.fields)) else {
            return Some("no \"grpc-status\"".to_owned());
        };
        let expected = self.expected.unwrap_or(OK);
        match parse(status) {
            Some(code) if code == expected => {}
            _ => return Some(format!("grpc-status \"{}\"", Text(status))),
        }
        match (self.expected, serving_status(body)) {
            (Some(_), _) | (None, Some(SERVING)) => None,
            (None, Some(other)) => Some(format!("serving status {other}")),
            (None, None) => Some("invalid message".to_owned()),
        }
    }
}

fn status_of(fields: &Fields) -> Option<&[u8]> {
    fields.get(STATUS)
}

fn parse(number: &[u8]) -> Option<u32> {
    str::from_utf8(number).ok()?.parse().ok()
}

/// The status in the first message of a body; 0 is UNKNOWN, which is not written. `None` if it is not the message of the protocol.
fn serving_status(body: &[u8]) -> Option<u64> {
    let (prefix, rest) = body.split_at_checked(PREFIX_SIZE)?;
    let (compressed, size) = prefix.split_first()?;
    if *compressed != 0 {
        return None;
    }
    let size = usize::try_from(u32::from_be_bytes(size.try_into().ok()?)).ok()?;
    let mut message = rest.get(..size)?;
    let mut status = 0;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        match key & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if key == FIELD_1_VARINT {
                    status = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let size = usize::try_from(take_varint(&mut message)?).ok()?;
                message = message.get(size..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(0x80 | u8::try_from(value & 0x7f).unwrap_or_default());
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        assert_eq!(&*GrpcCheck::new(b"", None).message(), b"\0\0\0\0\0");
        assert_eq!(&*GrpcCheck::new(b"a.B", None).message(), b"\0\0\0\0\x05\x0a\x03a.B");
        let long = GrpcCheck::new(&[b'a'; 200], None).message();
        assert_eq!(long[..8], *b"\0\0\0\0\xcb\x0a\xc8\x01");
    }

    #[test]
    fn serving_statuses() {
        for (body, expected) in [
            (&b"\0\0\0\0\x02\x08\x01"[..], Some(1)),
            (b"\0\0\0\0\x02\x08\x02", Some(2)),
            (b"\0\0\0\0\0", Some(0)),
            (b"\0\0\0\0\x06\x12\x02ab\x08\x01", Some(1)),
            (b"\0\0\0\0\x0b\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", Some(1 << 63)),
            (b"\x01\0\0\0\x02\x08\x01", None),
            (b"\0\0\0\0\x03\x08\x01", None),
            (b"\0\0\0\0\x01\x08", None),
            (b"\0\0\0\0\x02\x12\x09", None),
            (b"\0\0\0\0\x01\x0b", None),
            (b"", None),
        ] {
            assert_eq!(serving_status(body), expected, "{body:?}");
        }
    }
}
