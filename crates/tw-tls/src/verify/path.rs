//! Path from a certificate to a self-issued one. Trusted certificates come first, as in OpenSSL.

use super::Trust;
use super::verdict::Verdict;
use crate::handshake::{self, Signature};
use crate::x509::{Certificate, KEY_CERT_SIGN};

/// Limit of signature checks. Real paths need two to four; a peer that sends many certificates of one name causes
/// more.
pub(super) const CHECKS_MAX: u32 = 32;

/// A path, from the certificate that is judged upwards.
pub(super) struct Path<'a> {
    pub(super) links: Vec<ChainLink<'a>>,
    /// Verdict about the end of the path.
    pub(super) end: Verdict,
}

pub(super) struct ChainLink<'a> {
    pub(super) cert: Certificate<'a>,
    source: Source,
    /// Result of verifying the signature with the next link's key; `None` for the last one.
    pub(super) signature: Option<Signature>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Shown,
    Trusted,
}

impl ChainLink<'_> {
    /// Returns `true` if the certificate may issue others.
    pub(super) fn is_authority(&self) -> bool {
        match self.cert.extensions.basic_constraints {
            Some(constraints) => constraints.is_ca,
            // Certificates before version 3 cannot mark an authority, and later ones may have only a key usage;
            // trusting one is a decision of the operator.
            None => {
                let says_so = self.cert.extensions.key_usage.is_some_and(|bits| bits & KEY_CERT_SIGN != 0);
                self.source == Source::Trusted
                    && self.cert.is_self_issued()
                    && (self.cert.version < 3 || says_so)
            }
        }
    }

    pub(super) fn may_sign_certificates(&self) -> bool {
        self.cert.extensions.key_usage.is_none_or(|bits| bits & KEY_CERT_SIGN != 0)
    }
}

impl<'a> Path<'a> {
    pub(super) fn find(
        leaf: Certificate<'a>,
        others: &[Certificate<'a>],
        trust: &'a Trust,
        now: i64,
    ) -> Self {
        let mut checks = CHECKS_MAX;
        let mut links = vec![ChainLink { cert: leaf, source: Source::Shown, signature: None }];
        let end = loop {
            let count = links.len();
            let Some(top) = links.last_mut() else { break Verdict::Unspecified };
            if top.source == Source::Trusted && top.cert.is_self_issued() {
                break Verdict::Good;
            }
            if top.cert.is_self_issued() && trust.authorities.has(&top.cert) {
                top.source = Source::Trusted;
                break Verdict::Good;
            }
            // Neither the first one nor the root count, so a path of `depth + 2` is allowed.
            let is_long = count as u64 > u64::from(trust.depth) + 1;
            let mut choice = Choice { of: &top.cert, now, best: None, checks: &mut checks };
            if !is_long {
                trust
                    .authorities
                    .of_subject(top.cert.issuer)
                    .for_each(|cert| choice.offer(cert, Source::Trusted));
                // A trusted certificate has only trusted issuers; a self-issued one has none among the others shown.
                let has_issuer = choice.best.as_ref().is_some_and(|(rank, ..)| *rank >= SIGNED);
                if !has_issuer && top.source == Source::Shown && !top.cert.is_self_issued() {
                    others.iter().for_each(|cert| choice.offer(cert.clone(), Source::Shown));
                }
            }
            // A self-issued certificate may still have an issuer: one of the same name with an older key.
            let is_top = top.cert.is_self_issued();
            let best = choice
                .best
                .filter(|(rank, cert, _)| cert.der != top.cert.der && (*rank >= SIGNED || !is_top));
            match best {
                Some((rank, cert, source)) => {
                    top.signature = Some(if rank >= SIGNED { Signature::Good } else { Signature::Bad });
                    links.push(ChainLink { cert, source, signature: None });
                }
                None if is_top && count == 1 => break Verdict::SelfSigned,
                None if is_top => break Verdict::SelfSignedInChain,
                None if checks == 0 => break Verdict::ChainTooLong,
                // nginx reports the same for a path that is longer than allowed: the issuer is not looked for.
                None if top.source == Source::Trusted => break Verdict::UnableToGetIssuer,
                None => break Verdict::UnableToGetLocalIssuer,
            }
            // Certificates that issued each other lead nowhere.
            if let [.., cert] = links.as_slice()
                && links.iter().filter(|link| link.cert.der == cert.cert.der).count() > 1
            {
                links.pop();
                break Verdict::UnableToGetLocalIssuer;
            }
        };
        Self { links, end }
    }
}

/// Preference of an issuer: its signature fits, and it is valid now.
const SIGNED: u8 = 2;
const CURRENT: u8 = 1;

/// The choice among certificates with the name of the issuer.
struct Choice<'c, 'a> {
    of: &'c Certificate<'a>,
    now: i64,
    best: Option<(u8, Certificate<'a>, Source)>,
    checks: &'c mut u32,
}

impl<'a> Choice<'_, 'a> {
    fn offer(&mut self, cert: Certificate<'a>, source: Source) {
        let is_best = self.best.as_ref().is_some_and(|(rank, ..)| *rank == SIGNED | CURRENT);
        if is_best || *self.checks == 0 || !self.of.names_as_issuer(&cert) {
            return;
        }
        *self.checks -= 1;
        let is_current = cert.not_before <= self.now && self.now <= cert.not_after;
        let mut rank = if is_current { CURRENT } else { 0 };
        if handshake::check(&self.of.signed, &cert.key) == Signature::Good {
            rank |= SIGNED;
        }
        if self.best.as_ref().is_none_or(|(best, ..)| rank > *best) {
            self.best = Some((rank, cert, source));
        }
    }
}
