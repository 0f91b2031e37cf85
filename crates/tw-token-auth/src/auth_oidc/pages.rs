//! Paths of providers: responses of the provider to logins, and logouts by the user, by the browser for the provider, and by the
//! provider itself (OpenID Connect RP-Initiated, Front-Channel and Back-Channel Logout 1.0).

use std::sync::Arc;

use bytes::Bytes;
use tw_http::{HeaderName, Method, RequestHead, target};
use tw_log::Level;
use tw_module_support::access_refusal::try_later;
use tw_module_support::cross_origin::is_cross_origin;
use tw_module_support::secret::is_same;
use tw_module_support::small_body::{self, SmallBodyError};
use tw_module_support::turn_queue::{self, ClientKey, TurnWait, wait_for_turn};
use tw_phases::phases;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::request::Request;

use super::discovery::{Caller, Metadata};
use super::login::{self, CallbackError, HostError};
use super::logout_token::{self, Logout};
use super::provider::{Provider, ProviderPage};
use super::providers::Providers;
use super::sealed_state::Derived;
use super::session::{self, OidcSession};
use super::session_table::{END_BATCH, SessionName};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a form with a logout token.
    pub(super) const LOGOUT_FORM_SIZE_MAX: usize = 40 << 10, bytes, "413";
}

/// Argument with which a user confirms a logout.
const CONFIRMATION: &str = "confirm";

/// Pages of all providers.
pub(super) struct ProviderPages(pub(super) Arc<Providers>);

impl Handler for ProviderPages {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some((provider, page)) = self.0.page(r) else { return Step::PASS };
        match page {
            ProviderPage::Callback => Step::Wait(Box::pin(async move { finish_login(&provider, r).await })),
            ProviderPage::Logout => Step::Wait(Box::pin(async move { log_out(&provider, r).await })),
            ProviderPage::FrontChannelLogout => {
                Step::Wait(Box::pin(async move { log_out_in_frame(&provider, r).await }))
            }
            ProviderPage::BackChannelLogout => {
                Step::Wait(Box::pin(async move { log_out_by_token(&provider, r).await }))
            }
        }
    }
}

/// Fetches the metadata with the connections of the loop of `r`.
async fn metadata(provider: &Provider, r: &Request) -> Result<Arc<Metadata>, String> {
    let event_loop = r.client().event_loop.clone();
    let core = r.plan().core.clone();
    provider.metadata(Caller::of(&event_loop, &core, &provider.discovery)).await
}

/// Sends a client to the provider.
pub(super) async fn begin_login(provider: &Provider, r: &mut Request) -> Outcome {
    let origin = match provider.origin(r) {
        Ok(origin) => origin,
        Err(error) => return refuse_host(r, error),
    };
    let begun = match metadata(provider, r).await {
        Ok(metadata) => provider.login(r, &origin, &metadata),
        Err(why) => Err(why),
    };
    match begun {
        Ok(redirect) => {
            add_cookie(r, provider, &provider.login_cookie_name, Some(&redirect.browser));
            redirect_to(r, redirect.location)
        }
        Err(why) => fail(r, &why),
    }
}

