//! Sets of bytes.

/// Set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ByteSet([u64; 4]);

impl ByteSet {
    /// Parses ranges of `@validateByteRange`: `9,10,32-126`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut set = Self::default();
        for part in text.split(|byte| *byte == b',') {
            let part = String::from_utf8_lossy(part.trim_ascii()).into_owned();
            let (begin, end) = part.split_once('-').unwrap_or((&part, &part));
            let parsed = begin.trim().parse::<u8>().ok().zip(end.trim().parse::<u8>().ok());
            let Some((begin, end)) = parsed.filter(|(begin, end)| begin <= end) else {
                return Err(format!("invalid range of bytes \"{part}\""));
            };
            (begin..=end).for_each(|byte| set.add(byte));
        }
        Ok(set)
    }

    /// Bytes of a value.
    pub(crate) fn of(value: &[u8]) -> Self {
        let mut set = Self::default();
        value.iter().for_each(|byte| set.add(*byte));
        set
    }

    /// Adds a byte.
    pub(crate) fn add(&mut self, byte: u8) {
        if let Some(word) = self.0.get_mut(usize::from(byte >> 6)) {
            *word |= 1 << (byte & 63);
        }
    }

    /// Returns true if it has `byte`.
    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte >> 6)).is_some_and(|word| word & 1 << (byte & 63) != 0)
    }

    /// Returns true if both have a byte in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, two)| one & two != 0)
    }

    /// All other bytes.
    pub(crate) fn complement(&self) -> Self {
        Self(self.0.map(|word| !word))
    }

    /// Bytes of both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut set = *self;
        set.0.iter_mut().zip(&other.0).for_each(|(one, two)| *one |= two);
        set
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}
