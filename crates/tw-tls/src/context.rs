//! Session id contexts (as in OpenSSL): a session is resumed only by a server that has the same certificates and
//! trusts the same authorities as the one it began with.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{Context as Digest, SHA256};
use rustls::server::{ProducesTickets, StoresServerSessions};

const SIZE: usize = 32;

/// Session id context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionIdContext([u8; SIZE]);

impl SessionIdContext {
    /// Context of a server with this identity, given as byte strings in this order.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self(digest(parts))
    }
}

/// Digest of byte strings in this order. The same bytes in other strings have another one.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; SIZE] {
    let mut digest = Digest::new(&SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut bytes = [0; SIZE];
    bytes.copy_from_slice(digest.finish().as_ref());
    bytes
}

/// Session cache or ticketer restricted to one context.
pub struct SessionsInContext<T: ?Sized> {
    context: SessionIdContext,
    inner: Arc<T>,
}

impl<T: ?Sized> SessionsInContext<T> {
    /// `inner` for sessions of this context; others may use it, too.
    pub fn new(context: SessionIdContext, inner: Arc<T>) -> Self {
        Self { context, inner }
    }

    fn with(&self, bytes: &[u8]) -> Vec<u8> {
        [&self.context.0[..], bytes].concat()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SessionsInContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized + ProducesTickets> ProducesTickets for SessionsInContext<T> {
    fn enabled(&self) -> bool {
        self.inner.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.inner.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.inner.encrypt(&self.with(plain))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        Some(self.inner.decrypt(ticket)?.strip_prefix(&self.context.0)?.to_vec())
    }
}

impl<T: ?Sized + StoresServerSessions> StoresServerSessions for SessionsInContext<T> {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.inner.put(self.with(&key), value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.inner.get(&self.with(key))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.inner.take(&self.with(key))
    }

    fn can_cache(&self) -> bool {
        self.inner.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestClock;
    use crate::{Cache, Tickets};

    #[test]
    fn sessions_of_other_contexts_are_not_resumed() {
        let clock = TestClock::at(1000);
        let one = SessionIdContext::of([&b"a"[..], b"bc"]);
        let other = SessionIdContext::of([&b"ab"[..], b"c"]);
        assert_ne!(one, other);
        assert_eq!(one, SessionIdContext::of([&b"a"[..], b"bc"]));

        let tickets = Arc::new(Tickets::random(3600, clock.clock()).unwrap());
        let ticket = SessionsInContext::new(one, tickets.clone()).encrypt(b"state").unwrap();
        assert_eq!(
            SessionsInContext::new(one, tickets.clone()).decrypt(&ticket).as_deref(),
            Some(&b"state"[..])
        );
        assert_eq!(SessionsInContext::new(other, tickets).decrypt(&ticket), None);

        let cache = Arc::new(Cache::new(1 << 20, 300, clock.clock()));
        assert!(SessionsInContext::new(one, cache.clone()).put(vec![1], vec![2]));
        assert_eq!(SessionsInContext::new(other, cache.clone()).get(&[1]), None);
        assert_eq!(SessionsInContext::new(other, cache.clone()).take(&[1]), None);
        assert_eq!(SessionsInContext::new(one, cache.clone()).get(&[1]), Some(vec![2]));
        assert_eq!(SessionsInContext::new(one, cache).take(&[1]), Some(vec![2]));
    }
}
