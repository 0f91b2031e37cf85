//! Resources that a request has used: bytes sent, disk time, and the rate limit.

use tw_disk::{Account, JobClass, JobSource};

use crate::client_wait::ClientWait;
use crate::key_bandwidth::KeyBandwidth;

/// Resources that a request has used.
pub struct Costs {
    /// Bytes sent to the client.
    pub sent: Sent,
    /// Disk time and operations.
    pub account: Account,
    /// `$limit_rate` in bytes per second, if set by other means than `limit_rate`.
    pub limit_rate: Option<u64>,
    /// Rates that the response shares with others.
    pub key_bandwidths: Vec<KeyBandwidth>,
    /// Waits for the client to take the response.
    pub waits: ClientWait,
}

impl Default for Costs {
    fn default() -> Self {
        let account = Account::new(JobClass::Hit, JobSource::NONE);
        Self {
            sent: Sent::default(),
            account,
            limit_rate: None,
            key_bandwidths: Vec::new(),
            waits: ClientWait::default(),
        }
    }
}

/// Bytes sent to the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// Bytes of head and body over the wire.
    pub bytes: u64,
    /// Bytes of the head.
    pub head: u64,
    /// True once the whole response was sent.
    pub complete: bool,
}

impl Sent {
    /// Bytes of the body over the wire.
    pub fn body(&self) -> u64 {
        self.bytes.saturating_sub(self.head)
    }
}
