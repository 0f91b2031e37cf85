//! `auth_jwt`: requests with a JSON Web Token (nginx: ngx_http_auth_jwt_module, which is sold; RFC 7519, RFC 6750). Access phase.
//!
//! ```text
//! Authorization: Bearer, or a variable ─► token ─► keys of files and subrequests ─► signature, times ─► auth_jwt_require
//!                                          └ malformed, wrong, expired: 401, error="invalid_token" ◄──────┘
//! ```
//! Keys of files are parsed in a pool, and kept until the files change. A signature takes some ten microseconds and is verified
//! on the loop; decryption by an RSA key takes milliseconds, so it waits for its turn in a pool, as hashes of passwords do.

mod key_source;
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
use tw_server::config::location::Location;
use tw_server::http::Http;
use tw_server::http::phases;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::{Template, VarDef, names_in};

use self::key_source::{KeyFiles, KeySource, RawKeySource};
use self::variables::{TokenPart, TokenState};
use crate::shared::access_refusal::{self, credentials, try_later};
use crate::shared::block::{define, variable_name};
use crate::shared::jose::{self, ClaimPath, KeySet, Token, TokenError, TokenKind, VerifiedToken};
use crate::shared::required_values::{RawRequirement, Requirement};
use crate::shared::turn_queue::{self, ClientKey, TurnQueue, TurnWait, wait_for_turn};

const BLOCKS: u32 = HTTP | SERVER | LOCATION;
const EVERYWHERE: u32 = BLOCKS | LIMIT_EXCEPT;

/// Sets of keys, one of each source.
type KeySets = Vec<Arc<KeySet>>;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    realm: Setting<RawRealm>,
    kind: Setting<TokenKind>,
    keys: Setting<Vec<RawKeySource>>,
    key_cache: Setting<Duration>,
    leeway: Setting<Duration>,
    requirements: Setting<Vec<RawRequirement>>,
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
pub(crate) struct AuthJwt {
    realm: Option<Arc<Realm>>,
    kind: TokenKind,
    keys: Arc<[KeySource]>,
    key_cache: Duration,
    leeway: Duration,
    requirements: Arc<[Requirement]>,
    shared: Arc<AuthJwtState>,
}

/// `auth_jwt`
struct Realm {
    /// `None` for `off`: a token is read for its variables only.
    realm: Option<Template>,
    /// Text that is the token; `None` for that of the `Authorization` field.
    token: Option<Template>,
}

/// State that all blocks of a configuration share.
struct AuthJwtState {
    files: KeyFiles,
    /// Turns of decryption by RSA keys.
    turns: Arc<TurnQueue>,
}

impl TokenKind {
    const WORDS: &'static [(&'static str, Self)] =
        &[("signed", Self::Signed), ("encrypted", Self::Encrypted), ("nested", Self::Nested)];
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use jose::LIMITS;
    /// Bytes of files of keys kept in memory by a configuration.
    constant bytes key_source::KEPT_SIZE_MAX, "the file used longest ago is read again when it is needed";
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
        record::new("auth_jwt_key_file", "file", EVERYWHERE, Args::exact(1))
            .since("1.11.3")
            .doc("File with keys: a JSON Web Key Set, or one key. It is read again when it has changed, and its name may have variables. A level may have several of these and of auth_jwt_key_request.")
            .set(|raw, node, cx| {
                raw.keys.push(node, RawKeySource::file(node.arg(0)?, cx.conf_prefix));
                Ok(())
            }),
        record::new("auth_jwt_key_request", "uri", EVERYWHERE, Args::exact(1))
            .since("1.15.6")
            .doc("URI of a subrequest whose response is a JSON Web Key Set; it may have variables. Use a cache for it (proxy_cache), or auth_jwt_key_cache.")
            .set(|raw, node, _| {
                raw.keys.push(node, RawKeySource::request(node.arg(0)?));
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
                variables::read(r, part, |members| path.append(members, out))
            });
            // Not kept: the claims of an encrypted token are known later.
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
        let new = || {
            let turns = Arc::new(TurnQueue::new(turn_queue::CREDENTIALS));
            Arc::new(AuthJwtState { files: KeyFiles::new(&key_source::KEY_FILES), turns })
        };
        Ok(Self {
            realm,
            kind: raw.kind.or(outer.map(|outer| outer.kind), TokenKind::Signed),
            keys,
            key_cache: raw.key_cache.or(outer.map(|outer| outer.key_cache), Duration::ZERO),
            leeway: raw.leeway.or(outer.map(|outer| outer.leeway), Duration::ZERO),
            requirements,
            shared: outer.map_or_else(new, |outer| outer.shared.clone()),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(realm) = &self.realm else { return };
        plan.parts.put(self.clone());
        if !realm.is_off() {
            plan.add(Phase::Preaccess, variables::BeforeAccess);
            plan.add(Phase::Access, self.clone());
            plan.add(Phase::Precontent, variables::AfterAccess);
        }
    }

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        if self.realm.is_some() {
            self.keys.iter().for_each(|source| source.declare(reach));
        }
    }
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
            return Step::Now(challenge(r, &realm, ""));
        };
        let token = match Token::parse(&text, self.kind) {
            Ok(token) => token,
            Err(error) => return Step::Now(refuse_token(r, &realm, &error)),
        };
        TokenState::Unverified.store(r);
        match self.keys_now(r) {
            Some(keys) if !token.is_costly() => {
                let verified = token.verify(keys.iter().map(|keys| &**keys));
                Step::Now(self.decide(r, &realm, verified))
            }
            keys => Step::Wait(Box::pin(async move {
                match self.verify(r, token, keys).await {
                    Ok(verified) => self.decide(r, &realm, verified),
                    Err(outcome) => {
                        TokenState::Refused.store(r);
                        outcome
                    }
                }
            })),
        }
    }
}

