//! Connections of clients, by version of HTTP: request heads and bodies in, response heads and bodies out.
//!
//! ```text
//! h1         connections of HTTP/1.0 and 1.1
//! h2, h3     connections of HTTP/2 and HTTP/3
//! streams    parts that HTTP/2 and HTTP/3 have in common
//! admission  requests that memory allows
//! send_rate  rate at which a client gets its response
//! ```
//! A `Transport` (tw-net) carries bytes. A [`Client`](tw_request::client::Client) has facts without I/O, for variables, logs and limits. A
//! [`Wire`](tw_request::wire::Wire) is the access of a request to its client: send, sleep, notice that the client is gone. Another version
//! implements it; nothing else depends on the version of a request.
//!
//! A response of more than 64 KiB waits in the bulk queue of its loop before each piece, so a small request waits for at most one piece of
//! one large body.

pub mod admission;
pub mod h1;
pub mod h2;
pub mod h3;
mod lingering_close;
mod send_rate;
pub mod streams;

tw_base::limits! {
    /// Limits of the connections of clients.
    pub const LIMITS;

    section "HTTP/3";
    use h3::directives::LIMITS;
    use h3::serve::LIMITS;

    section "HTTP/2 and HTTP/3";
    use streams::LIMITS;

    section "HTTP/2";
    use h2::directives::LIMITS;
    use h2::serve::LIMITS;

    section "request processing";
    use admission::LIMITS;
}
