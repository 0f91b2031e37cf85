//! Tokens in their compact form, and what they say.

use std::time::Duration;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Lists and objects inside each other in a token or a set of keys.
    ///
    /// `serde_json` keeps this limit.
    pub(super) const JSON_DEPTH_MAX: usize = 127, count, "the token is invalid: 401; the set cannot be used: 500";
}

#[cfg(test)]
use serde_json::Value;
use tw_rt::clock::UnixTime;

use super::algorithm::SignatureAlgorithm;
use super::encryption::EncryptedToken;
use super::header::{Header, Members, TOKEN_SIZE_MAX, TokenError, decoded, object};
use super::keys::{KEYS_TRIED_MAX, KeySet};
use super::signature::{self, SignatureVerdict};

/// Kind of tokens that are accepted (`auth_jwt_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Signed,
    Encrypted,
    /// Signed, then encrypted.
    Nested,
}

/// Validation of signatures (`auth_jwt_validate_sig`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    On,
    /// Anybody can write such a token.
    Off,
}

/// Token whose signature was not verified, nor anything decrypted.
pub(crate) enum Token {
    Signed(SignedToken),
    Encrypted(Box<EncryptedToken>, TokenKind, SignatureCheck),
    /// Signed token whose signature is not validated.
    Unchecked(Box<VerifiedToken>),
}

/// Signed token.
pub(crate) struct SignedToken {
    header: Header,
    algorithm: SignatureAlgorithm,
    /// Header and payload as sent.
    message: Vec<u8>,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// Token that a key has verified or decrypted, or whose signature is not validated.
#[derive(Debug)]
pub(crate) struct VerifiedToken {
    header: Header,
    /// Header of the signed token inside an encrypted one.
    signed_header: Option<Header>,
    claims: Members,
    /// Content of an encrypted token.
    payload: Option<Vec<u8>>,
}

/// Header and claims of a token that nothing vouches for.
pub(crate) struct UnverifiedToken {
    header: Header,
    /// Empty if the token is encrypted, or has none.
    claims: Members,
}

impl Token {
    /// Reads a token of this kind.
    pub(crate) fn parse(text: &[u8], kind: TokenKind, check: SignatureCheck) -> Result<Self, TokenError> {
        if text.len() > TOKEN_SIZE_MAX {
            return Err(TokenError::TooLarge);
        }
        match kind {
            TokenKind::Signed => match check {
                SignatureCheck::On => SignedToken::parse(text).map(Self::Signed),
                SignatureCheck::Off => {
                    VerifiedToken::unchecked(text).map(|token| Self::Unchecked(token.into()))
                }
            },
            TokenKind::Encrypted | TokenKind::Nested => {
                let parts = parts(text).ok_or(TokenError::Malformed("form"))?;
                Ok(Self::Encrypted(Box::new(EncryptedToken::parse(parts)?), kind, check))
            }
        }
    }

    /// Returns `true` if [`verify`](Self::verify) takes milliseconds, and so belongs on no loop.
    pub(crate) fn is_costly(&self) -> bool {
        match self {
            Self::Signed(_) | Self::Unchecked(_) => false,
            Self::Encrypted(token, ..) => token.is_costly(),
        }
    }

    /// Returns `true` if [`verify`](Self::verify) uses keys.
    pub(crate) fn needs_keys(&self) -> bool {
        !matches!(self, Self::Unchecked(_))
    }

    /// Verifies its signature, decrypts it, or both, by keys of these sets.
    pub(crate) fn verify<'k>(
        self,
        sets: impl Iterator<Item = &'k KeySet> + Clone,
    ) -> Result<VerifiedToken, TokenError> {
        match self {
            Self::Unchecked(token) => Ok(*token),
            Self::Signed(token) => {
                token.check_signature(sets)?;
                Ok(VerifiedToken {
                    claims: object(&token.payload, "payload")?,
                    header: token.header,
                    signed_header: None,
                    payload: None,
                })
            }
            Self::Encrypted(token, kind, check) => {
                let payload = token.decrypt(sets.clone())?;
                let (signed, claims) = match (kind, check) {
                    (TokenKind::Nested, SignatureCheck::Off) => {
                        let inner = VerifiedToken::unchecked(&payload)?;
                        (Some(inner.header), inner.claims)
                    }
                    (TokenKind::Nested, SignatureCheck::On) => {
                        let inner = SignedToken::parse(&payload)?;
                        inner.check_signature(sets)?;
                        (Some(inner.header), object(&inner.payload, "payload")?)
                    }
                    (TokenKind::Signed | TokenKind::Encrypted, _) => (None, object(&payload, "payload")?),
                };
                Ok(VerifiedToken {
                    header: token.header,
                    signed_header: signed,
                    claims,
                    payload: Some(payload),
                })
            }
        }
    }
}

