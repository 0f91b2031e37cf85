//! Patterns of PCRE against the engine that gets their translation.

use crate::regex::{Caseless, Match, Regex};

#[test]
fn patterns_match_like_pcre() {
    let table: [(&[u8], &[u8], &[u8]); 57] = [
        (br"^a\Qx.y\E$", b"ax.y", b"axzy"),
        (br"^\Q[a]", b"[a]", b"a"),
        (br"^[\Q.-]\E]+$", b"].-", b"a"),
        (br"^a\E$", b"a", b"aE"),
        (br"^\/\-\_\%\=\:\,\;\@\!\~\&\#\'\<\>\ \`$", b"/-_%=:,;@!~&#'<> `", b""),
        (br"^[\.\/\-]+$", b"./-", b"a"),
        (br"^\$\^\*\+\?\(\)\[\]\{\}\|\\$", br"$^*+?()[]{}|\", b""),
        (br"^/{foo}$", b"/{foo}", b"/foo"),
        (br"^a{2}b]}$", b"aab]}", b"ab]}"),
        (br"^[]a]+$", b"]a", b"b"),
        (br"^[^]a]+$", b"bc", b"]"),
        (br"^[\w-]+$", b"a-b", b"a.b"),
        (br"^[\w.-]+$", b"a.-", b"a,b"),
        (br"^[a-z-0-9]+$", b"a-9", b"_"),
        (br"^[[a]+$", b"[a", b"]"),
        (br"^[a&&b]+$", b"a&b", b"c"),
        (br"^[+--]+$", b"+,-", b"."),
        (br"^[a~~]+$", b"~", b"b"),
        (br"^[[:alpha:]_]+$", b"ab_", b"1"),
        (br"^[[:^alpha:]]+$", b"1", b"a"),
        (br"^[[:x]+$", b"[:x", b"]"),
        (br"^[\b]$", b"\x08", b"b"),
        (br"^[\x30-\x{39}\141]+$", b"09a", b"/"),
        (br"^[\H]+$", b"ab", b"a b"),
        (br"^\h+\H$", b" \t\xa0a", b"a "),
        (br"^a\vb\V$", b"a\x0bbc", b"avbc"),
        (br"^a\Rb\N$", b"a\r\nbc", b"a\rb\n"),
        (br"^\x41\x{42}\103\o{104}\x5$", b"ABCD\x05", b""),
        (br"^\0\01\cA\e\a\f$", b"\0\x01\x01\x1b\x07\x0c", b""),
        (br"^[\xe4-\xf6]\xff$", b"\xe5\xff", b"\xf7\xff"),
        ("^[ä]{2}$".as_bytes(), "ä".as_bytes(), "ää".as_bytes()),
        ("^ä+$".as_bytes(), b"\xc3\xa4\xa4", "ää".as_bytes()),
        (b"^\xe4$", b"\xe4", b"\xc3\xa4"),
        (br"^.$", b"\xff", b"\n"),
        (br"(*UTF8)^.$", "ä".as_bytes(), b"ab"),
        ("(*UTF8)(*UCP)^[ä-ü]+$".as_bytes(), "öä".as_bytes(), "ß".as_bytes()),
        (br"(*UTF)^\x{20ac}\p{L}$", "€ß".as_bytes(), "€1".as_bytes()),
        (br"^www\p{N}+\.$", b"www12.", b"wwwab."),
        (br"^\pL\PL\p{^Nd}$", b"a1b", b"a11"),
        (br"^[\p{Lu}_]+$", b"A_\xc4", b"a"),
        (br"^(a)\1$", b"aa", b"ab"),
        (br"^(a)\g1\g{1}0\g{-1}$", b"aaa0a", b"a10a"),
        (br"^(a)\10$", b"a\x08", b"aa0"),
        (br"^(?<n>a)\k<n>\k{n}\k'n'\g{n}(?P=n)$", b"aaaaaa", b"aaaaa"),
        (br"^(?'n'a)(?P<m>b)(?#no [class)\2$", b"abb", b"aba"),
        (br"^(\((?:[^()]|(?1))*\))$", b"((a))", b"((a)"),
        (br"^(?:\((?R)?\))$", b"()", b"("),
        (br"^(?<p>\[(?&p)?\])(?P>p)$", b"[[]][]", b"[[]["),
        (br"^(a|b(?-1)c)$", b"bbacc", b"babcc"),
        (br"^(?+1)=(\d)$", b"1=2", b"1="),
        (br"^(x)?b(?(1)c|d)$", b"xbc", b"xbd"),
        (br"^foo(?=/|$)", b"foo/", b"food"),
        (br"(?<!x)a(?<=a)", b"ya", b"xa"),
        (br"^(?>a+)b++$", b"aabb", b"aac"),
        (br"^(?i)A(?-i)b$", b"ab", b"aB"),
        (b"(?x) ^ a [ ] b # c\n $", b"a b", b"ab"),
        (br"^\Aa\Kb\Z\z$", b"ab", b"a"),
    ];
    for (pattern, yes, no) in table {
        let shown = String::from_utf8_lossy(pattern);
        let re = Regex::new(pattern, Caseless::No).unwrap_or_else(|e| panic!("{shown}: {e}"));
        assert_eq!(re.is_match(yes), Ok(Match::Yes), "{shown} on {:?}", String::from_utf8_lossy(yes));
        assert_eq!(re.is_match(no), Ok(Match::No), "{shown} on {:?}", String::from_utf8_lossy(no));
    }
}

#[test]
fn patterns_that_are_refused() {
    for (pattern, message) in [
        (&br"[a"[..], "missing terminating ] for character class"),
        (br"[]", "missing terminating ] for character class"),
        (br"[a-\d]", "invalid range in character class"),
        (br"a\", "\\ at end of pattern"),
        (br"\p{Nope}", "unknown property name"),
        (br"\x{100}", "too large"),
        (br"\x{g}", "invalid character in \\x{}"),
        (b"(*UTF8)\xff", "not valid UTF-8"),
        (br"(", ""),
        (br"\1", ""),
        (br"\y", ""),
    ] {
        let shown = String::from_utf8_lossy(pattern);
        let Err(error) = Regex::new(pattern, Caseless::No) else { panic!("{shown} is not refused") };
        assert!(error.contains(message), "{shown}: {error}");
    }
}
