//! JOSE without I/O and without a clock: signed and encrypted tokens (RFC 7515, RFC 7516), sets of keys (RFC 7517), and claims
//! (RFC 7519). `auth_jwt` and `auth_oidc` decide by it.
//!
//! ```text
//! text ─► Token::parse ─► Signed ────────────────────────► verify with a key that fits ─► VerifiedToken
//!                       └► Encrypted ─► decrypt with a key ─► claims, or a signed token (nested) ─┘
//! ```
//! The algorithm of a token selects keys of its own type only, so that a public key is never the secret of an HMAC. `none` is no
//! algorithm. Signatures and tags are compared in constant time, by aws-lc or [`crate::secret`].

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod algorithm;
mod claim_value;
mod encryption;
mod keys;
mod signature;
#[cfg(test)]
mod tests;
mod token;

use tw_base::Limit;

pub(crate) use self::claim_value::{ClaimPath, append_member};
pub(crate) use self::keys::{KEY_SET_SIZE_MAX, KeySet};
pub(crate) use self::token::{Token, TokenError, TokenKind, UnverifiedToken, VerifiedToken};

/// Limits of tokens and keys.
pub(crate) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "TOKEN_SIZE_MAX",
        token::TOKEN_SIZE_MAX as u64,
        "Bytes of a token (JWT)",
        "the token is invalid: 401",
    ),
    Limit::count(
        "JSON_DEPTH_MAX",
        token::JSON_DEPTH_MAX as u64,
        "Lists and objects inside each other in a token or a set of keys",
        "the token is invalid: 401; the set cannot be used: 500",
    ),
    Limit::bytes(
        "KEY_SET_SIZE_MAX",
        KEY_SET_SIZE_MAX as u64,
        "Bytes of a set of keys (JWKS)",
        "the set cannot be used: 500",
    ),
    Limit::count(
        "KEYS_MAX",
        keys::KEYS_MAX as u64,
        "Keys of a set of keys (JWKS)",
        "the set cannot be used: 500",
    ),
    Limit::count(
        "KEYS_TRIED_MAX",
        keys::KEYS_TRIED_MAX as u64,
        "Keys of a set that are tried for one token; a token that names its key (kid) needs one",
        "the token is invalid: 401",
    ),
    Limit::count(
        "RSA_DECRYPTION_BITS_MAX",
        keys::RSA_DECRYPTION_BITS_MAX as u64,
        "Bits of an RSA key that decrypts tokens",
        "the key is not used",
    ),
];
