//! JOSE without I/O and without a clock: signed and encrypted tokens (RFC 7515, RFC 7516), sets of keys (RFC 7517), and claims
//! (RFC 7519). `auth_jwt` and `auth_oidc` decide by it.
//!
//! ```text
//! text ─► Token::parse ─► Signed ────────────────────────► verify with a key that fits ─► VerifiedToken
//!                       └► Encrypted ─► decrypt with a key ─► claims, or a signed token (nested) ─┘
//! ```
//! The algorithm of a token selects keys of its own type only, so that a public key is never the secret of an HMAC. `none` is no
//! algorithm. Signatures and tags are compared in constant time, by aws-lc or [`crate::shared::secret`].

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod algorithm;
mod claim_value;
mod encryption;
mod header;
mod keys;
mod signature;
#[cfg(test)]
mod tests;
mod token;

pub(crate) use self::claim_value::{ClaimPath, append_member, append_value};
pub(crate) use self::header::TokenError;
pub(crate) use self::keys::{KEY_SET_SIZE_MAX, KeySet};
pub(crate) use self::token::{SignatureCheck, Token, TokenKind, UnverifiedToken, VerifiedToken};

tw_base::limits! {
    /// Limits of tokens and keys.
    pub(crate) const LIMITS;

    /// Bytes of a token (JWT).
    constant bytes header::TOKEN_SIZE_MAX, "the token is invalid: 401";
    /// Lists and objects inside each other in a token or a set of keys.
    constant count token::JSON_DEPTH_MAX, "the token is invalid: 401; the set cannot be used: 500";
    /// Bytes of a set of keys (JWKS).
    constant bytes KEY_SET_SIZE_MAX, "the set cannot be used: 500";
    /// Keys of a set of keys (JWKS).
    constant count keys::KEYS_MAX, "the set cannot be used: 500";
    /// Keys of a set that are tried for one token; a token that names its key (kid) needs one.
    constant count keys::KEYS_TRIED_MAX, "the token is invalid: 401";
    /// Bits of an RSA key that decrypts tokens.
    constant count keys::RSA_DECRYPTION_BITS_MAX, "the key is not used";
}
