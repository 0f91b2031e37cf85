//! Responses to the challenges of authorities. Tasks of issuers store them, loops read them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use rustls::ServerConfig;
use tw_base::FatalMutex;

/// Path of http-01 challenges; a token follows (RFC 8555, section 8.3).
pub const HTTP_PREFIX: &[u8] = b"/.well-known/acme-challenge/";
/// The only ALPN protocol in the hello of an authority (RFC 8737, section 6.2).
pub const ALPN: &[u8] = b"acme-tls/1";

/// Responses to open challenges.
#[derive(Default)]
pub struct ChallengeResponses {
    /// Number of open challenges, so that other requests cost one load.
    open: AtomicUsize,
    all: FatalMutex<All>,
}

#[derive(Default)]
struct All {
    http: HashMap<Box<[u8]>, Bytes>,
    tls: HashMap<Box<str>, Arc<ServerConfig>>,
}

/// Guard of one response, which is removed when the guard is dropped.
#[must_use]
pub(crate) struct PostedResponse {
    answers: Arc<ChallengeResponses>,
    key: Key,
}

enum Key {
    Http(Box<[u8]>),
    Tls(Box<str>, Arc<ServerConfig>),
}

impl ChallengeResponses {
    /// Returns the response to a request for `path`; `None` if it is no open challenge. Without open challenges this is one load.
    pub fn http(&self, path: &[u8]) -> Option<Bytes> {
        if self.open.load(Relaxed) == 0 {
            return None;
        }
        let token = path.strip_prefix(HTTP_PREFIX)?;
        self.all.lock().http.get(token).cloned()
    }

    /// Returns the settings of a handshake with an authority that checks `name`, in lower case.
    pub fn tls(&self, name: &str) -> Option<Arc<ServerConfig>> {
        if self.open.load(Relaxed) == 0 {
            return None;
        }
        self.all.lock().tls.get(name).cloned()
    }

    pub(crate) fn post_http(self: &Arc<Self>, token: &str, answer: String) -> PostedResponse {
        let token: Box<[u8]> = token.as_bytes().into();
        self.all.lock().http.insert(token.clone(), answer.into());
        self.posted(Key::Http(token))
    }

    pub(crate) fn post_tls(self: &Arc<Self>, name: &str, config: Arc<ServerConfig>) -> PostedResponse {
        self.all.lock().tls.insert(name.into(), config.clone());
        self.posted(Key::Tls(name.into(), config))
    }

    fn posted(self: &Arc<Self>, key: Key) -> PostedResponse {
        self.open.fetch_add(1, Relaxed);
        PostedResponse { answers: self.clone(), key }
    }
}

impl Drop for PostedResponse {
    fn drop(&mut self) {
        let mut all = self.answers.all.lock();
        match &self.key {
            Key::Http(token) => drop(all.http.remove(token)),
            // Another issuer may have a challenge for the same name by now.
            Key::Tls(name, config) if all.tls.get(name).is_some_and(|other| Arc::ptr_eq(other, config)) => {
                drop(all.tls.remove(name));
            }
            Key::Tls(..) => {}
        }
        self.answers.open.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for ChallengeResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChallengeResponses({} open)", self.open.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_served_while_its_guard_is_held() {
        let answers = Arc::new(ChallengeResponses::default());
        let path = b"/.well-known/acme-challenge/token";
        assert_eq!(answers.http(path), None);
        let posted = answers.post_http("token", "token.key".into());
        assert_eq!(answers.http(path).as_deref(), Some(&b"token.key"[..]));
        assert_eq!(answers.http(b"/.well-known/acme-challenge/other"), None);
        assert_eq!(answers.http(b"/token"), None);
        drop(posted);
        assert_eq!(answers.http(path), None);
    }
}