/// Takes the response of the provider to a login.
async fn finish_login(provider: &Provider, r: &mut Request) -> Outcome {
    let callback = match provider.read_callback(r) {
        Ok(callback) => callback,
        Err(error) => return refuse(r, &error),
    };
    let origin = match provider.origin(r) {
        Ok(origin) => origin,
        Err(error) => return refuse_host(r, error),
    };
    let metadata = match metadata(provider, r).await {
        Ok(metadata) => metadata,
        Err(why) => return fail(r, &why),
    };
    if metadata.names_issuer && login::arg(r, b"iss").is_none() {
        return refuse(r, &CallbackError::Issuer);
    }
    // The requests to the provider precede the limits of a location, and any client can cause them by beginning a
    // login, so they wait in a queue of their own.
    let Ok(mut ticket) = provider.logins.enter(ClientKey::of(r.client_addr())) else {
        return try_later(r, format_args!("OpenID provider: too many logins wait"));
    };
    match wait_for_turn(r, &mut ticket, turn_queue::WAIT_MAX).await {
        Ok(()) => {}
        Err(TurnWait::TooLong) => {
            return try_later(r, format_args!("OpenID provider: a login waited too long"));
        }
        Err(TurnWait::Gone(client_gone)) => return phases::client_closed(r, &client_gone),
    }
    let destination = format!("{origin}{}", String::from_utf8_lossy(&callback.uri));
    if !provider.used.states.take(&callback.state, tw_rt::clock::now()) {
        // The page was reloaded, or the response is replayed. The client has a session already, or begins a new login.
        r.log(Level::Info, format_args!("response of the OpenID provider: {}", CallbackError::Used));
        return redirect_to(r, destination);
    }
    let event_loop = r.client().event_loop.clone();
    let core = r.plan().core.clone();
    let caller = Caller::of(&event_loop, &core, &provider.discovery);
    let tokens = match provider.exchange(&callback, &origin, caller, &metadata).await {
        Ok(tokens) => tokens,
        Err(why) => return fail(r, &why),
    };
    let Ok(id) = session::new_id() else { return fail(r, "no randomness") };
    let session = OidcSession::new(&id, tokens, provider.session_timeout);
    if provider.sessions.insert(session).is_err() {
        return try_later(r, format_args!("OpenID provider: the store of sessions has no room"));
    }
    provider.counts.logins.add(1);
    add_cookie(r, provider, &provider.cookie_name, Some(&id));
    redirect_to(r, destination)
}

/// Ends the session of the browser, here and at the provider.
async fn log_out(provider: &Provider, r: &mut Request) -> Outcome {
    let origin = match provider.origin(r) {
        Ok(origin) => origin,
        Err(error) => return refuse_host(r, error),
    };
    let id = session::cookie(r, provider.cookie_name.as_bytes()).map(<[u8]>::to_vec);
    // DIFF(nginx): a page of another site ends no session.
    if let Some(id) = &id
        && !is_of_user(provider, r, &origin, id)
        && provider.sessions.find(id, tw_rt::clock::now()).is_some()
    {
        return ask_for_confirmation(provider, r, id);
    }
    let session = id.and_then(|id| provider.sessions.remove(&id));
    if session.is_some() {
        provider.counts.logouts.add(1);
    }
    add_cookie(r, provider, &provider.cookie_name, None);
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
            r.response.fields.set(HeaderName::CacheControl, "no-store");
            Outcome::Status(204)
        }
    }
}

/// Returns `true` if the user asks for a logout, and not a page of another site.
fn is_of_user(provider: &Provider, r: &Request, origin: &str, id: &[u8]) -> bool {
    let confirmed = target::arg(r.head.args(), CONFIRMATION.as_bytes());
    let is_confirmed = confirmed.is_some_and(|text| {
        is_same(text, provider.keys.derive(Derived::Logout, id).as_bytes()) && r.method() == Method::Post
    });
    is_confirmed || is_of_own_page(&r.head, origin)
}

