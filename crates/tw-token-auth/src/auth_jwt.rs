//! `auth_jwt`: requests with a JSON Web Token (nginx: ngx_http_auth_jwt_module, which is sold, and the free module of this name, which
//! has more directives; RFC 7519, RFC 6750). Access phase, or preaccess phase.
//!
//! ```text
//! Authorization: Bearer, or a variable ─► token ─► keys, lists ─► signature, times, revocation ─► auth_jwt_require…
//!                                          └ malformed, wrong, expired: 401, error="invalid_token" ◄──────┘
//! ```
//! Keys of files are parsed in a pool, and kept until the files change. A signature takes some ten microseconds and is verified
//! on the loop; decryption by an RSA key takes milliseconds, so it waits for its turn in a pool, as hashes of passwords do.

mod claim_name;
mod claim_requirement;
mod key_source;
mod operator;
mod revocation;
mod variables;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{
    Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, Node, SERVER, Setting, Word, record,
};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_core::vars::SlotKind;
use tw_disk::DiskError;
use tw_log::Level;
use tw_module_support::access_refusal::{self, credentials, try_later};
use tw_module_support::block::{define, variable_name};
use tw_module_support::cached_files::{NamedFile, RawNamedFile};
use tw_module_support::required_values::{RawRequirement, Requirement};
use tw_module_support::turn_queue::{self, ClientKey, TurnQueue, TurnWait, wait_for_turn};
use tw_phases::phases;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, VarDef, names_in};

use self::claim_name::Nesting;
use self::claim_requirement::{Check, ClaimRequirement, PatternCache, RawClaimRequirement};
use self::key_source::{KeyFailure, KeyFiles, KeySource, RawKeySource};
use self::revocation::{RevocationFiles, RevocationList};
use self::variables::{TokenPart, TokenState};
use crate::jose::{
    self, ClaimPath, KeySet, SignatureCheck, Token, TokenError, TokenKind, VerifiedToken, append_value,
};

const BLOCKS: u32 = HTTP | SERVER | LOCATION;
const EVERYWHERE: u32 = BLOCKS | LIMIT_EXCEPT;

/// Sets of keys, one of each source.
type KeySets = Vec<Arc<KeySet>>;

/// Phase in which tokens are checked (`auth_jwt_phase`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckPhase {
    /// Also for subrequests, and whatever `satisfy` says.
    Preaccess,
    Access,
}

/// `WWW-Authenticate` of a refusal (`auth_jwt_www_authenticate`).
#[derive(Clone)]
enum Challenge {
    /// The realm, and an error for an invalid token.
    Standard,
    Omitted,
    Text(Arc<Template>),
}

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

/// `auth_jwt` as written.
struct RawRealm {
    /// `None` for `off`.
    realm: Option<Word>,
    token: Option<Word>,
}

/// `auth_jwt_claim_set` or `auth_jwt_header_set` as written.
struct RawVariable {
    name: Word,
    part: TokenPart,
    path: ClaimPath,
}

/// Settings of one block.
pub struct AuthJwt {
    realm: Option<Arc<Realm>>,
    kind: TokenKind,
    keys: Arc<[KeySource]>,
    key_cache: Duration,
    leeway: Duration,
    requirements: Arc<[Requirement]>,
    claims: Arc<[Arc<ClaimRequirement>]>,
    phase: CheckPhase,
    signature: SignatureCheck,
    /// `auth_jwt_validate_exp`
    validate_exp: bool,
    revoked_subs: Arc<[Arc<NamedFile>]>,
    revoked_kids: Arc<[Arc<NamedFile>]>,
    nesting: Option<Arc<Nesting>>,
    challenge: Challenge,
    shared: Arc<AuthJwtState>,
}

/// `auth_jwt`
struct Realm {
    /// `None` for `off`: a token is read for its variables only.
    realm: Option<Template>,
    /// Text that is the token; `None` for that of the `Authorization` field.
    token: Option<Template>,
}

/// Content of files and responses that decide about a token.
struct Evidence {
    keys: KeySets,
    revoked_subs: Vec<Arc<RevocationList>>,
    revoked_kids: Vec<Arc<RevocationList>>,
}

/// State that all blocks of a configuration share.
struct AuthJwtState {
    files: KeyFiles,
    revocation_lists: RevocationFiles,
    patterns: PatternCache,
    /// Turns of decryption by RSA keys.
    turns: Arc<TurnQueue>,
}

