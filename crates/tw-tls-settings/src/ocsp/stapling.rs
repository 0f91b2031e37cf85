//! OCSP stapling (`ssl_stapling`): responses about the server's certificates, sent in handshakes. They come from a file, or are
//! fetched in the background and fetched again in time.
//!
//! ```text
//! current certificate ─► Stapling ─► Staple: request, responder ─┐
//!                                                                ├─► stapling_task: fetches when it is due ─► handshakes
//! generation before ─► StapleSlots ─► StapleSlot: response ──────┘
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use tw_base::FatalMutex;
use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::Identity;
use tw_tls::ocsp::{Question, Reply, ResponderUrl, Status, issuers_of, responder};

use crate::certificates::certificate_file::{contents, shown, trusted};
use crate::certificates::certificate_resolver::CertificateSource;

/// Seconds before a response expires at which the next one is fetched (nginx: the same).
const AHEAD_S: u64 = 300;
/// Least seconds between two requests (nginx: the same).
const INTERVAL_MIN_S: u64 = 300;
/// Most seconds between two requests (nginx: the same).
const INTERVAL_MAX_S: u64 = 3600;

/// Directives with nothing left unset.
#[derive(Clone, Default)]
pub(crate) struct StaplingDirectives {
    pub(crate) is_on: bool,
    pub(crate) verifies: bool,
    pub(crate) file: Option<Word>,
    pub(crate) responder: Option<Word>,
}

/// OCSP stapling of one configured certificate, which may be replaced.
#[derive(Debug)]
pub struct Stapling {
    source: CertificateSource,
    /// Name of the certificate in logs.
    pub(crate) name: Box<str>,
    /// Responder instead of the one that the certificate names.
    responder: Option<String>,
    verifies: bool,
    /// Certificates beside the chain among which the issuer may be.
    others: Vec<CertificateDer<'static>>,
    slots: Arc<StapleSlots>,
    current: FatalMutex<Current>,
}

/// Current certificate, and what is fetched about it.
#[derive(Debug, Default)]
struct Current {
    certified: Option<Arc<CertifiedKey>>,
    staple: Option<Arc<Staple>>,
}

/// Request about one certificate, and the response.
#[derive(Debug)]
pub(crate) struct Staple {
    /// Content of the request.
    pub(crate) question: Question,
    /// Responder it is sent to.
    pub(crate) responder: ResponderUrl,
    /// Place of the response; equal requests share it, also those of the next generation.
    pub(crate) slot: Arc<StapleSlot>,
    identity: Identity,
    /// Certificate with the response, and the number of that.
    stapled: FatalMutex<Option<(u64, Arc<CertifiedKey>)>>,
}

/// Responses to all requests, by content of the request.
#[derive(Debug, Default)]
struct StapleSlots(FatalMutex<HashMap<Vec<u8>, Weak<StapleSlot>>>);

/// Latest response about a certificate.
#[derive(Debug, Default)]
pub(crate) struct StapleSlot {
    response: FatalMutex<Option<Response>>,
    /// Time of the next request, in seconds since 1970.
    due: AtomicU64,
}

#[derive(Debug)]
struct Response {
    der: Vec<u8>,
    /// Expiry in seconds since 1970; never, if the response names none.
    until: Option<u64>,
    /// Number of the response in its slot, from 1.
    number: u64,
}

impl StapleSlots {
    /// Slot of a request; equal keys share one.
    fn slot(&self, key: Vec<u8>) -> Arc<StapleSlot> {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.get(&key).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::<StapleSlot>::default();
        slots.insert(key, Arc::downgrade(&slot));
        slot
    }
}

impl StapleSlot {
    /// Returns the permit to fetch a response, if it is due and no other task has the permit.
    pub(crate) fn try_fetch(&self, now: u64) -> Option<FetchPermit<'_>> {
        let due = self.due.load(Relaxed);
        let is_ours =
            due <= now && self.due.compare_exchange(due, now + INTERVAL_MIN_S, Relaxed, Relaxed).is_ok();
        is_ours.then_some(FetchPermit { slot: self, due })
    }
}

