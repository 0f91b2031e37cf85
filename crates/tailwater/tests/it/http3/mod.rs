//! HTTP/3 to clients.

mod attacks;
mod bodies;
mod requests;
mod rfc9114;
mod websocket;
