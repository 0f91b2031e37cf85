//! Refusals of modules that ask for credentials: `auth_basic`, `auth_jwt`.

use std::fmt;

use bytes::Bytes;
use tw_http::{HeaderName, Method};
use tw_log::Level;
use tw_request::plan::Outcome;
use tw_request::request::Request;

/// Field of a request with credentials: those for this server, or for the tunnel that it is asked to open.
pub fn credentials(r: &Request) -> Option<&[u8]> {
    r.head.field_known(match r.method() {
        Method::Connect => HeaderName::ProxyAuthorization,
        _ => HeaderName::Authorization,
    })
}

/// Asks for credentials by this challenge (RFC 9110 section 11.6.1); an empty one is no field.
pub fn challenge(r: &mut Request, challenge: Vec<u8>) -> Outcome {
    let (name, code) = match r.method() {
        Method::Connect => ("Proxy-Authenticate", 407),
        _ => ("WWW-Authenticate", 401),
    };
    if !challenge.is_empty() {
        r.response.fields.append(name, Bytes::from(challenge));
    }
    Outcome::Status(code)
}

/// There is too much to do; the client may try again.
pub fn try_later(r: &mut Request, why: fmt::Arguments<'_>) -> Outcome {
    r.log(Level::Error, why);
    r.response.fields.set(HeaderName::RetryAfter, "1");
    Outcome::Status(503)
}
