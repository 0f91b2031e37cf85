//! Values of variables as text. A missing value and an empty one differ: an access log writes the first as `-`.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use tw_base::num;

use super::Value;

/// Appends a value.
#[inline]
pub fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
    out.extend_from_slice(value);
    Value::Found
}

/// Appends a value that is missing when it is empty.
#[inline]
pub fn put_some(out: &mut Vec<u8>, value: &[u8]) -> Value {
    if value.is_empty() { Value::Missing } else { put(out, value) }
}

/// Appends a value that may be missing.
#[inline]
pub fn put_maybe(out: &mut Vec<u8>, value: Option<&[u8]>) -> Value {
    value.map_or(Value::Missing, |value| put(out, value))
}

/// Appends a number.
#[inline]
pub fn put_number(out: &mut Vec<u8>, number: u64) -> Value {
    num::push_decimal(out, number);
    Value::Found
}

/// Appends a port; 0 is none and written as nothing.
#[inline]
pub fn put_port(out: &mut Vec<u8>, port: Option<u16>) -> Value {
    match port {
        None | Some(0) => Value::Found,
        Some(port) => put_number(out, port.into()),
    }
}

/// Appends seconds with milliseconds.
#[inline]
pub fn put_seconds(out: &mut Vec<u8>, span: Duration) -> Value {
    num::push_decimal(out, span.as_secs());
    put_decimals(out, span.subsec_millis(), 100)
}

/// Appends the decimals of a number; `first` is the weight of the first one.
#[inline]
pub fn put_decimals(out: &mut Vec<u8>, mut rest: u32, mut first: u32) -> Value {
    out.push(b'.');
    while first > 0 {
        out.push(b'0' + (rest / first) as u8);
        rest %= first;
        first /= 10;
    }
    Value::Found
}

/// Appends an IP address.
#[inline]
pub fn put_ip(out: &mut Vec<u8>, ip: IpAddr) -> Value {
    match ip {
        // Written by hand: applications get the address with every request, and `write!` costs a thousand instructions.
        IpAddr::V4(ip) => {
            let [first, rest @ ..] = ip.octets();
            num::push_decimal(out, first.into());
            for octet in rest {
                out.push(b'.');
                num::push_decimal(out, octet.into());
            }
        }
        IpAddr::V6(ip) => {
            // A Vec takes every write.
            let _ = write!(out, "{ip}");
        }
    }
    Value::Found
}
