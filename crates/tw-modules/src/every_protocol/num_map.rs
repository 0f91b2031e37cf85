//! `num_map`: variables whose values depend on numbers and ranges of numbers (nginx: ngx_http_num_map_module and
//! ngx_stream_num_map_module of its commercial edition). Computed variables, in every protocol.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use tw_conf::{Args, ConfError, Directive, HTTP, MAIL, Node, STREAM, Word, record};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_module_support::mapped_values::RawValues;

/// Fractions of a number that are kept: millionths.
const SCALE: i64 = 1_000_000;

/// Blocks as written.
#[derive(Default)]
pub(crate) struct Raw {
    maps: Vec<RawMap>,
}

/// One block, already compiled for look-ups.
struct RawMap {
    source: Word,
    variable: Word,
    values: RawValues,
    numbers: Numbers,
}

/// Numbers of values by the numbers they belong to.
#[derive(Debug, Default)]
struct Numbers {
    exact: HashMap<i64, u32>,
    /// In the order written: the first one that contains a number counts.
    ranges: Vec<(RangeInclusive<i64>, u32)>,
}

/// Module without settings: its variables belong to the whole configuration.
pub(crate) struct NumMap;

impl<P: Protocol> Settings<P> for NumMap {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "num_map",
        "$number $variable { … }",
        HTTP | STREAM | MAIL,
        Args::exact(2).block(),
    )
    .since("1.29.3")
    .doc("Defines a variable by the value of a number: one line for each number, range (8080-8090) or comparison (<=1023, >8092). A number comes before ranges; of these the first one counts.")
    .set(|raw, node, _| {
        raw.maps.push(RawMap::read(node)?);
        Ok(())
    })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        for RawMap { source, variable, values, numbers } in raw.maps {
            let source = cx.template(&source)?;
            let possible = values.possible();
            let slot = values.slot(cx, |values| {
                move |s: &P::Session, out: &mut Vec<u8>| {
                    let start = out.len();
                    source.eval(s, out);
                    let value = number(&out[start..]).and_then(|number| numbers.find(number));
                    out.truncate(start);
                    values.push(s, value, out);
                }
            })?;
            tw_module_support::block::define(cx, &variable, slot, possible)?;
        }
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }
}

impl RawMap {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let [source, variable] = node.words()?;
        tw_module_support::block::variable_name(node, variable)?;
        let mut values = RawValues::default();
        let mut numbers = Numbers::default();
        let mut value_numbers = HashMap::new();
        for line in node.children()? {
            if let Some((text, value)) = values.read_line(line, "num_map", &mut value_numbers)? {
                numbers.add(line, text, value)?;
            }
        }
        Ok(Self { source: source.clone(), variable: variable.clone(), values, numbers })
    }
}

impl Numbers {
    fn add(&mut self, line: &Node, text: &[u8], value: u32) -> Result<(), ConfError> {
        let shown = || String::from_utf8_lossy(text);
        if let Some(number) = number(text) {
            return match self.exact.insert(number, value) {
                None => Ok(()),
                Some(_) => Err(line.fail(format!("conflicting parameter \"{}\"", shown()))),
            };
        }
        let range =
            range(text).ok_or_else(|| line.fail(format!("invalid number or range \"{}\"", shown())))?;
        self.ranges.push((range, value));
        Ok(())
    }

    /// The value of a number. O(ranges), a nanosecond each.
    fn find(&self, number: i64) -> Option<u32> {
        let in_range =
            || self.ranges.iter().find(|(range, _)| range.contains(&number)).map(|(_, value)| *value);
        self.exact.get(&number).copied().or_else(in_range)
    }
}

/// Reads a decimal number, in millionths. Further decimals are cut off.
fn number(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', rest @ ..] => (-1, rest),
        rest => (1, rest),
    };
    let (whole, decimals) = match digits.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&digits[..dot], Some(&digits[dot + 1..])),
        None => (digits, None),
    };
    let mut number = digits_of(whole)?.checked_mul(SCALE)?;
    if let Some(decimals) = decimals {
        digits_of(decimals.get(..1)?)?;
        let mut weight = SCALE / 10;
        for byte in decimals {
            number = number.checked_add(digits_of(&[*byte])?.checked_mul(weight)?)?;
            weight /= 10;
        }
    }
    Some(sign * number)
}

/// Reads digits, at least one.
fn digits_of(text: &[u8]) -> Option<i64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Reads `<1`, `<=1`, `>1`, `>=1` or `1-2`.
fn range(text: &[u8]) -> Option<RangeInclusive<i64>> {
    match text {
        [b'<', b'=', rest @ ..] => Some(i64::MIN..=number(rest)?),
        [b'>', b'=', rest @ ..] => Some(number(rest)?..=i64::MAX),
        [b'<', rest @ ..] => Some(i64::MIN..=number(rest)?.checked_sub(1)?),
        [b'>', rest @ ..] => Some(number(rest)?.checked_add(1)?..=i64::MAX),
        _ => {
            // A sign may stand before either number.
            let dash = 1 + text.get(1..)?.iter().position(|byte| *byte == b'-')?;
            let first = number(&text[..dash])?;
            let last = number(&text[dash + 1..])?;
            (first <= last).then_some(first..=last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_signs_and_decimals() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(SCALE)),
            ("-12", Some(-12 * SCALE)),
            ("007", Some(7 * SCALE)),
            ("0.25", Some(250_000)),
            ("-0.5", Some(-500_000)),
            ("1.0000019", Some(1_000_001)),
            ("", None),
            ("-", None),
            (".5", None),
            ("1.", None),
            ("1.x", None),
            ("1.5x", None),
            ("+1", None),
            (" 1", None),
            ("1e3", None),
            ("--1", None),
            ("9223372036854775807", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn ranges_are_read() {
        for (text, expected) in [
            ("<10", Some(i64::MIN..=10 * SCALE - 1)),
            ("<=10", Some(i64::MIN..=10 * SCALE)),
            (">10", Some(10 * SCALE + 1..=i64::MAX)),
            (">=-10", Some(-10 * SCALE..=i64::MAX)),
            ("1-2", Some(SCALE..=2 * SCALE)),
            ("-2--1", Some(-2 * SCALE..=-SCALE)),
            ("1.5-1.5", Some(1_500_000..=1_500_000)),
            ("2-1", None),
            ("1-", None),
            ("<", None),
            ("a-b", None),
            ("=1", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(range(text.as_bytes()), expected, "{text}");
        }
    }
}