impl TokenKind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("signed", Self::Signed), ("encrypted", Self::Encrypted), ("nested", Self::Nested)];
}

impl CheckPhase {
    const WORDS: &'static [(&'static str, Self)] =
        &[("preaccess", Self::Preaccess), ("access", Self::Access)];
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
            .set(|raw, node, _| raw.nesting.set_with(node, read_nesting)),
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
            let RawVariable { name, part, path } = variable;
            let compute = Arc::new(move |r: &Request, out: &mut Vec<u8>| {
                variables::read(r, part, |members, nesting| match (nesting, path.single()) {
                    (Some(_), Some(name)) => append_value(claim_name::find(members, name, nesting), out),
                    _ => path.append(members, out),
                })
            });
            // The value is not cached, because the claims of an encrypted token are known later.
            define(cx, &name, SlotKind::Volatile(compute), None)?;
        }
        let realm = match raw.realm.take() {
            Some(written) => written.resolve(cx)?,
            None => outer.and_then(|outer| outer.realm.clone()),
        };
        let keys = match raw.keys.take() {
            Some(written) => {
                written.into_iter().map(|source| source.resolve(cx)).collect::<Result<_, _>>()?
            }
            None => outer.map_or_else(|| [].into(), |outer| outer.keys.clone()),
        };
        let requirements = match raw.requirements.take() {
            Some(written) => written
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

/// Reads `[delimiter=text] [quote=text]`.
fn read_nesting(node: &Node) -> Result<Nesting, ConfError> {
    let mut nesting = Nesting::default();
    for word in &node.args {
        let (part, text) = match (word.param("delimiter"), word.param("quote")) {
            (Some(text), _) => (&mut nesting.delimiter, text),
            (_, Some(text)) => (&mut nesting.quote, text),
            _ => return Err(node.invalid_parameter(word)),
        };
        let text = str::from_utf8(text).ok().filter(|text| !text.is_empty());
        *part = text.ok_or_else(|| node.invalid_parameter(word))?.into();
    }
    if nesting.delimiter == nesting.quote {
        return Err(node.error("has the same text as delimiter and as quote"));
    }
    Ok(nesting)
}

impl RawRealm {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let realm = node.arg(0)?;
        let token = match node.args.get(1) {
            Some(word) => {
                let value = word.param("token").filter(|value| value.len() > 1 && value.starts_with(b"$"));
                let value = value.ok_or_else(|| node.invalid_parameter(word))?;
                Some(Word { bytes: value.into(), ..word.clone() })
            }
            None => None,
        };
        Ok(Self { realm: Some(realm.clone()).filter(|realm| !realm.is("off")), token })
    }

    /// `None` for `off` without a token.
    fn resolve(self, cx: &mut Resolve<'_>) -> Result<Option<Arc<Realm>>, ConfError> {
        if let Some(token) = &self.token
            && names_in(&token.bytes).any(|name| variables::are_of_token(&name))
        {
            let message = format!("the token cannot be in \"{token}\", which is read from the token");
            return Err(ConfError::new(message).at(token.span));
        }
        let mut compile = |word: Option<Word>| word.map(|word| cx.template(&word)).transpose();
        let realm = Realm { realm: compile(self.realm)?, token: compile(self.token)? };
        Ok((realm.realm.is_some() || realm.token.is_some()).then(|| Arc::new(realm)))
    }
}

impl RawVariable {
    fn read(node: &Node, part: TokenPart) -> Result<Self, ConfError> {
        let name = node.arg(0)?;
        variable_name(node, name)?;
        let path = node.args.iter().skip(1).map(|word| word.lossy().into());
        Ok(Self { name: name.clone(), part, path: ClaimPath::new(path) })
    }
}

impl Realm {
    /// Returns `true` if a token is read for its variables only.
    fn is_off(&self) -> bool {
        self.realm.is_none()
    }

    /// Token of a request; `None` if there is none.
    fn token(&self, r: &Request) -> Option<Vec<u8>> {
        match &self.token {
            Some(token) => Some(token.value(r)).filter(|token| !token.is_empty()),
            None => bearer_token(r).map(<[u8]>::to_vec),
        }
    }
}

