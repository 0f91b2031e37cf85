//! Operators: what a rule compares values with.

mod address;
mod bytes;
mod cards;
mod phrases;

use regex_automata::meta::Regex;
use regex_syntax::hir::Hir;

use self::address::AddressRanges;
use self::bytes::ByteSet;
pub(crate) use self::bytes::ByteSet as Bytes;
use self::phrases::Phrases;
use crate::names::Names;
use crate::seclang::{Files, pattern};
use crate::template::Template;
use crate::transform::decode::has_valid_escapes;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    use pattern::LIMITS;
    /// Bytes of a value that `@detectSQLi` and `@detectXSS` read.
    const INJECTION_MAX: usize = 64 << 10, bytes, "the rest is not read";
}

/// Names that are more than one word.
const SHOWN_NAMES: &[&str] = &[
    "BeginsWith",
    "ContainsWord",
    "DetectSQLi",
    "DetectXSS",
    "EndsWith",
    "IpMatch",
    "IpMatchFromFile",
    "NoMatch",
    "PmFromFile",
    "RxGlobal",
    "StrEq",
    "StrMatch",
    "UnconditionalMatch",
    "ValidateByteRange",
    "ValidateUrlEncoding",
    "ValidateUtf8Encoding",
    "VerifyCC",
    "VerifyCPF",
    "VerifySSN",
    "VerifySVNR",
];

/// Operator of a rule.
pub(crate) enum Operator {
    /// `@rx`, with the form that its literals are taken from.
    Rx(Regex, Box<Hir>),
    /// `@rxGlobal`
    RxGlobal(Regex, Box<Hir>),
    /// `@pm`, `@pmFromFile`
    Phrases(Phrases),
    /// `@contains`, `@beginsWith`, …
    Text(TextTest, Template),
    /// `@eq`, `@lt`, …
    Number(NumberTest, Template),
    /// `@ipMatch`, `@ipMatchFromFile`
    Address(AddressRanges),
    /// `@validateByteRange`: matches a value with other bytes than these.
    ByteRange(Box<ByteSet>),
    /// `@validateUrlEncoding`
    UrlEncoding,
    /// `@validateUtf8Encoding`
    Utf8Encoding,
    /// `@detectSQLi`
    Sqli,
    /// `@detectXSS`
    Xss,
    /// `@verifyCC`, `@verifySSN`, `@verifyCPF`, `@verifySVNR`
    Verified(Regex, fn(&[u8]) -> bool),
    /// `@unconditionalMatch`
    Always,
    /// `@noMatch`
    Never,
}

/// Comparison of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextTest {
    /// The value contains the parameter.
    Contains,
    /// The value contains the parameter as a whole word.
    ContainsWord,
    /// The value begins with the parameter.
    BeginsWith,
    /// The value ends with the parameter.
    EndsWith,
    /// Both are equal.
    Equal,
    /// The parameter contains the value.
    Within,
}

/// Comparison of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberTest {
    /// Equal.
    Equal,
    /// Greater than or equal.
    AtLeast,
    /// Greater than.
    Greater,
    /// Less than or equal.
    AtMost,
    /// Less than.
    Less,
}

/// Operator with its negation.
pub(crate) struct Test {
    /// Operator.
    pub(crate) operator: Operator,
    /// True if a value matches that the operator does not match.
    pub(crate) is_negated: bool,
    /// The operator as it is shown: its name, and its parameter.
    pub(crate) shown: (Box<str>, Box<str>),
}

impl Test {
    /// Parses the operator of a rule. The error is its reason.
    pub(crate) fn parse(
        text: &[u8],
        names: &mut Names,
        files: &mut dyn Files,
        from: &str,
    ) -> Result<Self, String> {
        let text = text.trim_ascii_start();
        let (is_negated, text) = match text.strip_prefix(b"!") {
            Some(rest) => (true, rest.trim_ascii_start()),
            None => (false, text),
        };
        let (name, parameter) = match text.strip_prefix(b"@") {
            Some(rest) => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                let (name, parameter) = rest.split_at(end);
                (String::from_utf8_lossy(name).into_owned(), parameter.trim_ascii_start())
            }
            None => ("rx".to_owned(), text),
        };
        let operator = parse(&name, parameter, names, files, from)?;
        let shown = (name.into(), String::from_utf8_lossy(parameter).into_owned().into());
        Ok(Self { operator, is_negated, shown })
    }

    /// Name of the operator as log lines show it: with capital letters, and without its negation.
    pub(crate) fn operator_name(&self) -> String {
        let (name, _) = &self.shown;
        if let Some(candidate) = SHOWN_NAMES.iter().find(|candidate| candidate.eq_ignore_ascii_case(name)) {
            return (*candidate).to_owned();
        }
        let (first, rest) = name.split_at_checked(1).unwrap_or(("", name));
        format!("{}{rest}", first.to_ascii_uppercase())
    }
}