/// Returns `true` if a page of this server has sent the request, or the user without any page. Browsers say so only over HTTPS, and
/// otherwise name the page.
fn is_of_own_page(head: &RequestHead, origin: &str) -> bool {
    if head.field("Sec-Fetch-Site").is_some() || head.field("Origin").is_some() {
        return !is_cross_origin(head);
    }
    let rest = head.field("Referer").and_then(|page| page.strip_prefix(origin.as_bytes()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Asks the user whether to log out.
fn ask_for_confirmation(provider: &Provider, r: &mut Request, id: &[u8]) -> Outcome {
    let token = provider.keys.derive(Derived::Logout, id);
    let page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Log out</title></head>\n\
         <body><h1>Log out?</h1>\n<p>Another site has sent you here.</p>\n\
         <form method=\"post\" action=\"?{CONFIRMATION}={token}\"><button>Log out</button></form></body></html>\n"
    );
    // Other sites must not show the page in a frame, so that users see what they click on.
    r.response.fields.append("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
    r.response.fields.append("X-Frame-Options", "DENY");
    show(r, Bytes::from(page))
}

/// Ends the session that a page of the provider names, in a frame of the browser. The cookie of the session does not come along, and
/// any site could send one; only the provider and this server know `sid`.
async fn log_out_in_frame(provider: &Provider, r: &mut Request) -> Outcome {
    let is_issuer = login::arg(r, b"iss").is_some_and(|issuer| issuer == provider.issuer.as_bytes());
    let sid = login::arg(r, b"sid").and_then(|sid| String::from_utf8(sid).ok());
    let Some(sid) = sid.filter(|sid| is_issuer && !sid.is_empty()) else {
        r.log(Level::Error, format_args!("front-channel logout: \"iss\" or \"sid\" is not there"));
        return Outcome::Status(400);
    };
    end_sessions(provider, r, SessionName::Session(&sid, None)).await;
    show(r, Bytes::from_static(b"<!DOCTYPE html>\n<html lang=\"en\"><title>Logged out</title></html>\n"))
}

/// Ends the sessions that the provider names in a token.
async fn log_out_by_token(provider: &Provider, r: &mut Request) -> Outcome {
    r.response.fields.set(HeaderName::CacheControl, "no-store");
    if r.method() != Method::Post {
        r.response.fields.append(HeaderName::Allow, "POST");
        return Outcome::Status(405);
    }
    let form = match small_body::read(r, LOGOUT_FORM_SIZE_MAX).await {
        Ok(form) => form,
        Err(SmallBodyError::TooLarge) => return Outcome::Status(413),
        Err(SmallBodyError::Failed(status)) => return Outcome::Status(status),
    };
    let token = target::arg(&form, b"logout_token").map(login::decoded).unwrap_or_default();
    let metadata = match metadata(provider, r).await {
        Ok(metadata) => metadata,
        Err(why) => return fail(r, &why),
    };
    let event_loop = r.client().event_loop.clone();
    let core = r.plan().core.clone();
    let verified =
        match provider.verify(&token, Caller::of(&event_loop, &core, &provider.discovery), &metadata).await {
            Ok(verified) => verified.map_err(|error| error.to_string()),
            Err(why) => return fail(r, &why),
        };
    let checked = verified.as_ref().map_err(String::clone).and_then(|token| {
        let logout = logout_token::check(token, &provider.issuer, &provider.client_id, tw_rt::clock::unix())?;
        let is_first = provider.used.logout_tokens.take(logout.identifier.as_bytes(), tw_rt::clock::now());
        is_first.then_some(logout).ok_or_else(|| "its \"jti\" was used before".to_owned())
    });
    match checked {
        Ok(Logout { name, .. }) => {
            end_sessions(provider, r, name).await;
            r.response.status = 200;
            Outcome::Respond(Body::Empty)
        }
        Err(why) => {
            r.log(Level::Error, format_args!("back-channel logout: invalid logout token: {why}"));
            Outcome::Status(400)
        }
    }
}

/// Ends all sessions of a name.
async fn end_sessions(provider: &Provider, r: &Request, name: SessionName<'_>) {
    let mut count = 0;
    loop {
        let ended = provider.sessions.end_named(name);
        count += ended;
        if ended < END_BATCH {
            break;
        }
        tw_rt::yield_now().await;
    }
    provider.counts.logouts.add(count as u64);
    r.log(Level::Info, format_args!("OpenID provider: logout of {count} sessions"));
}

fn add_cookie(r: &mut Request, provider: &Provider, name: &str, value: Option<&str>) {
    let cookie = session::set_cookie(name, value, provider.is_secure(r));
    r.response.fields.append("Set-Cookie", Bytes::from(cookie));
}

/// Shows a page that is not stored.
fn show(r: &mut Request, page: Bytes) -> Outcome {
    r.response.fields.set(HeaderName::CacheControl, "no-store");
    r.response.content_type = Bytes::from_static(b"text/html; charset=utf-8");
    r.response.status = 200;
    Outcome::Respond(Body::Bytes(page))
}

fn redirect_to(r: &mut Request, location: String) -> Outcome {
    r.response.fields.set(HeaderName::CacheControl, "no-store");
    r.response.location = location.into();
    Outcome::Status(302)
}

/// The client is not logged in.
fn refuse(r: &mut Request, error: &CallbackError) -> Outcome {
    r.log(Level::Error, format_args!("response of the OpenID provider: {error}"));
    Outcome::Status(403)
}

/// The host of the request may be anybody's.
fn refuse_host(r: &mut Request, error: HostError) -> Outcome {
    r.log(Level::Error, format_args!("OpenID provider: {error}"));
    Outcome::Status(error.status())
}

/// The provider does not do its part.
fn fail(r: &mut Request, why: &str) -> Outcome {
    r.log(Level::Error, format_args!("OpenID provider: {why}"));
    Outcome::Status(502)
}
