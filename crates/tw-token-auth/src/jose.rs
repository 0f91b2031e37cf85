//! JOSE without I/O and without a clock: signed and encrypted tokens (RFC 7515, RFC 7516), sets of keys (RFC 7517), and claims
//! (RFC 7519). `auth_jwt` and `auth_oidc` decide by it.
//!
//! ```text
//! text ─► Token::parse ─► Signed ────────────────────────► verify with a key that fits ─► VerifiedToken
//!                       └► Encrypted ─► decrypt with a key ─► claims, or a signed token (nested) ─┘
//! ```
//! The algorithm of a token selects keys of its own type only, so that a public key is never the secret of an HMAC. `none` is no
//! algorithm. Signatures and tags are compared in constant time, by aws-lc or [`tw_module_support::secret`].

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

    use header::LIMITS;
    use token::LIMITS;
    use keys::LIMITS;
}
