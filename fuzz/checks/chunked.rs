//! Invariants for any bytes of a peer as a chunked body: no panic, equal results however the bytes are split, a
//! complete body has all the data its chunks announced, and an encoded body decodes to the same data.

use tw_http::chunked::{BODY_END, CHUNK_END, OVERHEAD_MAX};
use tw_http::{Chunk, ChunkError, ChunkHead, ChunkedDecoder, Trailers};

pub(crate) fn check(data: &[u8]) {
    for (trailers, overhead_max) in [(Trailers::Skip, OVERHEAD_MAX), (Trailers::Keep, 8)] {
        let whole = decoded(&[data], trailers, overhead_max);
        let step = (data.len() / 200).max(1);
        for at in (0..data.len()).step_by(step) {
            let (first, second) = data.split_at(at);
            assert_eq!(decoded(&[first, second], trailers, overhead_max), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(decoded(&bytes, trailers, overhead_max), whole, "byte by byte");
    }

    for size in [1, 3, 1000] {
        let mut body = Vec::new();
        for chunk in data.chunks(size) {
            body.extend_from_slice(ChunkHead::new(chunk.len() as u64).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(CHUNK_END);
        }
        body.extend_from_slice(BODY_END);
        let outcome = Outcome { data: data.to_vec(), announced: data.len() as u64, end: Some(body.len()) };
        assert_eq!(decoded(&[&body], Trailers::Skip, 0), Ok(outcome));
    }
}

/// Result of decoding a body.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    data: Vec<u8>,
    /// The most bytes it was ever known to have.
    announced: u64,
    /// The length of the coded body if it is complete.
    end: Option<usize>,
}

fn decoded(pieces: &[&[u8]], trailers: Trailers, overhead_max: usize) -> Result<Outcome, ChunkError> {
    let mut decoder = ChunkedDecoder::new(trailers, overhead_max);
    let (mut data, mut total, mut announced) = (Vec::new(), 0, 0);
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let (used, chunk) = decoder.decode(rest)?;
            total += used;
            match chunk {
                Chunk::NeedMore => {
                    assert_eq!(used, rest.len());
                    announced = announced.max(data.len() as u64 + decoder.chunk_left());
                    break;
                }
                Chunk::Data(range) => {
                    assert!(!range.is_empty() && range.end == used);
                    data.extend_from_slice(&rest[range]);
                    announced = announced.max(data.len() as u64 + decoder.chunk_left());
                }
                Chunk::End => {
                    assert_eq!((announced, decoder.chunk_left()), (data.len() as u64, 0));
                    return Ok(Outcome { data, announced, end: Some(total) });
                }
            }
            rest = &rest[used..];
        }
    }
    Ok(Outcome { data, announced, end: None })
}
