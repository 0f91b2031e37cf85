//! What authorities say of a server's certificates, shown in handshakes with them (`ssl_stapling`): from a file, or asked for
//! beside the loops and asked for again in time.
//!
//! ```text
//! certificate of now ─► Stapling ─► Staple: question, responder ─┐
//!                                                                ├─► keep (http/ocsp_stapling): asks when it is due ─► handshakes
//! generation before ─► Known ─► Slot: what was said ─────────────┘
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use tw_base::FatalMutex;
use tw_conf::{ConfError, Word};
use tw_tls::Identity;
use tw_tls::ocsp::{Question, Reply, Status, issuers_of, responder};

use super::common::{contents, shown, trusted};
use super::material::Source;
use crate::http::proxy::ocsp_client::OcspUrl;
use crate::load::Resolve;

/// After an answer it is asked again so much before that ends, but neither sooner nor later than these (nginx: the same).
const AHEAD_S: u64 = 300;
const SOONEST_S: u64 = 300;
const LATEST_S: u64 = 3600;

/// The directives as written, with nothing left unset.
#[derive(Clone, Default)]
pub(super) struct Written {
    pub(super) is_on: bool,
    pub(super) verifies: bool,
    pub(super) file: Option<Word>,
    pub(super) responder: Option<Word>,
}

/// What is asked about the certificate of one place, as that changes.
#[derive(Debug)]
pub(crate) struct Stapling {
    source: Source,
    /// How the certificate is called in logs.
    pub(crate) name: Box<str>,
    /// Who is asked instead of whom the certificate names.
    responder: Option<String>,
    verifies: bool,
    /// Where the issuer may be, beside the chain.
    others: Vec<CertificateDer<'static>>,
    known: Arc<Known>,
    current: FatalMutex<Current>,
}

/// The certificate of now, and what is asked about it.
#[derive(Debug, Default)]
struct Current {
    about: Option<Arc<CertifiedKey>>,
    staple: Option<Arc<Staple>>,
}

/// What is asked about one certificate.
#[derive(Debug)]
pub(crate) struct Staple {
    /// What is asked.
    pub(crate) question: Question,
    /// Who is asked.
    pub(crate) responder: OcspUrl,
    /// What was said; whoever asks the same shares it, also the next generation.
    pub(crate) slot: Arc<Slot>,
    identity: Identity,
    /// With what was said, by its number.
    stapled: FatalMutex<Option<(u64, Arc<CertifiedKey>)>>,
}

/// What was said to all that is asked, by what that is.
#[derive(Debug, Default)]
struct Known(FatalMutex<HashMap<Vec<u8>, Weak<Slot>>>);

/// What an authority has said of a certificate.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    said: FatalMutex<Option<Said>>,
    /// When to ask, in seconds since 1970.
    due: AtomicU64,
}

#[derive(Debug)]
struct Said {
    response: Vec<u8>,
    /// In seconds since 1970; for good, if nothing is said.
    until: Option<u64>,
    /// From 1, of this slot.
    number: u64,
}

impl Known {
    /// Whoever asks the same, and believes as much, gets the same answer.
    fn slot(&self, asked: Vec<u8>) -> Arc<Slot> {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.get(&asked).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::<Slot>::default();
        slots.insert(asked, Arc::downgrade(&slot));
        slot
    }
}

impl Slot {
    /// The permit to ask, if it is due and nobody asks yet.
    pub(crate) fn claim(&self, now: u64) -> Option<Claim<'_>> {
        let due = self.due.load(Relaxed);
        let is_ours = due <= now && self.due.compare_exchange(due, now + SOONEST_S, Relaxed, Relaxed).is_ok();
        is_ours.then_some(Claim { slot: self, due })
    }
}

/// The permit to ask. Who gives it up before an answer leaves it to the next one, who asks at once.
#[must_use]
pub(crate) struct Claim<'a> {
    slot: &'a Slot,
    due: u64,
}

impl Claim<'_> {
    /// There is an answer, or there is none to be had now: what is known stays until it ends.
    pub(crate) fn settle(self) {
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.slot.due.store(self.due, Relaxed);
    }
}

impl Staple {
    /// What to show in handshakes at `now`, if the authority has said something that holds.
    fn stapled(&self, now: u64) -> Option<Arc<CertifiedKey>> {
        let said = self.slot.said.lock();
        let said = said.as_ref().filter(|said| said.until.is_none_or(|until| now < until))?;
        let mut stapled = self.stapled.lock();
        let known = stapled.as_ref().filter(|(number, _)| *number == said.number);
        if let Some((_, certified)) = known {
            return Some(certified.clone());
        }
        let certified = self.identity.with_staple(Some(said.response.clone())).certified;
        *stapled = Some((said.number, certified.clone()));
        Some(certified)
    }

