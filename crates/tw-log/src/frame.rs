//! Framing of messages by their lengths, for writers that must know where one ends: a ring only keeps the order of
//! bytes.

/// Bytes before a message: its length.
pub(crate) const HEAD: usize = 4;

/// Header of a message of `len` bytes. Messages longer than a ring are never pushed.
pub(crate) fn head(len: usize) -> [u8; HEAD] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// The message that begins at `at`.
pub(crate) fn at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    split(bytes.get(at..)?).map(|(message, _)| message)
}

/// All messages.
pub(crate) fn all(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (message, rest) = split(bytes)?;
        bytes = rest;
        Some(message)
    })
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    rest.split_at_checked(u32::from_le_bytes(*head) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let messages: [&[u8]; 4] = [b"one", b"", b"two\n", &[0; 300]];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| [&head(m.len()), *m].concat()).collect();
        assert_eq!(all(&bytes).collect::<Vec<_>>(), messages);
        assert_eq!(at(&bytes, 0), Some(messages[0]));
        assert_eq!(at(&bytes, HEAD + 3), Some(messages[1]));
        assert_eq!(at(&bytes, bytes.len()), None);
        assert_eq!(all(&bytes[..6]).count(), 0);
    }
}