/// Permit to fetch a response. Dropping it lets the next task fetch at once.
#[must_use]
pub(crate) struct FetchPermit<'a> {
    slot: &'a StapleSlot,
    due: u64,
}

impl FetchPermit<'_> {
    /// Ends the attempt, successful or not: the next one begins when it is due.
    pub(crate) fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for FetchPermit<'_> {
    fn drop(&mut self) {
        self.slot.due.store(self.due, Relaxed);
    }
}

impl Staple {
    /// Certificate with its response for handshakes at `now`; `None` without an unexpired response.
    fn stapled(&self, now: u64) -> Option<Arc<CertifiedKey>> {
        let response = self.slot.response.lock();
        let response = response
            .as_ref()
            .filter(|known_response| known_response.until.is_none_or(|until| now < until))?;
        let mut stapled = self.stapled.lock();
        let row = stapled.as_ref().filter(|(number, _)| *number == response.number);
        if let Some((_, certified)) = row {
            return Some(certified.clone());
        }
        let certified = self.identity.with_staple(Some(response.der.clone())).certified;
        *stapled = Some((response.number, certified.clone()));
        Some(certified)
    }

    /// Stores a response. The error is in words of the log; the response before stays then.
    pub(crate) fn store(&self, der: Vec<u8>, reply: Reply, now: u64) -> Result<(), String> {
        self.slot.due.store(now + INTERVAL_MIN_S, Relaxed);
        if reply.status != Status::Good {
            return Err(format!("certificate status \"{}\" in the OCSP response", reply.status));
        }
        let until = reply.until.unwrap_or(u64::MAX);
        let due = until.saturating_sub(AHEAD_S).min(now + INTERVAL_MAX_S).max(now + INTERVAL_MIN_S);
        let mut response = self.slot.response.lock();
        let number = response.as_ref().map_or(0, |known_response| known_response.number) + 1;
        *response = Some(Response { der, until: reply.until, number });
        self.slot.due.store(due, Relaxed);
        Ok(())
    }
}

impl Stapling {
    /// Stapling of the certificate that is written at `at`. A warning says so if there is no responder for it.
    pub(crate) fn new<P: Protocol>(
        stapling_directives: &StaplingDirectives,
        source: CertificateSource,
        at: &Word,
        trusted_file: Option<&Word>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        let responder = stapling_directives.responder.as_ref().map(|word| word.lossy().into_owned());
        let others = match trusted_file {
            Some(file) => trusted(file, cx)?,
            None => Vec::new(),
        };
        // The next generation keeps the responses to equal requests.
        let slots = cx.keep(b"staples", |_| true, StapleSlots::default);
        let mut this = Self {
            source,
            name: shown(at, cx).into(),
            responder,
            verifies: stapling_directives.verifies,
            others,
            slots,
            current: FatalMutex::default(),
        };
        if let Err(why) = this.refresh() {
            cx.warn(at.span, format!("\"ssl_stapling\" ignored, {why} certificate \"{}\"", this.name));
        }
        if matches!(this.source, CertificateSource::Fixed(_)) {
            // No other issuer is searched for. All authorities of a system are a lot of memory.
            this.others = Vec::new();
        }
        Ok(this)
    }

    /// True if there never is anything to fetch.
    pub(crate) fn is_useless(&self) -> bool {
        matches!(self.source, CertificateSource::Fixed(_)) && self.current.lock().staple.is_none()
    }

