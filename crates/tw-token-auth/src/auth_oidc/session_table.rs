//! Sessions of one provider: by identifier, and by what a logout names (`sid` and `sub` of the ID token).
//!
//! With `session_store`, each session has a pair in the table of a `keyval_zone`, without tokens. It shows the session in the API,
//! and the session ends with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde_json::json;
use tw_base::FatalMutex;
use tw_http::base64;
use tw_keyval::{ChangeError, KeyvalZone, Pair, PairChange, unix_ms};
use tw_module_support::zone::{Id, ZoneTable};

use super::session::{OidcSession, SessionHash, hash_of};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of the sessions of one provider (oidc_provider) without session_store.
    ///
    /// Bytes of all sessions of one provider without `session_store`, as large as nginx's default store.
    pub(super) const SESSIONS_SIZE_MAX: u64 = 8 << 20, bytes, "the session used longest ago ends: its user logs in again";
    /// Sessions that one logout ends in a row.
    ///
    /// Sessions that end under one lock: a program may have logged in as one user thousands of times.
    pub(super) const END_BATCH: usize = 256, count, "the loop does something else in between";
}

/// Memory of a session besides its texts, twice: text and tree of the claims, and its names.
const SESSION_SIZE: u64 = 1024;

/// Sessions of one provider, shared by all loops. Its lock is held for a look-up.
pub(super) struct OidcSessions {
    state: FatalMutex<State>,
    store: Option<Arc<KeyvalZone>>,
    /// Provider of the sessions.
    pub(super) provider: Box<str>,
    count: AtomicU64,
}

struct State {
    table: ZoneTable<Arc<OidcSession>>,
    /// Names of sessions, each with the key of the session.
    names: BTreeSet<(SessionHash, SessionHash)>,
}

/// Name of sessions in a logout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionName<'a> {
    /// Session at the provider, and its user if known.
    Session(&'a str, Option<&'a str>),
    /// All sessions of a user.
    User(&'a str),
}

