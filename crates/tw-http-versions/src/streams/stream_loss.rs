//! Loss of a client: reset of its stream, or loss of the connection.

use std::error::Error;
use std::fmt;
use std::io;

use tw_request::client_gone::ClientGone;
use tw_request::send_error::SendError;

/// Reset of a stream, or loss of its connection. Each protocol writes it as nginx words it in the error log.
#[derive(Debug)]
pub(crate) struct StreamLoss<E> {
    /// Number of the stream.
    pub(crate) stream: u64,
    /// Error of the stream.
    pub(crate) error: E,
}

impl<E: fmt::Debug> Error for StreamLoss<E> where Self: fmt::Display {}

impl<E> From<StreamLoss<E>> for ClientGone
where
    StreamLoss<E>: Error + Send + Sync + 'static,
{
    fn from(loss: StreamLoss<E>) -> Self {
        Self::new(io::Error::other(loss))
    }
}

impl<E> From<StreamLoss<E>> for SendError
where
    StreamLoss<E>: Error + Send + Sync + 'static,
{
    fn from(loss: StreamLoss<E>) -> Self {
        Self::Gone(io::Error::other(loss))
    }
}
