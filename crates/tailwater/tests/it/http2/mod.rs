//! HTTP/2 to clients.

mod attacks;
mod features;
mod priority;
mod real_clients;
mod requests;
mod rfc9113;
mod websocket;
