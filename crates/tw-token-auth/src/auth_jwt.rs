//! `auth_jwt`: requests with a JSON Web Token (nginx: ngx_http_auth_jwt_module, which is sold, and the free module of this name, which
//! has more directives; RFC 7519, RFC 6750). Access phase, or preaccess phase.
//!
//! ```text
//! Authorization: Bearer, or a variable ─► token ─► keys, lists ─► signature, times, revocation ─► auth_jwt_require…
//!                                          └ malformed, wrong, expired: 401, error="invalid_token" ◄──────┘
//! ```
//! Keys of files are parsed in a pool, and kept until the files change. A signature takes some ten microseconds and is verified
//! on the loop; decryption by an RSA key takes milliseconds, so it waits for its turn in a pool, as hashes of passwords do.

mod check_token;
mod claim_name;
mod claim_requirement;
mod evidence;
mod key_source;
mod operator;
mod realm;
mod revocation;
mod settings;
mod variables;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_module_support::cached_files::RawNamedFile;
use tw_module_support::required_values::RawRequirement;
use tw_module_support::turn_queue::{self, TurnQueue};
use tw_request::config::location::Location;
use tw_request::plan::{Phase, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::vars::VarDef;

use self::check_token::InPreaccess;
use self::claim_name::Nesting;
use self::claim_requirement::{PatternCache, RawClaimRequirement};
use self::key_source::{KeyFiles, RawKeySource};
use self::realm::RawRealm;
use self::revocation::RevocationFiles;
use self::settings::{AuthJwtState, Challenge, CheckPhase};
use self::variables::{RawVariable, TokenPart};
use crate::jose::{self, SignatureCheck, TokenKind};

pub use self::settings::AuthJwt;

const BLOCKS: u32 = HTTP | SERVER | LOCATION;
const EVERYWHERE: u32 = BLOCKS | LIMIT_EXCEPT;

/// Settings as written.
#[derive(Default)]
pub struct Raw {
    realm: Setting<RawRealm>,
    kind: Setting<TokenKind>,
    keys: Setting<Vec<RawKeySource>>,
    key_cache: Setting<Duration>,
    leeway: Setting<Duration>,
    requirements: Setting<Vec<RawRequirement>>,
    claims: Vec<RawClaimRequirement>,
    phase: Setting<CheckPhase>,
    signature: Setting<SignatureCheck>,
    validate_exp: Setting<bool>,
    revoked_subs: Vec<RawNamedFile>,
    revoked_kids: Vec<RawNamedFile>,
    nesting: Setting<Nesting>,
    /// `auth_jwt_www_authenticate`
    challenge: Setting<Word>,
    variables: Vec<RawVariable>,
}

impl TokenKind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("signed", Self::Signed), ("encrypted", Self::Encrypted), ("nested", Self::Nested)];
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use jose::LIMITS;
    use key_source::LIMITS;
    use revocation::LIMITS;
    use claim_requirement::LIMITS;
    /// Tokens decrypted by RSA keys at the same time.
    constant count turn_queue::TURNS_AT_ONCE, "other requests wait, clients in turns";
    /// Requests that wait for that.
    constant count turn_queue::WAITING_MAX, "503 with Retry-After; the error log says so";
    /// Requests of one address, or IPv6 network of 64 bits, among them.
    constant count turn_queue::WAITING_OF_CLIENT_MAX, "503 with Retry-After; the error log says so";
    /// Time a request waits for that.
    constant time turn_queue::WAIT_MAX, "503 with Retry-After; the error log says so";
}

