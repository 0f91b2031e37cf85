//! State of a login, which the provider sends back: sealed, so that this server keeps nothing for clients that do not log in.
//!
//! ```text
//! cookie of the browser ─┬─► seal(time, URI) = state ─► provider ─► state ─► open, for this browser only
//!                        └─► HMAC(key, state) = nonce of the ID token, verifier of PKCE
//! ```

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{hmac, rand};
use tw_http::base64;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Time of a login.
    pub(super) const LOGIN_SECS_MAX: i64 = 600, secs, "403: it has to begin again";
    /// Bytes of a URI that a login returns to.
    ///
    /// Bytes of a URI that a login returns to; a longer one becomes `/`. Providers take some 2 KiB.
    pub(super) const URI_SIZE_MAX: usize = 1024, bytes, "it returns to /";
}

/// Bytes of a nonce of the cipher.
const NONCE_SIZE: usize = 12;

/// Keys of one provider's logins. They outlive a configuration.
pub(super) struct StateKeys {
    seal: RandomizedNonceKey,
    derive: hmac::Key,
}

/// Begin and destination of a login.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoginState {
    /// Begin of the login: seconds since 1970.
    pub(super) began: i64,
    pub(super) uri: Vec<u8>,
}

/// Purpose of a value that is derived from a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Derived {
    Nonce,
    CodeVerifier,
    /// Confirmation of a logout, of the identifier of a session.
    Logout,
}

impl StateKeys {
    /// New keys.
    ///
    /// # Errors
    /// No randomness.
    pub(super) fn new() -> Result<Self, Unspecified> {
        let mut seal = [0; 32];
        let mut derive = [0; 32];
        rand::fill(&mut seal)?;
        rand::fill(&mut derive)?;
        let seal = RandomizedNonceKey::new(&AES_256_GCM, &seal)?;
        Ok(Self { seal, derive: hmac::Key::new(hmac::HMAC_SHA256, &derive) })
    }

    /// Seals a state for the browser with this cookie.
    pub(super) fn seal(&self, state: &LoginState, browser: &[u8]) -> Result<String, Unspecified> {
        let uri = if state.uri.len() > URI_SIZE_MAX { b"/" } else { state.uri.as_slice() };
        let mut sealed = [&state.began.to_be_bytes()[..], uri].concat();
        let nonce = self.seal.seal_in_place_append_tag(Aad::from(browser), &mut sealed)?;
        Ok(base64::encode_url(&[&nonce.as_ref()[..], &sealed].concat()))
    }

    /// Opens a state that was sealed for this browser less than [`LOGIN_SECS_MAX`] ago.
    pub(super) fn open(&self, text: &[u8], browser: &[u8], now: i64) -> Option<LoginState> {
        let mut bytes = base64::decode_url(text).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_SIZE)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.seal.open_in_place(nonce, Aad::from(browser), sealed).ok()?;
        let (began, uri) = opened.split_first_chunk::<8>()?;
        let began = i64::from_be_bytes(*began);
        let is_recent = (0..LOGIN_SECS_MAX).contains(&now.checked_sub(began)?);
        is_recent.then(|| LoginState { began, uri: uri.to_vec() })
    }

    /// Value that belongs to a sealed state, or to what else the purpose has.
    pub(super) fn derive(&self, purpose: Derived, state: &[u8]) -> String {
        let purpose: &[u8] = match purpose {
            Derived::Nonce => b"nonce ",
            Derived::CodeVerifier => b"code verifier ",
            Derived::Logout => b"logout ",
        };
        base64::encode_url(hmac::sign(&self.derive, &[purpose, state].concat()).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_opened_for_its_browser_in_time() {
        let keys = StateKeys::new().unwrap();
        let others = StateKeys::new().unwrap();
        let state = LoginState { began: 1000, uri: b"/a?b=c".to_vec() };
        let sealed = keys.seal(&state, b"browser").unwrap();
        let open =
            |keys: &StateKeys, text: &str, browser: &[u8], now| keys.open(text.as_bytes(), browser, now);
        assert_eq!(open(&keys, &sealed, b"browser", 1599), Some(state));
        for (keys, text, browser, now) in [
            (&keys, &*sealed, &b"other"[..], 1000),
            (&keys, &sealed, b"", 1000),
            (&keys, &sealed, b"browser", 1600),
            (&keys, &sealed, b"browser", 999),
            (&keys, &sealed, b"browser", i64::MIN),
            (&keys, &sealed[..sealed.len() - 1], b"browser", 1000),
            (&keys, "", b"browser", 1000),
            (&keys, "AAAA", b"browser", 1000),
            (&keys, "*", b"browser", 1000),
            (&others, &sealed, b"browser", 1000),
        ] {
            assert_eq!(open(keys, text, browser, now), None, "{text} {now}");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(keys.open(&changed, b"browser", 1000), None, "{at}");
        }
        let long = LoginState { began: 1000, uri: vec![b'x'; 2000] };
        let sealed = keys.seal(&long, b"browser").unwrap();
        assert_eq!(open(&keys, &sealed, b"browser", 1000).unwrap().uri, b"/");
    }

    #[test]
    fn derived_values_differ_by_purpose_and_state() {
        let keys = StateKeys::new().unwrap();
        let nonce = keys.derive(Derived::Nonce, b"a");
        assert_eq!(nonce.len(), 43);
        assert_eq!(nonce, keys.derive(Derived::Nonce, b"a"));
        assert_ne!(nonce, keys.derive(Derived::Nonce, b"b"));
        assert_ne!(nonce, keys.derive(Derived::CodeVerifier, b"a"));
        assert_ne!(nonce, keys.derive(Derived::Logout, b"a"));
    }
}
