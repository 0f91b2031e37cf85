//! Encoded text of a head that is sent repeatedly, as that of a file: all of it but the time and `Connection`.
//!
//! Each response is still decided anew. The text is reused only for an equal head, so conditions, ranges, filters and
//! variables need not know of it.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bytes::Bytes;

use super::{ConnectionField, EncodeContext, OmittedLines, ResponseHead};
use crate::fields::Fields;
use crate::header_name::HeaderName;

/// The text of a head that changes so often is not kept any more.
const CHANGES_MAX: u8 = 8;

/// Storage of the text, owned by the resource that the head describes: some 700 bytes from the second response on.
#[derive(Debug, Default)]
pub struct HeadMemo {
    kept: RefCell<Option<Box<EncodedHead>>>,
    /// Times that the text was not the one that is kept.
    changes: Cell<u8>,
}

#[derive(Debug)]
struct EncodedHead {
    /// The head whose text this is.
    head: ResponseHead,
    server: Bytes,
    vary_accept_encoding: bool,
    /// Up to the time, from there to `Connection`, and the rest.
    text: [Box<[u8]>; 3],
}

/// Offsets in a text of the time and of the lines about the connection.
pub(super) struct MemoGaps {
    pub(super) date: Range<usize>,
    pub(super) connection: Range<usize>,
}

impl HeadMemo {
    /// Like [`ResponseHead::write`]. The text of a head that is sent once is not kept.
    pub(super) fn encode(&self, head: &ResponseHead, context: &EncodeContext<'_>, out: &mut Vec<u8>) {
        if let Some(kept) = &*self.kept.borrow()
            && kept.is_of(head, context)
        {
            return kept.push(context, out);
        }
        let start = out.len();
        let gaps = head.write(context, out);
        let changes = self.changes.get();
        if changes <= CHANGES_MAX {
            self.changes.set(changes + 1);
        }
        if (1..=CHANGES_MAX).contains(&changes) {
            *self.kept.borrow_mut() = EncodedHead::new(head, context, out, start, &gaps).map(Box::new);
        }
    }
}

/// Returns `true` if a head could repeat, and has the lines at which the text is cut.
pub(super) fn may_be_kept(head: &ResponseHead, context: &EncodeContext<'_>) -> bool {
    head.status == 200
        && head.content_length.is_some()
        && head.location.is_empty()
        && head.status_line.is_empty()
        && !head.fields.has(HeaderName::Date)
        && head.omitted == OmittedLines::default()
        && !context.chunked
        && !matches!(context.connection, ConnectionField::Upgrade)
}

impl EncodedHead {
    fn new(
        head: &ResponseHead,
        context: &EncodeContext<'_>,
        out: &[u8],
        start: usize,
        gaps: &MemoGaps,
    ) -> Option<Self> {
        let MemoGaps { date, connection } = gaps;
        let pieces = [start..date.start, date.end..connection.start, connection.end..out.len()];
        let [before, between, after] = pieces.map(|piece| out.get(piece).map(Box::from));
        Some(Self {
            // A memo in the stored head would be stored with it.
            head: ResponseHead { memo: None, ..head.clone() },
            server: Bytes::copy_from_slice(context.server),
            vary_accept_encoding: context.vary_accept_encoding,
            text: [before?, between?, after?],
        })
    }

    /// Returns `true` if this is the text of such a head. Everything that [`may_be_kept`] has checked is equal.
    fn is_of(&self, head: &ResponseHead, context: &EncodeContext<'_>) -> bool {
        let response_head = &self.head;
        response_head.content_length == head.content_length
            && response_head.last_modified == head.last_modified
            && same(&response_head.content_type, &head.content_type)
            && same(&response_head.charset, &head.charset)
            && self.vary_accept_encoding == context.vary_accept_encoding
            && same(&self.server, context.server)
            && response_head.fields.are_same(&head.fields)
    }

    fn push(&self, context: &EncodeContext<'_>, out: &mut Vec<u8>) {
        let [before, between, after] = &self.text;
        out.extend_from_slice(before);
        out.extend_from_slice(&context.dates.text(context.now));
        out.extend_from_slice(between);
        context.connection.push(out);
        out.extend_from_slice(after);
    }
}

