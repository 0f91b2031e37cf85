//! `auth_oidc`: users that log in at an OpenID provider (nginx: ngx_http_oidc_module, which is sold; OpenID Connect Core 1.0).
//! Access phase; responses of the provider and logouts before the location is chosen.
//!
//! ```text
//! request ─ session ──────────────────────────────────────────────────────────► granted, claims are variables
//!           └ none: 302 to the provider ─► redirect_uri?code&state ─► tokens ─► session, 302 to where it began
//! ```
//! A login in progress costs this server nothing: its state is sealed in the URL, for one browser ([`sealed_state`]). Tokens of a
//! session that is in use are renewed before they end ([`renewal`]).

mod claims;
mod discovery;
mod endpoint;
mod limits;
mod login;
mod logout_token;
mod pages;
mod provider;
mod providers;
mod renewal;
mod sealed_state;
mod session;
mod session_table;
mod tokens;
mod used_once;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_log::Text;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

use self::login::is_nameless;
use self::pages::{ProviderPages, begin_login};
pub use self::provider::directives;
use self::provider::{OidcCounts, Provider, RawProvider};
use self::providers::Providers;
use self::session::{OidcSession, RenewalNeed};
use self::session_table::OidcSessions;
use crate::jose::append_member;

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION;

/// Providers and the one in use, as written.
#[derive(Default)]
pub struct Raw {
    providers: Vec<RawProvider>,
    auth: Setting<Word>,
}

/// Settings of one block.
pub struct AuthOidc {
    /// `None` for `off`.
    auth: Option<Arc<Provider>>,
    providers: Arc<Providers>,
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
            |r, out| put(r, out, |session| Some(session.tokens.id_token.as_bytes())),
            "The ID token of the user (auth_oidc).",
        ),
        VarDef::one(
            "oidc_access_token",
            |r, out| {
                put(r, out, |session| {
                    Some(session.tokens.access_token.as_bytes()).filter(|token| !token.is_empty())
                })
            },
            "The access token of the user (auth_oidc).",
        ),
        VarDef::one(
            "oidc_userinfo",
            |r, out| put(r, out, |session| session.tokens.userinfo.as_deref()),
            "What the provider says about the user, in JSON (auth_oidc with userinfo).",
        ),
        VarDef::family(
            "oidc_claim_",
            |r, name, out| match r.extensions.get::<ActiveSession>() {
                Some(active) => append_member(active.0.tokens.verified.claims(), name, out),
                None => Value::Missing,
            },
            "A claim of the ID token of the user (auth_oidc).",
        ),
    ];

    const LIMITS: &'static [Limit] = limits::LIMITS;

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "oidc_sessions",
            kind: MetricKind::Gauge,
            labels: &["provider"],
            doc: "Sessions of users of an oidc_provider, with those that have ended and are not removed yet.",
            read: |scrape, out| {
                for sessions in scrape.shared_objects::<OidcSessions>() {
                    out.value(&[&sessions.provider], sessions.count());
                }
            },
        },
        Metric {
            name: "oidc_logins_total",
            kind: MetricKind::Counter,
            labels: &["provider"],
            doc: "Logins at an oidc_provider that have led to a session.",
            read: |scrape, out| {
                for counts in scrape.shared_objects::<OidcCounts>() {
                    out.value(&[&counts.provider], counts.logins.value());
                }
            },
        },
        Metric {
            name: "oidc_logouts_total",
            kind: MetricKind::Counter,
            labels: &["provider"],
            doc: "Sessions that a logout has ended, by the user or by the provider.",
            read: |scrape, out| {
                for counts in scrape.shared_objects::<OidcCounts>() {
                    out.value(&[&counts.provider], counts.logouts.value());
                }
            },
        },
        Metric {
            name: "oidc_renewals_total",
            kind: MetricKind::Counter,
            labels: &["provider", "result"],
            doc: "Renewals of tokens by refresh tokens. The result is renewed, refused (the provider ends the session) or failed (the session goes on).",
            read: |scrape, out| {
                for counts in scrape.shared_objects::<OidcCounts>() {
                    for (result, count) in [
                        ("renewed", &counts.renewed),
                        ("refused", &counts.refused),
                        ("failed", &counts.failed),
                    ] {
                        out.value(&[&counts.provider, result], count.value());
                    }
                }
            },
        },
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let providers = match outer {
            Some(outer) => outer.providers.clone(),
            None => {
                let mut all = HashMap::new();
                for raw_provider in raw.providers {
                    let span = raw_provider.span();
                    let provider = raw_provider.resolve(cx)?;
                    let name = provider.name.clone();
                    if all.insert(name.clone(), Arc::new(provider)).is_some() {
                        return Err(
                            ConfError::new(format!("duplicate oidc_provider \"{}\"", Text(&name))).at(span)
                        );
                    }
                }
                Arc::new(Providers::new(all))
            }
        };
        let auth = match raw.auth.take() {
            Some(word) if word.is("off") => None,
            Some(word) => {
                let found_provider = providers.all.get(&word.bytes).cloned();
                let found_provider = found_provider.ok_or_else(|| {
                    ConfError::new(format!("unknown oidc_provider \"{word}\"")).at(word.span)
                })?;
                let names = cx.block.server_names();
                if found_provider.origin.is_none() && !names.is_empty() && is_nameless(names) {
                    let message = "the server has no name, so logins take the host of each request for that of this server";
                    cx.report(ConfError::warn(message).at(word.span).hint(
                        "set \"server_name\", or a \"redirect_uri\" with scheme and host in \"oidc_provider\"",
                    ));
                }
                Some(found_provider)
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

/// Session of the user of a request.
struct ActiveSession(Arc<OidcSession>);

fn put(r: &Request, out: &mut Vec<u8>, read: impl FnOnce(&OidcSession) -> Option<&[u8]>) -> Value {
    let active = r.extensions.get::<ActiveSession>();
    let Some(text) = active.as_ref().and_then(|active| read(&active.0)) else { return Value::Missing };
    out.extend_from_slice(text);
    Value::Found
}

impl Handler for AuthOidc {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(provider) = &self.auth else { return Step::PASS };
        let id = session::cookie(r, provider.cookie_name.as_bytes());
        let now = tw_rt::clock::now();
        let entry = id.and_then(|id| Some((id, provider.sessions.find(id, now)?)));
        let Some((id, session)) = entry else { return Step::Wait(Box::pin(begin_login(provider, r))) };
        match session.renewal_need(now) {
            RenewalNeed::None => {}
            RenewalNeed::Soon => renewal::begin(provider, r, &session),
            RenewalNeed::Now => {
                let id = id.to_vec();
                return Step::Wait(Box::pin(async move {
                    match renewal::wait(provider, r, &id).await {
                        Some(session) => grant(r, session),
                        None => begin_login(provider, r).await,
                    }
                }));
            }
        }
        Step::Now(grant(r, session))
    }
}

/// Lets the user of a session in.
fn grant(r: &mut Request, session: Arc<OidcSession>) -> Outcome {
    r.extensions.put_common(Rc::new(ActiveSession(session)));
    // Values that were computed before had no user.
    r.bindings.forget_computed();
    Outcome::PhaseDone
}
