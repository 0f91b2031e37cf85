//! Names of files in the directory of a cache.

use tw_cache::Key;

/// Directory of the segments, below that of the cache.
pub(super) const SEGMENTS: &str = "segments";

/// Kind of a file, by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileName {
    /// A stored response.
    Response(Key),
    /// A response that is being written, or was when its server ended.
    Unfinished,
    /// A file of the cache itself.
    Own,
    /// No file of a cache.
    Other,
}

impl FileName {
    /// Recognizes a name outside the directory of segments.
    pub(super) fn of(name: &[u8]) -> Self {
        if let Some(key) = Key::from_hex(name) {
            return Self::Response(key);
        }
        let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let unfinished = name.split_at_checked(32).and_then(|(key, rest)| {
            Key::from_hex(key).and(rest.strip_prefix(b".")).filter(|number| is_number(number))
        });
        if unfinished.is_some() {
            return Self::Unfinished;
        }
        match name.split(|byte| *byte == b'.').next() {
            Some(b"purges" | b"snapshot" | b"pages") => Self::Own,
            Some(b"member" | b"probe" | b"device" | b"quotas") => Self::Own,
            _ => Self::Other,
        }
    }
}

/// Returns true if a directory may be one of `levels=`.
pub(super) fn is_level(name: &[u8]) -> bool {
    matches!(name.len(), 1 | 2) && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognized() {
        let hex = b"b7f54b2df7773722d382f4809d65029c";
        let key = Key::from_hex(hex).unwrap();
        assert_eq!(FileName::of(hex), FileName::Response(key));
        for (name, expected) in [
            (&b"b7f54b2df7773722d382f4809d65029c.0000000001"[..], FileName::Unfinished),
            (b"b7f54b2df7773722d382f4809d65029c.x", FileName::Other),
            (b"purges", FileName::Own),
            (b"snapshot.17", FileName::Own),
            (b"pages", FileName::Own),
            (b"pages.17", FileName::Own),
            (b"member", FileName::Own),
            (b"device", FileName::Own),
            (b"quotas", FileName::Own),
            (b"index.html", FileName::Other),
            (b"", FileName::Other),
        ] {
            assert_eq!(FileName::of(name), expected, "{}", String::from_utf8_lossy(name));
        }
        for (name, expected) in
            [(&b"9c"[..], true), (b"9", true), (b"9C", false), (b"029", false), (b"", false)]
        {
            assert_eq!(is_level(name), expected);
        }
    }
}
