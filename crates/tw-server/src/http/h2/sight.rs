//! A look at the frames of a client on their way to the crate, which passes over those that it does not know:
//! `PRIORITY_UPDATE` (RFC 9218 section 7.1).

use ::h2::Reason;

use super::PREFACE;

/// Head of a frame (RFC 9113 section 4.1).
const HEAD_SIZE: usize = 9;
/// Type of `PRIORITY_UPDATE`.
const PRIORITY_UPDATE: u8 = 0x10;
/// The stream of which it speaks stands before its value.
const ID_SIZE: usize = 4;
/// A value that is longer says nothing: its members take a few bytes.
const VALUE_MAX: usize = 64;

/// How far the frames of a client were looked at.
#[derive(Debug)]
pub struct Sight {
    head: [u8; HEAD_SIZE],
    /// Bytes of the head that came.
    came: usize,
    /// Bytes that are still to come of the frame.
    rest: usize,
    /// The beginning of a `PRIORITY_UPDATE`.
    update: Option<Vec<u8>>,
}

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// What a stream is to have as its priority.
    Update {
        /// The stream.
        stream: u32,
        /// As in the field `Priority`.
        value: &'a [u8],
    },
    /// What ends the connection.
    Wrong(Reason),
}

impl Default for Sight {
    fn default() -> Self {
        Self::new()
    }
}

impl Sight {
    /// Of a client that has said nothing yet.
    pub fn new() -> Self {
        Self { head: [0; HEAD_SIZE], came: 0, rest: PREFACE.len(), update: None }
    }

    /// Looks at the next bytes, however they are cut. Costs a look at each head of a frame.
    pub fn look(&mut self, mut bytes: &[u8], mut see: impl FnMut(Seen<'_>)) {
        while !bytes.is_empty() {
            if self.rest == 0 {
                let (some, behind) = bytes.split_at(bytes.len().min(HEAD_SIZE - self.came));
                self.head.iter_mut().skip(self.came).zip(some).for_each(|(to, from)| *to = *from);
                self.came += some.len();
                bytes = behind;
                if self.came == HEAD_SIZE {
                    self.begin(&mut see);
                }
                continue;
            }
            let (some, behind) = bytes.split_at(bytes.len().min(self.rest));
            self.rest -= some.len();
            bytes = behind;
            if let Some(update) = &mut self.update {
                let room = ID_SIZE + VALUE_MAX + 1 - update.len();
                update.extend_from_slice(some.get(..room).unwrap_or(some));
                if self.rest == 0 {
                    self.end(&mut see);
                }
            }
        }
    }

    fn begin(&mut self, see: &mut impl FnMut(Seen<'_>)) {
        let [a, b, c, kind, _, id @ ..] = self.head;
        self.rest = u32::from_be_bytes([0, a, b, c]) as usize;
        self.came = 0;
        if kind != PRIORITY_UPDATE {
            return;
        }
        // It belongs to the connection.
        if u32::from_be_bytes(id) << 1 != 0 {
            see(Seen::Wrong(Reason::PROTOCOL_ERROR));
        } else if self.rest < ID_SIZE {
            see(Seen::Wrong(Reason::FRAME_SIZE_ERROR));
        } else {
            self.update = Some(Vec::with_capacity(ID_SIZE + VALUE_MAX + 1));
        }
    }

    fn end(&mut self, see: &mut impl FnMut(Seen<'_>)) {
        let Some(update) = self.update.take() else { return };
        let Some((id, value)) = update.split_first_chunk() else { return };
        match u32::from_be_bytes(*id) & (u32::MAX >> 1) {
            0 => see(Seen::Wrong(Reason::PROTOCOL_ERROR)),
            stream if value.len() <= VALUE_MAX => see(Seen::Update { stream, value }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&[len[1], len[2], len[3], kind, 0][..], &stream.to_be_bytes(), payload].concat()
    }

    /// What is seen when the bytes come in pieces of this size.
    fn seen(frames: &[Vec<u8>], size: usize) -> Vec<String> {
        let all = [PREFACE, &frames.concat()].concat();
        let (mut sight, mut seen) = (Sight::new(), Vec::new());
        for piece in all.chunks(size) {
            sight.look(piece, |what| {
                seen.push(match what {
                    Seen::Update { stream, value } => {
                        format!("{stream} {}", String::from_utf8_lossy(value))
                    }
                    Seen::Wrong(reason) => format!("{reason:?}"),
                });
            });
        }
        seen
    }

    #[test]
    fn updates_are_seen_however_they_come() {
        let update = |stream: u32, value: &str| [&stream.to_be_bytes()[..], value.as_bytes()].concat();
        let frames = [
            frame(4, 0, &[]),
            frame(PRIORITY_UPDATE, 0, &update(1, "u=1")),
            // A body that looks like one.
            frame(0, 1, &frame(PRIORITY_UPDATE, 0, &update(9, "u=9"))),
            frame(PRIORITY_UPDATE, 0, &update(5, "")),
            frame(PRIORITY_UPDATE, 0, &update(5, &"x".repeat(VALUE_MAX + 1))),
            frame(PRIORITY_UPDATE, 0, &update(7, &"x".repeat(VALUE_MAX))),
            frame(6, 0, &[0; 8]),
            frame(PRIORITY_UPDATE, 0, &update(3, "i")),
        ];
        let whole = seen(&frames, usize::MAX);
        assert_eq!(whole, ["1 u=1", "5 ", &format!("7 {}", "x".repeat(VALUE_MAX)), "3 i"]);
        for size in 1..40 {
            assert_eq!(seen(&frames, size), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (stream, payload, expected) in [
            (1, &[0, 0, 0, 1][..], "PROTOCOL_ERROR"),
            (0, &[0, 0, 0, 0], "PROTOCOL_ERROR"),
            (0, &[0, 0, 1], "FRAME_SIZE_ERROR"),
            (0, &[], "FRAME_SIZE_ERROR"),
        ] {
            let frames = [frame(PRIORITY_UPDATE, stream, payload), frame(6, 0, &[0; 8])];
            assert_eq!(seen(&frames, 3), [expected], "{stream} {payload:?}");
        }
    }
}
