//! Trace context in fields of HTTP: `traceparent` and `tracestate` (W3C Trace Context, level 2).

use tw_http::RequestHead;
use tw_http::num::push_hex;
use tw_request::request::Request;
use tw_request::request::trace::{ParentSpan, RequestTrace};

/// Names of the fields.
const TRACEPARENT: &[u8] = b"traceparent";
const TRACESTATE: &[u8] = b"tracestate";

/// Length of `traceparent` of version 00.
const LENGTH: usize = 55;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of `tracestate` of a client whose trace is continued.
    ///
    /// Bytes of `tracestate`. Others have to pass on 512.
    const STATE_SIZE_MAX: usize = 2 << 10, bytes, "the field is left out";
}

/// Flag of a sampled trace.
const SAMPLED: u8 = 1;

/// Trace that continues the client's, if the request has a valid context.
pub(super) fn extract(head: &RequestHead) -> Option<RequestTrace> {
    let mut values = head.field_all(TRACEPARENT);
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (trace_id, parent) = parse(value)?;
    let mut state = Vec::new();
    for value in head.field_all(TRACESTATE).filter(|value| !value.is_empty()) {
        if !state.is_empty() {
            state.push(b',');
        }
        state.extend_from_slice(value);
    }
    if state.len() > STATE_SIZE_MAX {
        state.clear();
    }
    Some(RequestTrace::continued(trace_id, parent, &state))
}

/// Reads `traceparent`. Of a higher version than 00 the beginning is read, as section 4.3 has it.
fn parse(value: &[u8]) -> Option<([u8; 16], ParentSpan)> {
    let (name, rest) = value.split_at_checked(LENGTH)?;
    let [version] = hex::<1>(name.get(..2)?)?;
    let is_complete = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.first().is_none_or(|byte| *byte == b'-'),
    };
    if !is_complete || [2, 35, 52].iter().any(|at| name.get(*at) != Some(&b'-')) {
        return None;
    }
    let trace_id = hex(name.get(3..35)?)?;
    let id = hex(name.get(36..52)?)?;
    let [flags] = hex::<1>(name.get(53..)?)?;
    let parent = ParentSpan { id, is_sampled: flags & SAMPLED != 0, is_remote: true };
    (trace_id != [0; 16] && id != [0; 8]).then_some((trace_id, parent))
}

/// Reads digits in lower case: others make the field invalid.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(out)
}

/// Fields that a request to an upstream server has in the place of the client's.
pub struct InjectedContext<'a> {
    parent: Vec<u8>,
    state: &'a [u8],
}

impl InjectedContext<'_> {
    /// Names and values; an empty value is no field.
    pub fn fields(&self) -> [(&'static [u8], &[u8]); 2] {
        [(TRACEPARENT, &self.parent), (TRACESTATE, self.state)]
    }

    /// Returns true if the client's field of this name is not passed on.
    pub fn replaces(&self, name: &[u8]) -> bool {
        [TRACEPARENT, TRACESTATE].iter().any(|replaced| name.eq_ignore_ascii_case(replaced))
    }
}

/// Context of the current attempt of `r`, if one is injected.
// DIFF(nginx): the parent is the span of the attempt, which nginx does not have, so that a server's spans are below it.
pub fn injected(r: &Request) -> Option<InjectedContext<'_>> {
    let trace = r.context.trace.get().filter(|trace| trace.is_injected)?;
    let attempts = r.upstream.attempts.len();
    let (span_id, flags) = match attempts.checked_sub(1) {
        Some(nth) if trace.is_sampled() => (trace.attempt_id(nth), SAMPLED),
        _ => (trace.span_id, u8::from(trace.is_sampled())),
    };
    let mut parent = Vec::with_capacity(LENGTH);
    parent.extend_from_slice(b"00-");
    push_hex(&trace.trace_id, &mut parent);
    parent.push(b'-');
    push_hex(&span_id, &mut parent);
    parent.push(b'-');
    push_hex(&[flags], &mut parent);
    Some(InjectedContext { parent, state: &trace.state })
}

/// Returns true if each attempt of `r` sends a context of its own, so that the request has to be built for each.
pub fn differs_between_attempts(r: &Request) -> bool {
    r.sampled_trace().is_some_and(|trace| trace.is_injected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_is_read_as_the_specification_says() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for (value, expected) in [
            (good, Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", Some(true)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some(true)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-follows", Some(true)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x", None),
            ("00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01", None),
            ("", None),
        ] {
            let entry = parse(value.as_bytes());
            assert_eq!(entry.map(|(_, parent)| parent.is_sampled), expected, "{value}");
        }
        let (trace_id, parent) = parse(good.as_bytes()).unwrap();
        let mut text = Vec::new();
        push_hex(&trace_id, &mut text);
        push_hex(&parent.id, &mut text);
        assert_eq!(text, b"0af7651916cd43dd8448eb211c80319cb7ad6b7169203331");
    }

    #[test]
    fn traceparent_cut_or_changed_anywhere_does_not_panic() {
        let good = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for at in 0..good.len() {
            assert_eq!(parse(&good[..at]), None);
            let mut changed = *good;
            changed[at] = b'g';
            assert_eq!(parse(&changed), None, "{at}");
        }
    }
}
