//! Handover of session ticket keys to the next process, also of another binary: clients resume their sessions there.
//!
//! ```text
//! worker process ─ export ─► master, which only keeps them ─ inherit ─► the next worker process
//!                                └─ a file in memory ─► master of the new binary ─ inherit ─► its worker process
//! ```
//! Random keys only: keys of files are read by every process. One set for each lifetime of tickets, and the secret from which
//! other keys are derived (`tw_tls::process_secret`).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tw_base::FatalMutex;
use tw_tls::{Clock, TicketError, Tickets, Zeroizing, process_secret};

/// Bytes of the random secret of the server with its head.
const SECRET_SIZE_MAX: usize = 64;
/// Stands for a lifetime in front of the random secret of the server.
const PROCESS_SECRET: u32 = u32::MAX;
/// Bytes in front of the keys of each lifetime: the lifetime and their length.
const HEAD_SIZE: usize = 4 + 2;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Keys of session tickets that are handed over to the next process.
    ///
    /// Bytes of all keys, which have to fit into one message to the master: enough for dozens of lifetimes.
    const TICKET_KEYS_SIZE_MAX: usize = 4 << 10, bytes, "tickets of further lifetimes are not resumed";
}

/// Keys in use, by the lifetime of their tickets in seconds.
static KEYS: FatalMutex<BTreeMap<u32, Weak<Tickets>>> = FatalMutex::new(BTreeMap::new());
/// Keys of the previous process that are not in use yet.
static INHERITED: FatalMutex<BTreeMap<u32, Zeroizing<Vec<u8>>>> = FatalMutex::new(BTreeMap::new());

/// Returns keys for tickets of a lifetime in seconds: those of the previous process, or new ones.
pub(crate) fn tickets(lifetime: u32, clock: Clock) -> Result<Tickets, TicketError> {
    let inherited = INHERITED.lock().remove(&lifetime);
    match inherited.map(|state| Tickets::of_predecessor(&state, lifetime, clock.clone())) {
        Some(Ok(tickets)) => Ok(tickets),
        // Another binary may write them otherwise.
        Some(Err(_)) | None => Tickets::random(lifetime, clock),
    }
}

/// Registers keys that are in use.
pub(crate) fn note(lifetime: u32, tickets: &Arc<Tickets>) {
    KEYS.lock().insert(lifetime, Arc::downgrade(tickets));
}

/// Returns the keys in use, for the next process. The caller wipes them.
pub fn export_keys() -> Vec<u8> {
    let used: Vec<_> = {
        let mut keys = KEYS.lock();
        keys.retain(|_, tickets| tickets.strong_count() > 0);
        keys.iter().filter_map(|(lifetime, tickets)| Some((*lifetime, tickets.upgrade()?))).collect()
    };
    // A buffer that grows would leave copies behind.
    let mut all = Vec::with_capacity(TICKET_KEYS_SIZE_MAX + SECRET_SIZE_MAX);
    for (lifetime, tickets) in used {
        let Some(state) = tickets.export() else { continue };
        let Ok(len) = u16::try_from(state.len()) else { continue };
        if all.len() + HEAD_SIZE + state.len() <= TICKET_KEYS_SIZE_MAX {
            all.extend(lifetime.to_be_bytes());
            all.extend(len.to_be_bytes());
            all.extend(state.iter());
        }
    }
    if let Some(secret) = process_secret::export() {
        all.extend(PROCESS_SECRET.to_be_bytes());
        all.extend((secret.len() as u16).to_be_bytes());
        all.extend(secret.iter());
    }
    all
}

/// Takes over what [`export_keys`] returned in the previous process; what cannot be read is left out. To be called before a
/// configuration is loaded.
pub fn inherit_keys(mut all: &[u8]) {
    let mut inherited = INHERITED.lock();
    while let Some((head, rest)) = all.split_first_chunk::<HEAD_SIZE>() {
        let [a, b, c, d, e, f] = *head;
        let len = usize::from(u16::from_be_bytes([e, f]));
        let Some((state, rest)) = rest.split_at_checked(len) else { return };
        match u32::from_be_bytes([a, b, c, d]) {
            PROCESS_SECRET => process_secret::inherit(state),
            lifetime => drop(inherited.insert(lifetime, Zeroizing::new(state.to_vec()))),
        }
        all = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::server::ProducesTickets;

    #[test]
    fn next_process_decrypts_tickets_of_this_one() {
        let clock: Clock = Arc::new(|| 1000);
        // No other test uses these lifetimes.
        let lifetimes = [71_001, 71_002];
        let made = lifetimes.map(|lifetime| Arc::new(Tickets::random(lifetime, clock.clone()).unwrap()));
        for (lifetime, tickets) in lifetimes.into_iter().zip(&made) {
            note(lifetime, tickets);
        }
        let sealed = made.each_ref().map(|tickets| tickets.encrypt(b"state").unwrap());
        let all = export_keys();
        drop(made);
        // Cut anywhere, complete entries are still read.
        for cut in 0..all.len() {
            inherit_keys(&all[..cut]);
        }
        inherit_keys(&all);
        for (lifetime, sealed) in lifetimes.into_iter().zip(sealed) {
            let next = tickets(lifetime, clock.clone()).unwrap();
            assert_eq!(next.decrypt(&sealed).as_deref(), Some(&b"state"[..]));
            let other = tickets(lifetime, clock.clone()).unwrap();
            assert_eq!(other.decrypt(&sealed), None, "inherited keys are used once");
        }
        assert!(
            !lifetimes
                .iter()
                .any(|lifetime| export_keys().windows(4).any(|window| window == lifetime.to_be_bytes()))
        );
    }
}
