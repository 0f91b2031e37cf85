//! Transformations of values.
//!
//! Each appends its result to an empty buffer, or says that the value stays as it is. A chain of them is a path in a tree: what several
//! chains begin with is computed once for each value.

mod code;
pub(crate) mod decode;
mod digest;
mod path;
mod space;
mod transformed;

pub(crate) use self::transformed::Transformed;

type Apply = fn(&[u8], &mut Vec<u8>) -> Transformed;

/// Transformation.
#[derive(Clone, Copy)]
pub(crate) struct Transformation {
    /// Name in lower case.
    pub(crate) name: &'static str,
    apply: Apply,
}

/// All transformations. Names are compared without regard to letter case.
const ALL: &[Transformation] = &[
    of("base64decode", decode::base64),
    of("base64decodeext", decode::base64_forgiving),
    of("base64encode", decode::base64_encode),
    of("cmdline", space::cmd_line),
    of("compresswhitespace", space::compress_whitespace),
    of("cssdecode", code::css_decode),
    of("escapeseqdecode", code::escape_sequences),
    of("hexdecode", decode::hex),
    of("hexencode", decode::hex_encode),
    of("htmlentitydecode", code::html_entities),
    of("jsdecode", code::js_decode),
    of("length", digest::length),
    of("lowercase", space::lowercase),
    of("md5", digest::md5),
    of("normalisepath", path::normalize),
    of("normalisepathwin", path::normalize_windows),
    of("normalizepath", path::normalize),
    of("normalizepathwin", path::normalize_windows),
    of("parityeven7bit", digest::parity_even),
    of("parityodd7bit", digest::parity_odd),
    of("parityzero7bit", digest::parity_zero),
    of("removecomments", space::remove_comments),
    of("removecommentschar", space::remove_comment_characters),
    of("removenulls", space::remove_nulls),
    of("removewhitespace", space::remove_whitespace),
    of("replacecomments", space::replace_comments),
    of("replacenulls", space::replace_nulls),
    of("sha1", digest::sha1),
    of("sqlhexdecode", decode::sql_hex),
    of("trim", space::trim),
    of("trimleft", space::trim_left),
    of("trimright", space::trim_right),
    of("uppercase", space::uppercase),
    of("urldecode", decode::url),
    of("urldecodeuni", decode::url_unicode),
    of("urlencode", decode::url_encode),
    of("utf8tounicode", decode::utf8_to_unicode),
];

const fn of(name: &'static str, apply: Apply) -> Transformation {
    Transformation { name, apply }
}

impl Transformation {
    /// The transformation with this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        ALL.iter().find(|transformation| transformation.name.eq_ignore_ascii_case(name)).copied()
    }

    /// Applies it: the result replaces the contents of `out`.
    pub(crate) fn apply(self, value: &[u8], out: &mut Vec<u8>) -> Transformed {
        out.clear();
        (self.apply)(value, out)
    }
}

/// Applies a chain to a value, with two buffers in turn.
#[derive(Default)]
pub(crate) struct Transformer {
    current: Vec<u8>,
    next: Vec<u8>,
}

impl Transformer {
    /// The value after all transformations.
    pub(crate) fn apply<'a>(&'a mut self, chain: &[Transformation], value: &'a [u8]) -> &'a [u8] {
        let mut is_changed = false;
        for transformation in chain {
            let input: &[u8] = if is_changed { &self.current } else { value };
            if transformation.apply(input, &mut self.next) == Transformed::Changed {
                std::mem::swap(&mut self.current, &mut self.next);
                is_changed = true;
            }
        }
        if is_changed { &self.current } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_transformed() {
        let cases: &[(&str, &[u8], &[u8])] = &[
            ("urlDecodeUni", b"a%20b+c%u0041%zz%", b"a b cA%zz%"),
            ("urlDecodeUni", b"%uff1cx", b"<x"),
            ("urlDecode", b"a%20b+c%u0041", b"a b c%u0041"),
            ("lowercase", b"AbC", b"abc"),
            ("htmlEntityDecode", b"&lt;a&#62;&#x41;&nbsp;&quot;&unknown;&#39;", b"<a>A\xa0\"&unknown;'"),
            ("jsDecode", b"\\x41\\u0042\\103\\n\\'", b"ABC\n'"),
            ("cssDecode", b"a\\62\\000063 d\\\ne", b"abcde"),
            ("utf8toUnicode", "a\u{e4}\u{20ac}".as_bytes(), b"a%u00e4%u20ac"),
            ("removeNulls", b"a\0b", b"ab"),
            ("replaceNulls", b"a\0b", b"a b"),
            ("cmdLine", b"C^:\\\"Win  dows\";,x (Y", b"c:win dows x(y"),
            ("removeWhitespace", b"a b\t\xa0c", b"abc"),
            ("compressWhitespace", b"a  b\t\n c", b"a b c"),
            ("replaceComments", b"a/*x*/b/*c", b"a b "),
            ("removeComments", b"a/*x*/b--c", b"ab"),
            ("removeCommentsChar", b"a/*x*/b--c#d", b"axbcd"),
            ("normalizePath", b"/a/./b/../c//d", b"/a/c/d"),
            ("normalizePath", b"../../etc", b"../../etc"),
            ("normalizePath", b".././", b"../"),
            ("normalizePath", b"a/b/..", b"a"),
            ("escapeSeqDecode", b"\\8\\xag\\666", b"8xag\xb6"),
            ("hexDecode", b"0z1", b"#"),
            ("removeComments", b"a /*b", b"a  "),
            ("normalizePathWin", b"a\\b\\..\\c", b"a/c"),
            ("escapeSeqDecode", b"\\a\\x41\\101\\\\", b"\x07AA\\"),
            ("base64Decode", b"aGVsbG8=", b"hello"),
            ("base64Encode", b"hello", b"aGVsbG8="),
            ("hexEncode", b"\x01\xff", b"01ff"),
            ("hexDecode", b"01ff", b"\x01\xff"),
            ("length", b"hello", b"5"),
            ("sqlHexDecode", b"x0x414243y", b"xABCy"),
            ("trim", b" a ", b"a"),
            ("md5", b"", b"\xd4\x1d\x8c\xd9\x8f\x00\xb2\x04\xe9\x80\x09\x98\xec\xf8\x42\x7e"),
            ("urlEncode", b"a b/", b"a+b%2f"),
        ];
        let mut transformer = Transformer::default();
        for (name, value, expected) in cases {
            let transformation = Transformation::find(name).unwrap();
            let result = transformer.apply(&[transformation], value);
            assert_eq!(
                result,
                *expected,
                "{name} {} {}",
                String::from_utf8_lossy(value),
                String::from_utf8_lossy(result)
            );
        }
    }
}