fn parse(
    name: &str,
    parameter: &[u8],
    names: &mut Names,
    files: &mut dyn Files,
    from: &str,
) -> Result<Operator, String> {
    let mut template = |text: &[u8]| Template::compile(text, names);
    let lower = name.to_ascii_lowercase();
    Ok(match lower.as_str() {
        "rx" | "rxglobal" => {
            if memchr::memmem::find(parameter, b"%{").is_some() {
                return Err("variables in a regular expression are not supported".to_owned());
            }
            let (regex, hir) = pattern::compile(parameter)?;
            if lower == "rx" {
                Operator::Rx(regex, Box::new(hir))
            } else {
                Operator::RxGlobal(regex, Box::new(hir))
            }
        }
        "pm" => Operator::Phrases(Phrases::parse(parameter)?),
        "pmfromfile" | "pmf" => Operator::Phrases(Phrases::lines(&read(parameter, files, from)?)?),
        "contains" | "strmatch" => Operator::Text(TextTest::Contains, template(parameter)?),
        "containsword" => Operator::Text(TextTest::ContainsWord, template(parameter)?),
        "beginswith" => Operator::Text(TextTest::BeginsWith, template(parameter)?),
        "endswith" => Operator::Text(TextTest::EndsWith, template(parameter)?),
        "streq" => Operator::Text(TextTest::Equal, template(parameter)?),
        "within" => Operator::Text(TextTest::Within, template(parameter)?),
        "eq" => Operator::Number(NumberTest::Equal, template(parameter)?),
        "ge" => Operator::Number(NumberTest::AtLeast, template(parameter)?),
        "gt" => Operator::Number(NumberTest::Greater, template(parameter)?),
        "le" => Operator::Number(NumberTest::AtMost, template(parameter)?),
        "lt" => Operator::Number(NumberTest::Less, template(parameter)?),
        "ipmatch" => Operator::Address(AddressRanges::parse(parameter)?),
        "ipmatchfromfile" | "ipmatchf" => {
            Operator::Address(AddressRanges::lines(&read(parameter, files, from)?)?)
        }
        "validatebyterange" => Operator::ByteRange(Box::new(ByteSet::parse(parameter)?)),
        "validateurlencoding" => Operator::UrlEncoding,
        "validateutf8encoding" => Operator::Utf8Encoding,
        "detectsqli" => Operator::Sqli,
        "detectxss" => Operator::Xss,
        "verifycc" => Operator::Verified(pattern::compile(parameter)?.0, cards::is_card_number),
        "verifyssn" => Operator::Verified(pattern::compile(parameter)?.0, cards::is_social_security_number),
        "verifysvnr" => Operator::Verified(pattern::compile(parameter)?.0, cards::is_svnr),
        "verifycpf" => Operator::Verified(pattern::compile(parameter)?.0, cards::is_cpf),
        "unconditionalmatch" => Operator::Always,
        "nomatch" => Operator::Never,
        "geolookup" | "gsblookup" | "inspectfile" | "fuzzyhash" | "rbl" | "rsub" | "validatedtd"
        | "validateschema" | "validatehash" => {
            return Err(format!("operator \"@{name}\" is not supported"));
        }
        _ => return Err(format!("unknown operator \"@{name}\"")),
    })
}

fn read(parameter: &[u8], files: &mut dyn Files, from: &str) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    for name in parameter.split(u8::is_ascii_whitespace).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name);
        if name.starts_with("http://") || name.starts_with("https://") {
            return Err("files on other servers are not supported".to_owned());
        }
        let bytes = files.read(&name, from).map_err(|reason| format!("\"{name}\": {reason}"))?;
        all.extend_from_slice(&bytes);
        all.push(b'\n');
    }
    Ok(all)
}

