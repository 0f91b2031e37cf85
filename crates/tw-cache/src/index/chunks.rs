//! Vector that grows and shrinks in chunks of one size: growing moves no value, and the unused capacity is less than
//! three chunks.

/// A dense row of values, in pieces of `N`.
#[derive(Debug)]
pub(super) struct Chunks<T, const N: usize> {
    pieces: Vec<Vec<T>>,
    len: u32,
}

impl<T, const N: usize> Chunks<T, N> {
    pub(super) const fn new() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.pieces.get(at as usize / N)?.get(at as usize % N)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.pieces.get_mut(at as usize / N)?.get_mut(at as usize % N)
    }

    pub(super) fn push(&mut self, value: T) {
        let piece = self.len as usize / N;
        if piece == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(N));
        }
        if let Some(piece) = self.pieces.get_mut(piece) {
            piece.push(value);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let value = self.pieces.get_mut(last as usize / N)?.pop()?;
        self.len = last;
        // One empty piece stays, so that a row whose length goes up and down at a border allocates nothing.
        if self.pieces.len() > (last as usize).div_ceil(N) + 1 {
            self.pieces.pop();
        }
        Some(value)
    }

    /// Takes out the value there; the last one takes its place.
    pub(super) fn swap_remove(&mut self, at: u32) -> Option<T> {
        let last = self.pop()?;
        match self.get_mut(at) {
            Some(place) => Some(std::mem::replace(place, last)),
            // The removed value was the last one itself.
            None => Some(last),
        }
    }

    /// Bytes that are allocated.
    pub(super) fn memory(&self) -> usize {
        self.pieces.capacity() * size_of::<Vec<T>>() + self.pieces.len() * N * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_and_shrink_piecewise() {
        let mut row = Chunks::<u32, 4>::new();
        for n in 0..9 {
            row.push(n);
        }
        assert_eq!((row.len(), row.pieces.len(), row.get(8), row.get(9)), (9, 3, Some(&8), None));
        assert_eq!((row.swap_remove(2), row.get(2), row.len()), (Some(2), Some(&8), 8));
        assert_eq!((row.swap_remove(7), row.get(7), row.len()), (Some(7), None, 7));
        // At a border the empty piece stays.
        row.pop();
        let memory = row.memory();
        for _ in 0..3 {
            row.pop();
            row.push(1);
        }
        assert_eq!(row.memory(), memory);
        while row.pop().is_some() {}
        assert_eq!((row.len(), row.pieces.len()), (0, 1));
    }
}
