//! `auth_oidc`: users that log in at an OpenID provider (nginx: ngx_http_oidc_module, which is sold; OpenID Connect Core 1.0).
//! Access phase; responses of the provider and logouts before the location is chosen.
//!
//! ```text
//! request ─ session ──────────────────────────────────────────────────────────► granted, claims are variables
//!           └ none: 302 to the provider ─► redirect_uri?code&state ─► tokens ─► session, 302 to where it began
//! ```
//! A login in progress costs this server nothing: its state is sealed in the URL, for one browser ([`sealed_state`]).

mod discovery;
mod endpoint;
mod login;
mod provider;
mod sealed_state;
mod session;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::{FatalMutex, Limit};
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::Known;
use tw_log::{Level, Text};
use tw_server::config::location::Location;
use tw_server::config::server::ServerSettings;
use tw_server::http::Http;
use tw_server::http::phases;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::{Value, VarDef};

use self::discovery::{Caller, Metadata};
use self::login::CallbackError;
pub use self::provider::directives;
use self::provider::{Provider, RawProvider};
use self::session::OidcSession;
use crate::access_refusal::try_later;
use crate::jose::append_member;
use crate::turn_queue::{self, ClientKey, TurnWait, wait_for_turn};

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION;

/// Providers and the one in use, as written.
#[derive(Default)]
pub(crate) struct Raw {
    providers: Vec<RawProvider>,
    auth: Setting<Word>,
}

/// Settings of one block.
pub(crate) struct AuthOidc {
    /// `None` for `off`.
    auth: Option<Arc<Provider>>,
    providers: Arc<Providers>,
}

/// All providers of a configuration.
#[derive(Default)]
struct Providers {
    all: HashMap<Box<[u8]>, Arc<Provider>>,
    /// Providers in use, by the address of the settings of a server: there their responses and logouts are answered.
    used: FatalMutex<Vec<(usize, Arc<Provider>)>>,
}

impl Settings<Http> for AuthOidc {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("oidc_provider", "name { … }", HTTP, Args::exact(1).block())
            .since("1.27.4")
            .doc("Defines an OpenID provider, by the directives of its block; issuer and client_id are required.")
            .set(|raw, node, cx| {
                raw.providers.push(RawProvider::read(node, cx)?);
                Ok(())
            }),
        record::new("auth_oidc", "name | off", EVERYWHERE, Args::exact(1))
            .default("off")
            .since("1.27.4")
            .doc("Asks for a user that has logged in at an OpenID provider, and sends others there.")
            .set(|raw, node, _| raw.auth.set_with(node, |node| Ok(node.arg(0)?.clone()))),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "oidc_id_token",
            |r, out| put(r, out, |session| Some(session.id_token.as_bytes())),
            "The ID token of the user (auth_oidc).",
        ),
        VarDef::one(
            "oidc_access_token",
            |r, out| {
                put(r, out, |session| Some(session.access_token.as_bytes()).filter(|token| !token.is_empty()))
            },
            "The access token of the user (auth_oidc).",
        ),
        VarDef::one(
            "oidc_userinfo",
            |r, out| put(r, out, |session| session.userinfo.as_deref()),
            "What the provider says about the user, in JSON (auth_oidc with userinfo).",
        ),
        VarDef::family(
            "oidc_claim_",
            |r, name, out| match r.facts.states.get::<ActiveSession>() {
                Some(active) => append_member(active.0.verified.claims(), name, out),
                None => Value::Missing,
            },
            "A claim of the ID token of the user (auth_oidc).",
        ),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let providers = match outer {
            Some(outer) => outer.providers.clone(),
            None => {
                let mut all = HashMap::new();
                for written in raw.providers {
                    let (span, provider) = (written.span(), written.resolve(cx)?);
                    let name = provider.name.clone();
                    if all.insert(name.clone(), Arc::new(provider)).is_some() {
                        return Err(
                            ConfError::new(format!("duplicate oidc_provider \"{}\"", Text(&name))).at(span)
                        );
                    }
                }
                Arc::new(Providers { all, used: FatalMutex::default() })
            }
        };
        let auth = match raw.auth.take() {
            Some(word) if word.is("off") => None,
            Some(word) => {
                let found = providers.all.get(&word.bytes).cloned();
                let found = found.ok_or_else(|| {
                    ConfError::new(format!("unknown oidc_provider \"{word}\"")).at(word.span)
                })?;
                Some(found)
            }
            None => outer.and_then(|outer| outer.auth.clone()),
        };
        Ok(Self { auth, providers })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.providers.all.is_empty() {
            plan.add(Phase::PostRead, ProviderPages(self.providers.clone()));
        }
        if let Some(provider) = &self.auth {
            self.providers.note(&plan.server, provider);
            plan.add(Phase::Access, self.clone());
        }
    }

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        if let Some(provider) = &self.auth {
            reach.connects();
            tw_connect::resolving::reach(reach);
            provider.tls.reach(reach);
        }
    }
}

