//! Revocation check of client certificates by OCSP (`ssl_ocsp`), during the handshake. Responses are cached (`ssl_ocsp_cache`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Word, units};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::Trust;
use tw_tls::ocsp::{OcspError, Question, REPLY_SIZE_MAX, Reply, ResponderUrl, Status, responder};

use super::ocsp_client::OcspClient;

/// Bytes that an entry counts against the size of a cache: a question has some 200.
const ENTRY_SIZE: usize = 512;
/// Least size of a cache, as in nginx: eight pages.
const CACHE_MIN: usize = 8 * 4096;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Certificates of a client's chain that are checked by OCSP.
    const CHECKED_MAX: usize = 10, count, "the client is refused";
    /// Bytes of a cache of OCSP responses, 512 for each certificate.
    parameter "ssl_ocsp_cache", "shared", "off", "the response that expires first is dropped";
}

/// Certificates of a client that are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    /// All of the chain except the root.
    All,
    /// The client's own.
    Leaf,
}

pub(crate) const CHECKED: &[(&str, Option<Checked>)] =
    &[("off", None), ("on", Some(Checked::All)), ("leaf", Some(Checked::Leaf))];

/// `ssl_ocsp_cache`: name and size in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OcspCache {
    name: Box<[u8]>,
    size: usize,
}

/// Directives with nothing left unset.
#[derive(Clone, Default)]
pub(crate) struct ClientOcspDirectives {
    pub(crate) checked: Option<Checked>,
    pub(crate) responder: Option<Word>,
    pub(crate) cache: Option<OcspCache>,
}

/// Settings of the check, with the cached responses.
#[derive(Debug)]
pub struct ClientOcsp {
    checked: Checked,
    responder: Option<ResponderUrl>,
    cache: Option<Arc<StatusCache>>,
}

/// Revocation status of a client's certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevocationStatus {
    /// None is revoked, or the check is off.
    Good,
    /// One is revoked.
    Revoked,
    /// An authority does not know one.
    Unknown,
    /// The check failed.
    Failed,
}

/// Words of nginx.
impl fmt::Display for RevocationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "ok",
            Self::Revoked => "certificate revoked",
            Self::Unknown => "certificate status unknown",
            Self::Failed => "certificate status request failed",
        })
    }
}

/// Unexpired statuses, by OCSP request.
#[derive(Debug)]
struct StatusCache {
    max: usize,
    statuses: FatalMutex<HashMap<Vec<u8>, (Status, u64)>>,
}

impl StatusCache {
    fn find(&self, question: &[u8], now: u64) -> Option<Status> {
        let known_values = self.statuses.lock();
        known_values.get(question).filter(|(_, until)| now < *until).map(|(status, _)| *status)
    }

    /// Adds a status. Visits all others when the cache is full: seldom, since an authority was asked before.
    fn put(&self, question: Vec<u8>, Reply { status, until }: Reply, now: u64) {
        // Without an expiry time it may not be reused.
        let Some(until) = until else { return };
        let mut known_values = self.statuses.lock();
        if known_values.len() >= self.max && !known_values.contains_key(&question) {
            known_values.retain(|_, (_, until)| now < *until);
            let first = known_values
                .iter()
                .min_by_key(|(_, (_, until))| *until)
                .map(|(question, _)| question.clone());
            if let Some(first) = first.filter(|_| known_values.len() >= self.max) {
                known_values.remove(&first);
            }
        }
        known_values.insert(question, (status, until));
    }
}

/// Parses `off` or `shared:NAME:SIZE`.
pub(crate) fn parse_cache(node: &Node) -> Result<Option<OcspCache>, ConfError> {
    let word = node.arg(0)?;
    if word.is("off") {
        return Ok(None);
    }
    let invalid = || node.fail(format!("invalid OCSP cache \"{word}\""));
    let rest = word.bytes.strip_prefix(b"shared:").ok_or_else(invalid)?;
    let colon = rest.iter().position(|byte| *byte == b':').ok_or_else(invalid)?;
    let (name, size) = (&rest[..colon], &rest[colon + 1..]);
    let size = units::size(size).and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|_| !name.is_empty()).ok_or_else(invalid)?;
    if size < CACHE_MIN {
        return Err(node.fail(format!("OCSP cache \"{word}\" is too small")));
    }
    Ok(Some(OcspCache { name: name.into(), size }))
}

