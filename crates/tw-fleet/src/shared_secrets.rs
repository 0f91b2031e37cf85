//! Secrets that all nodes share: one of the nodes makes a new one in each rotation, and every node knows it before its time.
//!
//! ```text
//! lease.secrets   the node that makes secrets
//! secrets         secrets with the times from which they are used: two previous ones, the current one, the next one   (encrypted)
//! ```
//! Without the engine, nodes use what they have: the next secret, too, when its time comes. They save the entry as it is in the store,
//! so that a process that starts meanwhile has it, too. What no other secret has followed for three
//! rotations is not used any more (`SharedSecrets::age_max`).

use std::rc::Rc;
use std::time::Duration;

use aws_lc_rs::rand;
use serde::{Deserialize, Serialize};
use tw_log::Level;
use tw_rt::time::sleep;
use tw_tls::{SHARED_SECRET_LEN, SharedSecret};
use zeroize::Zeroizing;

use crate::engine::{Engine, EngineError};
use crate::lease::Lease;
use crate::node::{Node, Role};
use crate::sealed::SealedStore;
use crate::store::{CERTIFICATES, Entry, StoreWatch};

/// Key of the secrets in the store.
const KEY: &str = "secrets";
/// Key of the lease of the node that makes them.
const LEASE_KEY: &str = "lease.secrets";
/// Term of the lease.
const LEASE_TERM: Duration = Duration::from_secs(30);
/// Longest time between two renewals of the lease.
const RENEWAL: Duration = Duration::from_secs(8);
/// Pause before the store is watched again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
/// Time for all nodes to get a secret that is late, in seconds; at most half a rotation.
const LEAD: u64 = 60;
/// Secrets that only open what was sealed before.
const PREVIOUS: usize = 2;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Secrets that the nodes of a fleet share.
    const SECRETS_MAX: usize = 16, count, "the entry of the store is not used";
}

/// Content of the entry.
#[derive(Serialize, Deserialize)]
struct WrittenSecrets {
    secrets: Vec<WrittenSecret>,
}

#[derive(Serialize, Deserialize)]
struct WrittenSecret {
    /// Seconds since 1970.
    from: u64,
    bytes: [u8; SHARED_SECRET_LEN],
}

impl Drop for WrittenSecret {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.bytes);
    }
}

/// Reads an entry; `None` if it is none.
fn read(text: &[u8]) -> Option<Vec<SharedSecret>> {
    let written_secrets: WrittenSecrets = serde_json::from_slice(text).ok()?;
    let count = written_secrets.secrets.len();
    let mut secrets: Vec<_> =
        written_secrets.secrets.iter().map(|secret| SharedSecret::new(secret.from, secret.bytes)).collect();
    secrets.sort_by_key(SharedSecret::from);
    (1..=SECRETS_MAX).contains(&count).then_some(secrets)
}

fn write(secrets: &[SharedSecret]) -> Zeroizing<Vec<u8>> {
    let secrets =
        secrets.iter().map(|secret| WrittenSecret { from: secret.from(), bytes: *secret.bytes() }).collect();
    Zeroizing::new(serde_json::to_vec(&WrittenSecrets { secrets }).unwrap_or_default())
}

/// Secrets that are to follow `shared_secrets` at a time in seconds since 1970, with a rotation in seconds; `None` if they stay.
fn rotate(
    shared_secrets: &[SharedSecret],
    now: u64,
    rotation: u64,
    mut make: impl FnMut(u64) -> Option<SharedSecret>,
) -> Option<Vec<SharedSecret>> {
    // Secrets made by a clock that was far ahead would remain the next ones for ever, so they are dropped.
    let mut secrets: Vec<_> = shared_secrets
        .iter()
        .filter(|secret| secret.from() <= now.saturating_add(2 * rotation))
        .cloned()
        .collect();
    let has_next = secrets.last().is_some_and(|last| last.from() > now);
    if has_next && secrets.len() == shared_secrets.len() {
        return None;
    }
    if secrets.is_empty() {
        secrets.push(make(now)?);
    }
    if let Some(last) = secrets.last().map(SharedSecret::from)
        && last <= now
    {
        // Even after a long time without the engine or without nodes, all nodes get the secret before its time.
        let lead = LEAD.min(rotation.div_ceil(2));
        secrets.push(make(last.saturating_add(rotation).max(now.saturating_add(lead)))?);
    }
    let current = secrets.iter().rposition(|secret| secret.from() <= now).unwrap_or(0);
    drop(secrets.drain(..current.saturating_sub(PREVIOUS)));
    Some(secrets)
}

