//! `auth_http` and the directives beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_base::PrefixedName;
use tw_conf::{Args, ConfError, Contexts, Directive, MAIL, MAIL_SERVER, Setting, Word, record};
use tw_connect::UpstreamGroup;
use tw_connect::tls_directives::UpstreamTlsDirectives;
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_block;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::reach::Reach;

use crate::protocol::{Mail, SessionOfMail};
use crate::settings::server::ServerSettings;

const ALL: u32 = MAIL | MAIL_SERVER;

/// Authentication of the logins of a server.
pub struct AuthHttp {
    /// `auth_http` as written. Servers resolve it: the `upstream` blocks of `mail` come before them.
    word: Option<Word>,
    /// The auth server of a server; `None` without `auth_http`.
    pub target: Option<Arc<AuthTarget>>,
    /// `auth_http_timeout`
    pub timeout: Duration,
    /// `auth_http_header`, as lines of a request.
    pub headers: Arc<[u8]>,
    /// `auth_http_pass_client_cert`
    pub passes_certificate: bool,
    /// TLS to the auth server.
    pub tls: TlsSettings<SessionOfMail>,
}

/// The auth server.
pub struct AuthTarget {
    /// Servers of the group.
    pub group: Arc<UpstreamGroup<Mail>>,
    /// `Host`
    pub host: Box<[u8]>,
    /// Path and arguments.
    pub uri: Box<[u8]>,
    /// True for `https`.
    pub is_secured: bool,
    /// Number of this directive, for idle connections.
    pub number: u64,
}

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    url: Setting<Word>,
    timeout: Setting<Duration>,
    headers: Setting<Vec<(Word, Word)>>,
    passes_certificate: Setting<bool>,
    tls: RawUpstreamTls,
}

const OWN: &[Directive<Raw>] = &[
    record::new("auth_http", "URL", ALL, Args::exact(1))
        .doc("URL of the auth server: http:// or https://, an address, a name, a Unix socket, or an upstream block of mail.")
        .set(|raw, node, _| raw.url.set_once(node, node.arg(0)?.clone())),
    record::new("auth_http_header", "header value", ALL, Args::exact(2))
        .doc("Adds a field to requests to the auth server, such as a shared secret.")
        .set(|raw, node, _| {
            let [name, value] = node.words()?;
            raw.headers.push(node, (name.clone(), value.clone()));
            Ok(())
        }),
    record::flag("auth_http_pass_client_cert", ALL)
        .default("off")
        .since("1.7.11")
        .doc("Sends the certificate of the client to the auth server, in PEM and escaped (Auth-SSL-Cert).")
        .set(|raw, node, _| raw.passes_certificate.set_flag(node)),
    record::time("auth_http_timeout", ALL)
        .default("60s")
        .doc("Time in which the auth server must answer.")
        .set(|raw, node, _| raw.timeout.set_msec(node)),
];

impl UpstreamTlsDirectives for Raw {
    const MODULE: &'static str = "ngx_mail_auth_http_module";
    const TLS_NAME: &'static str = "host of auth_http";
    const TLS_CONTEXTS: Contexts = ALL;

    fn upstream_tls(&mut self) -> &mut RawUpstreamTls {
        &mut self.tls
    }
}

static TLS_NAMES: [PrefixedName; Raw::TLS.len()] = record::names("auth_http_", &[Raw::TLS]);

const LISTS: &[&[Directive<Raw>]] = &[OWN, &NEW_TLS];

/// Records of TLS, which nginx does not have here.
const NEW_TLS: [Directive<Raw>; TLS_NAMES.len()] = {
    let mut records = record::with_names(&[Raw::TLS], &TLS_NAMES);
    let mut at = 0;
    while at < records.len() {
        #[expect(
            clippy::indexing_slicing,
            reason = "a constant expression, which is checked by the compiler"
        )]
        {
            records[at].since = "Tailwater 0.2";
        }
        at += 1;
    }
    records
};

