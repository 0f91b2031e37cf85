//! The `If` field (RFC 4918 section 10.4): lists of conditions on the state of resources. No I/O.
//!
//! ```text
//! If: (<token> ["etag"]) (Not <token>)         about the resource of the request
//! If: <http://host/a> (<token>) </b> (<token>)   about others
//! ```

use super::locks::LockToken;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Conditions of one `If` field.
    pub(super) const CONDITIONS_MAX: usize = 64, count, "400";
}

/// Begin of the tokens of this server.
const TOKEN_START: &[u8] = b"urn:uuid:";

/// A list of conditions, all of which must hold. The field holds if any of its lists does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConditionList<'f> {
    /// Resource as written; `None` for that of the request.
    pub(super) resource: Option<&'f [u8]>,
    pub(super) conditions: Vec<Condition<'f>>,
}

/// A condition on a resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Condition<'f> {
    /// True after `Not`.
    pub(super) is_negated: bool,
    pub(super) state: State<'f>,
}

/// State that a condition is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State<'f> {
    /// A lock; `None` for a token that is none of this server.
    Token(Option<LockToken>),
    /// An entity tag, quotes included.
    Etag(&'f [u8]),
}

/// Reads the field; `None` if it is malformed or has too many conditions.
pub(super) fn parse(field: &[u8]) -> Option<Vec<ConditionList<'_>>> {
    let mut lists = Vec::new();
    let mut rest = field.trim_ascii_start();
    let mut resource = None;
    let mut count = 0;
    // A resource must be followed by a list.
    let mut needs_list = true;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix(b"<") {
            let is_second = resource.is_some() && needs_list;
            let follows_untagged = resource.is_none() && !lists.is_empty();
            if is_second || follows_untagged {
                return None;
            }
            let (tag, tail) = until(tail, b'>')?;
            (resource, rest, needs_list) = (Some(tag), tail.trim_ascii_start(), true);
            continue;
        }
        let (conditions, tail) = list(rest.strip_prefix(b"(")?, &mut count)?;
        lists.push(ConditionList { resource, conditions });
        (rest, needs_list) = (tail.trim_ascii_start(), false);
    }
    (!needs_list).then_some(lists)
}

/// Conditions up to `)`, and what follows it.
fn list<'f>(field: &'f [u8], count: &mut usize) -> Option<(Vec<Condition<'f>>, &'f [u8])> {
    let mut conditions = Vec::new();
    let mut rest = field.trim_ascii_start();
    loop {
        if let Some(tail) = rest.strip_prefix(b")") {
            return (!conditions.is_empty()).then_some((conditions, tail));
        }
        let is_negated = rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case(b"not"));
        if is_negated {
            rest = rest.get(3..)?.trim_ascii_start();
        }
        let (state, tail) = match rest.split_first()? {
            (b'<', tail) => {
                let (token, tail) = until(tail, b'>')?;
                (State::Token(LockToken::parse(token)), tail)
            }
            (b'[', tail) => {
                let (etag, tail) = until(tail, b']')?;
                (State::Etag(etag.trim_ascii()), tail)
            }
            _ => return None,
        };
        *count += 1;
        if *count > CONDITIONS_MAX {
            return None;
        }
        conditions.push(Condition { is_negated, state });
        rest = tail.trim_ascii_start();
    }
}

/// Text before `end`, and the rest behind it.
fn until(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == end)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

impl LockToken {
    /// Reads a token of this server: `urn:uuid:` and a UUID.
    pub(super) fn parse(token: &[u8]) -> Option<Self> {
        let (start, uuid) = token.split_at_checked(TOKEN_START.len())?;
        if !start.eq_ignore_ascii_case(TOKEN_START) || uuid.len() != 36 {
            return None;
        }
        let mut digits = uuid.iter().enumerate().filter_map(|(at, byte)| match (at, byte) {
            (8 | 13 | 18 | 23, b'-') => None,
            (_, byte) => Some(char::from(*byte).to_digit(16)),
        });
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let high = digits.next()??;
            let low = digits.next()??;
            *byte = (high << 4 | low) as u8;
        }
        digits.next().is_none().then_some(Self(bytes))
    }

    /// Text of the token: `urn:uuid:` and a UUID of version 4.
    pub(super) fn text(self) -> String {
        let mut text = String::from_utf8_lossy(TOKEN_START).into_owned();
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    /// Token of these random bytes.
    pub(super) fn of_random(mut bytes: [u8; 16]) -> Self {
        let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
        *version = *version & 0x0f | 0x40;
        *variant = *variant & 0x3f | 0x80;
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "urn:uuid:01020304-0506-4708-890a-0b0c0d0e0f10";

    fn token() -> LockToken {
        LockToken([1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16])
    }

    #[test]
    fn tokens() {
        assert_eq!(LockToken::parse(TOKEN.as_bytes()), Some(token()));
        assert_eq!(LockToken::parse(TOKEN.to_uppercase().as_bytes()), Some(token()));
        assert_eq!(token().text(), TOKEN);
        assert_eq!(LockToken::of_random([0xff; 16]).text(), "urn:uuid:ffffffff-ffff-4fff-bfff-ffffffffffff");
        for wrong in [
            "",
            "urn:uuid:",
            "DAV:no-lock",
            &TOKEN[1..],
            &TOKEN[..44],
            &TOKEN.replace('-', "a"),
            &TOKEN.replace("0f", "0g"),
        ] {
            assert_eq!(LockToken::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn lists_of_conditions() {
        let condition = |is_negated, state| Condition { is_negated, state };
        let text = format!("(<{TOKEN}> [\"e\"])  (Not <DAV:no-lock>)");
        let expected = vec![
            ConditionList {
                resource: None,
                conditions: vec![
                    condition(false, State::Token(Some(token()))),
                    condition(false, State::Etag(b"\"e\"")),
                ],
            },
            ConditionList { resource: None, conditions: vec![condition(true, State::Token(None))] },
        ];
        assert_eq!(parse(text.as_bytes()), Some(expected));
        let text = format!("</a> (<{TOKEN}>) <http://h/b>([W/\"x\"])(NOT[\"y\"])");
        let expected = vec![
            ConditionList {
                resource: Some(b"/a"),
                conditions: vec![condition(false, State::Token(Some(token())))],
            },
            ConditionList {
                resource: Some(b"http://h/b"),
                conditions: vec![condition(false, State::Etag(b"W/\"x\""))],
            },
            ConditionList {
                resource: Some(b"http://h/b"),
                conditions: vec![condition(true, State::Etag(b"\"y\""))],
            },
        ];
        assert_eq!(parse(text.as_bytes()), Some(expected));
    }

    #[test]
    fn malformed_fields_are_refused() {
        let many = "(<a>)".repeat(CONDITIONS_MAX + 1);
        for field in [
            "",
            " ",
            "()",
            "(",
            "(<a>",
            "(<a)",
            "<a>",
            "</a> </b> (<a>)",
            "</a> (<a>) </b> </c> (<a>)",
            "(<a>) <b> (<c>)",
            "</a> (<b>) <c>",
            "(x)",
            "<a>)",
            "([\"a\")",
            "(Not)",
            "a",
            &many,
        ] {
            assert_eq!(parse(field.as_bytes()), None, "{field}");
        }
        assert!(parse("(<a>)".repeat(CONDITIONS_MAX).as_bytes()).is_some());
    }
}
