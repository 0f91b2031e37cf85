//! Invariants for any bytes of an origin as a response body, with any framing: no panic, equal results however the
//! bytes are split, never more than was announced, and a written body reads as the same data.

use tw_http::origin::{push_chunk, push_last_chunk};
use tw_http::{BodyDecoder, Fields, Name, Piece, ResponseFraming, hop};

pub(crate) fn check(data: &[u8]) {
    let length = data.first().map_or(0, |&byte| u64::from(byte));
    for (framing, trailers) in [
        (ResponseFraming::None, None),
        (ResponseFraming::Length(length), None),
        (ResponseFraming::Length(u64::MAX), None),
        (ResponseFraming::Close, None),
        (ResponseFraming::Chunked, None),
        (ResponseFraming::Chunked, Some(4096)),
        (ResponseFraming::Chunked, Some(12)),
    ] {
        let whole = decoded(&[data], framing, trailers);
        let step = (data.len() / 100).max(1);
        for at in (0..data.len()).step_by(step) {
            let (first, second) = data.split_at(at);
            assert_eq!(decoded(&[first, second], framing, trailers), whole, "{framing:?} split at {at}");
        }
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(decoded(&bytes, framing, trailers), whole, "{framing:?} byte by byte");
        let Ok(outcome) = whole else { continue };
        match framing {
            ResponseFraming::Length(length) => {
                assert_eq!(outcome.data.len() as u64, length.min(data.len() as u64));
                assert_eq!(outcome.end.is_some(), outcome.data.len() as u64 == length);
            }
            ResponseFraming::Close => assert_eq!((outcome.data, outcome.end), (data.to_vec(), None)),
            _ => {}
        }
    }
    round_trip(data);
}

/// Result of decoding a body.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    data: Vec<u8>,
    /// The length of the coded body if it is complete.
    end: Option<usize>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
}

fn decoded(pieces: &[&[u8]], framing: ResponseFraming, trailers: Option<usize>) -> Result<Outcome, String> {
    let mut decoder = BodyDecoder::new(framing, trailers);
    let (mut data, mut total) = (Vec::new(), 0);
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let (used, found) =
                decoder.decode(rest).map_err(|error| decoder.error_text(error).to_string())?;
            total += used;
            match found {
                Piece::NeedMore => {
                    assert_eq!(used, rest.len());
                    break;
                }
                Piece::Data(range) => {
                    assert!(!range.is_empty() && range.end == used);
                    data.extend_from_slice(&rest[range]);
                }
                Piece::End => {
                    assert!(decoder.is_done() && decoder.remaining() == 0 && decoder.close().is_ok());
                    return Ok(Outcome { data, end: Some(total), trailers: taken(&mut decoder) });
                }
            }
            rest = &rest[used..];
        }
    }
    let is_done = decoder.is_done();
    Ok(Outcome { data, end: is_done.then_some(total), trailers: taken(&mut decoder) })
}

fn taken(decoder: &mut BodyDecoder) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fields = decoder.take_trailers().unwrap_or_default();
    for (name, value) in fields.iter() {
        assert!(hop::may_be_trailer(name, tw_http::HeaderName::find(name)));
        assert!(!value.iter().any(|&byte| byte < b' ' && byte != b'\t'));
    }
    fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// Checks that a chunked request body reads as it was written, or is not written.
fn round_trip(data: &[u8]) {
    let (name, value) = data.split_at(data.len() / 4);
    let mut trailers = Fields::new();
    trailers.append_copy(Name::Copy(name), value);
    for size in [1, 7, 1000] {
        let mut body = Vec::new();
        data.chunks(size).for_each(|chunk| push_chunk(&mut body, chunk));
        let is_written = push_last_chunk(&mut body, &trailers).is_ok();
        if !is_written {
            assert!(push_last_chunk(&mut body, &Fields::new()).is_ok());
        }
        // A trailer may have control characters, as a client's field may, and then is no trailer of a response.
        match decoded(&[&body], ResponseFraming::Chunked, Some(1 << 20)) {
            Ok(outcome) => {
                assert_eq!((outcome.data, outcome.end), (data.to_vec(), Some(body.len())));
                assert_eq!(outcome.trailers.len(), usize::from(is_written));
            }
            Err(error) => {
                assert!(is_written && error.starts_with("upstream sent invalid trailer"), "{error}")
            }
        }
    }
}