/// Ranges of a value that a match has captured: the whole match, and at most nine groups.
pub(crate) type Captured = Vec<Box<[u8]>>;

impl Operator {
    /// Returns true if `value` matches, negation apart. `parameter` is the text of a template. What was captured is added to `captured`.
    pub(crate) fn matches(&self, value: &[u8], parameter: &[u8], captured: Option<&mut Captured>) -> bool {
        match self {
            Self::Rx(regex, _) => search(regex, value, captured),
            Self::RxGlobal(regex, _) => search_all(regex, value, captured),
            Self::Phrases(phrases) => match phrases.find(value) {
                Some(phrase) => {
                    if let Some(captured) = captured {
                        captured.push(phrase.into());
                    }
                    true
                }
                None => false,
            },
            Self::Text(test, _) => test.matches(value, parameter),
            Self::Number(test, _) => test.matches(number(value), number(parameter)),
            Self::Address(ranges) => ranges.contains(value),
            Self::ByteRange(set) => value.iter().any(|byte| !set.has(*byte)),
            Self::UrlEncoding => !has_valid_escapes(value),
            Self::Utf8Encoding => std::str::from_utf8(value).is_err(),
            Self::Sqli => {
                let result = libinjectionrs::detect_sqli(injection_part(value));
                if let (Some(captured), Some(fingerprint)) = (captured, &result.fingerprint) {
                    captured.push(fingerprint.as_str().as_bytes().into());
                }
                result.is_injection()
            }
            Self::Xss => {
                let is_injection = libinjectionrs::detect_xss(injection_part(value)).is_injection();
                if let (Some(captured), true) = (captured, is_injection) {
                    captured.push(value.into());
                }
                is_injection
            }
            Self::Verified(regex, is_valid) => {
                let matches = regex.find_iter(value).filter_map(|match_| value.get(match_.range()));
                let number = matches.into_iter().find(|number| is_valid(number));
                if let (Some(captured), Some(number)) = (captured, number) {
                    captured.push(number.into());
                }
                number.is_some()
            }
            Self::Always => true,
            Self::Never => false,
        }
    }

    /// Template of the parameter.
    pub(crate) fn parameter(&self) -> Option<&Template> {
        match self {
            Self::Text(_, parameter) | Self::Number(_, parameter) => Some(parameter),
            _ => None,
        }
    }
}

fn injection_part(value: &[u8]) -> &[u8] {
    value.get(..INJECTION_MAX).unwrap_or(value)
}

fn search(regex: &Regex, value: &[u8], captured: Option<&mut Captured>) -> bool {
    let Some(captured) = captured else { return regex.is_match(value) };
    let mut captures = regex.create_captures();
    regex.captures(value, &mut captures);
    if !captures.is_match() {
        return false;
    }
    for group in captures.iter().take(10) {
        let text = group.and_then(|span| value.get(span.range())).unwrap_or_default();
        captured.push(text.into());
    }
    true
}

fn search_all(regex: &Regex, value: &[u8], captured: Option<&mut Captured>) -> bool {
    let Some(captured) = captured else { return regex.is_match(value) };
    let before = captured.len();
    for captures in regex.captures_iter(value) {
        for group in captures.iter().flatten() {
            if captured.len() - before == 10 {
                return true;
            }
            captured.push(value.get(group.range()).unwrap_or_default().into());
        }
    }
    captured.len() > before
}

/// Number at the beginning of `text`, or 0.
pub(crate) fn number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text.first() {
        Some(b'-') => (-1, text.get(1..).unwrap_or_default()),
        Some(b'+') => (1, text.get(1..).unwrap_or_default()),
        _ => (1, text),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    sign * digits.fold(0i64, |sum, byte| sum.saturating_mul(10).saturating_add(i64::from(byte - b'0')))
}

impl NumberTest {
    /// Compares two numbers.
    pub(crate) fn matches(self, value: i64, parameter: i64) -> bool {
        match self {
            Self::Equal => value == parameter,
            Self::AtLeast => value >= parameter,
            Self::Greater => value > parameter,
            Self::AtMost => value <= parameter,
            Self::Less => value < parameter,
        }
    }
}

