//! Targeted fields (RFC 9213), such as `CDN-Cache-Control`: directives as a dictionary of RFC 9651. One syntax error
//! makes the whole field invalid.

use tw_http::Fields;

use super::directive::{Argument, CacheControl, DELTA_MAX};

/// Parses the lines of this field; `None` if there are none, or they are empty or invalid.
pub(super) fn read<'a>(fields: &'a Fields, name: &[u8]) -> Option<CacheControl<'a>> {
    let mut all = CacheControl::default();
    let mut count = 0;
    for line in fields.get_all(name) {
        let mut reader = Reader(line);
        reader.skip(b" ");
        while !reader.0.is_empty() {
            let key = reader.key()?;
            let value = if reader.next_is(b'=') { reader.value()? } else { Item::Flag(true) };
            reader.parameters()?;
            apply(&mut all, key, &value);
            count += 1;
            reader.skip(b" \t");
            if reader.0.is_empty() {
                break;
            }
            reader.expect(b',')?;
            reader.skip(b" \t");
            // A comma at the end is a mistake.
            reader.0.first()?;
        }
    }
    (count > 0).then_some(all)
}

/// The value of a directive, as far as directives have one.
enum Item<'a> {
    Number(i64),
    Flag(bool),
    Text(&'a [u8]),
    Other,
}

/// Applies one directive (RFC 9213 section 2.1). A repeated one replaces the earlier; one of a wrong type is read so
/// that less is stored.
fn apply<'a>(all: &mut CacheControl<'a>, key: &[u8], item: &Item<'a>) {
    let time = match key {
        b"max-age" => Some(&mut all.max_age),
        b"s-maxage" => Some(&mut all.s_maxage),
        b"stale-while-revalidate" => Some(&mut all.stale_while_revalidate),
        b"stale-if-error" => Some(&mut all.stale_if_error),
        _ => None,
    };
    if let Some(time) = time {
        let Item::Number(seconds) = *item else {
            *time = Some(0);
            return;
        };
        *time = Some(u32::try_from(seconds.max(0)).unwrap_or(DELTA_MAX).min(DELTA_MAX));
        return;
    }
    match *item {
        Item::Flag(false) => {}
        Item::Text(text) if text.contains(&b'\\') => all.apply(key, Argument::Broken),
        Item::Text(text) => all.apply(key, Argument::Text(text)),
        Item::Flag(true) | Item::Number(_) | Item::Other => all.apply(key, Argument::Nothing),
    }
}

/// RFC 9651 section 4.2.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn skip(&mut self, blanks: &[u8]) {
        self.take(|byte| blanks.contains(&byte));
    }

    fn take(&mut self, is: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.0.iter().position(|&byte| !is(byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn next_is(&mut self, byte: u8) -> bool {
        self.expect(byte).is_some()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.0.first().filter(|byte| byte.is_ascii_lowercase() || **byte == b'*')?;
        let is_key = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
        };
        Some(self.take(is_key))
    }

    fn value(&mut self) -> Option<Item<'a>> {
        if !self.next_is(b'(') {
            return self.item();
        }
        loop {
            self.skip(b" ");
            if self.next_is(b')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.next_is(b';') {
            self.skip(b" ");
            self.key()?;
            if self.next_is(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let first = *self.0.first()?;
        match first {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => {
                self.expect(b'?')?;
                let flag = self.next_is(b'1');
                if !flag {
                    self.expect(b'0')?;
                }
                Some(Item::Flag(flag))
            }
            b':' => {
                self.expect(b':')?;
                self.take(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
                self.expect(b':')?;
                Some(Item::Other)
            }
            b'@' => {
                self.expect(b'@')?;
                let Item::Number(_) = self.number()? else { return None };
                Some(Item::Other)
            }
            _ if first.is_ascii_alphabetic() || first == b'*' => {
                let text = self.take(|byte| byte.is_ascii_graphic() && !b"\"(),;<=>?@[\\]{}".contains(&byte));
                Some(Item::Text(text))
            }
            _ => None,
        }
    }

    /// Number with at most 15 digits, or 12 and 3 decimals.
    fn number(&mut self) -> Option<Item<'a>> {
        let is_negative = self.next_is(b'-');
        let digits = self.take(|byte| byte.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if self.next_is(b'.') {
            let fraction = self.take(|byte| byte.is_ascii_digit());
            return (digits.len() <= 12 && (1..=3).contains(&fraction.len())).then_some(Item::Other);
        }
        let number = digits.iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        Some(Item::Number(if is_negative { -number } else { number }))
    }

    /// The text without its quotes, escapes as they are.
    fn string(&mut self) -> Option<Item<'a>> {
        self.expect(b'"')?;
        let start = self.0;
        let mut len = 0;
        loop {
            match self.0.first()? {
                b'"' => {
                    self.expect(b'"')?;
                    return Some(Item::Text(start.get(..len)?));
                }
                b'\\' => {
                    self.0.get(1).filter(|byte| matches!(byte, b'"' | b'\\'))?;
                    self.0 = self.0.get(2..)?;
                    len += 2;
                }
                b' '..=b'~' => {
                    self.0 = self.0.get(1..)?;
                    len += 1;
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Directives;
    use super::*;
    use tw_http::Name;

    #[test]
    fn syntax_error_invalidates_the_whole_field() {
        let table = [
            ("max-age=60", Some(Some(60))),
            ("max-age=60;x=1, no-store", Some(Some(60))),
            ("max-age=1, max-age=60", Some(Some(60))),
            ("  a=(1 \"b\";c :AA==:), d=?0;e, f=@5, max-age=60 ", Some(Some(60))),
            ("max-age=-5", Some(Some(0))),
            ("max-age=1.5", Some(Some(0))),
            ("max-age=\"5\"", Some(Some(0))),
            ("max-age=999999999999999", Some(Some(DELTA_MAX))),
            ("public", Some(None)),
            ("", None),
            ("max-age=60,", None),
            ("max-age=60 x", None),
            ("MAX-AGE=60", None),
            ("max-age=60, \"", None),
            ("max-age=", None),
            ("max-age=1000000000000000", None),
            ("a=(1", None),
            ("a=\"x", None),
            ("a=\"x\\y\"", None),
            ("a=1.", None),
        ];
        for (line, expected) in table {
            let mut fields = Fields::new();
            fields.append_copy(Name::Copy(b"CDN-Cache-Control"), line.as_bytes());
            let got = read(&fields, b"cdn-cache-control").map(|all| all.max_age);
            assert_eq!(got, expected, "{line:?}");
        }
    }

    #[test]
    fn directives_of_all_kinds() {
        let mut fields = Fields::new();
        for line in ["no-store=?0, public, private=\"Set-Cookie\"", "must-revalidate"] {
            fields.append_copy("CDN-Cache-Control", line.as_bytes());
        }
        let all = read(&fields, b"CDN-Cache-Control").unwrap();
        assert!(all.has(Directives::PUBLIC) && all.has(Directives::MUST_REVALIDATE));
        assert!(!all.has(Directives::NO_STORE) && !all.has(Directives::PRIVATE));
        assert!(all.private.has(b"set-cookie"));
        assert!(read(&fields, b"Surrogate-Control").is_none());
    }
}
