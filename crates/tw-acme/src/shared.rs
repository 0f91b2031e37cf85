//! State of an issuer that the nodes of a fleet share: one of them orders, all have the certificates and answer challenges.
//!
//! ```text
//! lease.ISSUER            the node that orders
//! account.ISSUER          key of the account                              (encrypted)
//! certificate.ISSUER.ID   certificate with its chain and its key          (encrypted)
//! challenge.ISSUER.ID     answer to a challenge, and until when it counts (encrypted)
//! ```
//! Nothing is ordered without the lease. While the engine is away, an order would fail: the authority asks any node, and the others would not
//! know the answer; and each node would order for itself, until the authority refuses all of them for days. Certificates are renewed
//! weeks before their end, so there is time to repair an engine. For an engine that does not come back, remove "fleet" from the issuer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;
use tw_fleet::{CERTIFICATES, EngineError, Entry, Fleet, Lease, SealedStore, StoreClient, StoreWatch as _};
use tw_log::Level;
use tw_rt::time::{sleep, timeout};
use zeroize::Zeroizing;

use crate::challenge_responses::{ChallengeResponses, PostedResponse};
use crate::config::{CertificateConfig, IssuerConfig};
use crate::error::Error;
use crate::generate;
use crate::identifier::Identifier;
use crate::issued::{Issued, check};
use crate::task::now;

/// Term of the lease of an issuer. After so long without a sign of life of the node that orders, another one does.
const LEASE_TERM: Duration = Duration::from_secs(30);
/// Time between two renewals.
const LEASE_RENEWAL: Duration = Duration::from_secs(8);
/// Pause before the store is watched again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
/// Time between two looks for challenges that are over.
const PRUNE: Duration = Duration::from_secs(60);
/// Time for which the answer to a challenge counts, in seconds. An order takes half an hour at most.
const CHALLENGE_TIME: u64 = 60 * 60;
/// Longest wait until the engine has passed a challenge on to this node.
const ECHO_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for other nodes to get a challenge that this node has got from the engine.
const SPREAD_TIME: Duration = Duration::from_millis(500);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Open challenges of an issuer that a node of a fleet answers.
    const CHALLENGES_MAX: usize = 1000, count, "further ones are not answered";
}

/// Answer to a challenge as the store has it.
#[derive(Serialize, Deserialize)]
struct WrittenChallenge {
    /// Token of http-01, or name of tls-alpn-01.
    subject: String,
    /// Token and thumbprint of the account's key.
    answer: String,
    /// True for tls-alpn-01.
    tls: bool,
    /// End of its time in seconds since 1970.
    until: u64,
}

/// Answer of another node, or of this one, as it came back from the engine.
struct SharedChallenge {
    _posted: PostedResponse,
    until: u64,
    version: u64,
}

