//! Request body that is read to its end before an upstream server is chosen (`request_buffering`).

use tw_http::Framing;

use super::settings::ProxySettings;
use crate::http::request::Request;
use crate::http::request_body;

/// Reads the body of `r` to its end if the configuration says so. With `must_end`, a body of unknown length is read in any case.
/// The error is the status of the response.
pub async fn read_body(r: &mut Request, settings: &ProxySettings, must_end: bool) -> Result<(), u16> {
    let waits = settings.request.buffering || must_end && r.head.framing() == Framing::Chunked;
    if !(settings.request.pass_body && waits && r.body.has_source()) {
        return Ok(());
    }
    // Boxed: most requests have no body, and their futures are smaller without this one.
    Box::pin(request_body::read::read(r)).await
}
