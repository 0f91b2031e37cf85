//! Sessions of logged-in users, in memory, and their cookies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use tw_base::FatalMutex;
use tw_http::base64;
use tw_server::http::request::Request;
use tw_server::http::variables::find_cookie;

use crate::jose::VerifiedToken;
use crate::zone::ZoneTable;

/// Bytes of all sessions of one provider, as large as nginx's default store.
pub(super) const SESSIONS_SIZE_MAX: u64 = 8 << 20;
/// Memory of a session besides its texts, twice: text and tree of the claims.
const SESSION_SIZE: u64 = 1024;
/// Random bytes of an identifier.
const ID_SIZE: usize = 32;

/// One logged-in user.
pub(super) struct OidcSession {
    pub(super) id_token: String,
    pub(super) verified: VerifiedToken,
    pub(super) access_token: String,
    /// Response of the userinfo endpoint, in JSON.
    pub(super) userinfo: Option<Vec<u8>>,
    pub(super) began: Instant,
    pub(super) lifetime: Duration,
}

/// Sessions of one provider by the hashes of their identifiers, shared by all loops. Its lock is held for a look-up.
pub(super) struct OidcSessions(FatalMutex<ZoneTable<Arc<OidcSession>>>);

impl Default for OidcSessions {
    fn default() -> Self {
        Self(FatalMutex::new(ZoneTable::new(SESSIONS_SIZE_MAX)))
    }
}

/// New identifier: what is in a cookie.
pub(super) fn new_id() -> Result<String, Unspecified> {
    let mut bytes = [0; ID_SIZE];
    rand::fill(&mut bytes)?;
    Ok(base64::encode_url(&bytes))
}

/// Returns `true` for the text of an identifier.
pub(super) fn is_id(text: &[u8]) -> bool {
    base64::decode_url(text).is_ok_and(|bytes| bytes.len() == ID_SIZE)
}

impl OidcSessions {
    /// Keeps a session; those used longest ago make room.
    pub(super) fn insert(&self, id: &str, session: OidcSession) {
        let texts = session.id_token.len() * 2
            + session.access_token.len()
            + session.userinfo.as_ref().map_or(0, Vec::len);
        let (key, session) = (key_of(id.as_bytes()), Arc::new(session));
        let mut table = self.0.lock();
        while table.insert(&key, SESSION_SIZE + texts as u64, session.clone()).is_none() {
            match table.oldest() {
                Some(oldest) => table.remove(oldest),
                None => return,
            }
        }
    }

    /// The session of an identifier that has not ended.
    pub(super) fn find(&self, id: &[u8], now: Instant) -> Option<Arc<OidcSession>> {
        let mut table = self.0.lock();
        let found = table.find(&key_of(id))?;
        let session = table.get(found);
        if now.saturating_duration_since(session.began) >= session.lifetime {
            table.remove(found);
            return None;
        }
        table.touch(found);
        Some(table.get(found).clone())
    }

    /// Ends a session, and returns it.
    pub(super) fn remove(&self, id: &[u8]) -> Option<Arc<OidcSession>> {
        let mut table = self.0.lock();
        let found = table.find(&key_of(id))?;
        let session = table.get(found).clone();
        table.remove(found);
        Some(session)
    }
}

/// Key of the table. The time of a look-up says nothing about an identifier.
fn key_of(id: &[u8]) -> Vec<u8> {
    digest(&SHA256, id).as_ref().to_vec()
}

/// Cookie of a request.
pub(super) fn cookie<'r>(r: &'r Request, name: &[u8]) -> Option<&'r [u8]> {
    r.head.field_all(b"cookie").find_map(|line| find_cookie(line, name)).filter(|value| is_id(value))
}

/// Value of `Set-Cookie`, until the browser is closed; without `value` the cookie is removed.
pub(super) fn set_cookie(name: &str, value: Option<&str>, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    let age = if value.is_none() { "; Max-Age=0" } else { "" };
    format!("{name}={}; Path=/{age}; HttpOnly{secure}; SameSite=Lax", value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_have_their_attributes() {
        for (value, is_secure, expected) in [
            (Some("v"), true, "n=v; Path=/; HttpOnly; Secure; SameSite=Lax"),
            (Some("v"), false, "n=v; Path=/; HttpOnly; SameSite=Lax"),
            (None, true, "n=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"),
        ] {
            assert_eq!(set_cookie("n", value, is_secure), expected);
        }
    }

    #[test]
    fn identifiers_are_random_and_of_one_form() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert!(one != other && is_id(one.as_bytes()) && one.len() == 43);
        for text in ["", "a", &one[1..], &format!("{one}a"), &one.replace(&one[..1], "*")] {
            assert!(!is_id(text.as_bytes()), "{text}");
        }
    }
}
