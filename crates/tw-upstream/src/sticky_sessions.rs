//! Table of `sticky learn` from sessions to peers, bounded and shared by all loops.
//!
//! A session is kept as the MD5 of its name, so a name that a client sends costs the same whatever its length. A
//! session expires when it has not been used for the timeout; in a full table the one that was used the longest ago
//! is removed. Source: nginx, `ngx_http_upstream_sticky_module.c`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use md5::{Digest, Md5};
use tw_base::FatalMutex;

/// Bytes of a zone for each session, so that a zone of 1 MiB holds 4096 as nginx's does.
const SESSION_SIZE: usize = 256;
/// Number of expired sessions that are removed with each one that is learned: more than can be added.
const EXPIRE_AT_ONCE: usize = 2;

/// The sessions of one zone.
#[derive(Debug)]
pub struct StickySessions {
    max: usize,
    timeout_ms: u64,
    table: Arc<FatalMutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Name, Session>,
    /// By last use: the first is the oldest.
    order: BTreeMap<u64, Name>,
    uses: u64,
}

type Name = [u8; 16];

#[derive(Debug)]
struct Session {
    sid: Arc<[u8]>,
    last_ms: u64,
    use_number: u64,
}

/// Result of learning a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The session is new.
    New,
    /// The session is new, and another one that had not expired was removed for it.
    Full,
    /// The session was known, and has been used now.
    Known,
    /// The session is not known, and was not to be created.
    Nothing,
}

impl StickySessions {
    /// Table for a zone of `size` bytes, at least one session. A session expires `timeout_ms` after its last use.
    pub fn new(size: usize, timeout_ms: u64) -> Self {
        Self { max: (size / SESSION_SIZE).max(1), timeout_ms, table: Arc::default() }
    }

    /// Copy of the table whose sessions expire `timeout_ms` after their last use: for the next generation of a
    /// configuration.
    pub fn with_timeout(&self, timeout_ms: u64) -> Self {
        Self { max: self.max, timeout_ms, table: self.table.clone() }
    }

    /// Finds the identifier for `sticky` of the session's peer. Hashes the name, then takes a lock.
    pub fn lookup(&self, session: &[u8], now: u64) -> Option<Arc<[u8]>> {
        let name = name(session);
        let table = self.table.lock();
        let found_session = table.sessions.get(&name)?;
        (!self.is_over(found_session.last_ms, now)).then(|| found_session.sid.clone())
    }

    /// Binds a session to the peer with this identifier for `sticky`. An unknown session is created if `creates`.
    pub fn learn(&self, session: &[u8], sid: &Arc<[u8]>, creates: bool, now: u64) -> Learned {
        let name = name(session);
        let mut table = self.table.lock();
        table.expire(|last_ms| self.is_over(last_ms, now));
        let is_known = table.sessions.contains_key(&name);
        if !is_known && !creates {
            return Learned::Nothing;
        }
        let is_full = !is_known && table.sessions.len() >= self.max;
        if is_full {
            table.forget_oldest();
        }
        table.put(name, sid, now);
        match (is_known, is_full) {
            (true, _) => Learned::Known,
            (false, true) => Learned::Full,
            (false, false) => Learned::New,
        }
    }

    /// Number of sessions, with expired ones that are still there.
    pub fn len(&self) -> usize {
        self.table.lock().sessions.len()
    }

    /// Returns true if there is no session.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_over(&self, last_ms: u64, now: u64) -> bool {
        now.saturating_sub(last_ms) >= self.timeout_ms
    }
}

impl Table {
    fn put(&mut self, name: Name, sid: &Arc<[u8]>, now: u64) {
        self.uses += 1;
        let new = Session { sid: sid.clone(), last_ms: now, use_number: self.uses };
        if let Some(old) = self.sessions.insert(name, new) {
            self.order.remove(&old.use_number);
        }
        self.order.insert(self.uses, name);
    }

    fn expire(&mut self, is_over: impl Fn(u64) -> bool) {
        for _ in 0..EXPIRE_AT_ONCE {
            let oldest = self.order.first_key_value().and_then(|(_, name)| self.sessions.get(name));
            if !oldest.is_some_and(|session| is_over(session.last_ms)) {
                return;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, name)) = self.order.pop_first() {
            self.sessions.remove(&name);
        }
    }
}

fn name(session: &[u8]) -> Name {
    Md5::digest(session).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sid(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn sessions_are_learned_used_and_forgotten() {
        let sessions = StickySessions::new(3 * SESSION_SIZE, 1000);
        assert_eq!(sessions.learn(b"a", &sid("1"), false, 0), Learned::Nothing);
        assert_eq!(sessions.learn(b"a", &sid("1"), true, 0), Learned::New);
        assert_eq!(sessions.learn(b"b", &sid("2"), true, 100), Learned::New);
        assert_eq!(sessions.lookup(b"a", 999), Some(sid("1")));
        assert_eq!(sessions.lookup(b"a", 1000), None);
        // The session moves to another peer.
        assert_eq!(sessions.learn(b"a", &sid("3"), false, 500), Learned::Known);
        assert_eq!(sessions.lookup(b"a", 1400), Some(sid("3")));
        assert_eq!(sessions.learn(b"c", &sid("1"), true, 600), Learned::New);
        // The zone is full, so the least recently used session is removed.
        assert_eq!(sessions.learn(b"d", &sid("1"), true, 700), Learned::Full);
        assert_eq!((sessions.lookup(b"b", 700), sessions.len()), (None, 3));
        // All sessions have timed out, and are removed two at a time.
        assert_eq!(sessions.learn(b"e", &sid("1"), true, 9000), Learned::New);
        assert_eq!(sessions.len(), 2);
    }

    #[test]
    fn the_table_never_grows_past_its_zone() {
        let sessions = StickySessions::new(1 << 20, 60_000);
        for n in 0..10_000u64 {
            sessions.learn(&n.to_le_bytes(), &sid("1"), true, n);
        }
        assert_eq!(sessions.len(), 4096);
        assert!(sessions.lookup(&9_999u64.to_le_bytes(), 10_000).is_some());
        assert!(StickySessions::new(0, 1).is_empty());
    }
}