    /// True if both always have the same certificate and the same request.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if !matches!(
            (&self.source, &other.source),
            (CertificateSource::Fixed(_), CertificateSource::Fixed(_))
        ) {
            return false;
        }
        let slot =
            |stapling: &Self| stapling.current.lock().staple.as_ref().map(|staple| staple.slot.clone());
        match (slot(self), slot(other)) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one, &other),
            _ => false,
        }
    }

    /// Returns what is to be fetched about the current certificate. The error is returned once for each certificate: the reason
    /// why nothing can be fetched, in words that go on with `certificate`. Only one task may call it.
    pub(crate) fn refresh(&self) -> Result<Option<Arc<Staple>>, String> {
        // No authority knows a temporary certificate.
        let Some(identity) = self.source.issued() else { return Ok(None) };
        let current = self.current.lock();
        if current
            .certified
            .as_ref()
            .is_some_and(|certified_key| Arc::ptr_eq(certified_key, &identity.certified))
        {
            return Ok(current.staple.clone());
        }
        drop(current);
        let certified = Some(identity.certified.clone());
        let (staple, outcome) = match self.staple(identity) {
            Ok(staple) => (Some(Arc::new(staple)), Ok(())),
            Err(why) => (None, Err(why)),
        };
        *self.current.lock() = Current { certified, staple: staple.clone() };
        outcome.map(|()| staple)
    }

    fn staple(&self, identity: Identity) -> Result<Staple, String> {
        let not_found = || "issuer certificate not found for".to_owned();
        let chain = &identity.certified.cert;
        let leaf = chain.first().ok_or_else(not_found)?;
        let all: Vec<&[u8]> = chain.iter().chain(&self.others).map(|der| &**der).collect();
        let mut issuers = issuers_of(leaf, &all);
        // DIFF(nginx): without it a response is verified, too; it may be signed by an authority above the issuer.
        if self.verifies {
            issuers.truncate(1);
        }
        let question = Question::new(leaf, &issuers).ok_or_else(not_found)?;
        let named = || responder(leaf).ok_or("no OCSP responder URL in the");
        let url = self.responder.clone().map_or_else(named, Ok)?;
        let responder = ResponderUrl::parse(&url)
            .ok_or_else(|| format!("invalid URL \"{url}\" of the OCSP responder for"))?;
        let terms = format!("{responder} {} ", self.verifies);
        let slot = self.slots.slot([terms.as_bytes(), &question.der(), leaf].concat());
        Ok(Staple { question, responder, slot, identity, stapled: FatalMutex::default() })
    }

    /// Certificate with its response at `now`; `None` if it is not the current one, or there is no unexpired response.
    pub(crate) fn stapled(&self, identity: &Identity, now: u64) -> Option<Arc<CertifiedKey>> {
        let current = self.current.lock();
        let is_same = |certified_key: &Arc<CertifiedKey>| Arc::ptr_eq(certified_key, &identity.certified);
        let staple = current.staple.as_ref().filter(|_| current.certified.as_ref().is_some_and(is_same))?;
        staple.stapled(now)
    }
}