const LIMITS: &[Limit] = &[
    Limit::bytes(
        "SESSIONS_SIZE_MAX",
        session::SESSIONS_SIZE_MAX,
        "Bytes of the sessions of one provider (oidc_provider)",
        "the session used longest ago ends: its user logs in again",
    ),
    Limit::count(
        "REQUESTS_AT_ONCE",
        endpoint::REQUESTS_AT_ONCE as u64,
        "Requests to one provider at the same time",
        "502",
    ),
    Limit::count(
        "LOGINS_AT_ONCE",
        provider::LOGINS_AT_ONCE as u64,
        "Logins at one provider that are finished at the same time",
        "other logins wait, in turns by client, up to a minute",
    ),
    Limit::count(
        "LOGINS_WAITING_MAX",
        provider::LOGINS_WAITING_MAX as u64,
        "Logins that wait for that",
        "503 with Retry-After; the error log says so",
    ),
    Limit::count(
        "LOGINS_OF_CLIENT_MAX",
        provider::LOGINS_OF_CLIENT_MAX as u64,
        "Logins of one address, or IPv6 network of 64 bits, among them",
        "503 with Retry-After; the error log says so",
    ),
    Limit::bytes(
        "RESPONSE_SIZE_MAX",
        endpoint::RESPONSE_SIZE_MAX as u64,
        "Bytes of a response of a provider",
        "502",
    ),
    Limit::micros(
        "WAIT_TIME_MAX",
        endpoint::WAIT_TIME_MAX.as_micros() as u64,
        "Time for which a provider may do nothing during a request",
        "502",
    ),
    Limit::micros(
        "REQUEST_TIME_MAX",
        endpoint::REQUEST_TIME_MAX.as_micros() as u64,
        "Time of a request to a provider on a connection",
        "502",
    ),
    Limit::micros(
        "KEPT_TIME",
        discovery::KEPT_TIME.as_micros() as u64,
        "Time for which the metadata and the keys of a provider are kept",
        "it is asked again; keys also when a token has another one",
    ),
    Limit::micros(
        "RETRY_TIME",
        discovery::RETRY_TIME.as_micros() as u64,
        "Time before a provider that failed is asked again",
        "it is asked again",
    ),
    Limit::micros(
        "LOGIN_SECS_MAX",
        sealed_state::LOGIN_SECS_MAX as u64 * 1_000_000,
        "Time of a login",
        "403: it has to begin again",
    ),
    Limit::bytes(
        "URI_SIZE_MAX",
        sealed_state::URI_SIZE_MAX as u64,
        "Bytes of a URI that a login returns to",
        "it returns to /",
    ),
    Limit::bytes("CODE_SIZE_MAX", login::CODE_SIZE_MAX as u64, "Bytes of the code of a login", "403"),
];

/// Session of the user of a request.
struct ActiveSession(Arc<OidcSession>);

fn put(r: &Request, out: &mut Vec<u8>, read: impl FnOnce(&OidcSession) -> Option<&[u8]>) -> Value {
    let active = r.facts.states.get::<ActiveSession>();
    let Some(text) = active.as_ref().and_then(|active| read(&active.0)) else { return Value::Missing };
    out.extend_from_slice(text);
    Value::Found
}

impl Providers {
    /// Notes that a server uses a provider.
    fn note(&self, server: &Arc<ServerSettings>, provider: &Arc<Provider>) {
        let (server, mut used) = (Arc::as_ptr(server).addr(), self.used.lock());
        if !used.iter().any(|(at, known)| *at == server && Arc::ptr_eq(known, provider)) {
            used.push((server, provider.clone()));
        }
    }

    /// The provider of `r`'s server one of whose paths `is_path` says.
    fn of(&self, r: &Request, is_path: impl Fn(&Provider) -> bool) -> Option<Arc<Provider>> {
        if !self.all.values().any(|provider| is_path(provider)) {
            return None;
        }
        let server = Arc::as_ptr(&r.plan().server).addr();
        let used = self.used.lock();
        used.iter()
            .find(|(at, provider)| *at == server && is_path(provider))
            .map(|(_, provider)| provider.clone())
    }
}

impl Handler for AuthOidc {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(provider) = &self.auth else { return Step::PASS };
        let id = session::cookie(r, provider.cookie_name.as_bytes());
        if let Some(session) = id.and_then(|id| provider.sessions.find(id, tw_rt::clock::now())) {
            r.facts.states.put_common(Rc::new(ActiveSession(session)));
            // Values that were computed before had no user.
            r.bindings.forget_computed();
            return Step::Now(Outcome::PhaseDone);
        }
        Step::Wait(Box::pin(begin_login(provider, r)))
    }
}

/// Paths of providers: `redirect_uri` and `logout_uri`.
struct ProviderPages(Arc<Providers>);

