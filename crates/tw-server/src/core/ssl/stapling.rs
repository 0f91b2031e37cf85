//! What authorities say of a server's certificates, shown in handshakes with them (`ssl_stapling`): from a file, or asked for
//! beside the loops and asked for again in time.
//!
//! ```text
//! configuration ─► Staple: question, responder ─┐
//!                                               ├─► keep (http/staples): asks when it is due ─► shown in handshakes
//! generation before ─► Slot: what was said ─────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustls::sign::CertifiedKey;
use tw_base::Whole;
use tw_conf::{ConfError, Span, Word};
use tw_tls::Identity;
use tw_tls::ocsp::{Question, Reply, Status, issuers_of, responder};

use super::common::{contents, shown, trusted};
use crate::http::gateway::inquiry::Url;
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

/// What is asked about one certificate.
#[derive(Debug)]
pub(crate) struct Staple {
    /// What is asked.
    pub(crate) question: Question,
    /// Who is asked.
    pub(crate) responder: Url,
    /// What was said; generations share it.
    pub(crate) slot: Arc<Slot>,
    identity: Identity,
    /// How the certificate is called in logs.
    pub(crate) name: Box<str>,
}

/// What an authority has said of a certificate.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    said: Whole<Option<Said>>,
    /// When to ask, in seconds since 1970.
    due: AtomicU64,
}

#[derive(Debug)]
struct Said {
    /// With the response.
    certified: Arc<CertifiedKey>,
    /// In seconds since 1970; for good, if nothing is said.
    until: Option<u64>,
}

impl Slot {
    /// When to ask next, in seconds since 1970.
    pub(crate) fn due(&self) -> u64 {
        self.due.load(Relaxed)
    }

    /// Nothing was learnt: what is known stays until it ends.
    pub(crate) fn failed(&self, now: u64) {
        self.due.store(now + SOONEST_S, Relaxed);
    }
}

impl Staple {
    /// What to show in handshakes at `now`, if the authority has said something that holds.
    pub(super) fn current(&self, now: u64) -> Option<Arc<CertifiedKey>> {
        let said = self.slot.said.lock();
        let said = said.as_ref().filter(|said| said.until.is_none_or(|until| now < until))?;
        Some(said.certified.clone())
    }

    /// Takes over what was said. The error is in words of the log; what is known then stays.
    pub(crate) fn take(&self, response: Vec<u8>, reply: Reply, now: u64) -> Result<(), String> {
        self.slot.failed(now);
        if reply.status != Status::Good {
            return Err(format!("certificate status \"{}\" in the OCSP response", reply.status));
        }
        let until = reply.until.unwrap_or(u64::MAX);
        let due = until.saturating_sub(AHEAD_S).min(now + LATEST_S).max(now + SOONEST_S);
        let certified = self.identity.with_staple(Some(response)).certified;
        *self.slot.said.lock() = Some(Said { certified, until: reply.until });
        self.slot.due.store(due, Relaxed);
        Ok(())
    }
}

/// The contents of `ssl_stapling_file`, if there is one.
pub(super) fn of_file(written: &Written, cx: &Resolve<'_>) -> Result<Option<Vec<u8>>, ConfError> {
    match written.file.as_ref().filter(|_| written.is_on) {
        Some(file) => Ok(Some(contents(file, "OCSP response", cx)?.to_vec())),
        None => Ok(None),
    }
}

/// What to ask about a certificate that is written at `at`; `None` if nobody can be asked, which is told.
pub(super) fn staple(
    written: &Written,
    identity: &Identity,
    (at, trusted_file): (&Word, Option<&Word>),
    cx: &mut Resolve<'_>,
) -> Result<Option<Arc<Staple>>, ConfError> {
    let name: Box<str> = shown(at, cx).into();
    let chain = &identity.certified.cert;
    let Some(leaf) = chain.first() else { return Ok(None) };
    let others = match trusted_file {
        Some(file) => trusted(file, cx)?,
        None => Vec::new(),
    };
    let all: Vec<&[u8]> = chain.iter().chain(&others).map(|der| &**der).collect();
    let ignored = |cx: &mut Resolve<'_>, span: Span, why: &str| {
        cx.warn(span, format!("\"ssl_stapling\" ignored, {why} certificate \"{name}\""));
        Ok(None)
    };
    let mut issuers = issuers_of(leaf, &all);
    // DIFF(nginx): without it a response is verified, too; it may be signed by an authority above the issuer.
    if written.verifies {
        issuers.truncate(1);
    }
    if issuers.is_empty() {
        return ignored(cx, at.span, "issuer certificate not found for");
    }
    let url = match &written.responder {
        Some(word) => Some(word.lossy().into_owned()),
        None => responder(leaf),
    };
    let Some(url) = url else { return ignored(cx, at.span, "no OCSP responder URL in the") };
    let Some(responder) = Url::parse(&url) else {
        return ignored(cx, at.span, &format!("invalid URL \"{url}\" of the OCSP responder for"));
    };
    let Some(question) = Question::new(leaf, &issuers) else { return Ok(None) };
    // Whoever asks the same, and believes as much, gets the same answer, also after a reload.
    let asked = format!("staple {responder} {} ", written.verifies);
    let key = [asked.as_bytes(), &question.der(), leaf].concat();
    let slot = cx.keep(&key, |_| true, Slot::default);
    Ok(Some(Arc::new(Staple { question, responder, slot, identity: identity.clone(), name })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::tls::Authority;
    use tw_tls::{Key, Passwords, chain};

    #[test]
    fn what_was_said_holds_for_a_time() {
        let authority = Authority::new();
        let made = authority.certify(&["localhost"]);
        let key = Key::read(made.key.as_bytes(), &Passwords::default()).unwrap();
        let certs = chain((made.pem + &authority.pem()).as_bytes()).unwrap();
        let question = Question::new(&certs[0], &certs[1..]).unwrap();
        let identity = Identity::new(certs, key).unwrap();
        let staple = Staple {
            question,
            responder: Url::parse("http://a").unwrap(),
            slot: Arc::default(),
            identity,
            name: "one.crt".into(),
        };
        let now = 1_000_000;
        let reply = |status, until| Reply { status, until };
        assert!(staple.current(now).is_none() && staple.slot.due() == 0);
        assert_eq!(
            staple.take(vec![1], reply(Status::Revoked, None), now).unwrap_err(),
            "certificate status \"revoked\" in the OCSP response"
        );
        assert!(staple.current(now).is_none() && staple.slot.due() == now + 300);
        for (until, due) in [
            (Some(now + 1000), now + 700),
            (Some(now + 100), now + 300),
            (Some(now + 86_400), now + 3600),
            (None, now + 3600),
        ] {
            staple.take(vec![2], reply(Status::Good, until), now).unwrap();
            assert_eq!(staple.slot.due(), due);
            assert_eq!(staple.current(now).unwrap().ocsp, Some(vec![2]));
        }
        staple.take(vec![3], reply(Status::Good, Some(now + 1000)), now).unwrap();
        staple.slot.failed(now + 700);
        assert!(staple.current(now + 999).is_some() && staple.current(now + 1000).is_none());
        assert_eq!(staple.slot.due(), now + 1000);
    }
}