    /// Takes over what was said. The error is in words of the log; what is known then stays.
    pub(crate) fn take(&self, response: Vec<u8>, reply: Reply, now: u64) -> Result<(), String> {
        self.slot.due.store(now + SOONEST_S, Relaxed);
        if reply.status != Status::Good {
            return Err(format!("certificate status \"{}\" in the OCSP response", reply.status));
        }
        let until = reply.until.unwrap_or(u64::MAX);
        let due = until.saturating_sub(AHEAD_S).min(now + LATEST_S).max(now + SOONEST_S);
        let mut said = self.slot.said.lock();
        let number = said.as_ref().map_or(0, |said| said.number) + 1;
        *said = Some(Said { response, until: reply.until, number });
        self.slot.due.store(due, Relaxed);
        Ok(())
    }
}

impl Stapling {
    /// Of the certificate that is written at `at`. That nobody can be asked about it is told.
    pub(super) fn new(
        written: &Written,
        source: Source,
        (at, trusted_file): (&Word, Option<&Word>),
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let responder = written.responder.as_ref().map(|word| word.lossy().into_owned());
        let others = match trusted_file {
            Some(file) => trusted(file, cx)?,
            None => Vec::new(),
        };
        // The next generation knows what was said, if it asks the same.
        let known = cx.keep(b"staples", |_| true, Known::default);
        let mut this = Self {
            source,
            name: shown(at, cx).into(),
            responder,
            verifies: written.verifies,
            others,
            known,
            current: FatalMutex::default(),
        };
        if let Err(why) = this.follow() {
            cx.warn(at.span, format!("\"ssl_stapling\" ignored, {why} certificate \"{}\"", this.name));
        }
        if matches!(this.source, Source::Fixed(_)) {
            // Nothing is looked for again. All that a system trusts is a lot of memory.
            this.others = Vec::new();
        }
        Ok(this)
    }

    /// Whether there never is anything to ask.
    pub(super) fn is_vain(&self) -> bool {
        matches!(self.source, Source::Fixed(_)) && self.current.lock().staple.is_none()
    }

    /// Whether another place has the same certificate for good, and asks the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if !matches!((&self.source, &other.source), (Source::Fixed(_), Source::Fixed(_))) {
            return false;
        }
        let slot =
            |stapling: &Self| stapling.current.lock().staple.as_ref().map(|staple| staple.slot.clone());
        match (slot(self), slot(other)) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one, &other),
            _ => false,
        }
    }

    /// What is asked about the certificate of now. Once for each certificate, the error tells why nobody can be asked about it,
    /// in words that go on with `certificate`. For who asks: not to be called at the same time.
    pub(crate) fn follow(&self) -> Result<Option<Arc<Staple>>, String> {
        // One that nobody issued is nobody's to vouch for.
        let Some(identity) = self.source.issued() else { return Ok(None) };
        let current = self.current.lock();
        if current.about.as_ref().is_some_and(|about| Arc::ptr_eq(about, &identity.certified)) {
            return Ok(current.staple.clone());
        }
        drop(current);
        let about = Some(identity.certified.clone());
        let (staple, said) = match self.staple(identity) {
            Ok(staple) => (Some(Arc::new(staple)), Ok(())),
            Err(why) => (None, Err(why)),
        };
        *self.current.lock() = Current { about, staple: staple.clone() };
        said.map(|()| staple)
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
        let responder =
            OcspUrl::parse(&url).ok_or_else(|| format!("invalid URL \"{url}\" of the OCSP responder for"))?;
        let asked = format!("{responder} {} ", self.verifies);
        let slot = self.known.slot([asked.as_bytes(), &question.der(), leaf].concat());
        Ok(Staple { question, responder, slot, identity, stapled: FatalMutex::default() })
    }

    /// What to show at `now` with a certificate, if it is that of now, and its authority has said something that holds.
    pub(super) fn stapled(&self, identity: &Identity, now: u64) -> Option<Arc<CertifiedKey>> {
        let current = self.current.lock();
        let is_about = |about: &Arc<CertifiedKey>| Arc::ptr_eq(about, &identity.certified);
        let staple = current.staple.as_ref().filter(|_| current.about.as_ref().is_some_and(is_about))?;
        staple.stapled(now)
    }
}