impl Handler for ProviderPages {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let path = r.uri.path.as_slice();
        if let Some(provider) = self.0.of(r, |provider| provider.redirect_uri.as_bytes() == path) {
            return Step::Wait(Box::pin(async move { finish_login(&provider, r).await }));
        }
        let is_logout =
            |provider: &Provider| provider.logout_uri.as_ref().is_some_and(|uri| uri.as_bytes() == path);
        match self.0.of(r, is_logout) {
            Some(provider) => Step::Wait(Box::pin(async move { log_out(&provider, r).await })),
            None => Step::PASS,
        }
    }
}

/// Runs `ask` with the connections of the loop of `r`.
async fn metadata(provider: &Provider, r: &Request) -> Result<Arc<Metadata>, String> {
    let (home, core) = (r.client().home.clone(), r.plan().core.clone());
    let caller = Caller { home: &home, resolving: &core.resolving, permits: &provider.discovery.permits };
    provider.discovery.metadata(caller, &provider.config_url, &provider.issuer, &provider.tls).await
}

/// Sends a client to the provider.
async fn begin_login(provider: &Provider, r: &mut Request) -> Outcome {
    let begun = match metadata(provider, r).await {
        Ok(metadata) => provider.login(r, &metadata),
        Err(why) => Err(why),
    };
    match begun {
        Ok(redirect) => {
            let cookie = &provider.login_cookie_name;
            add_cookie(r, cookie, Some(&redirect.browser));
            redirect_to(r, redirect.location)
        }
        Err(why) => fail(r, &why),
    }
}

/// Takes the response of the provider.
async fn finish_login(provider: &Provider, r: &mut Request) -> Outcome {
    let callback = match provider.read_callback(r) {
        Ok(callback) => callback,
        Err(error) => return refuse(r, &error),
    };
    let Some(origin) = login::origin(r) else { return Outcome::Status(400) };
    let metadata = match metadata(provider, r).await {
        Ok(metadata) => metadata,
        Err(why) => return fail(r, &why),
    };
    if metadata.names_issuer && tw_http::target::arg(r.head.args(), b"iss").is_none() {
        return refuse(r, &CallbackError::Issuer);
    }
    // These requests come before the limits of a location, and whoever begins a login can cause one.
    let Ok(mut ticket) = provider.logins.enter(ClientKey::of(r.client_addr())) else {
        return try_later(r, format_args!("OpenID provider: too many logins wait"));
    };
    match wait_for_turn(r, &mut ticket, turn_queue::WAIT_MAX).await {
        Ok(()) => {}
        Err(TurnWait::TooLong) => {
            return try_later(r, format_args!("OpenID provider: a login waited too long"));
        }
        Err(TurnWait::Gone(gone)) => return phases::client_closed(r, &gone),
    }
    let (home, core) = (r.client().home.clone(), r.plan().core.clone());
    let caller = Caller { home: &home, resolving: &core.resolving, permits: &provider.discovery.permits };
    let session = match provider.exchange(&callback, &origin, caller, &metadata).await {
        Ok(session) => session,
        Err(why) => return fail(r, &why),
    };
    let Ok(id) = session::new_id() else { return fail(r, "no randomness") };
    provider.sessions.insert(&id, session);
    add_cookie(r, &provider.cookie_name, Some(&id));
    redirect_to(r, format!("{origin}{}", String::from_utf8_lossy(&callback.uri)))
}

/// Ends a session.
async fn log_out(provider: &Provider, r: &mut Request) -> Outcome {
    let id = session::cookie(r, provider.cookie_name.as_bytes()).map(<[u8]>::to_vec);
    let session = id.and_then(|id| provider.sessions.remove(&id));
    add_cookie(r, &provider.cookie_name, None);
    let Some(origin) = login::origin(r) else { return Outcome::Status(400) };
    let metadata = match metadata(provider, r).await {
        Ok(metadata) => Some(metadata),
        Err(why) => {
            // The session has ended here anyway.
            r.log(Level::Error, format_args!("OpenID provider: {why}"));
            None
        }
    };
    match provider.logout_location(&origin, metadata.as_deref(), session.as_ref()) {
        Some(location) => redirect_to(r, location),
        None => {
            r.out.fields.set(Known::CacheControl, "no-store");
            Outcome::Status(204)
        }
    }
}

fn add_cookie(r: &mut Request, name: &str, value: Option<&str>) {
    let cookie = session::set_cookie(name, value, r.client().scheme().is_secure());
    r.out.fields.append("Set-Cookie", bytes::Bytes::from(cookie));
}

fn redirect_to(r: &mut Request, location: String) -> Outcome {
    r.out.fields.set(Known::CacheControl, "no-store");
    r.out.location = location.into();
    Outcome::Status(302)
}

/// The client is not logged in.
fn refuse(r: &mut Request, error: &CallbackError) -> Outcome {
    r.log(Level::Error, format_args!("response of the OpenID provider: {error}"));
    Outcome::Status(403)
}

/// The provider does not do its part.
fn fail(r: &mut Request, why: &str) -> Outcome {
    r.log(Level::Error, format_args!("OpenID provider: {why}"));
    Outcome::Status(502)
}
