//! Current ACME certificate: handshakes read it, and the agent replaces it, independently of configurations.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_base::FatalMutex;
use tw_tls::Identity;

use crate::error::Error;
use crate::generate;
use crate::identifier::Identifier;
use crate::issued::Issued;

/// Current ACME certificate of one order; handshakes read it.
pub struct CurrentCertificate {
    /// Certificate for handshakes until the first one is issued.
    temporary: Identity,
    issued: FatalMutex<Option<Issued>>,
    /// State of its orders.
    pub order: OrderState,
}

/// State of the orders of a certificate, for metrics. The task of the issuer writes it; times are in seconds since 1970.
#[derive(Debug, Default)]
pub struct OrderState {
    failures: AtomicU64,
    renewal: AtomicU64,
    next_attempt: AtomicU64,
}

impl OrderState {
    /// Failed attempts since the last successful one.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Time from which on the certificate is replaced; 0 if it is due, or not yet known.
    pub fn renewal(&self) -> u64 {
        self.renewal.load(Relaxed)
    }

    /// Time of the next attempt after a failure; 0 if the last attempt was successful.
    pub fn next_attempt(&self) -> u64 {
        self.next_attempt.load(Relaxed)
    }

    pub(crate) fn set(&self, failures: u32, renewal: u64, next_attempt: u64) {
        self.failures.store(failures.into(), Relaxed);
        self.renewal.store(renewal, Relaxed);
        self.next_attempt.store(next_attempt, Relaxed);
    }
}

impl CurrentCertificate {
    /// Starts with a temporary self-signed certificate for these names.
    ///
    /// # Errors
    /// Fails without a source of randomness.
    pub fn new(identifiers: &[Identifier]) -> Result<Self, Error> {
        Ok(Self {
            temporary: generate::temporary(identifiers)?,
            issued: FatalMutex::default(),
            order: OrderState::default(),
        })
    }

    /// Returns the current certificate.
    pub fn identity(&self) -> Identity {
        let issued = self.issued.lock();
        issued.as_ref().map_or_else(|| self.temporary.clone(), |issued| issued.identity.clone())
    }

    /// Chain of the issued certificate, in PEM; `None` before the first one.
    pub fn chain(&self) -> Option<Arc<str>> {
        self.issued.lock().as_ref().map(|issued| issued.chain.clone())
    }

    /// End of the validity of the issued certificate, in seconds since 1970; `None` before the first one.
    pub fn not_after(&self) -> Option<i64> {
        self.issued.lock().as_ref().map(|issued| issued.identity.not_after)
    }

    pub(crate) fn issued(&self) -> Option<Issued> {
        self.issued.lock().clone()
    }

    pub(crate) fn set(&self, issued: Issued) {
        *self.issued.lock() = Some(issued);
    }
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.chain().is_some() { "Slot(issued)" } else { "Slot(temporary)" })
    }
}