/// State of an issuer that a fleet shares.
pub(crate) struct SharedIssuer {
    store: SealedStore,
    /// Name of the issuer in keys.
    id: String,
    work: IssuerConfig,
    answers: Arc<ChallengeResponses>,
    lease: Mutex<Lease<StoreClient>>,
    log: Rc<dyn Fn(Level, std::fmt::Arguments<'_>)>,
    challenges: RefCell<HashMap<String, SharedChallenge>>,
    /// Notified when a challenge has come.
    has_challenge: Notify,
    /// Notified when a certificate has come.
    pub(crate) nudge: Rc<Notify>,
    /// True when a certificate has come since the last look.
    pub(crate) is_changed: Cell<bool>,
}

/// Answer in the store, which is removed with this.
pub(crate) struct StoredChallenge {
    store: SealedStore,
    key: String,
    version: u64,
}

impl Drop for StoredChallenge {
    fn drop(&mut self) {
        let store = self.store.clone();
        let key = std::mem::take(&mut self.key);
        let version = self.version;
        // An answer that cannot be removed expires in the store.
        spawn_local(async move { drop(store.remove(&key, Some(version)).await) });
    }
}

/// Name of something in a key: nobody who reads the store need know it.
fn short(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn fleet_error(error: EngineError) -> Error {
    Error::Fleet(error.to_string())
}

impl SharedIssuer {
    pub(crate) fn new(
        fleet: &Arc<Fleet>,
        work: &IssuerConfig,
        answers: &Arc<ChallengeResponses>,
        nudge: &Rc<Notify>,
        log: Rc<dyn Fn(Level, std::fmt::Arguments<'_>)>,
    ) -> std::io::Result<Self> {
        let store = fleet.store(&CERTIFICATES);
        let id = short(&work.issuer.name);
        let node = &fleet.settings().node;
        let lease = Lease::new(store.clone(), &format!("lease.{id}"), node, LEASE_TERM)?;
        Ok(Self {
            store: SealedStore::new(store, &CERTIFICATES),
            id,
            work: work.clone(),
            answers: answers.clone(),
            lease: Mutex::new(lease),
            log,
            challenges: RefCell::default(),
            has_challenge: Notify::new(),
            nudge: nudge.clone(),
            is_changed: Cell::new(false),
        })
    }

    fn certificate_key(&self, certificate: &CertificateConfig) -> String {
        format!("certificate.{}.{}", self.id, short(&certificate.id()))
    }

    fn fleet(&self) -> &Arc<Fleet> {
        self.store.store().fleet()
    }

    /// Follows the store: certificates and challenges of other nodes.
    pub(crate) async fn follow(self: Rc<Self>) {
        loop {
            // The fleet reports why there is no connection.
            let _ = self.follow_once().await;
            sleep(WATCH_AGAIN).await;
        }
    }

    async fn follow_once(&self) -> Result<(), EngineError> {
        let mut watch = self.store.watch().await?;
        loop {
            match timeout(PRUNE, watch.next()).await {
                Ok(changes) => changes?.entries.into_iter().for_each(|entry| self.take_entry(entry)),
                Err(_) => self.prune().await,
            }
        }
    }

    fn take_entry(&self, entry: Entry) {
        let mut parts = entry.key.split('.');
        let kind = parts.next();
        let issuer = parts.next();
        let name = parts.next();
        if issuer != Some(&*self.id) {
            return;
        }
        let result = match (kind, name) {
            (Some("certificate"), Some(name)) => {
                let certificate =
                    self.work.certificates.iter().find(|certificate| short(&certificate.id()) == name);
                match certificate {
                    Some(certificate) => self.take_certificate(certificate, entry),
                    None => Ok(()),
                }
            }
            (Some("challenge"), Some(_)) => self.take_challenge(entry),
            (Some("lease"), None) => {
                let holder = entry.value.as_deref().and_then(tw_fleet::lease_holder);
                self.fleet().set_lease_holder(&format!("certificates {}", self.work.issuer.name), holder);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            let issuer = &self.work.issuer.name;
            let fleet = &self.fleet().settings().name;
            (self.log)(
                Level::Error,
                format_args!(
                    "acme: a value of issuer \"{issuer}\" in the store of fleet \"{fleet}\" is not used: {error}"
                ),
            );
        }
    }

    fn take_certificate(&self, certificate: &CertificateConfig, entry: Entry) -> Result<(), Error> {
        let opened = self.store.open(entry).map_err(|error| Error::Fleet(error.to_string()))?;
        match opened.value {
            Some(value) => self.take_over(certificate, &value).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Uses a certificate of another node, unless the one in use is newer. Returns true if it is in use then.
    fn take_over(&self, certificate: &CertificateConfig, value: &[u8]) -> Result<bool, Error> {
        let text = str::from_utf8(value).map_err(|_| Error::Fleet("it is no text".to_owned()))?;
        let issued = Issued::of_file(text)?;
        let leaf = issued.leaf().ok_or_else(|| Error::Fleet("it has no certificate".to_owned()))?;
        check(leaf, &certificate.identifiers, now())?;
        if let Some(known_issued) = certificate.slot.issued() {
            if *known_issued.file == *issued.file {
                return Ok(true);
            }
            // An engine that went back may have an older one.
            if known_issued.validity().0 > issued.validity().0 && known_issued.validity().1 > now() {
                return Ok(false);
            }
        }
        certificate.slot.set(issued);
        self.is_changed.set(true);
        self.nudge.notify_one();
        Ok(true)
    }

    fn take_challenge(&self, entry: Entry) -> Result<(), Error> {
        let key = entry.key.clone();
        let version = entry.version;
        let opened = self.store.open(entry).map_err(|error| Error::Fleet(error.to_string()))?;
        let Some(value) = opened.value else {
            self.challenges.borrow_mut().remove(&key);
            return Ok(());
        };
        let challenge: WrittenChallenge =
            serde_json::from_slice(&value).map_err(|_| Error::Fleet("it is no challenge".to_owned()))?;
        if challenge.until <= now() || self.challenges.borrow().len() >= CHALLENGES_MAX {
            return Ok(());
        }
        // The guard of one before would remove the answer of this one.
        let before = self.challenges.borrow_mut().remove(&key);
        drop(before);
        let posted = post(&challenge, &self.answers)?;
        let until = challenge.until.min(now() + CHALLENGE_TIME);
        let shared = SharedChallenge { _posted: posted, until, version };
        self.challenges.borrow_mut().insert(key, shared);
        self.has_challenge.notify_waiters();
        Ok(())
    }

    /// Ends challenges whose time is over, also in the store.
    async fn prune(&self) {
        let over: Vec<_> = {
            let mut challenges = self.challenges.borrow_mut();
            challenges.extract_if(|_, challenge| challenge.until <= now()).collect()
        };
        for (key, challenge) in over {
            // Another node may have removed the challenge.
            let _ = self.store.remove(&key, Some(challenge.version)).await;
        }
    }

    /// Takes or renews the right to order.
    ///
    /// # Errors
    /// [`Error::Elsewhere`] if another node has it, [`Error::Fleet`] without the engine.
    pub(crate) async fn attempt(&self) -> Result<(), Error> {
        let mut lease = self.lease.lock().await;
        match lease.attempt().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Elsewhere(lease.other().unwrap_or("another node").to_owned())),
            Err(_) if lease.is_held() => Ok(()),
            Err(error) => Err(fleet_error(error)),
        }
    }

    /// Gives the right back.
    pub(crate) async fn release(&self) {
        let mut lease = self.lease.lock().await;
        if lease.is_held() {
            // If it cannot be released, the lease expires.
            let _ = lease.release().await;
        }
    }

    /// Runs an order for as long as the lease is held.
    ///
    /// # Errors
    /// Fails as the order does; an order whose lease is lost is given up.
    pub(crate) async fn while_held<T>(
        &self,
        order: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let renewing = async {
            loop {
                sleep(LEASE_RENEWAL).await;
                if let Err(error) = self.attempt().await {
                    return error;
                }
            }
        };
        let mut order = std::pin::pin!(order);
        let mut renewing = std::pin::pin!(renewing);
        std::future::poll_fn(|cx| match order.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => std::task::Poll::Ready(done),
            std::task::Poll::Pending => renewing.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// Takes over the certificate of the store if it is at least as new as the one in use; otherwise stores the one in use.
    ///
    /// # Errors
    /// [`Error::Fleet`] if the store can neither be read nor written, or has what cannot be opened.
    pub(crate) async fn exchange(&self, certificate: &CertificateConfig) -> Result<(), Error> {
        let key = self.certificate_key(certificate);
        let stored = self.store.get(&key).await.map_err(fleet_error)?;
        if let Some(value) = &stored.value {
            // A stored certificate that cannot be used is replaced.
            let is_used = self.take_over(certificate, value).unwrap_or(false);
            if is_used && !stored.is_outdated {
                return Ok(());
            }
        }
        let Some(issued) = certificate.slot.issued() else { return Ok(()) };
        if issued.validity().1 <= now() {
            return Ok(());
        }
        self.store
            .set(&key, issued.file.as_bytes(), Some(stored.version))
            .await
            .map(|_| ())
            .map_err(fleet_error)
    }

    /// Key of the account that all nodes share, in PEM. Without one in the store, `make` has it.
    ///
    /// # Errors
    /// [`Error::Fleet`] if the store can neither be read nor written, and those of `make`.
    pub(crate) async fn account(
        &self,
        make: impl FnOnce() -> Result<Zeroizing<String>, Error>,
    ) -> Result<Zeroizing<String>, Error> {
        let key = format!("account.{}", self.id);
        let stored = self.store.get(&key).await.map_err(fleet_error)?;
        let text = match stored.value {
            Some(value) => Zeroizing::new(
                str::from_utf8(&value)
                    .map_err(|_| Error::Fleet("the account key in the store is no text".to_owned()))?
                    .to_owned(),
            ),
            None => make()?,
        };
        if stored.version == 0 || stored.is_outdated {
            // The key is stored first, because an account without its key is useless.
            self.store.set(&key, text.as_bytes(), Some(stored.version)).await.map_err(fleet_error)?;
        }
        Ok(text)
    }

    /// Gives all nodes the answer to a challenge, and waits until they should have it.
    ///
    /// # Errors
    /// [`Error::Fleet`] if the store does not take it.
    pub(crate) async fn share_challenge(
        &self,
        subject: &str,
        answer: &str,
        tls: bool,
    ) -> Result<StoredChallenge, Error> {
        let challenge = WrittenChallenge {
            subject: subject.to_owned(),
            answer: answer.to_owned(),
            tls,
            until: now() + CHALLENGE_TIME,
        };
        let text = serde_json::to_vec(&challenge).unwrap_or_default();
        let key = format!("challenge.{}.{}", self.id, short(&format!("{tls} {subject} {answer}")));
        let version = self.store.set(&key, &text, None).await.map_err(fleet_error)?;
        let stored = StoredChallenge { store: self.store.clone(), key, version };
        let deadline = Instant::now() + ECHO_TIME_MAX;
        loop {
            let has_come = self.has_challenge.notified();
            let is_there = self
                .challenges
                .borrow()
                .get(&stored.key)
                .is_some_and(|challenge| challenge.version >= version);
            if is_there {
                break;
            }
            if tw_rt::time::timeout_at(deadline, has_come).await.is_err() {
                return Err(Error::Fleet("the engine does not pass a challenge on".to_owned()));
            }
        }
        sleep(SPREAD_TIME).await;
        Ok(stored)
    }
}

/// Answers a challenge from now on, as long as the guard is held.
fn post(challenge: &WrittenChallenge, answers: &Arc<ChallengeResponses>) -> Result<PostedResponse, Error> {
    let WrittenChallenge { subject, answer, tls, .. } = challenge;
    if !*tls {
        return Ok(answers.post_http(subject, answer.clone()));
    }
    let mut identifiers = Vec::new();
    Identifier::add(subject, &mut identifiers).map_err(|error| Error::Fleet(error.to_string()))?;
    let identifier = identifiers.first().ok_or_else(|| Error::Fleet("it has no name".to_owned()))?;
    let config = generate::for_challenge(identifier, &generate::challenge_digest(answer))?;
    Ok(answers.post_tls(&identifier.name_in_hello(), config))
}
