//! Names with a prefix, joined when the program is compiled: the directives of `proxy_pass` and `fastcgi_pass` are records of one list,
//! and each module has names of its own for them.

/// Bytes of the longest name.
const LEN_MAX: usize = 48;

/// Name that consists of a prefix and a rest, as a constant.
#[derive(Clone, Copy)]
pub struct PrefixedName {
    text: [u8; LEN_MAX],
    len: usize,
}

impl PrefixedName {
    /// The name without any text.
    pub const EMPTY: Self = Self { text: [0; LEN_MAX], len: 0 };

    /// Joins a prefix and a rest.
    ///
    /// # Panics
    /// The name has more than 48 bytes.
    pub const fn new(prefix: &str, rest: &str) -> Self {
        Self::EMPTY.with(prefix).with(rest)
    }

    const fn with(mut self, part: &str) -> Self {
        let part = part.as_bytes();
        assert!(self.len + part.len() <= LEN_MAX, "a name is longer than the longest one");
        let mut at = 0;
        while at < part.len() {
            self.text[self.len] = part[at];
            self.len += 1;
            at += 1;
        }
        self
    }

    /// The name.
    pub const fn as_str(&self) -> &str {
        let (text, _) = self.text.split_at(self.len);
        match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(_) => panic!("the parts of a name are text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_prefix_and_rest() {
        for (prefix, rest, expected) in
            [("proxy_", "buffers", "proxy_buffers"), ("gzip", "", "gzip"), ("", "ä", "ä"), ("", "", "")]
        {
            assert_eq!(PrefixedName::new(prefix, rest).as_str(), expected);
        }
    }

    #[test]
    #[should_panic(expected = "longer than the longest")]
    fn name_beyond_the_limit_is_refused() {
        PrefixedName::new(&"a".repeat(LEN_MAX), "b");
    }
}
