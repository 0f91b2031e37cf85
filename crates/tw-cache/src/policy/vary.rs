//! Selection of a stored variant for a request: `Vary` (RFC 9111 section 4.1).
//!
//! A variant is identified by a text that is hashed, the argument of [`Key::variant`]. By nginx's rules it is nginx's
//! own text (`ngx_http_file_cache_vary`), so that its files are found: each name in lower case, a colon, the values,
//! a line end. The values are joined by commas. In `Accept-Charset`, `Accept-Encoding` and `Accept-Language` spaces
//! and commas do not matter, but the order of the members does, and an absent field equals an empty one.
//!
//! By the rules of RFC 9111 more requests share a variant: the order of names does not matter, nor that of codings
//! and charsets, nor their case, nor a weight of 1; but an absent field differs from an empty one.

use md5::{Digest, Md5};
use tw_http::{Fields, HeaderName, hop};

use super::{IgnoredFields, NoStoreReason, Request, Rules, Ruleset};
use crate::Key;

/// Bytes of `Vary` by nginx's rules: its files have room for no more (`NGX_HTTP_CACHE_VARY_LEN`).
pub const NGINX_VARY_MAX: usize = 128;

/// Bytes of `Vary` by the rules of RFC 9111: each name costs a look at the fields of every request.
pub const VARY_MAX: usize = 1024;

/// Largest number of names and members that are sorted; longer lists keep their order, which only costs hits.
const SORTED_MAX: usize = 32;

/// The text of `Vary` as it is stored: all lines, joined by a comma and a space; empty if responses do not vary.
///
/// # Errors
/// [`NoStoreReason::VaryStar`] and [`NoStoreReason::VaryTooLong`], as [`may_store`](super::may_store) has it.
pub fn vary(fields: &Fields, rules: &Rules, ignored: IgnoredFields) -> Result<Vec<u8>, NoStoreReason> {
    let mut text = Vec::new();
    if ignored.has(IgnoredFields::VARY) {
        return Ok(text);
    }
    check(fields, max(rules))?;
    for line in fields.get_all(b"Vary") {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(line);
    }
    Ok(text)
}

pub(super) fn max(rules: &Rules) -> usize {
    match rules.reading {
        Ruleset::Nginx => NGINX_VARY_MAX,
        Ruleset::Rfc9111 => VARY_MAX,
    }
}

/// Checks that the `Vary` of a response can be stored.
pub(super) fn check(fields: &Fields, max: usize) -> Result<(), NoStoreReason> {
    if !fields.has(HeaderName::Vary) {
        return Ok(());
    }
    let mut size = 0;
    for line in fields.get_all(b"Vary") {
        // DIFF(nginx): nginx sees a `*` only if it is all of a line.
        if hop::has_element(line, b"*") {
            return Err(NoStoreReason::VaryStar);
        }
        size += line.len() + if size == 0 { 0 } else { 2 };
    }
    if size > max { Err(NoStoreReason::VaryTooLong) } else { Ok(()) }
}

/// Key of the variant for this request, among those stored under `main`. Cost: one MD5; no allocation.
#[must_use]
pub fn variant(main: Key, vary: &[u8], request: &impl Request, rules: &Rules) -> Key {
    let mut digest = Md5::new();
    digest.update(main.0);
    describe_fields(vary, request, rules, &mut |part| digest.update(part));
    Key(digest.finalize().into())
}

/// Writes the text that identifies a variant, which [`variant`] hashes.
pub fn describe_variant(vary: &[u8], request: &impl Request, rules: &Rules, out: &mut Vec<u8>) {
    describe_fields(vary, request, rules, &mut |part| out.extend_from_slice(part));
}

fn describe_fields(vary: &[u8], request: &impl Request, rules: &Rules, out: &mut dyn FnMut(&[u8])) {
    match rules.reading {
        Ruleset::Nginx => {
            for name in words(vary) {
                lower(name, out);
                out(b":");
                nginx_values(name, request, out);
                out(b"\r\n");
            }
        }
        Ruleset::Rfc9111 => sorted(hop::elements(vary), &mut |name| {
            lower(name, out);
            values(name, request, out);
            out(b"\r\n");
        }),
    }
}

/// Words between spaces and commas. A tab is part of a word for nginx.
fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b' ' | b',')).filter(|word| !word.is_empty())
}

