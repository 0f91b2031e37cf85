//! AdmissionOutcome of disk operations by the breakers of a cache, and what is logged about them.

use std::fmt;
use std::time::{Duration, Instant};

use tw_cache::Key;
use tw_disk::{Account, DiskError};
use tw_log::{Level, Text};

use super::Cache;
use crate::entry::open_entries::OpenEntry;
use crate::guard::breaker::{BreakerChange, DiskOutcome, PAUSE_MIN, is_failure, is_refusal};

/// Permit for operations on one entry. Without a result, because nobody waits for it any more, they count as slow if they were, and
/// otherwise as ended without the disk.
struct DiskPermit<'a> {
    cache: &'a Cache,
    slow: Duration,
    log: &'a dyn Fn(Level, fmt::Arguments<'_>),
    began: Instant,
    result: Option<Option<DiskOutcome>>,
}

impl DiskPermit<'_> {
    /// Notes the result of the operations of `by`.
    fn finish<T>(mut self, account: &Account, result: &Result<T, DiskError>) {
        self.result = Some(match result {
            Err(error) if is_failure(error) => Some(DiskOutcome::Failed),
            _ if account.is_inline() => None,
            _ => Some(DiskOutcome::Done(account.wait())),
        });
    }
}

impl Drop for DiskPermit<'_> {
    fn drop(&mut self) {
        let now = tw_rt::clock::now();
        let time = now.saturating_duration_since(self.began);
        let given_up = (time > self.slow).then_some(DiskOutcome::Done(time));
        let outcome = self.result.unwrap_or(given_up);
        let change = self.cache.zone.breaker.ended(outcome, self.slow, now);
        self.cache.report_breaker(change, self.log);
    }
}

impl Cache {
    /// Reads the entry with this key from the disk by `read`, which gets `account`, unless the breaker leaves the disk alone: then
    /// returns `None`. Without a breaker nothing is counted.
    pub(crate) async fn read_guarded<T>(
        &self,
        key: Key,
        account: &mut Account,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
        read: impl AsyncFnOnce(&mut Account) -> Result<T, DiskError>,
    ) -> Option<Result<T, DiskError>> {
        let Some(slow) = self.slow() else { return Some(read(account).await) };
        let now = tw_rt::clock::now();
        let admission = self.zone.breaker.begin(key, slow, now);
        self.report_breaker(admission.change, log);
        if !admission.is_admitted {
            return None;
        }
        let permit = DiskPermit { cache: self, slow, log, began: now, result: None };
        let result = read(account).await;
        permit.finish(account, &result);
        Some(result)
    }

    /// Returns true if a response with this key may be stored.
    pub(crate) fn permits_storing(&self, key: Key, log: &dyn Fn(Level, fmt::Arguments<'_>)) -> bool {
        if self.slow().is_none() {
            return true;
        }
        let now = tw_rt::clock::now();
        let admission = self.zone.breaker.storing(key, now);
        self.report_breaker(admission.change, log);
        let storing = self.zone.member.store_breaker.storing(key, now);
        self.report_store_breaker(storing.change, log);
        admission.is_admitted && storing.is_admitted
    }

    /// Takes the result of storing a response in a member.
    pub(crate) fn note_stored(&self, error: Option<&DiskError>, log: &dyn Fn(Level, fmt::Arguments<'_>)) {
        if self.zone.member.group().is_none() {
            return;
        }
        let outcome = match error {
            Some(error) if is_failure(error) || is_refusal(error) => DiskOutcome::Failed,
            Some(_) => return,
            None => DiskOutcome::Done(Duration::ZERO),
        };
        let now = tw_rt::clock::now();
        let change = self.zone.member.store_breaker.ended(Some(outcome), Duration::MAX, now);
        self.report_store_breaker(change, log);
    }

    /// Takes the result of an operation of the manager of a member. Returns true if its disk is in use.
    pub(crate) fn note_probe(
        &self,
        result: Option<&Result<(), DiskError>>,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> bool {
        let now = tw_rt::clock::now();
        let (breaker, store_breaker) = (&self.zone.breaker, &self.zone.member.store_breaker);
        match result {
            Some(Ok(())) => {
                self.report_breaker(breaker.note_good(now), log);
                self.report_store_breaker(store_breaker.note_good(now), log);
            }
            Some(Err(DiskError::QueueFull { .. })) => {}
            Some(Err(error)) if is_failure(error) => self.report_breaker(breaker.trip(now), log),
            Some(Err(error)) if is_refusal(error) => {
                // A disk that is full or cannot be written has answered in time.
                self.report_breaker(breaker.note_good(now), log);
                self.report_store_breaker(store_breaker.trip(now), log);
            }
            Some(Err(_)) | None => {}
        }
        self.report_breaker(breaker.tick(now), log);
        self.report_store_breaker(store_breaker.tick(now), log);
        breaker.admitted() > 0
    }

    /// Returns true if an open entry can be served without the disk, or that is in use.
    pub(crate) fn may_serve(&self, entry: &OpenEntry) -> bool {
        entry.body.is_some() || self.zone.breaker.admitted() > 0
    }

    fn report_store_breaker(&self, change: Option<BreakerChange>, log: &dyn Fn(Level, fmt::Arguments<'_>)) {
        let (name, path) = (Text(&self.name), Text(self.place.dir.to_bytes()));
        match change {
            // It is tried again and again.
            Some(BreakerChange::Opened(pause)) => log(
                if pause == PAUSE_MIN { Level::Error } else { Level::Info },
                format_args!(
                    "cache \"{name}\": member \"{path}\" cannot store responses, its disk is full or cannot be written"
                ),
            ),
            Some(BreakerChange::Closed) => {
                log(
                    Level::Notice,
                    format_args!("cache \"{name}\": member \"{path}\" stores responses again"),
                );
            }
            None => {}
        }
    }

    fn report_breaker(&self, change: Option<BreakerChange>, log: &dyn Fn(Level, fmt::Arguments<'_>)) {
        let (name, path) = (Text(&self.name), Text(self.place.dir.to_bytes()));
        match change {
            Some(BreakerChange::Opened(pause)) if self.zone.member.group().is_some() => log(
                // It is tried again and again.
                if pause == PAUSE_MIN { Level::Error } else { Level::Info },
                format_args!("cache \"{name}\": member \"{path}\" is slow or fails, and is left out"),
            ),
            Some(BreakerChange::Closed) if self.zone.member.group().is_some() => {
                log(Level::Notice, format_args!("cache \"{name}\": member \"{path}\" is used again"));
            }
            Some(BreakerChange::Opened(pause)) => {
                let seconds = pause.as_secs();
                let what = format_args!(
                    "cache \"{name}\": its disk is slow or fails, and is left alone for {seconds} s"
                );
                log(Level::Error, what);
            }
            Some(BreakerChange::Closed) => {
                log(
                    Level::Notice,
                    format_args!("cache \"{name}\": its disk is used again for all responses"),
                );
            }
            None => {}
        }
    }
}