/// Bearer token of a request (RFC 6750 section 2.1).
fn bearer_token(r: &Request) -> Option<&[u8]> {
    let (scheme, token) = credentials(r)?.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

/// Handler of the preaccess phase: a valid token ends no phase, because that of the limits is the same one.
struct InPreaccess(Arc<AuthJwt>);

impl Handler for InPreaccess {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let pass = |outcome| match outcome {
            Outcome::PhaseDone => Outcome::Pass,
            other => other,
        };
        match self.0.handle(r) {
            Step::Now(outcome) => Step::Now(pass(outcome)),
            Step::Wait(outcome) => Step::Wait(Box::pin(async move { pass(outcome.await) })),
        }
    }
}

impl Handler for AuthJwt {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(Realm { realm: Some(realm), .. }) = self.realm.as_deref() else { return Step::PASS };
        let realm = realm.value(r);
        if realm == b"off" {
            return Step::PASS;
        }
        let Some(text) = self.realm.as_ref().and_then(|realm| realm.token(r)) else {
            r.log(Level::Info, format_args!("no token was provided for JWT authentication"));
            TokenState::Refused.store(r);
            return Step::Now(self.challenge(r, &realm, ""));
        };
        let token = match Token::parse(&text, self.kind, self.signature) {
            Ok(token) => token,
            Err(error) => return Step::Now(self.refuse(r, &realm, &error)),
        };
        TokenState::Unverified.store(r);
        let evidence = match self.evidence_now(r, &token) {
            Some(evidence) if !token.is_costly() => {
                let verified = token.verify(evidence.keys.iter().map(|keys| &**keys));
                return match self.decide(r, &realm, verified, &evidence) {
                    Ok(outcome) => Step::Now(outcome),
                    Err(pattern) => {
                        Step::Wait(Box::pin(async move { self.compile_and_check(r, &realm, pattern).await }))
                    }
                };
            }
            evidence => evidence,
        };
        Step::Wait(Box::pin(async move {
            let (verified, evidence) = match self.verify(r, token, evidence).await {
                Ok(verified) => verified,
                Err(outcome) => {
                    TokenState::Refused.store(r);
                    return outcome;
                }
            };
            match self.decide(r, &realm, verified, &evidence) {
                Ok(outcome) => outcome,
                Err(pattern) => self.compile_and_check(r, &realm, pattern).await,
            }
        }))
    }
}

/// Regular expression that has to be compiled before a token is checked.
struct UncompiledPattern(Box<str>);