fn lower(text: &[u8], out: &mut dyn FnMut(&[u8])) {
    let mut small = [0; 64];
    for part in text.chunks(small.len()) {
        if let Some(small) = small.get_mut(..part.len()) {
            small.copy_from_slice(part);
            small.make_ascii_lowercase();
            out(small);
        }
    }
}

fn is_one_of(name: &[u8], names: &[&str]) -> bool {
    names.iter().any(|one| one.as_bytes().eq_ignore_ascii_case(name))
}

fn nginx_values(name: &[u8], request: &impl Request, out: &mut dyn FnMut(&[u8])) {
    let is_list = is_one_of(name, &["Accept-Charset", "Accept-Encoding", "Accept-Language"]);
    let mut is_first = true;
    let mut one = |value: &[u8]| {
        if !std::mem::take(&mut is_first) {
            out(b",");
        }
        out(value);
    };
    request.each_field(name, &mut |value| if is_list { words(value).for_each(&mut one) } else { one(value) });
}

/// Calls `out` with a colon and the values; not at all if the field is absent.
fn values(name: &[u8], request: &impl Request, out: &mut dyn FnMut(&[u8])) {
    let is_set = is_one_of(name, &["Accept-Encoding", "Accept-Charset"]);
    let is_list = is_one_of(name, &["Accept-Language", "Accept"]);
    let mut mark: &[u8] = b":";
    request.each_field(name, &mut |value| {
        if is_set {
            out(std::mem::replace(&mut mark, b","));
            let mut gap: &[u8] = b"";
            sorted(hop::elements(value), &mut |member| {
                out(std::mem::replace(&mut gap, b","));
                member_of(member, out);
            });
        } else if is_list && !value.contains(&b'"') {
            // For some servers the order of languages has a meaning (RFC 9110 section 12.5.4).
            for member in hop::elements(value) {
                out(std::mem::replace(&mut mark, b","));
                member_of(member, out);
            }
            if mark == b":" {
                out(std::mem::replace(&mut mark, b","));
            }
        } else {
            out(std::mem::replace(&mut mark, b","));
            out(value);
        }
    });
}

/// One member with its parameters, without blanks, in lower case and without a weight of 1.
fn member_of(member: &[u8], out: &mut dyn FnMut(&[u8])) {
    for (index, part) in member.split(|&byte| byte == b';').enumerate() {
        let part = part.trim_ascii();
        let is_default = part
            .strip_prefix(b"q=")
            .or_else(|| part.strip_prefix(b"Q="))
            .is_some_and(|weight| matches!(weight, b"1" | b"1." | b"1.0" | b"1.00" | b"1.000"));
        if index == 0 || !is_default {
            out(if index == 0 { b"" } else { b";" });
            lower(part, out);
        }
    }
}

