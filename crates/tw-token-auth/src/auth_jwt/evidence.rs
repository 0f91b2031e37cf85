//! Keys and revocation lists that decide about a token, from files and responses.

use std::sync::Arc;

use tw_log::Level;
use tw_module_support::access_refusal::try_later;
use tw_module_support::cached_files::NamedFile;
use tw_request::plan::Outcome;
use tw_request::request::Request;

use super::key_source::KeyFailure;
use super::revocation::{self, RevocationList};
use super::settings::AuthJwt;
use crate::jose::{KeySet, Token, TokenError, VerifiedToken, append_value};

/// Sets of keys, one of each source.
type KeySets = Vec<Arc<KeySet>>;

/// Content of files and responses that decide about a token.
pub(super) struct Evidence {
    pub(super) keys: KeySets,
    revoked_subs: Vec<Arc<RevocationList>>,
    revoked_kids: Vec<Arc<RevocationList>>,
}

impl AuthJwt {
    /// All keys and lists, if none of them has to be waited for.
    pub(super) fn evidence_now(&self, r: &Request, token: &Token) -> Option<Evidence> {
        let state = &*self.shared;
        let keys = match token.needs_keys() {
            true if self.keys.is_empty() => return None,
            true => {
                let keys = self.keys.iter().map(|source| source.keys_now(r, &state.files, self.key_cache));
                keys.collect::<Option<_>>()?
            }
            false => Vec::new(),
        };
        let lists = |files: &[Arc<NamedFile>]| {
            files
                .iter()
                .map(|file| revocation::list_now(r, &state.revocation_lists, file))
                .collect::<Option<_>>()
        };
        Some(Evidence {
            keys,
            revoked_subs: lists(&self.revoked_subs)?,
            revoked_kids: lists(&self.revoked_kids)?,
        })
    }

    pub(super) async fn load_evidence(&self, r: &mut Request, token: &Token) -> Result<Evidence, Outcome> {
        let mut keys = Vec::new();
        if token.needs_keys() {
            if self.keys.is_empty() {
                r.log(
                    Level::Error,
                    format_args!(
                        "\"auth_jwt\" has neither \"auth_jwt_key_file\" nor \"auth_jwt_key_request\""
                    ),
                );
                return Err(Outcome::Status(500));
            }
            for source in &*self.keys {
                let set = source.keys(r, &self.shared.files, self.key_cache).await;
                keys.push(set.map_err(|failure| unavailable(r, &failure))?);
            }
        }
        let revoked_subs = self.load_lists(r, &self.revoked_subs).await?;
        let revoked_kids = self.load_lists(r, &self.revoked_kids).await?;
        Ok(Evidence { keys, revoked_subs, revoked_kids })
    }

    async fn load_lists(
        &self,
        r: &mut Request,
        files: &[Arc<NamedFile>],
    ) -> Result<Vec<Arc<RevocationList>>, Outcome> {
        let mut lists = Vec::with_capacity(files.len());
        for file in files {
            let list = revocation::list(r, &self.shared.revocation_lists, file).await;
            lists.push(list.map_err(|failure| unavailable(r, &failure))?);
        }
        Ok(lists)
    }
}

impl Evidence {
    /// Checks that a token is not revoked.
    pub(super) fn check(&self, token: &VerifiedToken) -> Result<(), TokenError> {
        if !self.revoked_subs.is_empty()
            && let Some(sub) = token.claims().get("sub")
        {
            // A number is no valid sub, but its text may be in a list.
            let mut text = Vec::new();
            append_value(Some(sub), &mut text);
            let is_revoked = |sub| self.revoked_subs.iter().any(|list| list.has(sub));
            if str::from_utf8(&text).is_ok_and(is_revoked) {
                return Err(TokenError::Revoked("sub"));
            }
        }
        if !self.revoked_kids.is_empty() {
            let kid =
                token.signed_header().get("kid").and_then(|kid| kid.as_str()).filter(|kid| !kid.is_empty());
            let kid = kid.ok_or(TokenError::NoKeyName)?;
            if self.revoked_kids.iter().any(|list| list.has(kid)) {
                return Err(TokenError::Revoked("kid"));
            }
        }
        Ok(())
    }
}

/// Keys or lists cannot be had.
fn unavailable(r: &mut Request, failure: &KeyFailure) -> Outcome {
    if failure.is_passing() {
        return try_later(r, format_args!("{failure}"));
    }
    r.log(Level::Error, format_args!("{failure}"));
    Outcome::Status(500)
}
