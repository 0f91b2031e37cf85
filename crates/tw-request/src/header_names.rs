//! Sets of field names: `HeaderNames` holds any names, `IgnoredHeaders` the ones of `proxy_ignore_headers`.

use tw_http::HeaderName;

/// Set of field names: one bit for each known name, a list for the others.
#[derive(Clone, Debug, Default)]
pub struct HeaderNames {
    known_bits: u64,
    /// In lower case.
    others: Vec<Box<[u8]>>,
}

impl HeaderNames {
    /// Adds a name, in any case.
    pub fn add(&mut self, name: &[u8]) {
        match HeaderName::find(name) {
            Some(known_name) => self.known_bits |= known_name.bit(),
            None => self.others.push(name.to_ascii_lowercase().into()),
        }
    }

    /// Returns true if the set has `name`, in any case; `known_name` is the result of [`HeaderName::find`] for it.
    pub fn has(&self, name: &[u8], known_name: Option<HeaderName>) -> bool {
        match known_name {
            Some(known_name) => self.known_bits & known_name.bit() != 0,
            None => self.others.iter().any(|other| other.eq_ignore_ascii_case(name)),
        }
    }
}

impl<N: AsRef<[u8]>> FromIterator<N> for HeaderNames {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let mut set = Self::default();
        names.into_iter().for_each(|name| set.add(name.as_ref()));
        set
    }
}

/// Fields of an upstream response that control this server, and are ignored where `proxy_ignore_headers` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IgnoredHeaders(u32);

impl IgnoredHeaders {
    /// `X-Accel-Redirect`
    pub const REDIRECT: Self = Self(1);
    /// `X-Accel-Expires`
    pub const ACCEL_EXPIRES: Self = Self(1 << 1);
    /// `Expires`
    pub const EXPIRES: Self = Self(1 << 2);
    /// `Cache-Control`
    pub const CACHE_CONTROL: Self = Self(1 << 3);
    /// `Set-Cookie`
    pub const SET_COOKIE: Self = Self(1 << 4);
    /// `X-Accel-Limit-Rate`
    pub const LIMIT_RATE: Self = Self(1 << 5);
    /// `X-Accel-Buffering`
    pub const BUFFERING: Self = Self(1 << 6);
    /// `X-Accel-Charset`
    pub const CHARSET: Self = Self(1 << 7);
    /// `Vary`
    pub const VARY: Self = Self(1 << 8);

    /// Names of the fields in the directive, with their bits.
    pub const WORDS: &'static [(&'static str, u32)] = &[
        ("X-Accel-Redirect", Self::REDIRECT.0),
        ("X-Accel-Expires", Self::ACCEL_EXPIRES.0),
        ("X-Accel-Limit-Rate", Self::LIMIT_RATE.0),
        ("X-Accel-Buffering", Self::BUFFERING.0),
        ("X-Accel-Charset", Self::CHARSET.0),
        ("Expires", Self::EXPIRES.0),
        ("Cache-Control", Self::CACHE_CONTROL.0),
        ("Set-Cookie", Self::SET_COOKIE.0),
        ("Vary", Self::VARY.0),
    ];

    /// From bits as written.
    pub fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns true if `field` is ignored.
    pub fn has(self, field: Self) -> bool {
        self.0 & field.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_case() {
        let names: HeaderNames = ["Date", "X-Pad"].into_iter().collect();
        for (name, expected) in
            [("date", true), ("DATE", true), ("x-pad", true), ("X-Pads", false), ("Server", false)]
        {
            assert_eq!(names.has(name.as_bytes(), HeaderName::find(name.as_bytes())), expected, "{name}");
        }
    }
}