/// Number of the next `auth_http`.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Settings<Mail> for AuthHttp {
    type Raw = Raw;

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "mail_logins_total",
            kind: MetricKind::Counter,
            labels: &[],
            doc: "Logins of mail that the auth server was asked about.",
            read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.mail_logins)),
        },
        Metric {
            name: "mail_logins_by_result_total",
            kind: MetricKind::Counter,
            labels: &["result"],
            doc: "Logins of mail by result: accepted by a mail server, refused by the auth server or the mail server, or failed.",
            read: |scrape, out| {
                let counts = scrape.counts();
                out.value(&["accepted"], counts.total(|tally| &tally.mail_logins_accepted));
                out.value(&["refused"], counts.total(|tally| &tally.mail_logins_refused));
                out.value(&["failed"], counts.total(|tally| &tally.mail_logins_failed));
            },
        },
    ];

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let written_word = raw.url.take().or_else(|| outer.and_then(|outer| outer.word.clone()));
        // An `upstream` block inherits the URL, too, and has no auth server.
        let is_server = outer.is_some() && cx.block.upstream.name.is_none();
        let target = match &written_word {
            Some(word) if is_server => Some(Arc::new(read_url(word, cx)?)),
            Some(_) | None => None,
        };
        cx.block.auth_group = target.as_ref().map(|target| target.group.clone());
        let mut tls = TlsSettings::resolve(raw.tls, outer.map(|outer| &outer.tls), cx)?;
        if target.as_ref().is_some_and(|target| target.is_secured) {
            tls.enable("auth_http_", TlsProtocol::Any, cx)?;
        }
        let lines = |headers: Vec<(Word, Word)>| {
            let line =
                |(name, value): &(Word, Word)| [&name.bytes, &b": "[..], &value.bytes, b"\r\n"].concat();
            headers.iter().flat_map(line).collect::<Arc<[u8]>>()
        };
        let headers = match raw.headers.take() {
            Some(headers) => lines(headers),
            None => outer.map_or_else(|| [].into(), |outer| outer.headers.clone()),
        };
        Ok(Self {
            word: written_word,
            target,
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(60)),
            headers,
            passes_certificate: raw.passes_certificate.or(outer.map(|o| o.passes_certificate), false),
            tls,
        })
    }

    fn reach(&self, _: &ServerSettings, reach: &mut Reach) {
        reach.connects();
        self.tls.reach(reach);
        if self.target.as_ref().is_some_and(|target| target.group.may_have_names()) {
            tw_connect::resolving::reach(reach);
        }
    }
}

/// Parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts<'a> {
    is_secured: bool,
    /// Address with a port, or name of a group.
    address: &'a str,
    /// Host for the request.
    host: &'a str,
    /// Path and arguments.
    uri: &'a str,
}

/// Splits a URL, whose scheme and path may be missing.
fn split(text: &str) -> UrlParts<'_> {
    let (is_secured, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => (false, text),
    };
    if let Some(path) = rest.strip_prefix("unix:") {
        let (address, uri) = match path.find(':') {
            Some(at) => (rest.split_at("unix:".len() + at).0, path.split_at(at + 1).1),
            None => (rest, ""),
        };
        return UrlParts { is_secured, address, host: "localhost", uri };
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (address, uri) = rest.split_at(end);
    let host = match (address.rfind(':'), address.rfind(']')) {
        (Some(colon), Some(bracket)) if colon < bracket => address,
        (Some(colon), _) => address.split_at(colon).0,
        (None, _) => address,
    };
    UrlParts { is_secured, address, host, uri }
}

/// Resolves the argument of `auth_http`.
fn read_url(word: &Word, cx: &mut Resolve<'_, Mail>) -> Result<AuthTarget, ConfError> {
    let text = word.lossy();
    let UrlParts { is_secured, address, host, uri } = split(&text);
    let port = if is_secured { 443 } else { 80 };
    let group = upstream_block::named(word, address, Some(port), cx)?;
    let slash = if uri.starts_with('/') { "" } else { "/" };
    let uri = format!("{slash}{uri}").into_bytes().into();
    let number = NEXT.fetch_add(1, Relaxed);
    Ok(AuthTarget { group, host: host.as_bytes().into(), uri, is_secured, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_their_parts() {
        for (text, is_secured, address, host, uri) in [
            ("http://127.0.0.1:8080/mail/auth", false, "127.0.0.1:8080", "127.0.0.1", "/mail/auth"),
            ("127.0.0.1:8080", false, "127.0.0.1:8080", "127.0.0.1", ""),
            ("https://auth.example/a?b=c", true, "auth.example", "auth.example", "/a?b=c"),
            ("http://[::1]:80/a", false, "[::1]:80", "[::1]", "/a"),
            ("http://[::1]/a", false, "[::1]", "[::1]", "/a"),
            ("unix:/run/auth.sock:/login", false, "unix:/run/auth.sock", "localhost", "/login"),
            ("http://unix:/run/auth.sock", false, "unix:/run/auth.sock", "localhost", ""),
            ("localhost/auth", false, "localhost", "localhost", "/auth"),
        ] {
            assert_eq!(split(text), UrlParts { is_secured, address, host, uri }, "{text}");
        }
    }
}
