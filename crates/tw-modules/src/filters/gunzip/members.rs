//! Unpacks gzip that arrives in pieces (RFC 1952); consecutive members are one text.

use bytes::Bytes;
use zlib_rs::{Inflate, InflateError, InflateFlush, Status};

/// zlib's word for gzip with the largest window.
const GZIP_WINDOW: u8 = 16 + 15;

/// Position in the packed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberState {
    /// In a member, or before the first.
    Open,
    /// Behind the end of one.
    Ended,
}

/// Decoder of a sequence of members.
pub(super) struct Members {
    /// Made when it is first needed.
    inflate: Option<Inflate>,
    place: MemberState,
}

impl Members {
    pub(super) fn new() -> Self {
        Self { inflate: None, place: MemberState::Open }
    }

    pub(super) fn place(&self) -> MemberState {
        self.place
    }

    /// Unpacks `input` into at most `room` bytes. Without input, returns the output left in the decoder.
    pub(super) fn unpack(&mut self, input: &mut Bytes, room: usize) -> Result<Vec<u8>, InflateError> {
        let inflate = self.inflate.get_or_insert_with(|| Inflate::new(true, GZIP_WINDOW));
        if self.place == MemberState::Ended && !input.is_empty() {
            *inflate = Inflate::new(true, GZIP_WINDOW);
            self.place = MemberState::Open;
        }
        let mut out = vec![0; room.max(1)];
        let taken = inflate.total_in();
        let made = inflate.total_out();
        let status = inflate.decompress(input, &mut out, InflateFlush::NoFlush);
        let taken = inflate.total_in() - taken;
        let made = inflate.total_out() - made;
        if status? == Status::StreamEnd {
            self.place = MemberState::Ended;
        }
        // The decoder takes no more than it was given.
        let _ = input.split_to((taken as usize).min(input.len()));
        out.truncate(made as usize);
        Ok(out)
    }
}
