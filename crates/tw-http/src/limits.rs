//! Limits of messages of HTTP/1, in one list.

tw_base::limits! {
    /// Limits of messages of HTTP/1 besides those that the configuration sets.
    pub const LIMITS;

    section "upstream response headers";
    use crate::origin::LIMITS;
    use crate::fields::LIMITS;

    section "request bodies, responses and keep-alive";
    use crate::chunked::LIMITS;
}
