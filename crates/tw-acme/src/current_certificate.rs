//! Current ACME certificate: handshakes read it, and the agent replaces it, independently of configurations.

use std::fmt;
use std::sync::Arc;

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
}

impl CurrentCertificate {
    /// Starts with a temporary self-signed certificate for these names.
    ///
    /// # Errors
    /// Fails without a source of randomness.
    pub fn new(identifiers: &[Identifier]) -> Result<Self, Error> {
        Ok(Self { temporary: generate::temporary(identifiers)?, issued: FatalMutex::default() })
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