impl Settings<Http> for AuthJwt {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("auth_jwt", "string [token=$variable] | off", EVERYWHERE, Args::range(1, 2))
            .default("off")
            .since("1.11.3")
            .doc("Asks for a JSON Web Token; the string is the realm, and may have variables. The token is a Bearer token of the Authorization field, or the value of a variable. \"off token=$variable\" checks nothing: the variables of this module have what the token says.")
            .set(|raw, node, _| raw.realm.set_with(node, RawRealm::read)),
        record::new("auth_jwt_type", "signed | encrypted | nested", EVERYWHERE, Args::exact(1))
            .default("signed")
            .since("1.19.7")
            .doc("Kind of tokens: signed, encrypted, or signed and then encrypted. A token that is only encrypted by a public RSA key may come from anybody who has that.")
            .set(|raw, node, _| raw.kind.set_one_of(node, TokenKind::WORDS)),
        record::new("auth_jwt_key_file", "file [jwks | keyval]", EVERYWHERE, Args::range(1, 2))
            .since("1.11.3")
            .doc("File with keys: a JSON Web Key Set, or one key; with keyval, an object whose members are public keys in PEM by their identifiers. It is read again when it has changed, and its name may have variables. A level may have several of these and of auth_jwt_key_request.")
            .set(|raw, node, cx| {
                let source = RawKeySource::file(node, cx.conf_prefix)?;
                raw.keys.push(node, source);
                Ok(())
            }),
        record::new("auth_jwt_key_request", "uri [jwks | keyval]", EVERYWHERE, Args::range(1, 2))
            .since("1.15.6")
            .doc("URI of a subrequest whose response has keys in one of the formats of auth_jwt_key_file; it may have variables. Use a cache for it (proxy_cache), or auth_jwt_key_cache.")
            .set(|raw, node, _| {
                let source = RawKeySource::request(node)?;
                raw.keys.push(node, source);
                Ok(())
            }),
        record::time("auth_jwt_key_cache", BLOCKS)
            .default("0")
            .since("1.21.4")
            .doc("Time for which the keys of a subrequest are kept, unless its URI has variables. Those of a file are kept until it changes.")
            .set(|raw, node, _| raw.key_cache.set_msec(node)),
        record::time("auth_jwt_leeway", BLOCKS)
            .default("0s")
            .since("1.13.10")
            .doc("Difference between clocks that is allowed when exp and nbf of a token are checked.")
            .set(|raw, node, _| raw.leeway.set_sec(node)),
        record::new("auth_jwt_require", "$value … [error=401 | 403]", EVERYWHERE, Args::at_least(1))
            .since("1.21.2")
            .doc("Accepts a token only if none of the values is empty or 0. They begin with a variable.")
            .set(|raw, node, _| {
                let requirement = RawRequirement::read(node, |status| matches!(status, 401 | 403))?;
                raw.requirements.push(node, requirement);
                Ok(())
            }),
        record::new("auth_jwt_require_claim", "name operator $value | json=value | text", EVERYWHERE, Args::exact(3))
            .doc("Accepts a token only if the operator holds for a claim: eq, gt, ge, lt, le, in, any, match, or one of these with ! in front. The expected value is text, or JSON behind json= or in a variable. A name that begins with a dot is a path, such as .groups[0].name. Those of the enclosing blocks apply, too. Refusals have status 401.")
            .set(|raw, node, _| {
                raw.claims.push(RawClaimRequirement::read(node, TokenPart::Claims)?);
                Ok(())
            }),
        record::new("auth_jwt_require_header", "name operator $value | json=value | text", EVERYWHERE, Args::exact(3))
            .doc("Accepts a token only if the operator holds for a parameter of its header, as auth_jwt_require_claim does for a claim.")
            .set(|raw, node, _| {
                raw.claims.push(RawClaimRequirement::read(node, TokenPart::Header)?);
                Ok(())
            }),
        record::new("auth_jwt_allow_nested", "[delimiter=text] [quote=text]", BLOCKS, Args::range(0, 2))
            .doc("Names of claims lead into objects: grants.access is the member access of the claim grants. A name that has the delimiter in it stands between quotes. Applies to auth_jwt_require_claim, auth_jwt_require_header, auth_jwt_claim_set with one name, $jwt_claim_… and $jwt_header_….")
            .set(|raw, node, _| raw.nesting.set_with(node, Nesting::read)),
        record::flag("auth_jwt_validate_exp", EVERYWHERE)
            .default("on")
            .doc("Checks exp of a token, its end. With off, a token is good forever.")
            .set(|raw, node, _| raw.validate_exp.set_flag(node)),
        record::flag("auth_jwt_validate_sig", EVERYWHERE)
            .default("on")
            .doc("Checks the signature of a token. With off, anybody can write a valid token: only for tokens that another server has verified already. Encrypted tokens are still decrypted.")
            .set(|raw, node, _| raw.signature.set_with(node, |node| {
                Ok(if node.flag()? { SignatureCheck::On } else { SignatureCheck::Off })
            })),
        record::new("auth_jwt_phase", "preaccess | access", BLOCKS, Args::exact(1))
            .default("access")
            .doc("Phase in which tokens are checked. In preaccess, behind limit_req and limit_conn, the tokens of subrequests are checked, too, and satisfy does not apply. The location of auth_jwt_key_request then needs \"auth_jwt off\".")
            .set(|raw, node, _| raw.phase.set_one_of(node, CheckPhase::WORDS)),
        record::new("auth_jwt_revocation_list_sub", "file", EVERYWHERE, Args::exact(1))
            .doc("File with an object in JSON: tokens whose claim sub is the name of one of its members are refused with status 401. It is read again when it has changed. A level may have several, and those of the enclosing blocks apply, too.")
            .set(|raw, node, cx| {
                raw.revoked_subs.push(revocation::read(node, cx.conf_prefix)?);
                Ok(())
            }),
        record::new("auth_jwt_revocation_list_kid", "file", EVERYWHERE, Args::exact(1))
            .doc("File with an object in JSON: tokens that name a key (kid) by the name of one of its members are refused with status 401, and so are those that name none. It is read again when it has changed. A level may have several, and those of the enclosing blocks apply, too.")
            .set(|raw, node, cx| {
                raw.revoked_kids.push(revocation::read(node, cx.conf_prefix)?);
                Ok(())
            }),
        record::new("auth_jwt_www_authenticate", "on | off | string", EVERYWHERE, Args::exact(1))
            .default("on")
            .doc("Challenge of a response with status 401: the realm and the error, none, or a text, which may have variables.")
            .set(|raw, node, _| raw.challenge.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("auth_jwt_claim_set", "$variable name …", HTTP, Args::at_least(2))
            .since("1.11.10")
            .doc("Defines a variable by a claim: its name, or names that lead to it from the top. The elements of a list are separated by commas.")
            .set(|raw, node, _| {
                raw.variables.push(RawVariable::read(node, TokenPart::Claims)?);
                Ok(())
            }),
        record::new("auth_jwt_header_set", "$variable name …", HTTP, Args::at_least(2))
            .since("1.11.10")
            .doc("Defines a variable by a parameter of the header of a token, as auth_jwt_claim_set does by a claim.")
            .set(|raw, node, _| {
                raw.variables.push(RawVariable::read(node, TokenPart::Header)?);
                Ok(())
            }),
    ];

