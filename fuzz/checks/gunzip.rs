//! Invariants for any bytes as gzip: no panic, never more output at a time than there is room for, equal results
//! however the bytes are split and however small the room is, and an end.

use bytes::Bytes;

use super::members::{MemberState, Members};

/// Bytes that are unpacked at most: what a few bytes would become may be large.
const TEXT_MAX: usize = 1 << 18;

pub(crate) fn check(data: &[u8]) {
    let Some((&room, packed)) = data.split_first() else { return };
    let whole = unpacked(&[packed], 4096);
    let room = usize::from(room) * 16;
    assert_eq!(unpacked(&[packed], room), whole, "by {room}");
    let step = (packed.len() / 8).max(1);
    for at in (0..packed.len()).step_by(step) {
        let (first, second) = packed.split_at(at);
        assert_eq!(unpacked(&[first, second], 4096), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = packed.chunks(1).collect();
    assert_eq!(unpacked(&bytes, room.max(64)), whole, "byte by byte");
}

/// End of the decompression.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    Cut,
    /// Not gzip, or not decompressed further.
    Refused,
}

/// The text up to where it is broken or too large, and how it ended.
fn unpacked(pieces: &[&[u8]], room: usize) -> (Vec<u8>, End) {
    let (mut members, mut text) = (Members::new(), Vec::new());
    let mut idle = 0;
    let mut step = |input: &mut Bytes, text: &mut Vec<u8>| {
        let before = input.len();
        let out = members.unpack(input, room).map_err(|_| End::Refused)?;
        assert!(out.len() <= room.max(1) && input.len() <= before);
        // Once in a while a step only tells that a member has ended.
        idle = if out.is_empty() && input.len() == before { idle + 1 } else { 0 };
        assert!(idle < 4, "it stands still");
        text.extend_from_slice(&out);
        if text.len() > TEXT_MAX { Err(End::Refused) } else { Ok((out.len(), members.place())) }
    };
    let mut run = || {
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while !input.is_empty() {
                step(&mut input, &mut text)?;
            }
        }
        loop {
            match step(&mut Bytes::new(), &mut text)? {
                (_, MemberState::Ended) => return Ok(()),
                (0, MemberState::Open) => return Err(End::Cut),
                _ => {}
            }
        }
    };
    let end = run().err().unwrap_or(End::Whole);
    if end == End::Refused {
        // How much came before depends on the room.
        text.clear();
    }
    (text, end)
}