/// The sessions of others leave no room for a new one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl OidcSessions {
    /// No sessions, within the bytes of `store` if there is one.
    pub(super) fn new(provider: &[u8], store: Option<Arc<KeyvalZone>>) -> Self {
        let size = store.as_ref().map_or(SESSIONS_SIZE_MAX, |store| store.size());
        Self {
            state: FatalMutex::new(State { table: ZoneTable::new(size), names: BTreeSet::new() }),
            store,
            provider: String::from_utf8_lossy(provider).into(),
            count: AtomicU64::new(0),
        }
    }

    /// Number of sessions, with those that have ended and are not removed yet.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns `true` if the sessions are in this store.
    pub(super) fn is_in(&self, store: Option<&KeyvalZone>) -> bool {
        match (&self.store, store) {
            (Some(own), Some(other)) => own.shares_pairs(other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// Keeps a new session; those used longest ago make room.
    pub(super) fn insert(&self, session: OidcSession) -> Result<(), NoRoom> {
        self.change(|state| self.add(state, Arc::new(session)))
    }

    /// Puts a session with new tokens in the place of the one that it was renewed from, unless that has ended.
    pub(super) fn replace(&self, renewed: OidcSession) {
        self.change(|state| {
            let Some(id) = state.table.find(&renewed.key) else { return };
            if Arc::ptr_eq(&state.table.get(id).renewal, &renewed.renewal) && self.has_pair(&renewed.key) {
                self.take(state, id);
                // The table has room, unless the tokens have grown and no other session can be evicted.
                let _ = self.add(state, Arc::new(renewed));
            }
        });
    }

    /// The session of an identifier that has not ended.
    pub(super) fn find(&self, id: &[u8], now: Instant) -> Option<Arc<OidcSession>> {
        let key = hash_of(id);
        let mut state = self.state.lock();
        let record_id = state.table.find(&key)?;
        if state.table.get(record_id).remaining(now).is_zero() || !self.has_pair(&key) {
            self.take(&mut state, record_id);
            self.note_count(&state);
            return None;
        }
        state.table.touch(record_id);
        Some(state.table.get(record_id).clone())
    }

    /// Returns `true` if a session has neither ended nor other tokens.
    pub(super) fn is_current(&self, session: &Arc<OidcSession>) -> bool {
        let mut state = self.state.lock();
        let id = state.table.find(&session.key);
        id.is_some_and(|id| Arc::ptr_eq(state.table.get(id), session))
    }

    /// Ends the session of an identifier, and returns it.
    pub(super) fn remove(&self, id: &[u8]) -> Option<Arc<OidcSession>> {
        self.change(|state| {
            let record_id = state.table.find(&hash_of(id))?;
            Some(self.take(state, record_id))
        })
    }

    /// Ends a session, unless it has other tokens by now.
    pub(super) fn end(&self, session: &Arc<OidcSession>) {
        self.change(|state| {
            if let Some(id) = state.table.find(&session.key)
                && Arc::ptr_eq(state.table.get(id), session)
            {
                self.take(state, id);
            }
        });
    }

    /// Ends up to [`END_BATCH`] sessions of this name, and returns their number.
    pub(super) fn end_named(&self, name: SessionName<'_>) -> usize {
        let (hash, user) = match name {
            SessionName::Session(sid, user) => (name_hash("sid", sid), user),
            SessionName::User(sub) => (name_hash("sub", sub), None),
        };
        self.change(|state| {
            let State { table, names } = &mut *state;
            let named = names.range((hash, SessionHash::default())..=(hash, [0xff; 32])).map(|(_, key)| *key);
            let is_meant = |key: &SessionHash| {
                let id = table.find(key);
                id.is_some_and(|id| user.is_none() || table.get(id).tokens.claim("sub") == user)
            };
            let keys: Vec<_> = named.filter(is_meant).take(END_BATCH).collect();
            for key in &keys {
                let id = state.table.find(key);
                id.into_iter().for_each(|id| drop(self.take(state, id)));
            }
            keys.len()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        self.note_count(&state);
        changed
    }

    fn note_count(&self, state: &State) {
        self.count.store(state.table.len() as u64, Relaxed);
    }

    /// Adds a session, in the place of others if need be.
    fn add(&self, state: &mut State, session: Arc<OidcSession>) -> Result<(), NoRoom> {
        let now = tw_rt::clock::now();
        while let Some(oldest) = state.table.oldest()
            && state.table.get(oldest).remaining(now).is_zero()
        {
            self.take(state, oldest);
        }
        let cost = SESSION_SIZE + session.tokens.size() as u64;
        while state.table.insert(&session.key, cost, session.clone()).is_none() {
            self.make_room(state)?;
        }
        // The session itself is the one used last, so it is the last that could make room.
        while !self.add_pair(&session, now) {
            if state.table.len() == 1 {
                let own = state.table.find(&session.key);
                own.into_iter().for_each(|own| state.table.remove(own));
                return Err(NoRoom);
            }
            self.make_room(state)?;
        }
        state.names.extend(names(&session));
        Ok(())
    }

    /// Ends the session that was used longest ago.
    fn make_room(&self, state: &mut State) -> Result<(), NoRoom> {
        let oldest = state.table.oldest().ok_or(NoRoom)?;
        self.take(state, oldest);
        Ok(())
    }

    /// Removes a session.
    fn take(&self, state: &mut State, id: Id) -> Arc<OidcSession> {
        let session = state.table.get(id).clone();
        state.table.remove(id);
        for name in names(&session) {
            state.names.remove(&name);
        }
        if let Some(store) = &self.store {
            // The pair may be gone.
            let _ = store.change(&[(pair_key(&session.key), PairChange::Remove)]);
        }
        session
    }

    fn has_pair(&self, key: &SessionHash) -> bool {
        self.store.as_ref().is_none_or(|store| store.get(&pair_key(key)).is_some())
    }

    /// Shows a session in the store. Returns `false` if that has no room.
    fn add_pair(&self, session: &OidcSession, now: Instant) -> bool {
        let Some(store) = &self.store else { return true };
        // DIFF(nginx): tokens are not shown.
        let shown = json!({
            "provider": &*self.provider,
            "sub": session.tokens.claim("sub"),
            "sid": session.tokens.claim("sid"),
        });
        let remaining = u64::try_from(session.remaining(now).as_millis()).unwrap_or(u64::MAX);
        let pair = Pair {
            value: shown.to_string().into_bytes().into(),
            expires: Some(unix_ms().saturating_add(remaining)),
        };
        let key = pair_key(&session.key);
        match store.change(&[(key.clone(), PairChange::Add(pair.clone()))]) {
            Err(ChangeError::Full) => false,
            // A client has guessed a hash of 256 bits.
            Err(ChangeError::KeyExists | ChangeError::NoKey | ChangeError::InvalidKey) | Ok(()) => true,
        }
    }
}

/// Names by which a logout finds a session.
fn names(session: &OidcSession) -> impl Iterator<Item = (SessionHash, SessionHash)> {
    let key = session.key;
    let named =
        ["sid", "sub"].into_iter().filter_map(|kind| Some(name_hash(kind, session.tokens.claim(kind)?)));
    named.map(move |name| (name, key)).collect::<Vec<_>>().into_iter()
}

fn name_hash(kind: &str, name: &str) -> SessionHash {
    hash_of(format!("{kind} {name}").as_bytes())
}

/// Key of the pair of a session.
fn pair_key(key: &SessionHash) -> Arc<[u8]> {
    base64::encode_url(key).into_bytes().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::session::UserTokens;
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(100);

    fn session(id: &str, sub: &str, sid: &str) -> OidcSession {
        OidcSession::new(id, UserTokens::of_claims(&json!({ "sub": sub, "sid": sid })), LIFETIME)
    }

    fn store(size: u64) -> Arc<KeyvalZone> {
        Arc::new(KeyvalZone::of_size("s", size))
    }

    #[test]
    fn logouts_end_the_sessions_they_name() {
        let sessions = OidcSessions::new(b"p", None);
        let now = tw_rt::clock::now();
        for (id, sub, sid) in [("1", "a", "x"), ("2", "a", "y"), ("3", "b", "x"), ("4", "b", "z")] {
            sessions.insert(session(id, sub, sid)).unwrap();
        }
        let remaining = || ["1", "2", "3", "4"].map(|id| sessions.find(id.as_bytes(), now).is_some());
        assert_eq!(sessions.end_named(SessionName::Session("none", None)), 0);
        assert_eq!(sessions.end_named(SessionName::User("x")), 0, "a user is no session");
        assert_eq!(sessions.end_named(SessionName::Session("x", Some("b"))), 1);
        assert_eq!(remaining(), [true, true, false, true]);
        assert_eq!(sessions.end_named(SessionName::User("a")), 2);
        assert_eq!(remaining(), [false, false, false, true]);
        assert_eq!(sessions.end_named(SessionName::Session("z", None)), 1);
        assert_eq!((remaining(), sessions.count()), ([false; 4], 0));
        for id in 0..300 {
            sessions.insert(session(&format!("c{id}"), "c", "w")).unwrap();
        }
        assert_eq!(sessions.end_named(SessionName::Session("w", Some("d"))), 0);
        assert_eq!([0; 3].map(|_| sessions.end_named(SessionName::User("c"))), [END_BATCH, 44, 0]);
        assert!(sessions.state.lock().names.is_empty());
    }

    #[test]
    fn renewal_replaces_only_the_session_it_began_with() {
        let sessions = OidcSessions::new(b"p", None);
        let now = tw_rt::clock::now();
        sessions.insert(session("1", "a", "x")).unwrap();
        let first = sessions.find(b"1", now).unwrap();
        let renewed = || first.renewed(UserTokens::of_claims(&json!({ "sub": "a", "sid": "w" })), LIFETIME);
        sessions.replace(renewed());
        let second = sessions.find(b"1", now).unwrap();
        assert!(sessions.is_current(&second) && !sessions.is_current(&first));
        assert_eq!(second.tokens.claim("sid"), Some("w"));
        sessions.end(&first);
        assert!(sessions.find(b"1", now).is_some(), "it has other tokens by now");
        assert_eq!(sessions.end_named(SessionName::Session("x", None)), 0);
        assert_eq!(sessions.end_named(SessionName::Session("w", None)), 1);
        sessions.replace(renewed());
        assert!(sessions.find(b"1", now).is_none(), "a session that has ended does not come back");
    }

    #[test]
    fn sessions_end_in_time_and_make_room_for_others() {
        let sessions = OidcSessions::new(b"p", None);
        let now = tw_rt::clock::now();
        sessions.insert(session("1", "a", "x")).unwrap();
        assert!(sessions.find(b"1", now + LIFETIME - Duration::from_secs(1)).is_some());
        assert!(sessions.find(b"1", now + LIFETIME * 2).is_none());
        assert_eq!(sessions.count(), 0);
        let count = SESSIONS_SIZE_MAX / SESSION_SIZE + 1;
        for id in 0..count {
            sessions.insert(session(&id.to_string(), "a", &id.to_string())).unwrap();
        }
        assert!(sessions.find(b"0", now).is_none());
        assert!(sessions.find((count - 1).to_string().as_bytes(), now).is_some());
        let state = sessions.state.lock();
        assert!(state.table.used() <= SESSIONS_SIZE_MAX);
        assert_eq!(state.names.len(), state.table.len() * 2);
    }

    #[test]
    fn pair_of_the_store_and_session_end_together() {
        let store = store(64 << 10);
        let sessions = OidcSessions::new(b"p", Some(store.clone()));
        let now = tw_rt::clock::now();
        sessions.insert(session("1", "a", "x")).unwrap();
        let key = pair_key(&hash_of(b"1"));
        let pair = String::from_utf8(store.get(&key).unwrap().to_vec()).unwrap();
        assert_eq!(pair, r#"{"provider":"p","sid":"x","sub":"a"}"#, "it has no token");
        sessions.remove(b"1").unwrap();
        assert_eq!(store.get(&key), None);
        sessions.insert(session("1", "a", "x")).unwrap();
        store.change(&[(key, PairChange::Remove)]).unwrap();
        assert!(sessions.find(b"1", now).is_none());
        // The size of the store bounds both.
        for id in 0..1000 {
            sessions.insert(session(&id.to_string(), "a", "x")).unwrap();
        }
        assert!(sessions.find(b"999", now).is_some() && sessions.find(b"0", now).is_none());
        assert!(sessions.is_in(Some(&store)) && !sessions.is_in(None));
        store.clear();
        assert!(sessions.find(b"999", now).is_none());
        // Pairs of others leave no room.
        let value: Arc<[u8]> = vec![b'x'; 60_000].into();
        store.change(&[(b"other"[..].into(), PairChange::Add(Pair { value, expires: None }))]).unwrap();
        let large =
            OidcSession::new("1", UserTokens::of_claims(&json!({ "sub": "u".repeat(8000) })), LIFETIME);
        assert_eq!(sessions.insert(large), Err(NoRoom));
        assert_eq!(sessions.count(), 0);
    }
}
