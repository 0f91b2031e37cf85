//! The kernel of running: what a server is made of, whatever protocol it speaks.
//!
//! Nothing here knows a protocol. What decides about clients is written against a [`Session`](session::Session).

pub mod names;
pub mod regex;
pub mod session;
#[cfg(test)]
mod testing;
pub mod vars;
