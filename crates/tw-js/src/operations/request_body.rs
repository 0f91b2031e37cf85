//! `r.requestText`, `r.readRequestText()` and their like: the body of the request.

use tw_request::request::Request;
use tw_request::request_body;
use tw_script::{ByteBuf, OperationError, Reply};

use super::answer::Answer;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes of a request body that a script reads.
    pub(crate) const SCRIPT_BODY_MAX: usize = 16 << 20, bytes, "reading it fails in the script";
}

/// Size of one read of a body in a file.
const PULL_SIZE: usize = 64 << 10;

/// The body as far as it is in memory.
pub(crate) fn loaded(r: &Request) -> Answer {
    if let Some(bytes) = r.body.memory() {
        return Ok(Reply::Value(Some(ByteBuf::from(bytes))));
    }
    if r.body.is_pending() || r.body.is_kept() && r.body.received() > 0 {
        return Err(OperationError::Error("request body is in a file".to_owned()));
    }
    Ok(Reply::Value(None))
}

/// Reads the whole body, from the client or from its file.
pub(crate) async fn read(r: &mut Request) -> Answer {
    if let Err(status) = request_body::read::read(r).await {
        return Err(OperationError::Error(format!("request body cannot be read, status {status}")));
    }
    if let Some(bytes) = r.body.memory() {
        return Ok(Reply::Value(Some(ByteBuf::from(bytes))));
    }
    let mut source = r.body.take();
    let mut all = Vec::new();
    let limits = r.body_limits();
    let read = loop {
        match source.next(PULL_SIZE, limits).await {
            Ok(Some(piece)) if all.len() + piece.len() > SCRIPT_BODY_MAX => {
                break Err(OperationError::Error("request body is too large for a script".to_owned()));
            }
            Ok(Some(piece)) => all.extend_from_slice(&piece),
            Ok(None) => break Ok(Reply::Value(Some(ByteBuf::from(all)))),
            Err(error) => {
                request_body::read::failed(r, error);
                break Err(OperationError::Error("request body cannot be read".to_owned()));
            }
        }
    };
    r.body.give_back(source);
    read
}
