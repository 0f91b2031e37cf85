//! `oidc_provider`: a provider as configured, and what all servers share of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tw_base::Counter;
use tw_conf::{
    Args, ConfError, Cx, Directive, DirectiveInfo, MODULE_BLOCK, Node, Setting, Span, Word, record,
};
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::TlsProtocol;
use tw_core::module::Protocol;
use tw_http::escape::Escape;
use tw_keyval::KeyvalZone;
use tw_module_support::block::refuse_block;
use tw_module_support::turn_queue::{TurnLimits, TurnQueue};
use tw_module_support::verified_tls::VerifiedTls;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

use super::discovery::{Caller, Discovery, Metadata};
use super::endpoint::ProviderUrl;
use super::logout_token::IDENTIFIER_TIME;
use super::sealed_state::{LOGIN_SECS_MAX, StateKeys};
use super::session_table::OidcSessions;
use super::used_once::UsedOnce;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Logins at one provider that are finished at the same time.
    ///
    /// Logins that are finished at the same time: fewer than [requests](super::endpoint::REQUESTS_AT_ONCE), so that keys and
    /// metadata can be fetched beside them.
    pub(super) const LOGINS_AT_ONCE: usize = 32, count, "other logins wait, in turns by client, up to a minute";
    /// Logins that wait for that.
    pub(super) const LOGINS_WAITING_MAX: usize = 1024, count, "503 with Retry-After; the error log says so";
    /// Logins of one address, or IPv6 network of 64 bits, among them.
    pub(super) const LOGINS_OF_CLIENT_MAX: usize = 32, count, "503 with Retry-After; the error log says so";
    /// Renewals of tokens at one provider at the same time.
    ///
    /// Renewals at one provider at the same time; others wait. Together with the logins they are fewer than the
    /// [requests](super::endpoint::REQUESTS_AT_ONCE).
    pub(super) const RENEWALS_AT_ONCE: usize = 16, count, "others wait; the requests of their sessions pass, unless the tokens have ended";
}

/// nginx's defaults.
const COOKIE_NAME: &str = "NGX_OIDC_SESSION";
const REDIRECT_URI: &str = "/oidc_callback";
const SESSION_TIMEOUT: Duration = Duration::from_secs(8 * 3600);

/// A block as written.
pub(super) struct RawProvider {
    node: Node,
    name: Word,
    words: Words,
}

/// Directives of a block as written.
#[derive(Default)]
struct Words {
    issuer: Setting<Word>,
    client_id: Setting<Word>,
    client_secret: Setting<Word>,
    config_url: Setting<Word>,
    cookie_name: Setting<Word>,
    extra_auth_args: Setting<Word>,
    redirect_uri: Setting<Word>,
    frontchannel_logout_uri: Setting<Word>,
    backchannel_logout_uri: Setting<Word>,
    logout_uri: Setting<Word>,
    post_logout_uri: Setting<Word>,
    logout_token_hint: Setting<bool>,
    scope: Setting<Vec<Word>>,
    session_store: Setting<Word>,
    session_timeout: Setting<Duration>,
    crl: Setting<Word>,
    trusted_certificate: Setting<Word>,
    userinfo: Setting<bool>,
    pkce: Setting<bool>,
}

const LOGINS: TurnLimits = TurnLimits {
    at_once: LOGINS_AT_ONCE,
    waiting: LOGINS_WAITING_MAX,
    waiting_of_client: LOGINS_OF_CLIENT_MAX,
};

/// Page of a provider on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderPage {
    /// `redirect_uri`
    Callback,
    /// `logout_uri`
    Logout,
    /// `frontchannel_logout_uri`
    FrontChannelLogout,
    /// `backchannel_logout_uri`
    BackChannelLogout,
}

