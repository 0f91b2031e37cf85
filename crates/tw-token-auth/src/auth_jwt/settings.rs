//! Settings of one block, and the state that all blocks share.

use std::sync::Arc;
use std::time::Duration;

use tw_module_support::cached_files::NamedFile;
use tw_module_support::required_values::Requirement;
use tw_module_support::turn_queue::TurnQueue;
use tw_request::vars::Template;

use super::claim_name::Nesting;
use super::claim_requirement::{ClaimRequirement, PatternCache};
use super::key_source::{KeyFiles, KeySource};
use super::realm::Realm;
use super::revocation::RevocationFiles;
use crate::jose::{SignatureCheck, TokenKind};

/// Settings of one block.
pub struct AuthJwt {
    pub(super) realm: Option<Arc<Realm>>,
    pub(super) kind: TokenKind,
    pub(super) keys: Arc<[KeySource]>,
    pub(super) key_cache: Duration,
    pub(super) leeway: Duration,
    pub(super) requirements: Arc<[Requirement]>,
    pub(super) claims: Arc<[Arc<ClaimRequirement>]>,
    pub(super) phase: CheckPhase,
    pub(super) signature: SignatureCheck,
    /// `auth_jwt_validate_exp`
    pub(super) validate_exp: bool,
    pub(super) revoked_subs: Arc<[Arc<NamedFile>]>,
    pub(super) revoked_kids: Arc<[Arc<NamedFile>]>,
    pub(super) nesting: Option<Arc<Nesting>>,
    pub(super) challenge: Challenge,
    pub(super) shared: Arc<AuthJwtState>,
}

/// State that all blocks of a configuration share.
pub(super) struct AuthJwtState {
    pub(super) files: KeyFiles,
    pub(super) revocation_lists: RevocationFiles,
    pub(super) patterns: PatternCache,
    /// Turns of decryption by RSA keys.
    pub(super) turns: Arc<TurnQueue>,
}

/// Phase in which tokens are checked (`auth_jwt_phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckPhase {
    /// Also for subrequests, and whatever `satisfy` says.
    Preaccess,
    Access,
}

/// `WWW-Authenticate` of a refusal (`auth_jwt_www_authenticate`).
#[derive(Clone)]
pub(super) enum Challenge {
    /// The realm, and an error for an invalid token.
    Standard,
    Omitted,
    Text(Arc<Template>),
}

impl CheckPhase {
    pub(super) const WORDS: &'static [(&'static str, Self)] =
        &[("preaccess", Self::Preaccess), ("access", Self::Access)];
}
