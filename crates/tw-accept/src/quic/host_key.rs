//! Secret of QUIC of a process (`quic_host_key`), which all loops share.
//!
//! A random one lives as long as the server: it goes from one process to the next with the keys of session tickets, so that a process
//! knows the connection IDs of one before it, and tells their clients that the connections are lost.
//!
//! With `fleet=NAME`, keys of resets and tokens come from the secrets of all nodes. Those of connection IDs stay keys of the server, because
//! only its own processes pass datagrams to each other.

use std::fmt;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_quic::{HostKeys, SecretKeys, SharedHostKeys, SharedHostSecrets};
use tw_tls::{Clock, SHARED_SECRET_LEN, SharedSecret, SharedSecrets, Zeroizing, process_secret};

/// Keys of connection IDs, stateless resets and address validation tokens. Clones share them.
#[derive(Clone)]
pub struct HostKey(pub(super) Arc<HostKeys>);

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey")
    }
}

impl HostKey {
    /// Keys of a secret.
    pub fn of(secret: &[u8]) -> Self {
        Self(HostKeys::derive(secret))
    }

    /// Keys of the random secret of the server.
    pub fn random() -> Self {
        Self::of(&process_secret::get())
    }

    /// Keys of secrets that other servers have, too. Those of the random secret of the server are used while there is no recent one.
    pub fn shared(secrets: Arc<SharedSecrets>, clock: Clock) -> Self {
        let keys = FleetHostKeys { secrets, clock, derived: FatalMutex::default() };
        Self(HostKeys::shared(&process_secret::get(), Arc::new(keys)))
    }
}

/// Keys of the secrets of a fleet.
struct FleetHostKeys {
    secrets: Arc<SharedSecrets>,
    clock: Clock,
    derived: FatalMutex<DerivedKeys>,
}

/// Keys of a version of the secrets, in the order of their time. No version is 0.
#[derive(Default)]
struct DerivedKeys {
    version: u64,
    /// Times from which they are used, in seconds since 1970.
    from: Vec<u64>,
    keys: Arc<[Arc<SecretKeys>]>,
}

impl DerivedKeys {
    fn of(secrets: &SharedSecrets) -> Self {
        let version = secrets.version();
        let derive = |secret: &SharedSecret| {
            let mut bytes = Zeroizing::new([0; SHARED_SECRET_LEN]);
            // One that cannot be derived is of no use to any server.
            secret.derive(b"quic host key", bytes.as_mut_slice()).ok()?;
            Some((secret.from(), Arc::new(SecretKeys::derive(bytes.as_slice()))))
        };
        let (from, keys): (Vec<_>, Vec<_>) = secrets.get().iter().filter_map(derive).unzip();
        Self { version, from, keys: keys.into() }
    }
}

impl SharedHostSecrets for FleetHostKeys {
    fn keys(&self) -> SharedHostKeys {
        let now = (self.clock)();
        let mut derived = self.derived.lock();
        if derived.version != self.secrets.version() {
            *derived = DerivedKeys::of(&self.secrets);
        }
        let current = derived.from.iter().rposition(|from| *from <= now);
        let current = current.filter(|at| {
            derived.from.get(*at).is_some_and(|from| now.saturating_sub(*from) < self.secrets.age_max())
        });
        SharedHostKeys {
            current: current.and_then(|at| derived.keys.get(at).cloned()),
            keys: derived.keys.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[test]
    fn keys_of_a_fleet_change_at_their_time_and_age() {
        let time = Arc::new(AtomicU64::new(1000));
        let clock: Clock = {
            let time = time.clone();
            Arc::new(move || time.load(SeqCst))
        };
        let secrets = Arc::new(SharedSecrets::new(3 * 100));
        let keys = FleetHostKeys { secrets: secrets.clone(), clock, derived: FatalMutex::default() };
        assert!(keys.keys().current.is_none() && keys.keys().keys.is_empty());
        let secret = |from: u64| SharedSecret::new(from, [from as u8; SHARED_SECRET_LEN]);
        secrets.set(vec![secret(1100), secret(900)]);
        let is_current = |at: usize| {
            let SharedHostKeys { current, keys: secret_keys } = keys.keys();
            current.is_some_and(|current| Arc::ptr_eq(&current, &secret_keys[at]))
        };
        assert!(is_current(0) && keys.keys().keys.len() == 2);
        time.store(1100, SeqCst);
        assert!(is_current(1));
        time.store(1399, SeqCst);
        assert!(is_current(1));
        time.store(1400, SeqCst);
        assert!(keys.keys().current.is_none() && keys.keys().keys.len() == 2);
        // Connections of before are still reset.
        secrets.set(vec![secret(1100), secret(1400)]);
        assert!(is_current(1));
    }
}
