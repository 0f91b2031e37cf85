//! Messages on streams, as far as frames of both versions treat them alike.

use std::cell::Cell;

use bytes::Bytes;

use crate::FieldSection;

/// Received part of a message.
#[derive(Debug)]
pub enum Incoming {
    /// Header section of a response, interim ones (1xx) included.
    Head(FieldSection),
    /// Part of the content.
    Data(Bytes),
    /// Trailer section.
    Trailers(Box<FieldSection>),
}

/// Validity of a received message, and its content compared with the announced length (RFC 9113 section 8.1.1, RFC 9114 section
/// 4.1.2).
#[derive(Debug, Default)]
pub struct MessageCheck {
    /// Length of the content that the header section announces.
    length: Cell<Option<u64>>,
    /// Number of bytes of content.
    content: Cell<u64>,
    is_malformed: Cell<bool>,
}

impl MessageCheck {
    /// Begins with the validity of the header section.
    pub fn begin(&self, head: &FieldSection) {
        self.is_malformed.set(head.malformed().is_some());
    }

    /// Sets the length that the header section announces; `None` if it announces none.
    pub fn set_length(&self, length: Option<u64>) {
        self.length.set(length);
    }

    /// Counts content. More than announced makes the message malformed.
    pub fn count(&self, bytes: usize) {
        self.content.set(self.content.get() + bytes as u64);
        if self.length.get().is_some_and(|length| self.content.get() > length) {
            self.set_malformed();
        }
    }

    /// Ends the message. Less content than announced makes it malformed.
    pub fn end(&self) {
        if self.length.get().is_some_and(|length| self.content.get() != length) {
            self.set_malformed();
        }
    }

    /// Marks the message as malformed.
    pub fn set_malformed(&self) {
        self.is_malformed.set(true);
    }

    /// Returns true if the part that was checked is malformed.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_another_length_than_announced_is_malformed() {
        for (length, parts, expected) in [
            (None, &[3, 4][..], [false, false]),
            (Some(7), &[3, 4], [false, false]),
            (Some(0), &[], [false, false]),
            (Some(7), &[3, 3], [false, true]),
            (Some(7), &[3, 5], [true, true]),
        ] {
            let check = MessageCheck::default();
            check.set_length(length);
            parts.iter().for_each(|bytes| check.count(*bytes));
            let before = check.is_malformed();
            check.end();
            assert_eq!([before, check.is_malformed()], expected, "{length:?} {parts:?}");
        }
    }
}
