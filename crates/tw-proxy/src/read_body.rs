//! Request body that is read to its end before an upstream server is chosen (`request_buffering`).

use super::settings::ProxySettings;
use tw_request::request::Request;
use tw_request::request_body;

/// Reads the body of `r` to its end if the configuration says so, or `must_end`. A body that is not passed is read, too: the upstream
/// server may receive it by `$request_body` or `$request_body_file`. The error is the status of the response.
pub async fn read_body(r: &mut Request, settings: &ProxySettings, must_end: bool) -> Result<(), u16> {
    let waits = settings.request.buffering || !settings.request.pass_body || must_end;
    if !(waits && r.body.has_source()) {
        return Ok(());
    }
    // Boxed: most requests have no body, and their futures are smaller without this one.
    Box::pin(request_body::read::read(r)).await
}
