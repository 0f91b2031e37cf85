//! Metadata of a stored response.

use std::ops::Range;

use bytes::Bytes;
use tw_http::Fields;

use super::sums::table_len;
use super::{TAG_MAX, TAGS_MAX};
use crate::Key;
use crate::policy::Lifetime;

/// Program that wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBy {
    /// This server: the header can be written over.
    Tailwater,
    /// nginx: a 304 gives the entry a new file.
    Nginx,
}

/// A stored response without its body.
#[derive(Clone, Debug)]
pub struct Meta {
    /// The key of the text, whichever variant this is.
    pub key: Key,
    /// The key of the variant; `None` if responses do not vary.
    pub variant: Option<Key>,
    /// Text that `proxy_cache_key` made. A hit compares it, because two texts may have one key.
    pub key_text: Bytes,
    /// Freshness lifetime, and what may be done after it.
    pub lifetime: Lifetime,
    /// Value of `Date`, in seconds since 1970.
    pub date: Option<i64>,
    /// Value of `Last-Modified`, in seconds since 1970, if the response can be validated with it.
    pub last_modified: Option<i64>,
    /// The entity tag it can be validated with, quotes included; empty if there is none.
    pub etag: Bytes,
    /// The status code.
    pub status: u16,
    /// Code and reason, e.g. `404 Nothing Here`; empty for the usual ones.
    pub status_line: Bytes,
    /// All fields that are stored.
    pub fields: Fields,
    /// The text of `Vary`; empty if responses do not vary.
    pub vary: Bytes,
    /// Tags that the response can be purged by.
    pub tags: Tags,
    /// A number of the cache that grows, as it was when the fill began: a purge by order is younger than what has a
    /// smaller one.
    pub sequence: u64,
    /// Bytes in front of the body.
    pub header_size: u32,
    /// Bytes of the body; `None` while it is being written.
    pub body_len: Option<u64>,
    /// CRC-32 of a body of one block, or of the table behind a longer one ([`FinishedSums`](super::FinishedSums)); any number
    /// while the body is being written. `None` if the file has no checksums of its body: it is of version 1, or of nginx.
    pub body_sum: Option<u32>,
    /// Program that wrote the file.
    pub writer: WrittenBy,
}

impl Meta {
    /// Length of the whole file in bytes: header, body and table. `None` while the body is being written.
    #[must_use]
    pub fn stored_len(&self) -> Option<u64> {
        let body_end = u64::from(self.header_size).checked_add(self.body_len?)?;
        body_end.checked_add(self.table_at().map_or(0, |at| at.end - at.start))
    }

    /// Place in the file of the checksums behind the body; `None` if there are none.
    #[must_use]
    pub fn table_at(&self) -> Option<Range<u64>> {
        let body_len = self.body_len.filter(|_| self.body_sum.is_some())?;
        let start = u64::from(self.header_size).checked_add(body_len)?;
        let end = start.checked_add(table_len(body_len))?;
        (start < end).then_some(start..end)
    }
}

/// Tags of a response, in one piece of memory: each a byte with its length and its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(Bytes);

impl Tags {
    /// These tags; empty ones are left out. `None` if one is longer than [`TAG_MAX`], or all are than [`TAGS_MAX`].
    #[must_use]
    pub fn of<'a>(tags: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut text = Vec::new();
        for tag in tags.into_iter().filter(|tag| !tag.is_empty()) {
            text.push(u8::try_from(tag.len()).ok().filter(|_| tag.len() <= TAG_MAX)?);
            text.extend_from_slice(tag);
        }
        (text.len() <= TAGS_MAX).then(|| Self(text.into()))
    }

    /// The tags in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest: &[u8] = &self.0;
        std::iter::from_fn(move || next(&mut rest))
    }

    /// From the bytes of a file; `None` if their lengths do not add up.
    pub(super) fn from_bytes(bytes: Bytes) -> Option<Self> {
        let mut rest: &[u8] = &bytes;
        while next(&mut rest).is_some() {}
        rest.is_empty().then_some(Self(bytes))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&len, behind) = rest.split_first()?;
    let (tag, behind) = behind.split_at_checked(usize::from(len)).filter(|_| len > 0)?;
    *rest = behind;
    Some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip() {
        let tags = Tags::of([&b"a"[..], b"", b"product 7"]).unwrap();
        assert_eq!(tags.iter().collect::<Vec<_>>(), [&b"a"[..], b"product 7"]);
        assert_eq!(Tags::from_bytes(Bytes::copy_from_slice(tags.as_bytes())), Some(tags));
        for bytes in [&b"\x02a"[..], b"\0", b"\x01a\0"] {
            assert_eq!(Tags::from_bytes(Bytes::copy_from_slice(bytes)), None, "{bytes:?}");
        }
        let long = [b'a'; TAG_MAX + 1];
        assert_eq!(Tags::of([&long[..]]), None);
        assert!(Tags::of([&long[1..]]).is_some());
        assert_eq!(Tags::of(std::iter::repeat_n(&long[1..], TAGS_MAX / (TAG_MAX + 1) + 1)), None);
    }
}
