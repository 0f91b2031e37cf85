//! Operators that compare a claim with an expected value (`auth_jwt_require_claim`, `auth_jwt_require_header`).
//!
//! Values are compared as JSON has them: a text is never equal to a number, nor a whole number to one with a fraction. Values that an
//! operator does not compare fulfil neither it nor its negation.

use std::cmp::Ordering;
use std::collections::HashSet;

use serde_json::{Number, Value as Json};
use tw_core::regex::{BacktrackLimit, Match, Regex};

/// An operator, and its negation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operator {
    comparison: Comparison,
    sense: Sense,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    /// The expected value is a list with the claim in it, or an object with a member of its name.
    In,
    /// The expected value is a list that shares an element with the claim.
    Any,
    /// The expected value is a regular expression.
    Match,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sense {
    Plain,
    Negated,
}

/// Bound that an operator sets to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Lower,
    Upper,
}

/// Verdict of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fulfilled,
    Unfulfilled,
    /// The operator does not compare values of these types.
    Incomparable,
    /// The regular expression ran into the limit of its steps.
    TooManySteps,
}

impl Operator {
    /// The operator of this name; `!` in front negates it.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (name, sense) = match text.strip_prefix(b"!") {
            Some(name) => (name, Sense::Negated),
            None => (text, Sense::Plain),
        };
        let (comparison, of_name) = match name {
            b"eq" => (Comparison::Equal, Sense::Plain),
            b"ne" => (Comparison::Equal, Sense::Negated),
            b"gt" => (Comparison::Greater, Sense::Plain),
            b"ge" => (Comparison::GreaterOrEqual, Sense::Plain),
            b"lt" => (Comparison::Less, Sense::Plain),
            b"le" => (Comparison::LessOrEqual, Sense::Plain),
            b"in" => (Comparison::In, Sense::Plain),
            b"nin" => (Comparison::In, Sense::Negated),
            b"any" | b"intersect" => (Comparison::Any, Sense::Plain),
            b"nintersect" => (Comparison::Any, Sense::Negated),
            b"match" => (Comparison::Match, Sense::Plain),
            _ => return None,
        };
        Some(Self { comparison, sense: if of_name == sense { Sense::Plain } else { Sense::Negated } })
    }

    /// Returns `true` if the expected value is a regular expression.
    pub(super) fn is_match(self) -> bool {
        self.comparison == Comparison::Match
    }

    /// Bound that the operator sets to a number.
    pub(super) fn bound(self) -> Option<Bound> {
        match (self.comparison, self.sense) {
            (Comparison::Greater | Comparison::GreaterOrEqual, Sense::Plain)
            | (Comparison::Less | Comparison::LessOrEqual, Sense::Negated) => Some(Bound::Lower),
            (Comparison::Less | Comparison::LessOrEqual, Sense::Plain)
            | (Comparison::Greater | Comparison::GreaterOrEqual, Sense::Negated) => Some(Bound::Upper),
            _ => None,
        }
    }

    /// Compares a claim with a value, which is no regular expression.
    pub(super) fn compare(self, claim: &Json, expected: &Json) -> Verdict {
        let ordered = |is: fn(Ordering) -> bool| match (claim, expected) {
            (Json::Number(claim), Json::Number(expected)) => compare_numbers(claim, expected).map(is),
            _ => None,
        };
        let holds = match self.comparison {
            Comparison::Equal => Some(claim == expected),
            Comparison::Greater => ordered(Ordering::is_gt),
            Comparison::GreaterOrEqual => ordered(Ordering::is_ge),
            Comparison::Less => ordered(Ordering::is_lt),
            Comparison::LessOrEqual => ordered(Ordering::is_le),
            Comparison::In => is_in(claim, expected),
            Comparison::Any => share_element(claim, expected),
            Comparison::Match => None,
        };
        self.verdict(holds)
    }

    /// Matches a claim, which has to be a text.
    pub(super) fn matches(self, claim: &Json, pattern: &Regex) -> Verdict {
        match claim.as_str().map(|text| pattern.is_match(text.as_bytes())) {
            Some(Ok(Match::Yes)) => self.verdict(Some(true)),
            Some(Ok(Match::No)) => self.verdict(Some(false)),
            Some(Err(BacktrackLimit)) => Verdict::TooManySteps,
            None => Verdict::Incomparable,
        }
    }

    fn verdict(self, holds: Option<bool>) -> Verdict {
        match (holds, self.sense) {
            (Some(true), Sense::Plain) | (Some(false), Sense::Negated) => Verdict::Fulfilled,
            (Some(_), _) => Verdict::Unfulfilled,
            (None, _) => Verdict::Incomparable,
        }
    }
}