/// Resolves the directives; `None` if the check is off.
pub(crate) fn resolve<P: Protocol>(
    client_ocsp_directives: &ClientOcspDirectives,
    cx: &mut Resolve<'_, P>,
) -> Result<Option<Arc<ClientOcsp>>, ConfError> {
    let Some(checked) = client_ocsp_directives.checked else { return Ok(None) };
    let responder = match &client_ocsp_directives.responder {
        None => None,
        Some(word) => Some(ResponderUrl::parse(&word.lossy()).ok_or_else(|| {
            ConfError::new(format!("invalid URL prefix in OCSP responder \"{word}\"")).at(word.span)
        })?),
    };
    let cache = client_ocsp_directives.cache.as_ref().map(|OcspCache { name, size }| {
        let key = [b"ocsp answers ", &name[..], format!(" {size}").as_bytes()].concat();
        cx.keep(&key, |_| true, || StatusCache { max: size / ENTRY_SIZE, statuses: FatalMutex::default() })
    });
    Ok(Some(Arc::new(ClientOcsp { checked, responder, cache })))
}

impl ClientOcsp {
    /// Checks a client's `chain`, which is trusted. With [`RevocationStatus::Failed`] comes the reason, in words of the log.
    pub async fn check(
        &self,
        client: &impl OcspClient,
        chain: &[CertificateDer<'_>],
        trust: &Trust,
        now: u64,
    ) -> (RevocationStatus, Option<String>) {
        let path = tw_tls::path(chain, trust, now);
        let count = if self.checked == Checked::Leaf { 1 } else { usize::MAX };
        for (nth, pair) in path.windows(2).take(count).enumerate() {
            let [certificate, issuer] = pair else { continue };
            if nth == CHECKED_MAX {
                return (RevocationStatus::Failed, Some("too many certificates to ask about".to_owned()));
            }
            match self.status(client, certificate, issuer, now).await {
                Ok(Status::Good) => {}
                Ok(Status::Revoked) => return (RevocationStatus::Revoked, None),
                Ok(Status::Unknown) => return (RevocationStatus::Unknown, None),
                Err(why) => return (RevocationStatus::Failed, Some(why)),
            }
        }
        (RevocationStatus::Good, None)
    }

    async fn status(
        &self,
        client: &impl OcspClient,
        certificate: &[u8],
        issuer: &[u8],
        now: u64,
    ) -> Result<Status, String> {
        let question = Question::new(certificate, &[issuer]).ok_or("no issuer of the certificate")?;
        let der = question.der();
        if let Some(status) = self.cache.as_ref().and_then(|cache| cache.find(&der, now)) {
            return Ok(status);
        }
        let own = match &self.responder {
            Some(_) => None,
            None => {
                let url = responder(certificate).ok_or("no OCSP responder URL in certificate")?;
                let invalid = || format!("invalid URL \"{url}\" of the OCSP responder");
                Some(ResponderUrl::parse(&url).ok_or_else(invalid)?)
            }
        };
        let url = self.responder.as_ref().or(own.as_ref()).ok_or("no OCSP responder")?;
        let response = client.query(url, &der, REPLY_SIZE_MAX).await?;
        let read = || question.read(&response, now);
        let reply = tw_rt::watch::operation("judging an OCSP response", read);
        let reply = reply.map_err(|error: OcspError| format!("{error}, responder: {url}"))?;
        if let Some(cache) = &self.cache {
            cache.put(der, reply, now);
        }
        Ok(reply.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_statuses_expire_and_are_evicted() {
        let answers = StatusCache { max: 2, statuses: FatalMutex::default() };
        let put = |name: &[u8], until| {
            answers.put(name.to_vec(), Reply { status: Status::Good, until }, 100);
        };
        put(b"a", Some(200));
        put(b"b", Some(150));
        put(b"endless", None);
        assert_eq!(answers.find(b"a", 199), Some(Status::Good));
        assert_eq!((answers.find(b"a", 200), answers.find(b"endless", 100)), (None, None));
        put(b"c", Some(300));
        assert_eq!(answers.find(b"b", 100), None, "the entry that expires first is evicted");
        assert!(answers.find(b"a", 100).is_some() && answers.find(b"c", 100).is_some());
    }
}
