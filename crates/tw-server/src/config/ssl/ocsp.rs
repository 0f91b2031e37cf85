//! Whether the certificates of clients were revoked, as their authorities say now (`ssl_ocsp`). Asked in the handshake, and kept
//! for a while (`ssl_ocsp_cache`).

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tw_base::{FatalMutex, Limit};
use tw_conf::{ConfError, Node, Word, units};
use tw_tls::Trust;
use tw_tls::ocsp::{OcspError, Question, REPLY_SIZE_MAX, Reply, Status, responder};

use crate::config::location::Resolving;
use crate::event_loop::Loop;
use crate::http::proxy::ocsp_client::{OcspUrl, query};
use crate::load::Resolve;

/// What an entry counts against the size of a cache: a question has some 200 bytes.
const ENTRY_SIZE: usize = 512;
/// As in nginx: eight pages.
const CACHE_MIN: usize = 8 * 4096;
/// Certificates of a chain that are asked about.
const ASKED_MAX: usize = 10;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::count(
        "ASKED_MAX",
        ASKED_MAX as u64,
        "Certificates of a client's chain about which authorities are asked (OCSP)",
        "the client is not let in",
    ),
    Limit::parameter(
        "ssl_ocsp_cache",
        "shared",
        "off",
        "Bytes of a cache of what authorities say, 512 for each certificate",
        "some other certificate is asked about again",
    ),
];

/// About which certificates of a client is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// All of its chain, but for the root.
    All,
    /// Its own.
    Leaf,
}

pub(super) const ABOUT: &[(&str, Option<About>)] =
    &[("off", None), ("on", Some(About::All)), ("leaf", Some(About::Leaf))];

/// `ssl_ocsp_cache`: a name and a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheNamed {
    name: Box<[u8]>,
    size: usize,
}

/// The directives as written, with nothing left unset.
#[derive(Clone, Default)]
pub(super) struct Written {
    pub(super) about: Option<About>,
    pub(super) responder: Option<Word>,
    pub(super) cache: Option<CacheNamed>,
}

/// Asks about the certificates of clients.
#[derive(Debug)]
pub(crate) struct Inquirer {
    about: About,
    responder: Option<OcspUrl>,
    cache: Option<Arc<Answers>>,
}

/// What is known of a client's certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None was revoked, or nobody has asked.
    Good,
    /// One was.
    Revoked,
    /// The authority does not know one.
    Unknown,
    /// The authority could not be asked.
    Failed,
}

/// The words of nginx.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "ok",
            Self::Revoked => "certificate revoked",
            Self::Unknown => "certificate status unknown",
            Self::Failed => "certificate status request failed",
        })
    }
}

/// Answers that hold, by question.
#[derive(Debug)]
struct Answers {
    max: usize,
    known: FatalMutex<HashMap<Vec<u8>, (Status, u64)>>,
}

impl Answers {
    fn find(&self, question: &[u8], now: u64) -> Option<Status> {
        let known = self.known.lock();
        known.get(question).filter(|(_, until)| now < *until).map(|(status, _)| *status)
    }

    /// Looks at all of them when it is full: seldom, since somebody was asked before.
    fn put(&self, question: Vec<u8>, Reply { status, until }: Reply, now: u64) {
        // Without an end it holds for nobody else.
        let Some(until) = until else { return };
        let mut known = self.known.lock();
        if known.len() >= self.max && !known.contains_key(&question) {
            known.retain(|_, (_, until)| now < *until);
            let first =
                known.iter().min_by_key(|(_, (_, until))| *until).map(|(question, _)| question.clone());
            if let Some(first) = first.filter(|_| known.len() >= self.max) {
                known.remove(&first);
            }
        }
        known.insert(question, (status, until));
    }
}

/// Reads `off` or `shared:NAME:SIZE`.
pub(super) fn cache(node: &Node) -> Result<Option<CacheNamed>, ConfError> {
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
    Ok(Some(CacheNamed { name: name.into(), size }))
}

/// What is done by these directives; `None` if nobody is asked.
pub(super) fn inquirer(written: &Written, cx: &mut Resolve<'_>) -> Result<Option<Arc<Inquirer>>, ConfError> {
    let Some(about) = written.about else { return Ok(None) };
    let responder = match &written.responder {
        None => None,
        Some(word) => Some(OcspUrl::parse(&word.lossy()).ok_or_else(|| {
            ConfError::new(format!("invalid URL prefix in OCSP responder \"{word}\"")).at(word.span)
        })?),
    };
    let cache = written.cache.as_ref().map(|CacheNamed { name, size }| {
        let key = [b"ocsp answers ", &name[..], format!(" {size}").as_bytes()].concat();
        cx.keep(&key, |_| true, || Answers { max: size / ENTRY_SIZE, known: FatalMutex::default() })
    });
    Ok(Some(Arc::new(Inquirer { about, responder, cache })))
}

impl Inquirer {
    /// What authorities say of a client whose `chain` is trusted; and why not, if it could not be found out, in words of the log.
    pub(crate) async fn ask(
        &self,
        home: &Rc<Loop>,
        resolving: &Resolving,
        (chain, trust): (&[CertificateDer<'_>], &Trust),
        now: u64,
    ) -> (Standing, Option<String>) {
        let path = tw_tls::path(chain, trust, now);
        let count = if self.about == About::Leaf { 1 } else { usize::MAX };
        for (nth, pair) in path.windows(2).take(count).enumerate() {
            let [certificate, issuer] = pair else { continue };
            if nth == ASKED_MAX {
                return (Standing::Failed, Some("too many certificates to ask about".to_owned()));
            }
            match self.ask_about(home, resolving, (certificate, issuer), now).await {
                Ok(Status::Good) => {}
                Ok(Status::Revoked) => return (Standing::Revoked, None),
                Ok(Status::Unknown) => return (Standing::Unknown, None),
                Err(why) => return (Standing::Failed, Some(why)),
            }
        }
        (Standing::Good, None)
    }

    async fn ask_about(
        &self,
        home: &Rc<Loop>,
        resolving: &Resolving,
        (certificate, issuer): (&[u8], &[u8]),
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
                Some(
                    OcspUrl::parse(&url)
                        .ok_or_else(|| format!("invalid URL \"{url}\" of the OCSP responder"))?,
                )
            }
        };
        let url = self.responder.as_ref().or(own.as_ref()).ok_or("no OCSP responder")?;
        let response = query(home, resolving, url, &der, REPLY_SIZE_MAX).await?;
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
    fn answers_hold_until_their_end_and_make_room() {
        let answers = Answers { max: 2, known: FatalMutex::default() };
        let put = |name: &[u8], until| {
            answers.put(name.to_vec(), Reply { status: Status::Good, until }, 100);
        };
        put(b"a", Some(200));
        put(b"b", Some(150));
        put(b"unsaid", None);
        assert_eq!(answers.find(b"a", 199), Some(Status::Good));
        assert_eq!((answers.find(b"a", 200), answers.find(b"unsaid", 100)), (None, None));
        put(b"c", Some(300));
        assert_eq!(answers.find(b"b", 100), None, "it would have ended first");
        assert!(answers.find(b"a", 100).is_some() && answers.find(b"c", 100).is_some());
    }
}
