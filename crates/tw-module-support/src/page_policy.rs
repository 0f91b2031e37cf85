//! Content security policy of pages that are one file: own script, own style, requests to the own server, nothing else.

/// Text in a page that is replaced by the nonce of the policy.
pub const NONCE: &str = "@NONCE@";

/// Content security policy of the page: its own script, its own style, its own server.
pub fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