impl Fields {
    /// Returns `true` if both have the same fields in the same order, byte for byte.
    fn are_same(&self, others: &Self) -> bool {
        let is_same = |((name, value), (other, its))| same(name, other) && same(value, its);
        self.len() == others.len() && self.iter().zip(others.iter()).all(is_same)
    }
}

/// Mostly one piece of memory: then no bytes need a look.
#[inline]
fn same(one: &[u8], other: &[u8]) -> bool {
    std::ptr::eq(one, other) || one == other
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::tests::context;
    use super::*;

    fn text(head: &ResponseHead, context: &EncodeContext<'_>) -> String {
        let mut out = b"before".to_vec();
        head.encode_h1(context, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// A head of a file, and the memo of that.
    fn of_file() -> (ResponseHead, Rc<HeadMemo>) {
        let memo = Rc::new(HeadMemo::default());
        let mut head = ResponseHead::new(200);
        head.content_type = Bytes::from_static(b"text/html");
        head.content_length = Some(1234);
        head.last_modified = Some(784_111_777);
        head.set_etag(Bytes::from_static(b"\"a\""));
        head.fields.append(HeaderName::AcceptRanges, "bytes");
        head.memo = Some(memo.clone());
        (head, memo)
    }

    /// Change of a head and its context.
    type Change = fn(&mut ResponseHead, &mut EncodeContext<'static>);

    const CHANGES: &[Change] = &[
        |_, _| {},
        |_, context| context.now += 1,
        |_, context| context.connection = ConnectionField::Close,
        |_, context| context.connection = ConnectionField::KeepAlive(Some(5)),
        |_, context| context.connection = ConnectionField::Upgrade,
        |_, context| context.server = b"another",
        |_, context| context.server = b"",
        |_, context| context.vary_accept_encoding = true,
        |_, context| context.chunked = true,
        |head, _| head.status = 206,
        |head, _| head.status = 304,
        |head, _| head.status_line = Bytes::from_static(b"200 Fine"),
        |head, _| head.content_type = Bytes::from_static(b"text/plain"),
        |head, _| head.content_type = Bytes::new(),
        |head, _| head.charset = Bytes::from_static(b"utf-8"),
        |head, _| head.content_length = Some(4321),
        |head, _| head.content_length = None,
        |head, _| head.last_modified = Some(0),
        |head, _| head.last_modified = None,
        |head, _| head.location = Bytes::from_static(b"/x"),
        |head, _| head.set_etag("\"b\""),
        |head, _| head.fields.append("X-a", "1"),
        |head, _| head.fields.append(HeaderName::Date, "yesterday"),
        |head, _| head.fields.clear(),
        |head, _| head.fields.append(HeaderName::Server, "theirs"),
    ];

    #[test]
    fn with_and_without_the_text_are_the_same() {
        for first in CHANGES {
            for change in CHANGES {
                let (mut head, memo) = of_file();
                let mut base = context();
                first(&mut head, &mut base);
                for _ in 0..3 {
                    text(&head, &base);
                }
                let mut changed = base;
                change(&mut head, &mut changed);
                for _ in 0..3 {
                    let plain = ResponseHead { memo: None, ..head.clone() };
                    assert_eq!(text(&head, &changed), text(&plain, &changed));
                }
                assert_eq!(Rc::strong_count(&memo), 2, "what is kept does not keep itself");
            }
        }
    }

    #[test]
    fn head_used_once_or_changing_is_not_kept() {
        let (mut head, memo) = of_file();
        let is_kept = || memo.kept.borrow().is_some();
        text(&head, &context());
        assert!(!is_kept());
        text(&head, &context());
        assert!(is_kept());
        for length in 0..100 {
            head.content_length = Some(length);
            let was = text(&head, &context());
            assert!(was.contains(&format!("Content-Length: {length}\r\n")), "{was}");
        }
        let kept = memo.kept.borrow().as_ref().and_then(|kept| kept.head.content_length);
        assert_eq!(kept, Some(u64::from(CHANGES_MAX) - 2));
    }
}
