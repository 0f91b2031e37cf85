//! Automatic certificates (ACME).

mod fleet;
mod issuance;
mod pebble;