/// Calls `see` for each member of a list in alphabetical order, once each, ignoring case.
fn sorted<'a>(list: impl Iterator<Item = &'a [u8]> + Clone, see: &mut dyn FnMut(&[u8])) {
    let mut all: [&[u8]; SORTED_MAX] = [b""; SORTED_MAX];
    let count = list.clone().take(SORTED_MAX + 1).zip(0usize..).map(|(word, at)| {
        if let Some(place) = all.get_mut(at) {
            *place = word;
        }
    });
    let count = count.count();
    let Some(all) = all.get_mut(..count) else {
        return list.for_each(see);
    };
    let letters = |word: &'a [u8]| word.iter().map(u8::to_ascii_lowercase);
    all.sort_unstable_by(|a, b| letters(a).cmp(letters(b)));
    let mut last: Option<&[u8]> = None;
    for word in all.iter() {
        if !last.is_some_and(|last| last.eq_ignore_ascii_case(word)) {
            see(word);
        }
        last = Some(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_http::{Method, Name};

    fn request(fields: &[(&str, &str)]) -> Fields {
        let mut all = Fields::new();
        for (name, value) in fields {
            all.append_copy(Name::Copy(name.as_bytes()), value.as_bytes());
        }
        all
    }

    fn described(vary: &str, fields: &[(&str, &str)], rules: &Rules) -> String {
        let fields = request(fields);
        let mut out = Vec::new();
        describe_variant(vary.as_bytes(), &(Method::Get, &fields), rules, &mut out);
        let main = Key::of(b"/");
        assert_eq!(variant(main, vary.as_bytes(), &(Method::Get, &fields), rules), main.variant(&out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn variant_text_of_nginx() {
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let table: &[Case<'_>] = &[
            ("", &[], ""),
            ("Accept-Encoding", &[("accept-encoding", "gzip, br")], "accept-encoding:gzip,br\r\n"),
            ("Accept-Encoding", &[("Accept-Encoding", "br ,gzip")], "accept-encoding:br,gzip\r\n"),
            ("Accept-Encoding", &[("Accept-Encoding", "gzip; q=1")], "accept-encoding:gzip;,q=1\r\n"),
            ("X-B,x-a", &[("x-A", "1, 2"), ("X-A", "3")], "x-b:\r\nx-a:1, 2,3\r\n"),
            (" ,Cookie ,, Foo", &[("Cookie", "")], "cookie:\r\nfoo:\r\n"),
            (
                "Accept-Language",
                &[("Accept-Language", "de"), ("Accept-Language", "en")],
                "accept-language:de,en\r\n",
            ),
        ];
        for (vary, fields, expected) in table {
            assert_eq!(described(vary, fields, &Rules::NGINX), *expected, "{vary} {fields:?}");
        }
    }

    #[test]
    fn requests_that_share_a_variant_rfc9111_section_4_1() {
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], bool);
        let table: &[Case<'_>] = &[
            (
                "Accept-Encoding",
                &[("Accept-Encoding", "gzip, br")],
                &[("accept-encoding", "BR;q=1.0 ,gzip,gzip")],
                true,
            ),
            (
                "Accept-Encoding",
                &[("Accept-Encoding", "gzip, br;q=0.5")],
                &[("Accept-Encoding", "gzip, br")],
                false,
            ),
            (
                "Accept-Language",
                &[("Accept-Language", "de, EN")],
                &[("Accept-Language", "de"), ("Accept-Language", "en")],
                true,
            ),
            ("Accept-Language", &[("Accept-Language", "de, en")], &[("Accept-Language", "en, de")], false),
            ("X", &[("X", "")], &[], false),
            ("Accept", &[("Accept", "")], &[], false),
            ("X", &[("X", "a"), ("X", "b")], &[("X", "a,b")], true),
            ("X", &[("X", "a, b")], &[("X", "a,b")], false),
            ("X", &[("X", "a")], &[("X", "A")], false),
            ("Accept", &[("Accept", "text/a;p=\"x, y\"")], &[("Accept", "text/a;p=\"x,y\"")], false),
        ];
        for (vary, one, other, expected) in table {
            let rules = Rules::RFC9111;
            assert_eq!(
                described(vary, one, &rules) == described(vary, other, &rules),
                *expected,
                "{one:?} {other:?}"
            );
        }
        let fields = [("A", "1"), ("B", "2")];
        assert_eq!(described("A, B", &fields, &Rules::RFC9111), described("b,A,a", &fields, &Rules::RFC9111));
        let many: String = (0..40).rev().map(|number| format!("n{number},")).collect();
        assert!(described(&many, &[], &Rules::RFC9111).starts_with("n39\r\nn38\r\n"));
    }

    #[test]
    fn stored_vary() {
        let text = |lines: &[&str], rules: &Rules, ignored| {
            let fields: Vec<_> = lines.iter().map(|&line| ("Vary", line)).collect();
            vary(&request(&fields), rules, ignored).map(|text| String::from_utf8(text).unwrap())
        };
        let long = "a".repeat(129);
        for (lines, expected) in [
            (&[][..], Ok("")),
            (&["A", "B, C"], Ok("A, B, C")),
            (&["*"], Err(NoStoreReason::VaryStar)),
            (&["A, *"], Err(NoStoreReason::VaryStar)),
            (&[long.as_str()], Err(NoStoreReason::VaryTooLong)),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(text(lines, &Rules::NGINX, IgnoredFields::NONE), expected, "{lines:?}");
        }
        assert_eq!(text(&[&long], &Rules::RFC9111, IgnoredFields::NONE), Ok(long.clone()));
        assert_eq!(text(&["*"], &Rules::RFC9111, IgnoredFields::VARY), Ok(String::new()));
    }
}