/// A provider.
pub(super) struct Provider {
    pub(super) name: Box<[u8]>,
    pub(super) issuer: Box<str>,
    pub(super) config_url: Box<str>,
    pub(super) client_id: Box<str>,
    pub(super) client_secret: Option<Box<str>>,
    /// Cookie of the session.
    pub(super) cookie_name: Box<str>,
    /// Cookie of the browser during logins.
    pub(super) login_cookie_name: Box<str>,
    /// Arguments of every authentication request behind those of its own.
    pub(super) auth_args: Box<str>,
    /// `https://host` of this server for its clients, if `redirect_uri` says it.
    pub(super) origin: Option<Box<str>>,
    /// Path of `redirect_uri`.
    pub(super) redirect_uri: Box<str>,
    /// Paths that belong to the provider.
    pages: Vec<(Box<str>, ProviderPage)>,
    pub(super) post_logout_uri: Option<Box<str>>,
    pub(super) logout_token_hint: LogoutHint,
    pub(super) session_timeout: Duration,
    pub(super) userinfo: Userinfo,
    pub(super) pkce: Pkce,
    pub(super) tls: TlsSettings<Request>,
    pub(super) discovery: Arc<Discovery>,
    pub(super) sessions: Arc<OidcSessions>,
    /// Logins that ask the provider for tokens, in turns by client.
    pub(super) logins: Arc<TurnQueue>,
    pub(super) keys: Arc<StateKeys>,
    pub(super) used: Arc<UsedValues>,
    pub(super) counts: Arc<OidcCounts>,
    /// Renewals of sessions that ask the provider for tokens.
    pub(super) renewals: Semaphore,
}

/// Values that are accepted once. They outlive a configuration, as the keys do that have made them.
pub(super) struct UsedValues {
    pub(super) states: UsedOnce,
    /// Identifiers of logout tokens.
    pub(super) logout_tokens: UsedOnce,
}

/// Counts of a provider. They outlive a configuration.
pub(super) struct OidcCounts {
    pub(super) provider: Box<str>,
    pub(super) logins: Counter,
    /// Sessions that a logout has ended.
    pub(super) logouts: Counter,
    pub(super) renewed: Counter,
    /// Renewals that the provider has refused.
    pub(super) refused: Counter,
    /// Renewals that have failed otherwise.
    pub(super) failed: Counter,
}

/// `logout_token_hint`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogoutHint {
    None,
    IdToken,
}

/// `userinfo`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Userinfo {
    Ignored,
    Fetched,
}

/// `pkce`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pkce {
    Off,
    Sha256,
}

const ONE: Args = Args::exact(1);

fn word(node: &Node) -> Result<Word, ConfError> {
    Ok(node.arg(0)?.clone())
}

