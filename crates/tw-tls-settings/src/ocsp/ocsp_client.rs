//! Client of OCSP responders, as the host of a connection provides it.

use tw_tls::ocsp::ResponderUrl;

/// Sends OCSP requests over HTTP (RFC 6960, appendix A).
pub trait OcspClient {
    /// Sends the request in `der` to `url`, and returns the response if that has at most `size_max` bytes. Every wait ends.
    ///
    /// # Errors
    /// Words of the log.
    fn query(
        &self,
        url: &ResponderUrl,
        der: &[u8],
        size_max: usize,
    ) -> impl Future<Output = Result<Vec<u8>, String>>;
}
