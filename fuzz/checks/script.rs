//! Invariants for any bytes as messages of a script process or of its host: no panic, the same messages wherever the bytes are split, and
//! a message that was read is written as one that reads the same.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tw_script::{FrameError, FrameReader, HostMessage, ProcessMessage, encode};

pub(crate) fn check(data: &[u8]) {
    check_messages::<ProcessMessage>(data);
    check_messages::<HostMessage>(data);
    // The same bytes as one frame: their length need not be guessed.
    let mut frame = u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    frame.extend_from_slice(data);
    check_messages::<ProcessMessage>(&frame);
    check_messages::<HostMessage>(&frame);
}

fn check_messages<M: Serialize + DeserializeOwned>(data: &[u8]) {
    let whole = read::<M>(&[data]);
    let (first, second) = data.split_at(data.len() / 2);
    assert_eq!(read::<M>(&[first, second]), whole);
    for bytes in &whole.0 {
        // Numbers may be written in more bytes than they need, so the second writing is the one to compare with.
        assert_eq!(read::<M>(&[bytes]).0, std::slice::from_ref(bytes));
    }
}

/// Messages in these pieces, as they are written, and the error behind them.
fn read<M: Serialize + DeserializeOwned>(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut reader = FrameReader::default();
    let mut messages = Vec::new();
    for piece in pieces {
        reader.push(piece);
        loop {
            match reader.next_message::<M>() {
                Ok(Some(message)) => {
                    let mut bytes = Vec::new();
                    encode(&message, &mut bytes).expect("a message that was read is within its limit");
                    messages.push(bytes);
                }
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}
