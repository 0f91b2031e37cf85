//! Priorities of responses (RFC 9218): the field `Priority`, and `PRIORITY_UPDATE` in HTTP/2.

/// Urgency of a response, and whether a part of it is of use (incremental).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// True if its bytes may be interleaved with those of others of the same urgency.
    pub incremental: bool,
}

/// Number of urgencies (RFC 9218 section 4.1).
pub const URGENCIES: usize = 8;

impl Default for Priority {
    /// Default for missing members (RFC 9218 section 4).
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Updates the priority by a value of `Priority`: members that are missing, unknown or invalid keep their values
    /// (RFC 9218 sections 4 and 8).
    #[must_use]
    pub fn with(mut self, value: &[u8]) -> Self {
        for member in value.split(|byte| *byte == b',') {
            // Parameters of a member have no meaning here.
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default();
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => self.urgency = digit - b'0',
                b"i" | b"i=?1" => self.incremental = true,
                b"i=?0" => self.incremental = false,
                _ => {}
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_independent() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=5", 5, false),
            ("i", 3, true),
            ("u=0, i", 0, true),
            (" i=?1 ,\tu=7 ", 7, true),
            ("i, i=?0, u=1, u=2", 2, false),
            ("u=5;x=1, i;y", 5, true),
            // Invalid members are ignored.
            ("u=8, i=1", 3, false),
            ("u=-1", 3, false),
            ("U=1, v, u", 3, false),
            ("a=\"x\", u=4, b=(1 2)", 4, false),
            (",,,", 3, false),
        ] {
            let expected = Priority { urgency, incremental };
            assert_eq!(Priority::default().with(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn response_priority_overrides_the_request() {
        let requested = Priority::default().with(b"u=5, i");
        assert_eq!(requested.with(b"u=1"), Priority { urgency: 1, incremental: true });
        assert_eq!(requested.with(b"i=?0"), Priority { urgency: 5, incremental: false });
    }
}
