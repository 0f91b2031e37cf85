//! Outcomes of reading a request body.

use std::time::Duration;

use tw_disk::DiskError;
use tw_fields::MalformedReason;
use tw_http::chunked::ChunkError;

use crate::client_wait::{WaitEnd, WaitLimits};
use crate::config::location::MinRate;

/// Limits of a location for the body of a request.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Bytes of the body at most; 0 is no limit.
    pub max_size: u64,
    /// Longest pause of the client.
    pub timeout: Duration,
    /// Slowest rate of the client.
    pub min_rate: Option<MinRate>,
}

impl BodyLimits {
    /// Limits of a wait for the client.
    pub fn wait(self) -> WaitLimits {
        WaitLimits { timeout: self.timeout, min_rate: self.min_rate }
    }
}

/// Error of a client while its request body is read.
#[derive(Debug)]
pub enum InputError {
    /// More bytes than allowed.
    TooLarge {
        /// Bytes received before.
        received: u64,
        /// Bytes received or announced since.
        coming: u64,
    },
    /// Malformed chunked coding.
    Malformed(ChunkError),
    /// Fewer bytes than announced.
    TooShort {
        /// Bytes received.
        received: u64,
        /// Bytes announced.
        length: u64,
    },
    /// More bytes than announced.
    TooLong,
    /// Trailers that break the rules of the protocol.
    Trailers(MalformedReason),
    /// The client closed its side before the end.
    Closed,
    /// Nothing came in time.
    Timeout,
    /// The client sends more slowly than it has to.
    TooSlow,
    /// The connection failed.
    Failed,
}

impl From<WaitEnd> for InputError {
    fn from(end: WaitEnd) -> Self {
        match end {
            WaitEnd::Timeout => Self::Timeout,
            WaitEnd::TooSlow => Self::TooSlow,
        }
    }
}

/// Error of reading a request body.
#[derive(Debug)]
pub enum BodyError {
    /// Error of the client.
    Client(InputError),
    /// The stored part cannot be read.
    Disk(DiskError),
}

/// Result of discarding the rest of a body after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Nothing is left.
    Yes,
    /// More bytes may arrive, or the end of the body is unknown: the connection cannot be used again.
    No,
}