fn random(from: u64) -> Option<SharedSecret> {
    let mut bytes = Zeroizing::new([0; SHARED_SECRET_LEN]);
    rand::fill(bytes.as_mut_slice()).ok()?;
    Some(SharedSecret::new(from, *bytes))
}

fn now() -> u64 {
    u64::try_from(tw_rt::clock::unix().secs).unwrap_or(0)
}

impl<E: Engine + 'static> Node<E> {
    /// Waits until something uses the secrets.
    async fn secrets_are_used(&self) {
        self.fleet.secrets_used.notified().await;
        // The notification is passed on to the other task, and to the agent after this one.
        self.fleet.secrets_used.notify_one();
    }

    fn secret_store(&self) -> SealedStore {
        SealedStore::new(self.fleet.store(&CERTIFICATES), &CERTIFICATES)
    }

    /// Makes secrets while this node has the lease. Does nothing until they are used.
    pub(crate) async fn make_secrets(self: Rc<Self>) {
        self.secrets_are_used().await;
        let store = self.secret_store();
        let settings = self.fleet.settings();
        let Ok(mut lease) = Lease::new(store.store().clone(), LEASE_KEY, &settings.node, LEASE_TERM) else {
            return self.log(Level::Error, format_args!("there are no random numbers: no secrets are made"));
        };
        let renewal = RENEWAL.min(settings.secret_rotation / 4);
        // Another process of this node takes over after this one.
        while self.role.get() == Role::Active {
            // The fleet reports why there is no connection.
            if let Ok(is_held) = lease.attempt().await {
                let holder = if is_held { Some(&*settings.node) } else { lease.other() };
                self.fleet.set_lease_holder("secrets", holder.map(str::to_owned));
                if is_held && let Err(error) = self.renew_secrets(&store).await {
                    self.report_secrets(&error);
                }
            }
            sleep(renewal).await;
        }
        // If it cannot be released, the lease expires.
        let _ = lease.release().await;
    }

    /// Gets the secrets from the engine. Does nothing until they are used.
    pub(crate) async fn follow_secrets(self: Rc<Self>) {
        self.secrets_are_used().await;
        let store = self.secret_store();
        self.restore_secrets(&store);
        loop {
            // The fleet reports why there is no connection.
            let _ = self.watch_secrets(&store).await;
            sleep(WATCH_AGAIN).await;
        }
    }

    /// Uses the secrets that were saved.
    fn restore_secrets(&self, store: &SealedStore) {
        let sealed = match self.host.saved_secrets() {
            Ok(None) => return,
            Ok(Some(sealed)) => sealed,
            Err(error) => return self.report_secrets(&error),
        };
        let entry = Entry { key: KEY.to_owned(), value: Some(sealed), version: 0 };
        match store.open(entry).map(|opened| opened.value.and_then(|value| read(&value))) {
            Ok(Some(secrets)) => self.fleet.secrets.set(secrets),
            // The file is damaged, or its key was changed meanwhile: the secrets of the engine follow.
            Ok(None) | Err(_) => self.log(Level::Notice, format_args!("the saved secrets cannot be used")),
        }
    }

    /// Saves the secrets as they are in the store, if this process may write.
    fn save_secrets(&self, sealed: &[u8]) {
        let saved = self.disk.borrow().as_ref().map(|disk| disk.save_secrets(sealed));
        if let Some(Err(error)) = saved {
            self.log_some(Level::Error, "save secrets", format_args!("{error}"));
        }
    }

    fn report_secrets(&self, error: &dyn std::fmt::Display) {
        self.log_some(
            Level::Error,
            "secrets",
            format_args!("the secrets of all nodes cannot be used: {error}"),
        );
    }

    /// Writes the next secrets, if it is time.
    async fn renew_secrets(&self, store: &SealedStore) -> Result<(), EngineError> {
        let stored = store.get(KEY).await?;
        let shared_secrets = stored.value.as_ref().and_then(|value| read(value)).unwrap_or_default();
        let rotation = self.fleet.settings().secret_rotation.as_secs().max(1);
        let next = match rotate(&shared_secrets, now(), rotation, random) {
            Some(next) => next,
            None if stored.is_outdated => shared_secrets,
            None => return Ok(()),
        };
        match store.set(KEY, &write(&next), Some(stored.version)).await {
            // Another node has stored its secrets first.
            Ok(_) | Err(EngineError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn watch_secrets(&self, store: &SealedStore) -> Result<(), EngineError> {
        let mut watch = store.watch().await?;
        loop {
            for entry in watch.next().await?.entries.into_iter().filter(|entry| entry.key == KEY) {
                let sealed = entry.value.clone();
                match store.open(entry) {
                    Ok(opened) => {
                        let Some(value) = opened.value else { continue };
                        match read(&value) {
                            Some(secrets) => {
                                self.fleet.secrets.set(secrets);
                                self.save_secrets(&sealed.unwrap_or_default());
                            }
                            None => self.report_secrets(&"the store has something else"),
                        }
                    }
                    Err(error) => self.report_secrets(&error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(secrets: &[SharedSecret]) -> Vec<u64> {
        secrets.iter().map(SharedSecret::from).collect()
    }

    #[test]
    fn next_secret_is_there_one_rotation_before_its_time() {
        let mut shared_secrets = Vec::new();
        let mut made = 0;
        for now in 1000..2000 {
            let make = |from| {
                made += 1;
                Some(SharedSecret::new(from, [made as u8; SHARED_SECRET_LEN]))
            };
            if let Some(next) = rotate(&shared_secrets, now, 100, make) {
                shared_secrets = next;
            }
            let current = shared_secrets.iter().rfind(|secret| secret.from() <= now).unwrap();
            let next = shared_secrets.iter().find(|secret| secret.from() > now).unwrap();
            assert_eq!(next.from() - current.from(), 100);
            assert!(shared_secrets.len() <= PREVIOUS + 2);
            assert_eq!(read(&write(&shared_secrets)).unwrap(), shared_secrets);
        }
        assert_eq!(times(&shared_secrets), [1700, 1800, 1900, 2000]);
        assert_eq!(made, 11);
    }

    #[test]
    fn late_secret_is_spread_before_its_time() {
        let make = |from| Some(SharedSecret::new(from, [1; SHARED_SECRET_LEN]));
        let old = [make(1000).unwrap(), make(2000).unwrap()];
        assert_eq!(times(&rotate(&old, 100_000, 1000, make).unwrap()), [1000, 2000, 100_060]);
        assert_eq!(times(&rotate(&old, 100_000, 10, make).unwrap()), [1000, 2000, 100_005]);
        // Secrets made by a clock that was years ahead are dropped.
        let ahead = [make(1000).unwrap(), make(900_000).unwrap()];
        assert_eq!(times(&rotate(&ahead, 1500, 1000, make).unwrap()), [1000, 2000]);
        assert!(rotate(&[], 5, 10, |_| None).is_none(), "no random numbers");
    }

    #[test]
    fn other_values_are_no_secrets() {
        let many: Vec<_> =
            (0..=SECRETS_MAX as u64).map(|from| SharedSecret::new(from, [1; SHARED_SECRET_LEN])).collect();
        assert!(read(&write(&many[1..])).is_some());
        assert!(read(&write(&many)).is_none());
        for text in [&b""[..], b"{}", br#"{"secrets":[]}"#, br#"{"secrets":[{"from":1,"bytes":[1]}]}"#] {
            assert!(read(text).is_none());
        }
    }
}