/// Order of two numbers: exact for whole ones.
fn compare_numbers(left: &Number, right: &Number) -> Option<Ordering> {
    match (left.as_i128(), right.as_i128()) {
        (Some(i128), Some(right)) => Some(i128.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

/// `None` if `expected` is neither a list nor, for a text, an object.
fn is_in(claim: &Json, expected: &Json) -> Option<bool> {
    match (claim, expected) {
        (_, Json::Array(elements)) => Some(elements.contains(claim)),
        (Json::String(name), Json::Object(members)) => Some(members.contains_key(name)),
        _ => None,
    }
}

/// Time linear in both; `None` if `expected` is no list. A claim that is no list counts as its only element.
fn share_element(claim: &Json, expected: &Json) -> Option<bool> {
    let expected = expected.as_array()?;
    Some(match claim {
        Json::Array(elements) => {
            let expected: HashSet<&Json> = expected.iter().collect();
            elements.iter().any(|element| expected.contains(element))
        }
        single => expected.contains(single),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tw_core::regex::Caseless;

    use super::Verdict::{Fulfilled, Incomparable, TooManySteps, Unfulfilled};
    use super::*;

    fn operator(name: &str) -> Operator {
        Operator::parse(name.as_bytes()).unwrap()
    }

    #[test]
    fn operators_compare_values_as_json_has_them() {
        for (claim, name, expected, verdict) in [
            (json!("a"), "eq", json!("a"), Fulfilled),
            (json!("a"), "eq", json!("A"), Unfulfilled),
            (json!("1"), "eq", json!(1), Unfulfilled),
            (json!(1), "eq", json!(1), Fulfilled),
            (json!(1), "eq", json!(1.0), Unfulfilled),
            (json!(1.5), "eq", json!(1.5), Fulfilled),
            (json!(true), "eq", json!(true), Fulfilled),
            (json!(null), "eq", json!(null), Fulfilled),
            (json!([1, 2]), "eq", json!([1, 2]), Fulfilled),
            (json!([1, 2]), "eq", json!([2, 1]), Unfulfilled),
            (json!([1, 2]), "eq", json!([1]), Unfulfilled),
            (json!({ "a": 1, "b": [2] }), "eq", json!({ "b": [2], "a": 1 }), Fulfilled),
            (json!({ "a": 1 }), "eq", json!({ "a": 1, "b": 2 }), Unfulfilled),
            (json!(2), "gt", json!(1), Fulfilled),
            (json!(1), "gt", json!(1), Unfulfilled),
            (json!(1.5), "gt", json!(1), Fulfilled),
            (json!(-1), "gt", json!(u64::MAX), Unfulfilled),
            (json!(u64::MAX), "gt", json!(u64::MAX - 1), Fulfilled),
            (json!(1), "ge", json!(1), Fulfilled),
            (json!(1), "ge", json!(2), Unfulfilled),
            (json!(1), "lt", json!(2), Fulfilled),
            (json!(2), "lt", json!(1.5), Unfulfilled),
            (json!(1), "le", json!(1), Fulfilled),
            (json!(2), "le", json!(1), Unfulfilled),
            (json!("2"), "gt", json!(1), Incomparable),
            (json!(2), "gt", json!("1"), Incomparable),
            (json!("b"), "gt", json!("a"), Incomparable),
            (json!([2]), "le", json!([3]), Incomparable),
            (json!("a"), "in", json!(["b", "a"]), Fulfilled),
            (json!("a"), "in", json!(["b"]), Unfulfilled),
            (json!("a"), "in", json!([]), Unfulfilled),
            (json!(["a"]), "in", json!(["a"]), Unfulfilled),
            (json!(["a"]), "in", json!([["a"]]), Fulfilled),
            (json!("a"), "in", json!({ "a": null }), Fulfilled),
            (json!("b"), "in", json!({ "a": null }), Unfulfilled),
            (json!(1), "in", json!({ "1": null }), Incomparable),
            (json!("a"), "in", json!("a"), Incomparable),
            (json!(["a", "b"]), "any", json!(["b", "c"]), Fulfilled),
            (json!(["a", 1]), "any", json!(["1", "c"]), Unfulfilled),
            (json!([[1], {}]), "any", json!([[1]]), Fulfilled),
            (json!([]), "any", json!([]), Unfulfilled),
            (json!("a"), "any", json!(["a"]), Fulfilled),
            (json!("a"), "any", json!(["b"]), Unfulfilled),
            (json!(["a"]), "any", json!("a"), Incomparable),
            (json!(["a"]), "any", json!({ "a": 1 }), Incomparable),
        ] {
            assert_eq!(operator(name).compare(&claim, &expected), verdict, "{claim} {name} {expected}");
            let negated = match verdict {
                Fulfilled => Unfulfilled,
                Unfulfilled => Fulfilled,
                other => other,
            };
            let name = format!("!{name}");
            assert_eq!(operator(&name).compare(&claim, &expected), negated, "{claim} {name} {expected}");
        }
    }

    #[test]
    fn patterns_match_texts() {
        for (claim, name, pattern, verdict) in [
            (json!("John Doe"), "match", "^John", Fulfilled),
            (json!("John Doe"), "match", "n D", Fulfilled),
            (json!("John Doe"), "match", r"\AJohn\z", Unfulfilled),
            (json!("John Doe"), "match", "john", Unfulfilled),
            (json!("John Doe"), "!match", "^Alice", Fulfilled),
            (json!("John Doe"), "!match", "^John", Unfulfilled),
            (json!(1), "match", "1", Incomparable),
            (json!(1), "!match", "2", Incomparable),
            (json!("a".repeat(40)), "match", r"^(?=a)(a|a)*\1b", TooManySteps),
            (json!("a".repeat(40)), "!match", r"^(?=a)(a|a)*\1b", TooManySteps),
        ] {
            let regex = Regex::new(pattern.as_bytes(), Caseless::No).unwrap();
            assert_eq!(operator(name).matches(&claim, &regex), verdict, "{claim} {name} {pattern}");
        }
    }

    #[test]
    fn names_have_aliases_and_negations() {
        for (alias, name) in [
            ("ne", "!eq"),
            ("nin", "!in"),
            ("intersect", "any"),
            ("nintersect", "!any"),
            ("!ne", "eq"),
            ("!nintersect", "any"),
        ] {
            assert_eq!(operator(alias), operator(name), "{alias}");
        }
        for name in ["", "!", "!!eq", "EQ", "eq ", "equal"] {
            assert_eq!(Operator::parse(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn bounds_follow_negations() {
        for (name, bound) in [
            ("gt", Some(Bound::Lower)),
            ("!le", Some(Bound::Lower)),
            ("le", Some(Bound::Upper)),
            ("!ge", Some(Bound::Upper)),
            ("eq", None),
            ("in", None),
        ] {
            assert_eq!(operator(name).bound(), bound, "{name}");
        }
    }
}