/// Content of `ssl_stapling_file`, if there is one.
pub(crate) fn of_file<P: Protocol>(
    stapling_directives: &StaplingDirectives,
    cx: &Resolve<'_, P>,
) -> Result<Option<Vec<u8>>, ConfError> {
    match stapling_directives.file.as_ref().filter(|_| stapling_directives.is_on) {
        Some(file) => Ok(Some(contents(file, "OCSP response", cx)?.to_vec())),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::tls::{Authority, Certificate};
    use tw_tls::{Key, Passwords, chain};

    use crate::certificates::watched_certificate::{CertificateFiles, WatchedCertificate};

    fn identity(authority: &Authority, made: &Certificate) -> Identity {
        let key = Key::read(made.key.as_bytes(), &Passwords::default()).unwrap();
        let certs = chain((made.pem.clone() + &authority.pem()).as_bytes()).unwrap();
        Identity::new(certs, key).unwrap()
    }

    fn stapling(source: CertificateSource) -> Stapling {
        Stapling {
            source,
            name: "one.crt".into(),
            responder: None,
            verifies: false,
            others: Vec::new(),
            slots: Arc::default(),
            current: FatalMutex::default(),
        }
    }

    fn reply(status: Status, until: Option<u64>) -> Reply {
        Reply { status, until }
    }

    #[test]
    fn response_is_stapled_until_it_expires() {
        let authority = Authority::new();
        let identity = identity(&authority, &authority.certify_with_responder(&["localhost"], "http://a/"));
        let stapling = stapling(CertificateSource::Fixed(identity.clone()));
        let staple = stapling.refresh().unwrap().unwrap();
        let now = 1_000_000;
        let due = || staple.slot.due.load(Relaxed);
        let permit = staple.slot.try_fetch(now);
        assert!(permit.is_some() && staple.slot.try_fetch(now).is_none(), "there is one permit");
        drop(permit);
        let permit = staple.slot.try_fetch(now).expect("a dropped permit is available at once");
        permit.finish();
        assert!(staple.slot.try_fetch(now).is_none());
        assert_eq!(
            staple.store(vec![1], reply(Status::Revoked, None), now).unwrap_err(),
            "certificate status \"revoked\" in the OCSP response"
        );
        assert!(stapling.stapled(&identity, now).is_none() && due() == now + 300);
        for (until, expected) in [
            (Some(now + 1000), now + 700),
            (Some(now + 100), now + 300),
            (Some(now + 86_400), now + 3600),
            (None, now + 3600),
        ] {
            staple.store(vec![2], reply(Status::Good, until), now).unwrap();
            assert_eq!(due(), expected);
            assert_eq!(stapling.stapled(&identity, now).unwrap().ocsp, Some(vec![2]));
        }
        staple.store(vec![3], reply(Status::Good, Some(now + 1000)), now).unwrap();
        assert!(staple.slot.try_fetch(now + 699).is_none() && staple.slot.try_fetch(now + 700).is_some());
        assert_eq!(stapling.stapled(&identity, now + 999).unwrap().ocsp, Some(vec![3]));
        assert!(stapling.stapled(&identity, now + 1000).is_none());
        assert_eq!(due(), now + 700, "nothing was fetched");
    }

    #[test]
    fn replaced_certificate_gets_its_own_response() {
        let authority = Authority::new();
        let of = |url: &str| identity(&authority, &authority.certify_with_responder(&["localhost"], url));
        let (one, two) = (of("http://a/"), of("http://b/"));
        let bare = identity(&authority, &authority.certify(&["localhost"]));
        let watched = Arc::new(WatchedCertificate::new(CertificateFiles::named("a", "b"), one.clone()));
        let stapling = stapling(CertificateSource::Watched(watched.clone()));
        let first = stapling.refresh().unwrap().unwrap();
        first.store(vec![1], reply(Status::Good, None), 5).unwrap();
        assert!(stapling.stapled(&one, 6).is_some());
        assert!(Arc::ptr_eq(&stapling.refresh().unwrap().unwrap(), &first));
        watched.replace(two.clone());
        assert!(stapling.stapled(&two, 6).is_none(), "the response about the other is not stapled");
        let second = stapling.refresh().unwrap().unwrap();
        assert_eq!(second.responder.to_string(), "http://b/");
        second.store(vec![2], reply(Status::Good, None), 6).unwrap();
        assert_eq!(stapling.stapled(&two, 6).unwrap().ocsp, Some(vec![2]));
        assert!(stapling.stapled(&one, 6).is_none());
        watched.replace(bare);
        assert_eq!(stapling.refresh().unwrap_err(), "no OCSP responder URL in the");
        assert!(stapling.refresh().unwrap().is_none(), "the error is returned once");
        // The response about the first is known as long as its slot is in use.
        watched.replace(one.clone());
        assert!(Arc::ptr_eq(&stapling.refresh().unwrap().unwrap().slot, &first.slot));
        assert_eq!(stapling.stapled(&one, 6).unwrap().ocsp, Some(vec![1]));
    }
}
