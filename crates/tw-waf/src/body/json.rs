//! JSON: a flat list of names and values, `json.list.array_0.name`.

/// Reason why a body is no JSON.
pub(crate) type Malformed = &'static str;

struct Parser<'a, F> {
    text: &'a [u8],
    at: usize,
    depth_max: usize,
    path: Vec<u8>,
    take: F,
}

/// Parses `text`, and calls `take` with each name and value. It returns false to end there.
pub(crate) fn parse(
    text: &[u8],
    depth_max: usize,
    take: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Malformed> {
    let mut parser = Parser { text, at: 0, depth_max, path: b"json".to_vec(), take };
    parser.space();
    if parser.peek().is_none() {
        return Ok(());
    }
    match parser.value(0) {
        Ok(()) => {}
        Err(End::Full) => return Ok(()),
        Err(End::Malformed(reason)) => return Err(reason),
    }
    parser.space();
    if parser.peek().is_some() { Err("bytes behind the value") } else { Ok(()) }
}

enum End {
    /// The receiver takes no more.
    Full,
    Malformed(Malformed),
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Parser<'_, F> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, otherwise: Malformed) -> Result<(), End> {
        self.space();
        if self.peek() != Some(byte) {
            return Err(End::Malformed(otherwise));
        }
        self.at += 1;
        Ok(())
    }

    fn give(&mut self, value: &[u8]) -> Result<(), End> {
        if (self.take)(&self.path, value) { Ok(()) } else { Err(End::Full) }
    }

    fn value(&mut self, depth: usize) -> Result<(), End> {
        if depth > self.depth_max {
            return Err(End::Malformed("nested too deeply"));
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                let text = self.string()?;
                self.give(&text)
            }
            Some(b't') => self.word(b"true", b"true"),
            Some(b'f') => self.word(b"false", b"false"),
            Some(b'n') => self.word(b"null", b""),
            Some(b'-' | b'0'..=b'9') => {
                let text = self.text;
                let rest = text.get(self.at..).unwrap_or_default();
                let is_number = |byte: &&u8| matches!(**byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().take_while(is_number).count();
                self.at += length;
                self.give(rest.get(..length).unwrap_or_default())
            }
            _ => Err(End::Malformed("unexpected byte")),
        }
    }

    fn word(&mut self, word: &[u8], value: &[u8]) -> Result<(), End> {
        if !self.text.get(self.at..).unwrap_or_default().starts_with(word) {
            return Err(End::Malformed("unexpected word"));
        }
        self.at += word.len();
        self.give(value)
    }

    fn object(&mut self, depth: usize) -> Result<(), End> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(End::Malformed("a name is expected"));
            }
            let name = self.string()?;
            self.expect(b':', "a colon is expected")?;
            let length = self.path.len();
            self.path.push(b'.');
            self.path.extend_from_slice(&name);
            self.value(depth + 1)?;
            self.path.truncate(length);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(End::Malformed("unterminated object")),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), End> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for number in 0usize.. {
            let length = self.path.len();
            self.path.extend_from_slice(format!(".array_{number}").as_bytes());
            self.value(depth + 1)?;
            self.path.truncate(length);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(End::Malformed("unterminated array")),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<Vec<u8>, End> {
        let unterminated = End::Malformed("unterminated string");
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let Some(length) = memchr::memchr2(b'"', b'\\', rest) else { return Err(unterminated) };
            out.extend_from_slice(rest.get(..length).unwrap_or_default());
            self.at += length + 1;
            if rest.get(length) == Some(&b'"') {
                return Ok(out);
            }
            let Some(escape) = self.peek() else { return Err(unterminated) };
            self.at += 1;
            out.push(match escape {
                b'"' | b'\\' | b'/' => escape,
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => {
                    let character = self.unicode()?;
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                _ => return Err(End::Malformed("invalid escape")),
            });
        }
    }

    fn unit(&mut self) -> Result<u32, End> {
        let digits = self.text.get(self.at..self.at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4;
        unit.ok_or(End::Malformed("invalid escape"))
    }

    fn unicode(&mut self) -> Result<char, End> {
        let first = self.unit()?;
        if (0xd800..0xdc00).contains(&first)
            && self.text.get(self.at..).unwrap_or_default().starts_with(b"\\u")
        {
            self.at += 2;
            let second = self.unit()?;
            let code = 0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff);
            return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Result<Vec<String>, Malformed> {
        let mut pairs = Vec::new();
        parse(text.as_bytes(), 4, |name, value| {
            pairs.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
            true
        })?;
        Ok(pairs)
    }

    #[test]
    fn values_have_paths_as_names() {
        let text = r#"{"a": {"b": [1, "x\u0041\n"]}, "c": true, "d": null}"#;
        let expected = ["json.a.b.array_0=1", "json.a.b.array_1=xA\n", "json.c=true", "json.d="];
        assert_eq!(pairs(text).unwrap(), expected);
        assert_eq!(pairs("\"a\"").unwrap(), ["json=a"]);
        assert_eq!(pairs("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn malformed_bodies_are_errors() {
        for text in ["{", "{\"a\"}", "[1,", "\"a", "[[[[[1]]]]]", "1 2", "tru", "\"\\x\""] {
            assert!(pairs(text).is_err(), "{text}");
        }
    }
}
