//! The life of an issuer: what is kept is found, what is due is ordered, and what went wrong is tried again.
//!
//! ```text
//! wait for the lock ─► for each certificate: due? ─► ask when to replace it (ARI) ─► order ─► slot, state directory
//!        ▲  └ another process orders: what it keeps is looked at
//!        └──────────── sleep until the next is due, or the configuration is loaded anew
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tw_base::Errno;
use tw_http::date;
use tw_log::Level;
use tw_rt::time::timeout;
use zeroize::Zeroizing;

use crate::account::AccountKey;
use crate::agent::LogFn;
use crate::challenge_responses::ChallengeResponses;
use crate::client::Client;
use crate::config::{CertificateConfig, Issuer, IssuerConfig, KeySource};
use crate::error::{Error, RetryAdvice};
use crate::http_client::HttpClient;
use crate::issued::Issued;
use crate::key_type::KeyType;
use crate::order::{self, Answers};
use crate::renewal::{by_lifetime, by_window, pause, renewal_info_interval, rest_after};
use crate::shared::SharedIssuer;
use crate::state::{Locked, State};

/// First pause before another process that orders is looked at again, because it may be about to end.
const LOOK_FIRST: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_secs(5);
/// The longest sleep: the clock of the system may be set, and a machine may have slept.
const SLEEP_MAX: Duration = Duration::from_secs(60 * 60);
/// Pause, in seconds, before a failed write to the state directory is repeated.
const KEEP_AGAIN: u64 = 10 * 60;

/// Pause, in seconds, before the store of a fleet is used again.
const SHARE_AGAIN: u64 = 5;
/// Time between two messages that the fleet is of no use.
const FLEET_REPORT: Duration = Duration::from_secs(60);

/// Keys of accounts that no directory keeps, by name of the issuer: they live as long as the process.
pub(crate) type Accounts = Rc<RefCell<HashMap<Box<str>, Zeroizing<String>>>>;

/// Task of one issuer.
pub(crate) struct Task {
    pub(crate) work: IssuerConfig,
    pub(crate) answers: Arc<ChallengeResponses>,
    pub(crate) accounts: Accounts,
    pub(crate) log: Rc<RefCell<LogFn>>,
    /// Told when the configuration was loaded anew: what failed is tried at once.
    pub(crate) nudge: Rc<Notify>,
    /// Time of the last message about the fleet.
    pub(crate) fleet_reported: Cell<Option<Instant>>,
}

