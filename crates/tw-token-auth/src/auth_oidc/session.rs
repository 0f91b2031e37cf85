//! Sessions of logged-in users and their cookies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use serde_json::Value;
use tokio::sync::Semaphore;
use tw_base::FatalMutex;
use tw_http::base64;
use tw_request::cookie::find_cookie;
use tw_request::request::Request;
use tw_rt::clock::UnixTime;

use super::discovery::RETRY_TIME;
use crate::jose::VerifiedToken;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Time before the end of tokens in which they are renewed; a quarter of their life if that is shorter.
    ///
    /// Longest time before the end of tokens in which they are renewed; for tokens of a short life it is a quarter of that.
    pub(super) const RENEWAL_LEAD_MAX: Duration = Duration::from_secs(300), time, "a request waits for the renewal";
}

/// Random bytes of an identifier.
const ID_SIZE: usize = 32;

/// Hash of an identifier, or of what a logout names.
pub(super) type SessionHash = [u8; 32];

/// Tokens of a user, as the provider issued them together.
pub(super) struct UserTokens {
    pub(super) id_token: String,
    pub(super) verified: Arc<VerifiedToken>,
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// Response of the userinfo endpoint, in JSON.
    pub(super) userinfo: Option<Vec<u8>>,
    /// Time for which they are valid; `None` if the provider does not say.
    pub(super) life: Option<Duration>,
}

/// One logged-in user. A renewal replaces it by another one with the same key and the same [`Renewal`].
pub(super) struct OidcSession {
    pub(super) key: SessionHash,
    pub(super) tokens: UserTokens,
    /// Time of the login, or of the latest renewal.
    began: Instant,
    /// Time after which the session ends.
    lifetime: Duration,
    pub(super) renewal: Arc<Renewal>,
}

/// State of the renewals of one session, over all its tokens.
pub(super) struct Renewal {
    /// Permit of the one renewal under way.
    pub(super) turn: Arc<Semaphore>,
    failed_at: FatalMutex<Option<Instant>>,
}

/// Need for a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewalNeed {
    /// Not yet, not again so soon, or not possible.
    None,
    /// The tokens end soon.
    Soon,
    /// The tokens have ended.
    Now,
}

impl UserTokens {
    /// Bytes of the texts.
    pub(super) fn size(&self) -> usize {
        // The claims are there as text and as tree.
        self.id_token.len() * 2
            + self.access_token.len()
            + self.refresh_token.as_ref().map_or(0, String::len)
            + self.userinfo.as_ref().map_or(0, Vec::len)
    }

    /// Tokens with these claims, for tests.
    #[cfg(test)]
    pub(super) fn of_claims(claims: &Value) -> Self {
        Self {
            id_token: claims.to_string(),
            verified: Arc::new(VerifiedToken::of_claims(claims)),
            access_token: "a".to_owned(),
            refresh_token: Some("r".to_owned()),
            userinfo: None,
            life: Some(Duration::from_secs(100)),
        }
    }

    /// Text of a claim of the ID token.
    pub(super) fn claim(&self, name: &str) -> Option<&str> {
        self.verified.claims().get(name).and_then(Value::as_str)
    }
}

impl OidcSession {
    /// Session that begins now under this identifier.
    pub(super) fn new(id: &str, tokens: UserTokens, lifetime: Duration) -> Self {
        let key = hash_of(id.as_bytes());
        let began = tw_rt::clock::now();
        Self { key, tokens, began, lifetime, renewal: Arc::default() }
    }

    /// Session of the same user and the same cookie, with new tokens.
    pub(super) fn renewed(&self, tokens: UserTokens, lifetime: Duration) -> Self {
        let began = tw_rt::clock::now();
        let renewal = self.renewal.clone();
        Self { key: self.key, tokens, began, lifetime, renewal }
    }

    /// Time that is left.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.lifetime.saturating_sub(now.saturating_duration_since(self.began))
    }

    /// Need for a renewal.
    pub(super) fn renewal_need(&self, now: Instant) -> RenewalNeed {
        let Some(life) = self.tokens.life.filter(|_| self.tokens.refresh_token.is_some()) else {
            return RenewalNeed::None;
        };
        let age = now.saturating_duration_since(self.began);
        if age < life - RENEWAL_LEAD_MAX.min(life / 4) || self.renewal.has_failed(now) {
            return RenewalNeed::None;
        }
        if age < life { RenewalNeed::Soon } else { RenewalNeed::Now }
    }
}