impl AuthJwt {
    /// All keys, if none of them has to be waited for.
    fn keys_now(&self, r: &Request) -> Option<KeySets> {
        if self.keys.is_empty() {
            return None;
        }
        self.keys.iter().map(|source| source.keys_now(r, &self.shared.files, self.key_cache)).collect()
    }

    /// Verifies a token, once its keys are there. Errors are failures of this server.
    async fn verify(
        &self,
        r: &mut Request,
        token: Token,
        keys: Option<KeySets>,
    ) -> Result<Result<VerifiedToken, TokenError>, Outcome> {
        let keys = match keys {
            Some(keys) => keys,
            None => self.load_keys(r).await?,
        };
        if !token.is_costly() {
            return Ok(token.verify(keys.iter().map(|keys| &**keys)));
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
            token.verify(keys.iter().map(|keys| &**keys))
        };
        disk.pool().run(&mut r.costs.account, work).await.map_err(|error| match error {
            DiskError::QueueFull { .. } => try_later(r, format_args!("a token was not decrypted: {error}")),
            error => {
                r.log(Level::Error, format_args!("a token was not decrypted: {error}"));
                Outcome::Status(500)
            }
        })
    }

    async fn load_keys(&self, r: &mut Request) -> Result<KeySets, Outcome> {
        if self.keys.is_empty() {
            r.log(
                Level::Error,
                format_args!("\"auth_jwt\" has neither \"auth_jwt_key_file\" nor \"auth_jwt_key_request\""),
            );
            return Err(Outcome::Status(500));
        }
        let mut keys = KeySets::with_capacity(self.keys.len());
        for source in &*self.keys {
            match source.keys(r, &self.shared.files, self.key_cache).await {
                Ok(set) => keys.push(set),
                Err(failure) if failure.is_passing() => {
                    return Err(try_later(r, format_args!("{failure}")));
                }
                Err(failure) => {
                    r.log(Level::Error, format_args!("{failure}"));
                    return Err(Outcome::Status(500));
                }
            }
        }
        Ok(keys)
    }

    fn decide(&self, r: &mut Request, realm: &[u8], verified: Result<VerifiedToken, TokenError>) -> Outcome {
        let checked = verified.and_then(|token| {
            token.check_times(tw_rt::clock::unix(), self.leeway)?;
            Ok(token)
        });
        match checked {
            Ok(token) => TokenState::Verified(token).store(r),
            Err(error) => return refuse_token(r, realm, &error),
        }
        match self.requirements.iter().find(|requirement| !requirement.is_met(r)).map(|unmet| unmet.status) {
            None => Outcome::PhaseDone,
            Some(status) => {
                r.log(
                    Level::Error,
                    format_args!("JWT validation failed: a value of \"auth_jwt_require\" is missing"),
                );
                match status {
                    401 => challenge(r, realm, ", error=\"invalid_token\""),
                    status => Outcome::Status(status),
                }
            }
        }
    }
}

/// The token is invalid.
fn refuse_token(r: &mut Request, realm: &[u8], error: &TokenError) -> Outcome {
    r.log(Level::Error, format_args!("JWT validation failed: {error}"));
    TokenState::Refused.store(r);
    challenge(r, realm, ", error=\"invalid_token\"")
}

/// Asks for a token (RFC 6750 section 3).
fn challenge(r: &mut Request, realm: &[u8], error: &str) -> Outcome {
    access_refusal::challenge(r, [b"Bearer realm=\"", realm, b"\"", error.as_bytes()].concat())
}
