//! `limit_req … cost=$variable`: a cost that is known when a request is over, such as bytes sent or tokens in a field of the response.
//! Charged in the log phase, wherever the request ends.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::vars::Template;
use tw_log::{Level, Text};
use tw_module_support::zone;
use tw_request::plan::LogHandler;
use tw_request::protocol::Http;
use tw_request::request::Request;

use super::bucket::{self, NoRoom, REQUEST};
use super::{KEY_MAX, ReqLimit, ReqZone};

/// The highest cost of one request; a higher one counts as this. As bytes, a terabyte.
pub(super) const COST_MAX: i64 = 1_000_000_000_000;

/// Reads the value of `cost=`.
///
/// # Errors
/// The value has no variable, or the rate of the zone is shared by a fleet.
pub(super) fn resolve(
    word: &Word,
    zone: &ReqZone<Request>,
    cx: &mut Resolve<'_, Http>,
) -> Result<Template<Request>, ConfError> {
    let fail = |message: String| ConfError::new(message).at(word.span);
    if !word.bytes.contains(&b'$') {
        return Err(fail(format!("invalid cost value \"{word}\""))
            .hint("the cost is a variable that has a number when the request is over"));
    }
    if zone.shared.is_some() {
        let name = &zone.buckets.zone.name;
        return Err(fail(format!("\"cost\" cannot be used with zone \"{name}\", whose rate a fleet shares"))
            .hint(
                "the nodes of a fleet share a rate by the number of requests, which says nothing about costs",
            ));
    }
    cx.template(word)
}

/// Costs that are charged when their request is over.
pub(super) struct PendingCosts(Vec<PendingCost>);

struct PendingCost {
    zone: Arc<ReqZone<Request>>,
    cost: Template<Request>,
    /// The key that the request had when it was admitted.
    key: Box<[u8]>,
}

impl PendingCosts {
    /// Notes the costs of `r`, which `limits` have admitted.
    pub(super) fn begin(limits: &[ReqLimit<Request>], r: &mut Request) {
        // Costs are charged in the log phase, which only the main request has.
        if limits.iter().all(|limit| limit.cost.is_none()) || r.is_subrequest() {
            return;
        }
        let mut key = Vec::new();
        let pending = limits.iter().filter_map(|limit| {
            let cost = limit.cost.as_ref()?;
            let zone = &limit.zone;
            let is_counted = zone::eval_key(r, &zone.key, &zone.buckets.zone, KEY_MAX, &mut key);
            is_counted.then(|| PendingCost { zone: zone.clone(), cost: cost.clone(), key: (*key).into() })
        });
        let pending: Vec<_> = pending.collect();
        if !pending.is_empty() {
            r.add_log_handler(Self(pending));
        }
    }
}

impl LogHandler for PendingCosts {
    fn log(&self, r: &Request) {
        let now = tw_rt::clock::now();
        for PendingCost { zone, cost, key } in &self.0 {
            let ReqZone { rate, buckets, .. } = &**zone;
            let name = &buckets.zone.name;
            let value = cost.value(r);
            let cost = match parse(&value) {
                Ok(0) => continue,
                Ok(cost) => cost,
                Err(NoNumber) => {
                    let value = Text(&value);
                    r.log(
                        Level::Warn,
                        format_args!("cost \"{value}\" for limit_req zone \"{name}\" is no number"),
                    );
                    continue;
                }
            };
            buckets.charged.add(cost.unsigned_abs());
            if let Err(NoRoom) = bucket::charge(&buckets.zone, key, *rate, cost, now) {
                r.log(Level::Alert, format_args!("could not allocate node in limit_req zone \"{name}\""));
            }
        }
    }
}

/// The value is neither a number nor a list of numbers.
#[derive(Debug, PartialEq, Eq)]
struct NoNumber;

/// Cost in thousandths: a number of 0 or more, with or without a fraction. The values of a list, one for each upstream server, are added
/// up; nothing and `-` cost nothing.
fn parse(text: &[u8]) -> Result<i64, NoNumber> {
    let mut sum = 0_i64;
    for part in text.split(|byte| matches!(byte, b',' | b':')) {
        sum = sum.saturating_add(match part.trim_ascii() {
            b"" | b"-" => 0,
            number => thousandths(number)?,
        });
    }
    Ok(sum.min(COST_MAX * REQUEST))
}

/// A decimal number in thousandths; further digits are dropped.
fn thousandths(number: &[u8]) -> Result<i64, NoNumber> {
    let (whole, fraction) = match number.iter().position(|byte| *byte == b'.') {
        Some(at) => (&number[..at], &number[at + 1..]),
        None => (number, &b"0"[..]),
    };
    let are_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if !are_digits(whole) || !are_digits(fraction) {
        return Err(NoNumber);
    }
    let add = |value: i64, digit: u8| value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    let whole = whole.iter().copied().fold(0, add);
    let fraction = fraction.iter().copied().chain(*b"000").take(3).fold(0, add);
    Ok(whole.saturating_mul(REQUEST).saturating_add(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_numbers_and_lists_of_them() {
        const MOST: i64 = COST_MAX * REQUEST;
        for (text, expected) in [
            ("", Ok(0)),
            ("-", Ok(0)),
            ("0", Ok(0)),
            ("17", Ok(17_000)),
            ("0.25", Ok(250)),
            ("1.23456", Ok(1234)),
            ("12, 30", Ok(42_000)),
            ("12, - : 0.5", Ok(12_500)),
            ("1000000000000", Ok(MOST)),
            ("1000000000001", Ok(MOST)),
            ("99999999999999999999999999999999", Ok(MOST)),
            ("9223372036854775807, 9223372036854775807", Ok(MOST)),
            ("-5", Err(NoNumber)),
            ("+5", Err(NoNumber)),
            ("1e9", Err(NoNumber)),
            (".5", Err(NoNumber)),
            ("5.", Err(NoNumber)),
            ("1.2.3", Err(NoNumber)),
            ("0x10", Err(NoNumber)),
            ("many", Err(NoNumber)),
            ("5 6", Err(NoNumber)),
            ("\u{661}", Err(NoNumber)),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }
}