impl Default for Renewal {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), failed_at: FatalMutex::new(None) }
    }
}

impl Renewal {
    /// Notes that the provider could not be asked; for a while it is not asked again.
    pub(super) fn note_failure(&self, now: Instant) {
        *self.failed_at.lock() = Some(now);
    }

    fn has_failed(&self, now: Instant) -> bool {
        self.failed_at.lock().is_some_and(|at| now.saturating_duration_since(at) < RETRY_TIME)
    }
}

/// Time for which tokens of a response are valid: until the access token or the ID token ends, whichever is first.
pub(super) fn life_of(
    expires_in: Option<&Value>,
    id_token: Option<&VerifiedToken>,
    now: UnixTime,
) -> Option<Duration> {
    let access = expires_in.and_then(|secs| match secs {
        Value::String(text) => text.parse().ok(),
        secs => secs.as_f64(),
    });
    let until = id_token.and_then(|token| token.claims().get("exp")?.as_f64());
    let id = until.map(|until| until - now.secs as f64 - f64::from(now.msec) / 1000.0);
    let secs = [access, id].into_iter().flatten().min_by(f64::total_cmp)?;
    // With a lifetime of zero the provider is asked once a second at most; with one of a million years it is not asked
    // at all.
    Duration::try_from_secs_f64(secs.max(1.0)).ok()
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

/// Hash by which something is looked up, so that the time of a look-up says nothing about it.
pub(super) fn hash_of(text: &[u8]) -> SessionHash {
    let mut hash = SessionHash::default();
    hash.copy_from_slice(digest(&SHA256, text).as_ref());
    hash
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
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let now = tw_rt::clock::now();
        let session = |life: Option<u64>, refresh_token: Option<&str>| {
            let tokens = UserTokens {
                life: life.map(Duration::from_secs),
                refresh_token: refresh_token.map(str::to_owned),
                ..UserTokens::of_claims(&json!({}))
            };
            OidcSession { began: now, ..OidcSession::new("id", tokens, Duration::from_secs(1000)) }
        };
        for (life, refresh_token, age, expected) in [
            (Some(100), Some("r"), 74, RenewalNeed::None),
            (Some(100), Some("r"), 75, RenewalNeed::Soon),
            (Some(100), Some("r"), 99, RenewalNeed::Soon),
            (Some(100), Some("r"), 100, RenewalNeed::Now),
            (Some(7200), Some("r"), 6899, RenewalNeed::None),
            (Some(7200), Some("r"), 6900, RenewalNeed::Soon),
            (Some(100), None, 100, RenewalNeed::None),
            (None, Some("r"), 100, RenewalNeed::None),
        ] {
            let at = now + Duration::from_secs(age);
            assert_eq!(session(life, refresh_token).renewal_need(at), expected, "{life:?} {age}");
        }
        let failed = session(Some(100), Some("r"));
        failed.renewal.note_failure(now + Duration::from_secs(90));
        for (age, expected) in [(99, RenewalNeed::None), (100, RenewalNeed::Now)] {
            assert_eq!(failed.renewal_need(now + Duration::from_secs(age)), expected, "{age}");
        }
    }

    #[test]
    fn life_of_tokens_is_that_of_the_first_that_ends() {
        let now = UnixTime { secs: 1000, msec: 0 };
        let token = VerifiedToken::of_claims(&json!({ "exp": 1300 }));
        for (expires_in, token, expected) in [
            (Some(json!(60)), Some(&token), Some(60)),
            (Some(json!(600)), Some(&token), Some(300)),
            (Some(json!("60")), None, Some(60)),
            (Some(json!(0)), None, Some(1)),
            (Some(json!(-5)), None, Some(1)),
            (Some(json!(1e30)), None, None),
            (Some(json!([])), None, None),
            (None, Some(&token), Some(300)),
            (None, None, None),
        ] {
            let life = life_of(expires_in.as_ref(), token, now);
            assert_eq!(life, expected.map(Duration::from_secs), "{expires_in:?}");
        }
    }

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
        let one = new_id().unwrap();
        let other = new_id().unwrap();
        assert!(one != other && is_id(one.as_bytes()) && one.len() == 43);
        for text in ["", "a", &one[1..], &format!("{one}a"), &one.replace(&one[..1], "*")] {
            assert!(!is_id(text.as_bytes()), "{text}");
        }
    }
}
