//! Bytes in order, in as few pieces as is cheap: large ones stay as they came, small ones are gathered, so that a peer that
//! sends one byte at a time costs little more than its bytes.

use std::collections::VecDeque;

use bytes::Bytes;

/// Smaller pieces are copied behind each other: each one by itself costs an allocation and 32 bytes besides.
const GATHER_MAX: usize = 4 << 10;

/// Bytes, first in, first out.
#[derive(Default, Clone)]
pub struct Pieces {
    whole: VecDeque<Bytes>,
    /// Small ones, which came last.
    tail: Vec<u8>,
    len: usize,
}

impl Pieces {
    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts bytes at its end. Copies them if they are few.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() < GATHER_MAX {
            return self.push_copy(&bytes);
        }
        self.settle();
        self.len += bytes.len();
        self.whole.push_back(bytes);
    }

    /// Puts a copy of bytes at its end.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.len() >= GATHER_MAX {
            return self.push(Bytes::copy_from_slice(bytes));
        }
        if self.tail.len() + bytes.len() > GATHER_MAX {
            self.settle();
        }
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    /// Puts all of `other` at its end.
    pub fn append(&mut self, mut other: Self) {
        self.settle();
        self.len += other.len;
        self.whole.append(&mut other.whole);
        self.tail = other.tail;
    }

    /// Takes bytes from its front, at most `want`; `None` if there are none.
    pub fn pop(&mut self, want: usize) -> Option<Bytes> {
        if self.whole.is_empty() {
            self.settle();
        }
        let mut piece = self.whole.pop_front()?;
        if piece.len() > want {
            self.whole.push_front(piece.split_off(want));
        }
        self.len -= piece.len();
        Some(piece)
    }

    /// All of it, for one write.
    pub fn into_parts(mut self) -> Vec<Bytes> {
        self.settle();
        self.whole.into()
    }

    /// All of it, if it is in one piece.
    pub fn as_one(&self) -> Option<&[u8]> {
        match (self.whole.front(), self.whole.len(), self.tail.is_empty()) {
            (None, ..) => Some(&self.tail),
            (Some(only), 1, true) => Some(only),
            _ => None,
        }
    }

    /// A copy of all of it in one piece.
    pub fn to_one(&self) -> Vec<u8> {
        let mut one = Vec::with_capacity(self.len);
        self.whole.iter().for_each(|piece| one.extend_from_slice(piece));
        one.extend_from_slice(&self.tail);
        one
    }

    /// Turns the gathered bytes into a piece.
    fn settle(&mut self) {
        if !self.tail.is_empty() {
            self.whole.push_back(std::mem::take(&mut self.tail).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[usize]) -> (Pieces, Vec<u8>) {
        let mut pieces = Pieces::default();
        let mut all = Vec::new();
        for (nth, size) in sizes.iter().enumerate() {
            let piece: Vec<u8> = (0..*size).map(|at| (nth * 31 + at) as u8).collect();
            all.extend_from_slice(&piece);
            pieces.push(piece.into());
        }
        (pieces, all)
    }

    #[test]
    fn pieces_come_out_in_order() {
        for sizes in [&[][..], &[0], &[1, 1, 1], &[5000], &[1, 5000, 1, 4095, 4096, 0, 9000, 2]] {
            let (pieces, all) = of(sizes);
            assert_eq!((pieces.len(), pieces.is_empty()), (all.len(), all.is_empty()), "{sizes:?}");
            assert_eq!(pieces.to_one(), all, "{sizes:?}");
            assert!(pieces.as_one().is_none_or(|one| one == all), "{sizes:?}");
            assert_eq!(pieces.clone().into_parts().concat(), all, "{sizes:?}");
            for want in [1, 3, 4096, usize::MAX] {
                let mut left_pieces = pieces.clone();
                let mut seen_text = Vec::new();
                while let Some(piece) = left_pieces.pop(want) {
                    assert!(!piece.is_empty() && piece.len() <= want, "{sizes:?} {want}");
                    seen_text.extend_from_slice(&piece);
                    assert_eq!(left_pieces.len(), all.len() - seen_text.len(), "{sizes:?} {want}");
                }
                assert_eq!(seen_text, all, "{sizes:?} {want}");
            }
            let mut both = pieces.clone();
            both.append(pieces);
            assert_eq!((both.len(), both.to_one()), (2 * all.len(), all.repeat(2)), "{sizes:?}");
        }
    }

    #[test]
    fn copies_are_as_good() {
        let (pieces, all) = of(&[1, 5000, 1, 4095, 4096]);
        let mut copy = Pieces::default();
        pieces.into_parts().iter().for_each(|part| copy.push_copy(part));
        assert_eq!((copy.len(), copy.to_one()), (all.len(), all));
    }

    #[test]
    fn single_bytes_are_gathered() {
        let (pieces, all) = of(&[1; 10_000]);
        let parts = pieces.into_parts();
        assert!(parts.len() < 4 && parts.concat() == all, "{}", parts.len());
        assert!(of(&[1; 4000]).0.as_one().is_some());
    }
}
