//! Connections of clients: listening, accepting, limits, and fairness between them.

mod accept;
mod connection_limits;
mod fairness;
mod limit_rate_shared;
mod limits_and_timeouts;
mod listen;
mod listen_transparent;
mod request_timeout;
