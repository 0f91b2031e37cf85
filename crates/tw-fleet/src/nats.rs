//! NATS JetStream as the engine of a fleet: a stream is the log, a key-value bucket each store. A small client of our own, over one
//! connection at a time.

mod announcements;
mod bucket;
mod connect;
mod connection;
mod credentials;
mod engine;
mod jetstream;
mod parser;

pub use credentials::{Authentication, CredentialsError, read as read_credentials};

pub(crate) use announcements::LIMITS as ANNOUNCEMENT_LIMITS;
pub(crate) use connection::LIMITS as CONNECTION_LIMITS;
pub(crate) use engine::Nats;
pub(crate) use parser::LIMITS as PARSER_LIMITS;
pub(crate) use parser::shown;

/// Reads `input` as what a server sends, for the fuzzer: nothing may come of it but an error.
pub fn fuzz(input: &[u8]) {
    let mut parser = parser::Parser::default();
    for piece in input.chunks(7) {
        parser.push(piece);
        loop {
            match parser.next() {
                Ok(Some(parser::ServerOperation::Message(message))) => {
                    let _ = (message.status(), message.status_text(), message.header("Nats-Sequence"));
                    let _ = jetstream::record(&message);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