impl TextTest {
    fn matches(self, value: &[u8], parameter: &[u8]) -> bool {
        match self {
            Self::Contains => memchr::memmem::find(value, parameter).is_some(),
            Self::ContainsWord => contains_word(value, parameter),
            Self::BeginsWith => value.starts_with(parameter),
            Self::EndsWith => value.ends_with(parameter),
            Self::Equal => value == parameter,
            Self::Within => memchr::memmem::find(parameter, value).is_some(),
        }
    }
}

fn contains_word(value: &[u8], word: &[u8]) -> bool {
    if word.is_empty() {
        return true;
    }
    // Only letters are parts of words, as in ModSecurity 3.
    let is_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
    memchr::memmem::find_iter(value, word).any(|at| {
        let before = at.checked_sub(1).and_then(|at| value.get(at));
        !is_word(before) && !is_word(value.get(at + word.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoFiles;

    impl Files for NoFiles {
        fn read(&mut self, _: &str, _: &str) -> Result<Vec<u8>, String> {
            Ok(b"# list\nfoo\n\nbar baz\n".to_vec())
        }

        fn expand(&mut self, _: &str, _: &str) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn operators_match() {
        let cases: &[(&str, &[u8], bool)] = &[
            ("@rx a(b)", b"xab", true),
            ("!@rx ^a", b"ba", true),
            ("ab|cd", b"cd", true),
            ("@pm foo \"bar\"", b"xFOOx", true),
            ("@pmFromFile list", b"a BAR baz", true),
            ("@pmFromFile list", b"# list", false),
            ("@contains b", b"abc", true),
            ("@containsWord b", b"abc", false),
            ("@containsWord b", b"a1b2c", true),
            ("@ipMatch ::ffff:192.0.2.0/120", b"192.0.2.9", true),
            ("@ipMatch ::ffff:192.0.2.0/120", b"::ffff:192.0.3.9", false),
            ("@ipMatch 192.0.2.0/24", b"::ffff:192.0.2.9", true),
            ("@ipMatch ::/0", b"192.0.2.9", false),
            ("@verifySVNR \\d{4} \\d{6}", b"1237 010180", true),
            ("@verifySVNR \\d{4} \\d{6}", b"1238 010180", false),
            ("@verifySSN \\d{9}", b"123456789", false),
            ("@containsWord b", b"a b-c", true),
            ("@beginsWith a", b"ab", true),
            ("@endsWith b", b"ab", true),
            ("@streq ab", b"ab", true),
            ("@within ab,cd", b"cd", true),
            ("@eq 5", b"5", true),
            ("@lt 5", b"4", true),
            ("@ge 5", b"4", false),
            ("@ipMatch 10.0.0.0/8,::1", b"10.2.3.4", true),
            ("@ipMatch 10.0.0.0/8,::1", b"11.2.3.4", false),
            ("@ipMatch 10.0.0.0/8,::1", b"::1", true),
            ("@validateByteRange 32-126", b"a\x01", true),
            ("@validateByteRange 32-126", b"ab", false),
            ("@validateUrlEncoding", b"a%2", true),
            ("@validateUrlEncoding", b"a%20", false),
            ("@validateUtf8Encoding", b"\xc0\xaf", true),
            ("@detectSQLi", b"1' or '1'='1", true),
            ("@detectSQLi", b"hello", false),
            ("@detectXSS", b"<script>alert(1)</script>", true),
            ("@verifyCC \\d{16}", b"4111111111111111", true),
            ("@verifyCC \\d{16}", b"4111111111111112", false),
            ("@unconditionalMatch", b"", true),
            ("@noMatch", b"", false),
        ];
        for (text, value, expected) in cases {
            let test = Test::parse(text.as_bytes(), &mut Names::new(), &mut NoFiles, "").unwrap();
            let parameter = test.operator.parameter().and_then(Template::fixed).cloned();
            let parameter = parameter.as_deref().unwrap_or_default();
            assert_eq!(test.operator.matches(value, parameter, None) != test.is_negated, *expected, "{text}");
        }
    }

    #[test]
    fn operators_that_cannot_be_enforced_are_refused() {
        for text in [
            "@rbl a",
            "@geoLookup",
            "@nothing",
            "@rx (?=a)",
            "@ipMatch x",
            "@validateByteRange 300",
            "@rx %{tx.a}",
        ] {
            assert!(Test::parse(text.as_bytes(), &mut Names::new(), &mut NoFiles, "").is_err(), "{text}");
        }
    }
}