    const VARIABLES: &'static [VarDef] = variables::VARIABLES;

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        for variable in raw.variables {
            variable.define(cx)?;
        }
        let realm = match raw.realm.take() {
            Some(raw_realm) => raw_realm.resolve(cx)?,
            None => outer.and_then(|outer| outer.realm.clone()),
        };
        let keys = match raw.keys.take() {
            Some(key_sources) => {
                key_sources.into_iter().map(|source| source.resolve(cx)).collect::<Result<_, _>>()?
            }
            None => outer.map_or_else(|| [].into(), |outer| outer.keys.clone()),
        };
        let requirements = match raw.requirements.take() {
            Some(raw_requirements) => raw_requirements
                .into_iter()
                .map(|requirement| requirement.resolve(401, cx))
                .collect::<Result<_, _>>()?,
            None => outer.map_or_else(|| [].into(), |outer| outer.requirements.clone()),
        };
        let own = raw.claims.into_iter().map(|claim| claim.resolve(cx).map(Arc::new));
        let claims = inherited(outer.map(|outer| &outer.claims), own.collect::<Result<_, _>>()?);
        let own = raw.revoked_subs.into_iter().map(|file| file.resolve(cx).map(Arc::new));
        let revoked_subs = inherited(outer.map(|outer| &outer.revoked_subs), own.collect::<Result<_, _>>()?);
        let own = raw.revoked_kids.into_iter().map(|file| file.resolve(cx).map(Arc::new));
        let revoked_kids = inherited(outer.map(|outer| &outer.revoked_kids), own.collect::<Result<_, _>>()?);
        let challenge = match raw.challenge.take() {
            Some(word) => match word.flag() {
                Some(true) => Challenge::Standard,
                Some(false) => Challenge::Omitted,
                None => Challenge::Text(Arc::new(cx.template(&word)?)),
            },
            None => outer.map_or(Challenge::Standard, |outer| outer.challenge.clone()),
        };
        let new = || {
            let turns = Arc::new(TurnQueue::new(turn_queue::CREDENTIALS));
            let revocation_lists = RevocationFiles::new(&revocation::REVOCATION_LISTS);
            let patterns = PatternCache::default();
            Arc::new(AuthJwtState { files: KeyFiles::new(), revocation_lists, patterns, turns })
        };
        Ok(Self {
            realm,
            kind: raw.kind.or(outer.map(|outer| outer.kind), TokenKind::Signed),
            keys,
            key_cache: raw.key_cache.or(outer.map(|outer| outer.key_cache), Duration::ZERO),
            leeway: raw.leeway.or(outer.map(|outer| outer.leeway), Duration::ZERO),
            requirements,
            claims,
            phase: raw.phase.or(outer.map(|outer| outer.phase), CheckPhase::Access),
            signature: raw.signature.or(outer.map(|outer| outer.signature), SignatureCheck::On),
            validate_exp: raw.validate_exp.or(outer.map(|outer| outer.validate_exp), true),
            revoked_subs,
            revoked_kids,
            nesting: match raw.nesting.take() {
                Some(nesting) => Some(Arc::new(nesting)),
                None => outer.and_then(|outer| outer.nesting.clone()),
            },
            challenge,
            shared: outer.map_or_else(new, |outer| outer.shared.clone()),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(realm) = &self.realm else { return };
        plan.parts.put(self.clone());
        if realm.is_off() {
            return;
        }
        match self.phase {
            CheckPhase::Preaccess => plan.add(Phase::Preaccess, InPreaccess(self.clone())),
            CheckPhase::Access => {
                plan.add(Phase::Preaccess, variables::BeforeAccess);
                plan.add(Phase::Access, self.clone());
            }
        }
        plan.add(Phase::Precontent, variables::AfterAccess);
    }

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        if self.realm.is_some() {
            self.keys.iter().for_each(|source| source.declare(reach));
            self.revoked_subs.iter().chain(&*self.revoked_kids).for_each(|file| file.declare(reach));
        }
    }
}

/// Values of the enclosing block, and those of this one behind them.
fn inherited<T: Clone>(outer: Option<&Arc<[T]>>, own: Vec<T>) -> Arc<[T]> {
    match outer {
        Some(outer) if own.is_empty() => outer.clone(),
        Some(outer) => outer.iter().cloned().chain(own).collect(),
        None => own.into(),
    }
}