impl SignedToken {
    fn parse(text: &[u8]) -> Result<Self, TokenError> {
        let [header_text, payload, signature] = parts(text).ok_or(TokenError::Malformed("form"))?;
        let header = Header::parse(header_text)?;
        let algorithm = match header.text("alg") {
            Some("none") => return Err(TokenError::Unsecured),
            Some(name) => SignatureAlgorithm::of(name).ok_or(TokenError::Unsupported("alg"))?,
            None => return Err(TokenError::Malformed("header")),
        };
        let message = [header_text, b".", payload].concat();
        let signature = decoded(signature)?;
        Ok(Self { header, algorithm, message, payload: decoded(payload)?, signature })
    }

    fn check_signature<'k>(&self, sets: impl Iterator<Item = &'k KeySet> + Clone) -> Result<(), TokenError> {
        let mut tried = 0;
        for key in sets.clone().flat_map(|set| set.of_signatures(&self.header, self.algorithm)) {
            match signature::verify(key, self.algorithm, &self.message, &self.signature) {
                SignatureVerdict::Fits => return Ok(()),
                SignatureVerdict::OtherKeyType => {}
                SignatureVerdict::Differs => {
                    tried += 1;
                    if tried == KEYS_TRIED_MAX {
                        break;
                    }
                }
            }
        }
        Err(match tried {
            0 => TokenError::NoKey(sets.clone().find_map(|set| set.unusable().map(str::to_owned))),
            _ => TokenError::WrongSignature,
        })
    }
}

impl VerifiedToken {
    /// Reads a signed token without a look at its signature, whatever its algorithm.
    fn unchecked(text: &[u8]) -> Result<Self, TokenError> {
        let [header, payload, _] = parts(text).ok_or(TokenError::Malformed("form"))?;
        let header = Header::parse(header)?;
        let claims = object(&decoded(payload)?, "payload")?;
        Ok(Self { header, signed_header: None, claims, payload: None })
    }

    /// Checks `exp` and `nbf`, for clocks that differ by up to `leeway`.
    pub(crate) fn check_times(&self, now: UnixTime, leeway: Duration) -> Result<(), TokenError> {
        self.check_end(now, leeway)?;
        self.check_start(now, leeway)
    }

    /// Checks `exp` (RFC 7519 section 4.1.4).
    fn check_end(&self, now: UnixTime, leeway: Duration) -> Result<(), TokenError> {
        match self.time("exp")? {
            Some(until) if seconds(now) >= until + leeway.as_secs_f64() => Err(TokenError::Expired),
            _ => Ok(()),
        }
    }

    /// Checks `nbf` (RFC 7519 section 4.1.5), for clocks that differ by up to `leeway`.
    pub(crate) fn check_start(&self, now: UnixTime, leeway: Duration) -> Result<(), TokenError> {
        match self.time("nbf")? {
            Some(from) if seconds(now) < from - leeway.as_secs_f64() => Err(TokenError::NotYetValid),
            _ => Ok(()),
        }
    }

    /// Seconds of a claim.
    fn time(&self, name: &'static str) -> Result<Option<f64>, TokenError> {
        match self.claims.get(name) {
            Some(value) => value.as_f64().map(Some).ok_or(TokenError::InvalidTime(name)),
            None => Ok(None),
        }
    }

    /// Token with these claims.
    #[cfg(test)]
    pub(crate) fn of_claims(claims: &Value) -> Self {
        let claims = claims.as_object().cloned().unwrap_or_default();
        Self { header: Header::default(), signed_header: None, claims, payload: None }
    }

    pub(crate) fn header(&self) -> &Members {
        self.header.members()
    }

    /// Header that names the key of the signature; that of the encryption if nothing is signed.
    pub(crate) fn signed_header(&self) -> &Members {
        self.signed_header.as_ref().unwrap_or(&self.header).members()
    }

    pub(crate) fn claims(&self) -> &Members {
        &self.claims
    }

    /// Content of an encrypted token: its claims, or the signed token inside.
    pub(crate) fn payload(&self) -> Option<&[u8]> {
        self.payload.as_deref()
    }
}

impl UnverifiedToken {
    /// Reads what can be read without a key; `None` if that is nothing.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TOKEN_SIZE_MAX {
            return None;
        }
        let mut parts = text.split(|byte| *byte == b'.');
        let header = object(&decoded(parts.next()?).ok()?, "header").ok()?;
        let payload = parts.next()?;
        let signature = parts.next();
        let is_signed = parts.next().is_none();
        let claims = match signature {
            Some(_) if is_signed => object(&decoded(payload).ok()?, "payload").ok()?,
            _ => Members::new(),
        };
        Some(Self { header: Header::of_members(header), claims })
    }

    pub(crate) fn header(&self) -> &Members {
        self.header.members()
    }

    pub(crate) fn claims(&self) -> &Members {
        &self.claims
    }
}

fn seconds(time: UnixTime) -> f64 {
    time.secs as f64 + f64::from(time.msec) / 1000.0
}

/// Exactly `N` parts between dots.
fn parts<const N: usize>(text: &[u8]) -> Option<[&[u8]; N]> {
    let mut split = text.split(|byte| *byte == b'.');
    let mut parts = [&[][..]; N];
    for part in &mut parts {
        *part = split.next()?;
    }
    split.next().is_none().then_some(parts)
}