/// Puts what the state directory has into the slots.
pub(crate) fn load(work: &IssuerConfig, log: &LogFn) {
    let Some(path) = &work.issuer.state else { return };
    let state = State::new(path);
    for certificate in &work.certificates {
        let found_issued = match state.certificate(&certificate.id()) {
            Ok(Some(text))
                if certificate.slot.issued().is_some_and(|known_issued| **known_issued.file == *text) =>
            {
                continue;
            }
            Ok(Some(text)) => Issued::of_file(&text),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match found_issued {
            Ok(issued) => certificate.slot.set(issued),
            Err(error) => {
                let name = certificate.name();
                let issuer = &work.issuer.name;
                let what = format_args!(
                    "acme: the kept certificate \"{name}\" of issuer \"{issuer}\" cannot be used: {error}"
                );
                log(Level::Error, what);
            }
        }
    }
}

/// A certificate, and when something is to be done about it; times are in seconds since 1970.
struct Plan {
    certificate: CertificateConfig,
    renew: u64,
    /// Time to ask the authority for its renewal window; `None` if it has none.
    info_due: Option<u64>,
    failures: u32,
    /// Not before, after failures.
    again: u64,
    /// Not replaced before, after it came.
    earliest: u64,
    /// Time to repeat a failed write.
    keep: Option<u64>,
    /// Time to bring the store of the fleet and this node to the same certificate.
    share: Option<u64>,
    /// Content of the certificate that the times are about.
    planned: Option<Arc<Zeroizing<String>>>,
}

impl Plan {
    fn new(certificate: CertificateConfig) -> Self {
        let mut plan = Self {
            certificate,
            renew: 0,
            info_due: None,
            failures: 0,
            again: 0,
            earliest: 0,
            keep: None,
            share: None,
            planned: None,
        };
        plan.follow();
        plan
    }

    /// Plans the renewal of the current certificate.
    fn follow(&mut self) {
        let issued = self.certificate.slot.issued();
        self.planned = issued.as_ref().map(|issued| issued.file.clone());
        let validity = issued.map(|issued| issued.validity());
        self.renew = validity.map_or(0, |(begin, end)| by_lifetime(begin, end, luck()));
        self.info_due = validity.map(|_| 0);
    }

    /// Plans anew if another node has replaced the certificate.
    fn follow_fleet(&mut self) {
        let file = self.certificate.slot.issued().map(|issued| issued.file);
        if file != self.planned {
            self.follow();
            (self.failures, self.again, self.keep) = (0, 0, Some(now()));
            let end = self.certificate.slot.issued().map_or(0, |issued| issued.validity().1);
            self.earliest = now() + rest_after(end.saturating_sub(now()));
        }
    }

    /// Publishes the state of the order for metrics.
    fn publish(&self) {
        self.certificate.slot.order.set(self.failures, self.renew.max(self.earliest), self.again);
    }

    fn next(&self) -> u64 {
        let renew = self.renew.max(self.earliest);
        let due = self.info_due.map_or(renew, |info_due| info_due.min(renew)).max(self.again);
        [self.keep, self.share].into_iter().flatten().fold(due, u64::min)
    }
}

impl Task {
    /// Never ends by itself.
    pub(crate) async fn run(self) {
        let shared = self.shared();
        let mut following = JoinSet::new();
        if let Some(shared) = &shared {
            following.spawn_local(shared.clone().follow());
        }
        let _lock = self.lock().await;
        // Another process may have obtained certificates while this one waited for the lock.
        load(&self.work, &self.log.borrow());
        let mut plans: Vec<_> = self.work.certificates.iter().cloned().map(Plan::new).collect();
        if shared.is_some() {
            plans.iter_mut().for_each(|plan| plan.share = Some(0));
        }
        loop {
            for plan in &mut plans {
                if shared.is_some() {
                    plan.follow_fleet();
                }
                if plan.next() <= now() {
                    self.act(plan, shared.as_deref()).await;
                }
                plan.publish();
            }
            if let Some(shared) = &shared {
                shared.release().await;
            }
            let next = plans.iter().map(Plan::next).min().unwrap_or(u64::MAX);
            let span = Duration::from_secs(next.saturating_sub(now())).min(SLEEP_MAX);
            let is_changed = || shared.as_ref().is_some_and(|shared| shared.is_changed.replace(false));
            if timeout(span, self.nudge.notified()).await.is_ok() && !is_changed() {
                plans.iter_mut().for_each(|plan| plan.again = 0);
            }
        }
    }

    /// State of the issuer that the fleet shares.
    fn shared(&self) -> Option<Rc<SharedIssuer>> {
        let fleet = self.work.fleet.as_ref()?;
        let log = self.log.clone();
        let log = Rc::new(move |level, what: fmt::Arguments<'_>| (log.borrow())(level, what));
        match SharedIssuer::new(fleet, &self.work, &self.answers, &self.nudge, log) {
            Ok(shared) => Some(Rc::new(shared)),
            Err(error) => {
                self.log(Level::Alert, format_args!("acme: getrandom() failed ({})", Errno::from(&error)));
                None
            }
        }
    }

    fn log(&self, level: Level, what: fmt::Arguments<'_>) {
        (self.log.borrow())(level, what);
    }

    /// Waits until no other process orders. Without a state directory this is unknown.
    async fn lock(&self) -> Option<Locked> {
        let state = State::new(self.work.issuer.state.as_deref()?);
        let mut wait = LOOK_FIRST;
        let mut failures = 0;
        loop {
            match state.lock() {
                Ok(Some(lock)) => return Some(lock),
                // Files that cannot be used were reported at the start, so nothing is logged here.
                Ok(None) => load(&self.work, &(Arc::new(|_, _: fmt::Arguments<'_>| {}) as LogFn)),
                Err(error) => {
                    failures += 1;
                    wait = pause(failures, RetryAdvice::Soon, luck());
                    let issuer = &self.work.issuer.name;
                    let next = wait.as_secs();
                    self.log(
                        Level::Error,
                        format_args!("acme: {error}, nothing is ordered of issuer \"{issuer}\" without its state directory, next attempt in {next} s"),
                    );
                }
            }
            // A reload may mend it.
            let _ = timeout(wait, self.nudge.notified()).await;
            wait = LOOK;
        }
    }

    /// Does what is due.
    async fn act(&self, plan: &mut Plan, shared: Option<&SharedIssuer>) {
        if plan.keep.is_some_and(|keep| keep <= now()) {
            self.keep(plan);
        }
        if let (Some(shared), true) = (shared, plan.share.is_some_and(|share| share <= now())) {
            let shares = shared.exchange(&plan.certificate).await;
            plan.share = shares.is_err().then(|| now() + SHARE_AGAIN);
            plan.follow_fleet();
            if let Err(error) = shares {
                // Without the store it is unknown whether another node has the certificate.
                plan.again = plan.again.max(now() + SHARE_AGAIN);
                self.report_fleet(plan, &error);
            }
        }
        if plan.next() > now() {
            return;
        }
        match self.work_on(plan, shared).await {
            Ok(()) => (plan.failures, plan.again) = (0, 0),
            // The certificate comes from the node that orders it, by the store.
            Err(Error::Elsewhere(_)) => plan.again = now() + LOOK.as_secs(),
            Err(error @ Error::Fleet(_)) => {
                plan.again = now() + SHARE_AGAIN;
                self.report_fleet(plan, &error);
            }
            Err(error) => {
                plan.failures = plan.failures.saturating_add(1);
                let span = pause(plan.failures, error.retry_advice(), luck());
                plan.again = now() + span.as_secs();
                let state = match plan.certificate.slot.issued() {
                    Some(issued) => {
                        format!("the one that is used is good until {}", date_of(issued.validity().1))
                    }
                    None => "a temporary certificate is used, which clients do not trust".to_owned(),
                };
                let name = plan.certificate.name();
                let issuer = &self.work.issuer.name;
                let next = span.as_secs();
                self.log(
                    Level::Error,
                    format_args!("acme: no certificate \"{name}\" from issuer \"{issuer}\": {error}; {state}, next attempt in {next} s"),
                );
            }
        }
    }

    async fn work_on(&self, plan: &mut Plan, shared: Option<&SharedIssuer>) -> Result<(), Error> {
        let Some(shared) = shared else { return self.order(plan, None).await };
        shared.attempt().await?;
        // Another node may have ordered it a moment ago.
        shared.exchange(&plan.certificate).await?;
        plan.follow_fleet();
        if plan.next() > now() {
            return Ok(());
        }
        shared.while_held(self.order(plan, Some(shared))).await?;
        if let Err(error) = shared.exchange(&plan.certificate).await {
            plan.share = Some(now() + SHARE_AGAIN);
            self.report_fleet(plan, &error);
        }
        Ok(())
    }

    /// Logs that the fleet is of no use, not every time.
    fn report_fleet(&self, plan: &Plan, error: &Error) {
        let end = match plan.certificate.slot.issued() {
            Some(issued) => format!("the one that is used is good until {}", date_of(issued.validity().1)),
            None => "a temporary certificate is used, which clients do not trust".to_owned(),
        };
        if self.fleet_reported.get().is_none_or(|last| last.elapsed() >= FLEET_REPORT) {
            self.fleet_reported.set(Some(Instant::now()));
            let name = plan.certificate.name();
            let issuer = &self.work.issuer.name;
            self.log(
                Level::Error,
                format_args!("acme: certificate \"{name}\" from issuer \"{issuer}\" cannot be shared or ordered in the fleet: {error}; {end}"),
            );
        }
    }

    /// Asks the authority when to replace a certificate, and orders one if it is due.
    async fn order(&self, plan: &mut Plan, shared: Option<&SharedIssuer>) -> Result<(), Error> {
        let IssuerConfig { issuer, tls, resolver, resolver_timeout, .. } = &self.work;
        let carrier =
            HttpClient { tls: tls.clone(), resolver: resolver.clone(), resolver_timeout: *resolver_timeout };
        let key = self.account_key(shared).await?;
        let mut client = Client::open(&carrier, &issuer.uri, &key).await?;
        let issued = plan.certificate.slot.issued();
        let replaces = issued.as_ref().and_then(Issued::renewal_id).filter(|_| client.has_renewal_info());
        if let (Some(issued), true) = (&issued, plan.info_due.is_some_and(|info_due| info_due <= now())) {
            self.fetch_renewal_info(plan, issued, replaces.as_deref(), &client).await;
        }
        if plan.renew.max(plan.earliest) > now() {
            return Ok(());
        }
        client.sign_in(&issuer.account).await?;
        let answers = Answers { own: &self.answers, shared };
        let new =
            order::obtain(&mut client, issuer, &plan.certificate, &answers, replaces.as_deref(), now).await?;
        let end = new.validity().1;
        plan.certificate.slot.set(new);
        plan.follow();
        // A new certificate is not replaced at once, whatever dates it and the authority give.
        plan.earliest = now() + rest_after(end.saturating_sub(now()));
        let name = plan.certificate.name();
        self.log(
            Level::Notice,
            format_args!(
                "acme: certificate \"{name}\" from issuer \"{}\", good until {}, to be replaced from {} on",
                issuer.name,
                date_of(end),
                date_of(plan.renew)
            ),
        );
        self.keep(plan);
        Ok(())
    }

    /// Asks when a certificate should be replaced. An authority that does not say leaves it to us.
    async fn fetch_renewal_info(
        &self,
        plan: &mut Plan,
        issued: &Issued,
        id: Option<&str>,
        client: &Client<'_>,
    ) {
        let Some(id) = id else {
            plan.info_due = None;
            return;
        };
        let (begin, end) = issued.validity();
        let said = match client.renewal_info(id).await {
            Ok((info, reply)) => match info.suggested_window.seconds().filter(|(start, _)| *start < end) {
                Some(window) => Ok((window, reply.retry_after)),
                None => Err(Error::Malformed("a window for the renewal that is none".into())),
            },
            Err(error) => Err(error),
        };
        let after = match said {
            Ok(((from, to), after)) => {
                plan.renew = by_window(from, to, end, luck());
                renewal_info_interval(after)
            }
            Err(error) => {
                plan.renew = by_lifetime(begin, end, luck());
                let name = plan.certificate.name();
                let issuer = &self.work.issuer.name;
                self.log(
                    Level::Warn,
                    format_args!("acme: the renewal time of certificate \"{name}\" from issuer \"{issuer}\" is not known, so it follows from the lifetime: {error}"),
                );
                renewal_info_interval(None)
            }
        };
        plan.info_due = Some(now() + after.as_secs());
    }

    /// Gives the certificate to the disk. If that does not take it, it is used all the same.
    fn keep(&self, plan: &mut Plan) {
        plan.keep = None;
        let Issuer { name: issuer, state: Some(path), .. } = &*self.work.issuer else { return };
        let Some(issued) = plan.certificate.slot.issued() else { return };
        if let Err(error) = State::new(path).keep_certificate(&plan.certificate.id(), &issued.file) {
            plan.keep = Some(now() + KEEP_AGAIN);
            let name = plan.certificate.name();
            self.log(
                Level::Crit,
                format_args!("acme: certificate \"{name}\" from issuer \"{issuer}\" is used and cannot be kept: {error}, next attempt in {KEEP_AGAIN} s"),
            );
        }
    }

    /// The key of the account: the given one, the kept one, or a new one, which is kept.
    async fn account_key(&self, shared: Option<&SharedIssuer>) -> Result<AccountKey, Error> {
        let kind = match &self.work.issuer.account.key {
            KeySource::Given(text) => return AccountKey::read(text),
            KeySource::Generated(kind) => *kind,
        };
        let Some(shared) = shared else { return Ok(self.own_account_key(kind)?.0) };
        let text = shared.account(|| Ok(self.own_account_key(kind)?.1)).await?;
        AccountKey::read(text.as_bytes())
    }

    /// The generated key of this node, and its text.
    fn own_account_key(&self, kind: KeyType) -> Result<(AccountKey, Zeroizing<String>), Error> {
        let Issuer { name, state, .. } = &*self.work.issuer;
        let Some(path) = state else {
            if let Some(text) = self.accounts.borrow().get(name) {
                return Ok((AccountKey::read(text.as_bytes())?, text.clone()));
            }
            let (key, text) = AccountKey::generate(kind)?;
            self.accounts.borrow_mut().insert(name.clone(), text.clone());
            return Ok((key, text));
        };
        let state = State::new(path);
        match state.account()? {
            Some(text) => Ok((AccountKey::read(text.as_bytes())?, text)),
            None => {
                let (key, text) = AccountKey::generate(kind)?;
                // The key is stored first: an account without its key is useless, and every start would create another
                // one.
                state.keep_account(&text)?;
                Ok((key, text))
            }
        }
    }
}

/// The time, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn date_of(seconds: u64) -> String {
    String::from_utf8_lossy(&date::format(i64::try_from(seconds).unwrap_or_default())).into_owned()
}

/// A number from 0 to 1; one half, should the system have no random bytes.
fn luck() -> f64 {
    let mut random = [0; 4];
    match aws_lc_rs::rand::fill(&mut random) {
        Ok(()) => f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
