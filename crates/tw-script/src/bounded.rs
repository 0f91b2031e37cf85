//! Lists in messages, decoded up to a limit: an element of two bytes in a frame can take fifty in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

tw_base::limits! {
    /// Limits of lists.
    pub(crate) const LIMITS;

    /// Elements of one list in a message between a loop and its script process: header fields, keys, entries of a directory.
    pub(crate) const LIST_LENGTH_MAX: usize = 65_536, count, "the message is refused; a script process that sends more is ended";
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list within its limit")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        if seq.size_hint().is_some_and(|length| length > LIST_LENGTH_MAX) {
            return Err(A::Error::custom("too many elements"));
        }
        let mut list = Vec::new();
        while let Some(element) = seq.next_element()? {
            if list.len() == LIST_LENGTH_MAX {
                return Err(A::Error::custom("too many elements"));
            }
            list.push(element);
        }
        Ok(list)
    }
}

/// Decodes a list, for `#[serde(deserialize_with)]`.
pub(crate) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(ListVisitor(PhantomData))
}