impl AuthJwt {
    /// All keys and lists, if none of them has to be waited for.
    fn evidence_now(&self, r: &Request, token: &Token) -> Option<Evidence> {
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

    /// Verifies a token, once its keys are there. Errors are failures of this server.
    async fn verify(
        &self,
        r: &mut Request,
        token: Token,
        evidence: Option<Evidence>,
    ) -> Result<(Result<VerifiedToken, TokenError>, Evidence), Outcome> {
        let evidence = match evidence {
            Some(evidence) => evidence,
            None => self.load_evidence(r, &token).await?,
        };
        if !token.is_costly() {
            return Ok((token.verify(evidence.keys.iter().map(|keys| &**keys)), evidence));
        }
        let Ok(mut place) = self.shared.turns.enter(ClientKey::of(r.client_addr())) else {
            return Err(try_later(r, format_args!("too many tokens wait to be decrypted")));
        };
        match wait_for_turn(r, &mut place, turn_queue::WAIT_MAX).await {
            Ok(()) => {}
            Err(TurnWait::TooLong) => {
                return Err(try_later(r, format_args!("a token waited too long to be decrypted")));
            }
            Err(TurnWait::Gone(gone)) => return Err(phases::client_closed(r, &gone)),
        }
        let Some(disk) = r.disk().cloned() else { return Err(Outcome::Status(500)) };
        // The turn ends with the work, not with a client that goes away.
        let work = move || {
            let _turn = place;
            (token.verify(evidence.keys.iter().map(|keys| &**keys)), evidence)
        };
        disk.pool().run(&mut r.costs.account, work).await.map_err(|error| match error {
            DiskError::QueueFull { .. } => try_later(r, format_args!("a token was not decrypted: {error}")),
            error => {
                r.log(Level::Error, format_args!("a token was not decrypted: {error}"));
                Outcome::Status(500)
            }
        })
    }

    async fn load_evidence(&self, r: &mut Request, token: &Token) -> Result<Evidence, Outcome> {
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

    /// Decides about a token whose signature was checked.
    fn decide(
        &self,
        r: &mut Request,
        realm: &[u8],
        verified: Result<VerifiedToken, TokenError>,
        evidence: &Evidence,
    ) -> Result<Outcome, UncompiledPattern> {
        let checked = verified.and_then(|token| {
            let now = tw_rt::clock::unix();
            match self.validate_exp {
                true => token.check_times(now, self.leeway)?,
                false => token.check_start(now, self.leeway)?,
            }
            evidence.check(&token)?;
            Ok(token)
        });
        match checked {
            Ok(token) => TokenState::Verified(token).store(r),
            Err(error) => return Ok(self.refuse(r, realm, &error)),
        }
        self.check_requirements(r, realm)
    }

    /// Checks what the configuration requires of a verified token.
    fn check_requirements(&self, r: &mut Request, realm: &[u8]) -> Result<Outcome, UncompiledPattern> {
        let state = r.extensions.get::<TokenState>();
        let Some(TokenState::Verified(token)) = state.as_deref() else { return Ok(Outcome::Status(500)) };
        for claim in &*self.claims {
            match claim.check(r, token, self.nesting.as_deref(), self.leeway, &self.shared.patterns) {
                Check::Met => {}
                Check::Uncompiled(pattern) => return Err(UncompiledPattern(pattern)),
                Check::Unmet(unmet) => {
                    let shown = claim.shown();
                    r.log(Level::Error, format_args!("JWT validation failed: {shown} is not met: {unmet}"));
                    return Ok(self.challenge(r, realm, ", error=\"invalid_token\""));
                }
            }
        }
        let unmet = self.requirements.iter().find(|requirement| !requirement.is_met(r));
        let Some(status) = unmet.map(|unmet| unmet.status) else { return Ok(Outcome::PhaseDone) };
        r.log(
            Level::Error,
            format_args!("JWT validation failed: a value of \"auth_jwt_require\" is missing"),
        );
        Ok(match status {
            401 => self.challenge(r, realm, ", error=\"invalid_token\""),
            status => Outcome::Status(status),
        })
    }

    /// Compiles a pattern in a pool, and checks the requirements again; others may have patterns, too.
    async fn compile_and_check(&self, r: &mut Request, realm: &[u8], pattern: UncompiledPattern) -> Outcome {
        let mut uncompiled = pattern;
        // Variables may have another value each time, or other requests may use all places: this has an end.
        for _ in &*self.claims {
            let Some(disk) = r.disk().cloned() else { return Outcome::Status(500) };
            let UncompiledPattern(pattern) = uncompiled;
            let text = pattern.clone();
            let compiled =
                disk.pool().run(&mut r.costs.account, move || claim_requirement::compile(&text)).await;
            match compiled {
                Ok(compiled) => self.shared.patterns.put(pattern, compiled),
                Err(error @ DiskError::QueueFull { .. }) => {
                    return try_later(r, format_args!("a regular expression was not compiled: {error}"));
                }
                Err(error) => {
                    r.log(Level::Error, format_args!("a regular expression was not compiled: {error}"));
                    return Outcome::Status(500);
                }
            }
            match self.check_requirements(r, realm) {
                Ok(outcome) => return outcome,
                Err(another) => uncompiled = another,
            }
        }
        try_later(r, format_args!("too many regular expressions of \"auth_jwt_require_claim\" are in use"))
    }

    /// Refuses an invalid token.
    fn refuse(&self, r: &mut Request, realm: &[u8], error: &TokenError) -> Outcome {
        r.log(Level::Error, format_args!("JWT validation failed: {error}"));
        TokenState::Refused.store(r);
        self.challenge(r, realm, ", error=\"invalid_token\"")
    }

    /// Asks for a token (RFC 6750 section 3).
    fn challenge(&self, r: &mut Request, realm: &[u8], error: &str) -> Outcome {
        let challenge = match &self.challenge {
            Challenge::Standard => [b"Bearer realm=\"", realm, b"\"", error.as_bytes()].concat(),
            Challenge::Text(text) => text.value(r),
            Challenge::Omitted => Vec::new(),
        };
        access_refusal::challenge(r, challenge)
    }
}

impl Evidence {
    /// Checks that a token is not revoked.
    fn check(&self, token: &VerifiedToken) -> Result<(), TokenError> {
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