/// One record for each directive of a block.
const WORDS: &[Directive<Words>] = &[
    record::new("issuer", "URL", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Issuer of the provider: that of its metadata and of its tokens. The scheme is https.")
        .set(|raw, node, _| raw.issuer.set_with(node, word)),
    record::new("client_id", "string", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Identifier of this server at the provider.")
        .set(|raw, node, _| raw.client_id.set_with(node, word)),
    record::new("client_secret", "string", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Secret of this server at the provider; without one the client is public.")
        .set(|raw, node, _| raw.client_secret.set_with(node, word)),
    record::new("config_url", "URL", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("URL of the metadata; without it, that of the issuer and /.well-known/openid-configuration.")
        .set(|raw, node, _| raw.config_url.set_with(node, word)),
    record::new("cookie_name", "name", MODULE_BLOCK, ONE)
        .default("NGX_OIDC_SESSION")
        .since("1.27.4")
        .doc("Name of the cookie of a session.")
        .set(|raw, node, _| raw.cookie_name.set_with(node, word)),
    record::new("extra_auth_args", "string", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Further arguments of the authentication request.")
        .set(|raw, node, _| raw.extra_auth_args.set_with(node, word)),
    record::new("redirect_uri", "[scheme://host]path", MODULE_BLOCK, ONE)
        .default("/oidc_callback")
        .since("1.27.4")
        .doc("Path to which the provider sends users back. With a scheme and a host, all URLs of logins and logouts have these, instead of those of the request.")
        .set(|raw, node, _| raw.redirect_uri.set_with(node, word)),
    record::new("frontchannel_logout_uri", "path", MODULE_BLOCK, ONE)
        .since("1.29.3")
        .doc("Path for pages of the provider that end a session in the browser; iss and sid are required.")
        .set(|raw, node, _| raw.frontchannel_logout_uri.set_with(node, word)),
    record::new("backchannel_logout_uri", "path", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Path for logout tokens, by which the provider ends sessions of a user.")
        .set(|raw, node, _| raw.backchannel_logout_uri.set_with(node, word)),
    record::new("logout_uri", "path", MODULE_BLOCK, ONE)
        .since("1.29.0")
        .doc("Path that ends a session, here and at the provider. If a page of another site leads there, the user is asked first.")
        .set(|raw, node, _| raw.logout_uri.set_with(node, word)),
    record::new("post_logout_uri", "path", MODULE_BLOCK, ONE)
        .since("1.29.0")
        .doc("Path to which the provider sends users after a logout.")
        .set(|raw, node, _| raw.post_logout_uri.set_with(node, word)),
    record::flag("logout_token_hint", MODULE_BLOCK)
        .default("off")
        .since("1.29.0")
        .doc("Sends the ID token to the provider with a logout.")
        .set(|raw, node, _| raw.logout_token_hint.set_flag(node)),
    record::new("scope", "scope …", MODULE_BLOCK, Args::at_least(1))
        .default("openid")
        .since("1.27.4")
        .doc("Scopes that are asked for; openid always is.")
        .set(|raw, node, _| raw.scope.set_once(node, node.args.clone())),
    record::new("session_store", "name", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Table of keyval_zone whose size bounds the sessions, and whose pairs show them: a session ends with its pair. Without it, sessions take up to 8m.")
        .set(|raw, node, _| raw.session_store.set_with(node, word)),
    record::time("session_timeout", MODULE_BLOCK)
        .default("8h")
        .since("1.27.4")
        .doc("Time after which a user has to log in again, unless the tokens were renewed.")
        .set(|raw, node, _| raw.session_timeout.set_sec(node)),
    record::new("ssl_crl", "file", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Revoked certificates of servers of the provider, in PEM.")
        .set(|raw, node, _| raw.crl.set_with(node, word)),
    record::new("ssl_trusted_certificate", "file", MODULE_BLOCK, ONE)
        .since("1.27.4")
        .doc("Trusted CA certificates for connections to the provider, in PEM; without it, those of the system.")
        .set(|raw, node, _| raw.trusted_certificate.set_with(node, word)),
    record::flag("userinfo", MODULE_BLOCK)
        .default("off")
        .since("1.29.0")
        .doc("Fetches what the provider says about a user ($oidc_userinfo).")
        .set(|raw, node, _| raw.userinfo.set_flag(node)),
    record::flag("pkce", MODULE_BLOCK)
        .default("on")
        .since("1.29.3")
        .doc("Binds the code of a login to this server (RFC 7636).")
        .set(|raw, node, _| raw.pkce.set_flag(node)),
];

/// Their records, for documents and checks.
pub fn directives() -> impl Iterator<Item = DirectiveInfo> {
    WORDS.iter().map(|record| record.info())
}

impl RawProvider {
    /// Reads the block.
    pub(super) fn read(node: &Node, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        let mut words = Words::default();
        for line in node.children()? {
            refuse_block(line)?;
            let name = line.name.as_str().unwrap_or_default();
            let Some(record) = WORDS.iter().find(|record| record.name == name) else {
                return Err(line.fail(format!("unknown directive \"{name}\" in \"oidc_provider\"")));
            };
            tw_conf::check(line, &record.info(), MODULE_BLOCK)?;
            (record.set)(&mut words, line, cx)?;
        }
        Ok(Self { node: node.clone(), name: word(node)?, words })
    }

    /// Place of the block in the configuration.
    pub(super) fn span(&self) -> Span {
        self.name.span
    }

    /// The provider.
    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<Provider, ConfError> {
        let Self { node, name, words } = self;
        let needed = |setting: Setting<Word>, name: &str| {
            setting.take().ok_or_else(|| node.fail(format!("\"oidc_provider\" requires \"{name}\"")))
        };
        let issuer = url(needed(words.issuer, "issuer")?)?;
        let client_id = visible(needed(words.client_id, "client_id")?)?;
        let client_secret = words.client_secret.take().map(visible).transpose()?;
        let config_url = match words.config_url.take() {
            Some(word) => url(word)?,
            None => format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/')).into(),
        };
        let cookie_name =
            words.cookie_name.take().map(token).transpose()?.unwrap_or_else(|| COOKIE_NAME.into());
        let path = |setting: Setting<Word>| setting.take().map(local_path).transpose();
        let (origin, redirect_uri) = match words.redirect_uri.take() {
            Some(word) => callback_url(word)?,
            None => (None, REDIRECT_URI.into()),
        };
        let mut pages = vec![(redirect_uri.clone(), ProviderPage::Callback)];
        for (written_setting, page) in [
            (words.logout_uri, ProviderPage::Logout),
            (words.frontchannel_logout_uri, ProviderPage::FrontChannelLogout),
            (words.backchannel_logout_uri, ProviderPage::BackChannelLogout),
        ] {
            let Some(path) = path(written_setting)? else { continue };
            if pages.iter().any(|(candidate, _)| *candidate == path) {
                return Err(
                    node.fail(format!("two directives of \"oidc_provider\" have the path \"{path}\""))
                );
            }
            pages.push((path, page));
        }
        let store = words.session_store.take().map(|word| find_store(&word, cx)).transpose()?;
        let extra = words.extra_auth_args.take().map(visible).transpose()?;
        let verified = VerifiedTls {
            trusted: words.trusted_certificate.take(),
            crl: words.crl.take(),
            inside: TlsProtocol::Any,
        };
        let tls = verified.resolve(&node, "oidc_provider", "oidc_provider_", cx)?;
        let name = name.bytes;
        // Sessions belong to the issuer and the client, not to a name that may get others by a reload.
        let kept = [&*name, b" ", issuer.as_bytes(), b" ", client_id.as_bytes()].concat();
        let failed = |_| node.fail("cannot make a random key");
        Ok(Provider {
            login_cookie_name: format!("{cookie_name}_LOGIN").into(),
            cookie_name,
            auth_args: auth_args(&client_id, words.scope.take(), extra.as_deref()),
            origin,
            redirect_uri,
            pages,
            post_logout_uri: path(words.post_logout_uri)?,
            logout_token_hint: if words.logout_token_hint.or(None, false) {
                LogoutHint::IdToken
            } else {
                LogoutHint::None
            },
            session_timeout: words.session_timeout.or(None, SESSION_TIMEOUT),
            userinfo: if words.userinfo.or(None, false) { Userinfo::Fetched } else { Userinfo::Ignored },
            // DIFF(nginx): PKCE is on unless it is switched off.
            pkce: if words.pkce.or(None, true) { Pkce::Sha256 } else { Pkce::Off },
            tls,
            // Discovery is not kept on reload, because another configuration may use other URLs.
            discovery: Arc::default(),
            sessions: cx.keep(
                &kept,
                |oidc_sessions: &OidcSessions| oidc_sessions.is_in(store.as_deref()),
                || OidcSessions::new(&name, store.clone()),
            ),
            logins: Arc::new(TurnQueue::new(LOGINS)),
            keys: cx.try_keep(&kept, |_| true, StateKeys::new).map_err(failed)?,
            used: cx.keep(&kept, |_| true, UsedValues::default),
            counts: cx.keep(&kept, |_| true, || OidcCounts::new(&name)),
            renewals: Semaphore::new(RENEWALS_AT_ONCE),
            name,
            issuer,
            config_url,
            client_id,
            client_secret,
        })
    }
}

impl Provider {
    /// Page of the provider at a path.
    pub(super) fn page(&self, path: &[u8]) -> Option<ProviderPage> {
        self.pages.iter().find(|(candidate, _)| candidate.as_bytes() == path).map(|(_, page)| *page)
    }

    /// The metadata, which is fetched if need be.
    pub(super) async fn metadata(&self, caller: Caller<'_>) -> Result<Arc<Metadata>, String> {
        self.discovery.metadata(caller, &self.config_url, &self.issuer, &self.tls).await
    }
}

impl Default for UsedValues {
    fn default() -> Self {
        let login_time = Duration::from_secs(LOGIN_SECS_MAX.unsigned_abs());
        Self { states: UsedOnce::new(login_time), logout_tokens: UsedOnce::new(IDENTIFIER_TIME) }
    }
}

impl OidcCounts {
    fn new(provider: &[u8]) -> Self {
        Self {
            provider: String::from_utf8_lossy(provider).into(),
            logins: Counter::new(),
            logouts: Counter::new(),
            renewed: Counter::new(),
            refused: Counter::new(),
            failed: Counter::new(),
        }
    }
}

/// The table of `session_store`.
fn find_store(word: &Word, cx: &Resolve<'_>) -> Result<Arc<KeyvalZone>, ConfError> {
    let fail = |message: String| ConfError::new(message).at(word.span);
    let zone = cx.find::<KeyvalZone>(&word.bytes).filter(|zone| zone.protocol == Http::NAME);
    let zone = zone.ok_or_else(|| {
        fail(format!("unknown keyval zone \"{word}\" in \"session_store\""))
            .hint("declare it in \"http\" by \"keyval_zone zone=name:size\"")
    })?;
    if !zone.has_text_keys() {
        return Err(fail(format!("keyval zone \"{word}\" of \"session_store\" must have type=string")));
    }
    if zone.state_path().is_some() {
        return Err(fail(format!("keyval zone \"{word}\" of \"session_store\" must have no state file"))
            .hint("sessions have tokens, which are kept in memory only"));
    }
    Ok(zone)
}

/// Origin and path of `redirect_uri`.
fn callback_url(word: Word) -> Result<(Option<Box<str>>, Box<str>), ConfError> {
    let text = word.as_str().unwrap_or_default();
    let authority = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let Some(authority) = authority else { return Ok((None, local_path(word)?)) };
    let end = authority.find('/').ok_or_else(|| invalid(&word, "URL"))?;
    let is_host =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    if end == 0 || !is_host(&authority[..end]) {
        return Err(invalid(&word, "URL"));
    }
    let (origin, path) = text.split_at(text.len() - authority.len() + end);
    if !is_path(path) {
        return Err(invalid(&word, "URL"));
    }
    Ok((Some(origin.into()), path.into()))
}

/// `client_id`, `scope`, and what `extra_auth_args` adds.
fn auth_args(client_id: &str, scope: Option<Vec<Word>>, extra: Option<&str>) -> Box<str> {
    let mut scopes =
        scope.unwrap_or_default().iter().map(|word| word.lossy().into_owned()).collect::<Vec<_>>();
    // Without this scope the response has no ID token.
    if !scopes.iter().any(|scope| scope == "openid") {
        scopes.insert(0, "openid".to_owned());
    }
    let mut args = format!("client_id={}&scope={}", component(client_id), component(&scopes.join(" ")));
    if let Some(extra) = extra.filter(|extra| !extra.is_empty()) {
        args = format!("{args}&{extra}");
    }
    args.into()
}

/// Text as a part of arguments or of a form.
pub(super) fn component(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    Escape::Component.push(text.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn invalid(word: &Word, what: &str) -> ConfError {
    ConfError::new(format!("invalid {what} \"{word}\"")).at(word.span)
}

/// A URL of the provider.
fn url(word: Word) -> Result<Box<str>, ConfError> {
    let text = word.as_str().filter(|text| ProviderUrl::parse(text).is_some());
    text.map(Box::from).ok_or_else(|| invalid(&word, "URL").hint("the scheme of a provider is https"))
}

/// Text that may stand in heads and URLs.
fn visible(word: Word) -> Result<Box<str>, ConfError> {
    let text = word.as_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    text.map(Box::from).ok_or_else(|| invalid(&word, "value"))
}

/// Name of a cookie.
fn token(word: Word) -> Result<Box<str>, ConfError> {
    let is_name = tw_http::fields::is_name(&word.bytes);
    let text = word.as_str().filter(|_| is_name);
    text.map(Box::from).ok_or_else(|| invalid(&word, "cookie name"))
}

/// Path on this server.
fn local_path(word: Word) -> Result<Box<str>, ConfError> {
    word.as_str().filter(|text| is_path(text)).map(Box::from).ok_or_else(|| invalid(&word, "path"))
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%".contains(&byte))
}