/// The contents of `ssl_stapling_file`, if there is one.
pub(super) fn of_file(written: &Written, cx: &Resolve<'_>) -> Result<Option<Vec<u8>>, ConfError> {
    match written.file.as_ref().filter(|_| written.is_on) {
        Some(file) => Ok(Some(contents(file, "OCSP response", cx)?.to_vec())),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::tls::{Authority, Certificate};
    use tw_tls::{Key, Passwords, chain};

    use crate::config::ssl::watched::{Pair, Watched};

    fn identity(authority: &Authority, made: &Certificate) -> Identity {
        let key = Key::read(made.key.as_bytes(), &Passwords::default()).unwrap();
        let certs = chain((made.pem.clone() + &authority.pem()).as_bytes()).unwrap();
        Identity::new(certs, key).unwrap()
    }

    fn stapling(source: Source) -> Stapling {
        Stapling {
            source,
            name: "one.crt".into(),
            responder: None,
            verifies: false,
            others: Vec::new(),
            known: Arc::default(),
            current: FatalMutex::default(),
        }
    }

    fn reply(status: Status, until: Option<u64>) -> Reply {
        Reply { status, until }
    }

    #[test]
    fn what_was_said_holds_for_a_time() {
        let authority = Authority::new();
        let identity = identity(&authority, &authority.certify_with_responder(&["localhost"], "http://a/"));
        let stapling = stapling(Source::Fixed(identity.clone()));
        let staple = stapling.follow().unwrap().unwrap();
        let now = 1_000_000;
        let due = || staple.slot.due.load(Relaxed);
        let claim = staple.slot.claim(now);
        assert!(claim.is_some() && staple.slot.claim(now).is_none(), "one asks");
        drop(claim);
        let claim = staple.slot.claim(now).expect("who gives up lets the next one ask at once");
        claim.settle();
        assert!(staple.slot.claim(now).is_none());
        assert_eq!(
            staple.take(vec![1], reply(Status::Revoked, None), now).unwrap_err(),
            "certificate status \"revoked\" in the OCSP response"
        );
        assert!(stapling.stapled(&identity, now).is_none() && due() == now + 300);
        for (until, expected) in [
            (Some(now + 1000), now + 700),
            (Some(now + 100), now + 300),
            (Some(now + 86_400), now + 3600),
            (None, now + 3600),
        ] {
            staple.take(vec![2], reply(Status::Good, until), now).unwrap();
            assert_eq!(due(), expected);
            assert_eq!(stapling.stapled(&identity, now).unwrap().ocsp, Some(vec![2]));
        }
        staple.take(vec![3], reply(Status::Good, Some(now + 1000)), now).unwrap();
        assert!(staple.slot.claim(now + 699).is_none() && staple.slot.claim(now + 700).is_some());
        assert_eq!(stapling.stapled(&identity, now + 999).unwrap().ocsp, Some(vec![3]));
        assert!(stapling.stapled(&identity, now + 1000).is_none());
        assert_eq!(due(), now + 700, "nobody has asked");
    }

    #[test]
    fn a_certificate_that_changes_is_asked_about_anew() {
        let authority = Authority::new();
        let of = |url: &str| identity(&authority, &authority.certify_with_responder(&["localhost"], url));
        let (one, two) = (of("http://a/"), of("http://b/"));
        let bare = identity(&authority, &authority.certify(&["localhost"]));
        let watched = Arc::new(Watched::new(Pair::named("a", "b"), one.clone()));
        let stapling = stapling(Source::Watched(watched.clone()));
        let first = stapling.follow().unwrap().unwrap();
        first.take(vec![1], reply(Status::Good, None), 5).unwrap();
        assert!(stapling.stapled(&one, 6).is_some());
        assert!(Arc::ptr_eq(&stapling.follow().unwrap().unwrap(), &first));
        watched.replace(two.clone());
        assert!(stapling.stapled(&two, 6).is_none(), "what was said of the other is not shown with it");
        let second = stapling.follow().unwrap().unwrap();
        assert_eq!(second.responder.to_string(), "http://b/");
        second.take(vec![2], reply(Status::Good, None), 6).unwrap();
        assert_eq!(stapling.stapled(&two, 6).unwrap().ocsp, Some(vec![2]));
        assert!(stapling.stapled(&one, 6).is_none());
        watched.replace(bare);
        assert_eq!(stapling.follow().unwrap_err(), "no OCSP responder URL in the");
        assert!(stapling.follow().unwrap().is_none(), "that is told once");
        // As long as anybody has it, what was said of the first is known.
        watched.replace(one.clone());
        assert!(Arc::ptr_eq(&stapling.follow().unwrap().unwrap().slot, &first.slot));
        assert_eq!(stapling.stapled(&one, 6).unwrap().ocsp, Some(vec![1]));
    }
}
