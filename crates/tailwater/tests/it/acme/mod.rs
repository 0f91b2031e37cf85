//! Automatic certificates (ACME).

mod issuance;
mod pebble;
