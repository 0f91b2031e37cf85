//! HTTP/3 to clients.

mod attacks;
mod bodies;
mod clients;
mod datagram_size;
mod hq;
mod priority;
mod process_change;
mod process_torture;
mod quic_log;
mod requests;
mod rfc9114;
mod tls;
mod websocket;
