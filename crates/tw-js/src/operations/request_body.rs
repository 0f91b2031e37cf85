//! `r.requestText`, `r.readRequestText()` and their like: the body of the request.

use tw_log::Level;
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

/// The body that was read before: from memory, or from its file.
///
/// # Errors
/// Status of the request, whose client or disk has failed.
pub(crate) async fn loaded(r: &mut Request) -> Result<Answer, u16> {
    if let Some(bytes) = r.body.memory() {
        return Ok(Ok(Reply::Value(Some(ByteBuf::from(bytes)))));
    }
    if r.body.is_pending() {
        return Ok(Err(OperationError::Error("request body was not read yet".to_owned())));
    }
    if !r.body.is_kept() || r.body.received() == 0 {
        return Ok(Ok(Reply::Value(None)));
    }
    r.log(Level::Warn, format_args!("http js reading request body from a temporary file"));
    read_stored(r).await
}

/// Reads the whole body, from the client or from its file.
///
/// # Errors
/// Status of the request, whose client or disk has failed.
pub(crate) async fn read(r: &mut Request) -> Result<Answer, u16> {
    request_body::read::read(r).await?;
    match r.body.memory() {
        Some(bytes) => Ok(Ok(Reply::Value(Some(ByteBuf::from(bytes))))),
        None => read_stored(r).await,
    }
}

/// Reads a body that is in a file.
async fn read_stored(r: &mut Request) -> Result<Answer, u16> {
    let mut source = r.body.take();
    let mut all = Vec::new();
    let limits = r.body_limits();
    let read = loop {
        match source.next(PULL_SIZE, limits).await {
            Ok(Some(piece)) if all.len() + piece.len() > SCRIPT_BODY_MAX => {
                break Ok(Err(OperationError::Error("request body is too large for a script".to_owned())));
            }
            Ok(Some(piece)) => all.extend_from_slice(&piece),
            Ok(None) => break Ok(Ok(Reply::Value(Some(ByteBuf::from(all))))),
            Err(error) => break Err(request_body::read::failed(r, error)),
        }
    };
    r.body.give_back(source);
    read
}
