//! Revocation lists (`ssl_crl`), indexed by their issuer.

use std::collections::HashMap;
use std::fmt;

use tw_base::FatalMutex;

use super::authorities::TrustError;
use super::verdict::Verdict;
use crate::handshake::{self, Signature};
use crate::pem;
use crate::x509::{CRL_SIGN, Certificate, RevocationList, UnknownCritical};

/// A million revoked certificates have some 40 MB.
pub(super) const CRL_SIZE_MAX: usize = 128 << 20;

/// Revocation lists, one for each issuer.
pub struct Crls(HashMap<Vec<u8>, List>);

struct List {
    der: Vec<u8>,
    /// Sorted.
    serials: Vec<Box<[u8]>>,
    this_update: i64,
    next_update: Option<i64>,
    unknown_critical: UnknownCritical,
    /// The key that is known to have signed it: a list of megabytes is hashed once, not for each client.
    signer: FatalMutex<Option<Box<[u8]>>>,
}

impl Crls {
    /// The lists of a PEM text; of several lists of one issuer the newest counts.
    ///
    /// # Errors
    /// There is none, or one is broken.
    pub fn read(text: &[u8]) -> Result<Self, TrustError> {
        if text.len() > CRL_SIZE_MAX {
            return Err(TrustError::TooLong(CRL_SIZE_MAX));
        }
        let mut lists: HashMap<Vec<u8>, List> = HashMap::new();
        let mut number = 0;
        for section in pem::sections(text) {
            let section = section.map_err(|_| TrustError::BadCrl(number + 1))?;
            if !matches!(section.label, "X509 CRL" | "CRL") {
                continue;
            }
            number += 1;
            let list = section.decode().ok().and_then(|der| List::read(&der));
            let (issuer, list) = list.ok_or(TrustError::BadCrl(number))?;
            match lists.get(&issuer) {
                Some(other) if other.this_update > list.this_update => {}
                _ => {
                    lists.insert(issuer, list);
                }
            }
        }
        if lists.is_empty() { Err(TrustError::NoCrl) } else { Ok(Self(lists)) }
    }

    /// Verdict about a certificate by the lists.
    pub(super) fn check(
        &self,
        cert: &Certificate<'_>,
        issuer: &Certificate<'_>,
        now: i64,
    ) -> Option<Verdict> {
        // Without its issuer a certificate cannot be checked; the missing issuer has been reported.
        if cert.issuer != issuer.subject {
            return None;
        }
        let Some(list) = self.0.get(cert.issuer) else { return Some(Verdict::UnableToGetCrl) };
        // As elsewhere, the last fault is reported: a revoked certificate matters more than an outdated list.
        let mut fault = None;
        if issuer.extensions.key_usage.is_some_and(|bits| bits & CRL_SIGN == 0) {
            fault = Some(Verdict::NoCrlSign);
        }
        if list.this_update > now {
            fault = Some(Verdict::CrlNotYetValid);
        }
        if list.next_update.is_some_and(|next| next < now) {
            fault = Some(Verdict::CrlExpired);
        }
        if list.unknown_critical == UnknownCritical::Present {
            fault = Some(Verdict::UnhandledCriticalCrlExtension);
        }
        if list.has(cert.serial) {
            fault = Some(Verdict::Revoked);
        }
        if list.is_signed_by(issuer) { fault } else { Some(Verdict::CrlSignatureFailure) }
    }
}

impl List {
    fn read(der: &[u8]) -> Option<(Vec<u8>, Self)> {
        let list = RevocationList::parse(der).ok()?;
        let mut serials: Vec<Box<[u8]>> = list.serials().ok()?.into_iter().map(Box::from).collect();
        serials.sort_unstable();
        let issuer = list.issuer.to_vec();
        let RevocationList { this_update, next_update, unknown_critical, .. } = list;
        let der = der.to_vec();
        Some((
            issuer,
            Self { der, serials, this_update, next_update, unknown_critical, signer: FatalMutex::new(None) },
        ))
    }

    fn has(&self, serial: &[u8]) -> bool {
        self.serials.binary_search_by(|revoked| (**revoked).cmp(serial)).is_ok()
    }

    fn is_signed_by(&self, issuer: &Certificate<'_>) -> bool {
        let key = issuer.key.whole;
        if self.signer.lock().as_deref() == Some(key) {
            return true;
        }
        let is_good = RevocationList::parse(&self.der)
            .is_ok_and(|list| handshake::check(&list.signed, &issuer.key) == Signature::Good);
        if is_good {
            *self.signer.lock() = Some(key.into());
        }
        is_good
    }
}

impl fmt::Debug for Crls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} revocation lists", self.0.len())
    }
}
