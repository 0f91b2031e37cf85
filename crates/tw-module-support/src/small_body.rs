//! Bodies of requests that are read into memory whole, because a handler looks into them.

use tw_http::Framing;
use tw_request::request::Request;
use tw_request::request_body;

/// Reason why a body was not read.
pub enum SmallBodyError {
    /// More bytes than are read.
    TooLarge,
    /// Status of a body that could not be read.
    Failed(u16),
}

/// Reads the body of `r`, at most `max` bytes. Waits for the client.
pub async fn read(r: &mut Request, max: usize) -> Result<Vec<u8>, SmallBodyError> {
    if matches!(r.head.framing(), Framing::Length(length) if length > max as u64) {
        return Err(SmallBodyError::TooLarge);
    }
    let mut body = Vec::new();
    let mut source = r.body.take();
    let terms = r.body_limits();
    let done = loop {
        match source.next(max, terms).await {
            Ok(Some(piece)) if body.len() + piece.len() > max => break Err(None),
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => break Ok(()),
            Err(error) => break Err(Some(error)),
        }
    };
    r.body.give_back(source);
    match done {
        Ok(()) => Ok(body),
        Err(None) => Err(SmallBodyError::TooLarge),
        Err(Some(error)) => Err(SmallBodyError::Failed(request_body::read::failed(r, error))),
    }
}
