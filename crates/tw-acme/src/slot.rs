//! The place of a certificate: handshakes take it from here, and a new one is put here, whatever the configuration.

use std::fmt;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_tls::Identity;

use crate::error::Error;
use crate::identifier::Identifier;
use crate::issued::Issued;
use crate::made;

/// A certificate that comes, and is replaced.
pub struct Slot {
    /// For handshakes, until the first one is there.
    temporary: Identity,
    issued: FatalMutex<Option<Issued>>,
}

impl Slot {
    /// A place with a certificate for these names that nobody has issued, and nobody trusts.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn new(identifiers: &[Identifier]) -> Result<Self, Error> {
        Ok(Self { temporary: made::temporary(identifiers)?, issued: FatalMutex::default() })
    }

    /// The certificate of now.
    pub fn identity(&self) -> Identity {
        let issued = self.issued.lock();
        issued.as_ref().map_or_else(|| self.temporary.clone(), |issued| issued.identity.clone())
    }

    /// The chain of the certificate that was issued, in PEM; `None` as long as there is none.
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

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.chain().is_some() { "Slot(issued)" } else { "Slot(temporary)" })
    }
}
