//! `acme_issuer`: an authority, our account there, and how it finds out that names are ours.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use tw_acme::{
    Account, AccountKey, Challenge, ExternalAccount, Issuer, KeySource, KeyType, KeyWord, Profile,
    TermsOfService, Url,
};
use tw_conf::{
    Args, ConfError, Cx, Directive, DirectiveInfo, MODULE_BLOCK, Node, Setting, Span, Word, record,
};
use tw_core::load;
use tw_core::module::Protocol;
use tw_fleet::{Fleet, find_encrypting_fleet};
use tw_http::base64::{self, Alphabet};
use tw_tls::{BUNDLES, client_config};
use zeroize::Zeroizing;

use tw_request::config::location::TempPath;
use tw_request::protocol::Resolve;
use tw_request::vars::Template;

/// Error text for a challenge that starts a program while the sandbox is on.
pub const NOT_IN_SANDBOX: &str = "\"challenge dns-01\" starts a program, which no sandbox allows";

/// Prefix of a value that stands in place of a file.
const DATA: &[u8] = b"data:";

/// An issuer as written.
pub(super) struct RawIssuer {
    pub(super) name: Word,
    span: Span,
    words: Words,
}

/// An issuer that can be asked.
pub(super) struct Declared {
    pub(super) issuer: Arc<Issuer>,
    pub(super) tls: Arc<ClientConfig>,
    /// State directory, for the sandbox.
    pub(super) state: Option<Template>,
    /// Fleet whose nodes share the certificates.
    pub(super) fleet: Option<Arc<Fleet>>,
    span: Span,
}

/// Directives of the block.
#[derive(Default)]
struct Words {
    uri: Setting<Url>,
    account_key: Setting<Word>,
    challenge: Setting<Kind>,
    common_name: Setting<bool>,
    contacts: Vec<Box<str>>,
    dns_command: Setting<Word>,
    external: Setting<(Word, Word)>,
    fleet: Setting<Word>,
    preferred_chain: Setting<Box<str>>,
    profile: Setting<Profile>,
    trusted: Setting<Word>,
    verify: Setting<bool>,
    state: Setting<Word>,
    terms: Setting<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http01,
    TlsAlpn01,
    Dns01,
}

const CHALLENGES: &[(&str, Kind)] = &[
    ("http-01", Kind::Http01),
    ("http", Kind::Http01),
    ("tls-alpn-01", Kind::TlsAlpn01),
    ("tls-alpn", Kind::TlsAlpn01),
    // DIFF(nginx): records in DNS, made by a program.
    ("dns-01", Kind::Dns01),
    ("dns", Kind::Dns01),
];

const ONE: Args = Args::exact(1);

/// One record for each word.
const WORDS: &[Directive<Words>] = &[
    record::new("uri", "uri", MODULE_BLOCK, ONE)
        .doc("Directory URL of the authority.")
        .set(|raw, node, _| raw.uri.set_with(node, uri)),
    record::new("account_key", "alg[:size] | file", MODULE_BLOCK, ONE)
        .default("ecdsa:256")
        .doc("The account key: the type of key to generate, or a file.")
        .set(|raw, node, _| raw.account_key.set_once(node, node.arg(0)?.clone())),
    record::new("challenge", "http-01 | tls-alpn-01 | dns-01", MODULE_BLOCK, ONE)
        .default("http-01")
        .doc("The type of challenge with which the authority validates names.")
        .set(|raw, node, _| {
            raw.challenge.set_with(node, |node| {
                let word = node.arg(0)?;
                word.one_of(CHALLENGES).ok_or_else(|| node.fail(format!("unsupported challenge: {word}")))
            })
        }),
    record::flag("common_name_in_csr", MODULE_BLOCK)
        .default("off")
        .doc("Also puts the first name into the common name of the request.")
        .set(|raw, node, _| raw.common_name.set_flag(node)),
    record::new("contact", "URL", MODULE_BLOCK, ONE)
        .doc("Contact address of the account, told to the authority.")
        .set(|raw, node, _| {
            raw.contacts.push(contact(node)?);
            Ok(())
        }),
    record::new("dns_command", "program", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("The program that creates and removes DNS records for \"challenge dns-01\".")
        .set(|raw, node, _| raw.dns_command.set_once(node, node.arg(0)?.clone())),
    record::new("external_account_key", "kid file", MODULE_BLOCK, Args::exact(2))
        .doc("External account binding: key identifier and key of an existing account at the authority.")
        .set(|raw, node, _| {
            let [kid, key] = node.words()?;
            if let Some(empty) = [kid, key].into_iter().find(|word| word.bytes.is_empty()) {
                return Err(node.invalid_value(empty));
            }
            raw.external.set_once(node, (kid.clone(), key.clone()))
        }),
    record::new("preferred_chain", "name", MODULE_BLOCK, ONE)
        .doc("Common name of the issuer of the topmost certificate in the preferred chain.")
        .set(|raw, node, _| raw.preferred_chain.set_with(node, |node| text(node, node.arg(0)?))),
    record::new("profile", "name [require]", MODULE_BLOCK, Args::range(1, 2))
        .doc("The certificate profile; with require, no other is accepted.")
        .set(|raw, node, _| raw.profile.set_with(node, profile)),
    record::new("ssl_trusted_certificate", "file", MODULE_BLOCK, ONE)
        .doc("Trusted CA certificates for connections to the authority, in PEM.")
        .set(|raw, node, _| raw.trusted.set_once(node, node.arg(0)?.clone())),
    record::flag("ssl_verify", MODULE_BLOCK)
        .default("on")
        .doc("Verifies the TLS certificate of the authority.")
        .set(|raw, node, _| raw.verify.set_flag(node)),
    record::new("fleet", "name", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Fleet whose nodes share the certificates: one of them orders, all answer challenges. It takes an \"encryption_key\".")
        .set(|raw, node, _| raw.fleet.set_once(node, node.arg(0)?.clone())),
    record::new("state_path", "path | off", MODULE_BLOCK, ONE)
        .doc("Directory for the account key and the certificates.")
        .set(|raw, node, _| raw.state.set_once(node, node.arg(0)?.clone())),
    record::new("accept_terms_of_service", "", MODULE_BLOCK, Args::NONE)
        .doc("Accepts the terms of service of the authority.")
        .set(|raw, node, _| raw.terms.set_once(node, ())),
];

/// Their records, for documents and checks.
pub fn directives() -> impl Iterator<Item = DirectiveInfo> {
    WORDS.iter().map(|record| record.info())
}

impl RawIssuer {
    pub(super) fn read(node: &Node, cx: &mut Cx<'_>) -> Result<Self, ConfError> {
        let mut words = Words::default();
        for line in node.children()? {
            let name = line.name.as_str().unwrap_or_default();
            let Some(record) = WORDS.iter().find(|record| record.name == name) else {
                return Err(line.fail(format!("unknown directive \"{}\"", line.name)));
            };
            tw_conf::check(line, &record.info(), MODULE_BLOCK)?;
            (record.set)(&mut words, line, cx)?;
        }
        Ok(Self { name: node.arg(0)?.clone(), span: node.span, words })
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<Declared, ConfError> {
        let Self { name: word, span, words } = self;
        let name = word.lossy().into_owned();
        let fail = |what: String| ConfError::new(format!("acme_issuer: {what}")).at(span);
        let uri = words.uri.take().ok_or_else(|| fail(format!("\"uri\" is not set in \"{name}\"")))?;
        let key = match words.account_key.take() {
            None => KeySource::Generated(KeyType::default()),
            Some(word) => match KeyType::parse(&word.bytes) {
                KeyWord::Type(kind) => KeySource::Generated(kind),
                KeyWord::Unsupported(why) => {
                    return Err(ConfError::new(format!("account_key: {why}")).at(word.span));
                }
                KeyWord::FileName => {
                    let text = Zeroizing::new(read(&word, "account key", cx)?);
                    AccountKey::read(&text)
                        .map_err(|error| ConfError::new(error.to_string()).at(word.span))?;
                    KeySource::Given(text)
                }
            },
        };
        let external = words.external.take().map(|(kid, key)| external(&kid, &key, cx)).transpose()?;
        let terms = if words.terms.is_set() { TermsOfService::Accepted } else { TermsOfService::NotAccepted };
        let challenge = challenge(words.challenge.or(None, Kind::Http01), words.dns_command, cx, &fail)?;
        let trusted = match (words.verify.or(None, true), words.trusted.take()) {
            (false, _) => None,
            (true, Some(word)) => Some(read(&word, "certificate", cx)?),
            (true, None) => Some(bundle(cx).ok_or_else(|| {
                fail(format!("no certificates of authorities are found ({})", BUNDLES.join(", ")))
                    .hint("install ca-certificates, or name a file by \"ssl_trusted_certificate\"")
            })?),
        };
        let tls = client_config(trusted.as_deref())
            .map_err(|error| fail(format!("\"ssl_trusted_certificate\": {error}")))?;
        let fleet = words.fleet.take();
        let find =
            |word: Word| find_encrypting_fleet(&word.bytes, word.span, "private keys", |name| cx.find(name));
        let fleet = fleet.map(find).transpose()?;
        let state = match words.state.take() {
            Some(word) if word.is("off") => None,
            Some(word) => Some(word.bytes.to_vec()),
            None => Some(format!("acme_{name}").into_bytes()),
        };
        let state = state.map(|path| cx.full_path_c(&path));
        if let Some(path) = &state {
            // The directory is created at the start, by a user who may, for the user who writes there.
            let _ = cx.block.temp_path(TempPath { path: path.clone(), levels: [0; 3] }, None);
        }
        let issuer = Issuer {
            name: name.into(),
            uri,
            account: Account { key, contacts: words.contacts, external, terms },
            challenge,
            common_name: words.common_name.or(None, false),
            preferred_chain: words.preferred_chain.take(),
            profile: words.profile.take(),
            trusted: trusted.map(Into::into),
            state: state.as_ref().map(|path| os_path(path.to_bytes())),
        };
        let state = state.map(|path| Template::text(path.to_bytes()));
        Ok(Declared { issuer: Arc::new(issuer), tls, state, fleet, span })
    }
}

impl Declared {
    /// Returns true if the challenge can prove control of all names below a domain.
    pub(super) fn can_wildcards(&self) -> bool {
        matches!(self.issuer.challenge, Challenge::Dns01(_))
    }
}

/// Two issuers with one directory: one of them could never order.
pub(super) fn same_state(all: &[Declared]) -> Option<ConfError> {
    let state = |declared: &Declared| declared.issuer.state.clone();
    let is_taken =
        |at: usize, path: &PathBuf| all.iter().take(at).any(|other| state(other).as_ref() == Some(path));
    let twice = all.iter().enumerate().find(|(at, one)| state(one).is_some_and(|path| is_taken(*at, &path)));
    twice.map(|(_, one)| {
        let path = one.issuer.state.as_deref().unwrap_or(std::path::Path::new("")).display();
        ConfError::new(format!("acme_issuer: the \"state_path\" {path} is that of another issuer"))
            .at(one.span)
    })
}

fn os_path(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

fn uri(node: &Node) -> Result<Url, ConfError> {
    let word = node.arg(0)?;
    Url::parse(&word.lossy()).map_err(|why| node.fail(format!("invalid uri \"{word}\": {why}")))
}

fn text(node: &Node, word: &Word) -> Result<Box<str>, ConfError> {
    match word.as_str().filter(|text| !text.is_empty() && !text.contains(char::is_control)) {
        Some(text) => Ok(text.into()),
        None => Err(node.invalid_value(word)),
    }
}

fn profile(node: &Node) -> Result<Profile, ConfError> {
    let name = text(node, node.arg(0)?)?;
    match node.args.get(1) {
        None => Ok(Profile::Preferred(name)),
        Some(word) if word.is("require") => Ok(Profile::Required(name)),
        Some(word) => Err(node.invalid_value(word)),
    }
}

/// A URL; without a scheme it is an address of mail.
fn contact(node: &Node) -> Result<Box<str>, ConfError> {
    let text = text(node, node.arg(0)?)?;
    let is_scheme = |scheme: &str| {
        let more = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(more)
    };
    match text.split_once(':') {
        Some((scheme, _)) if is_scheme(scheme) => Ok(text),
        _ => Ok(format!("mailto:{text}").into()),
    }
}

fn challenge(
    kind: Kind,
    command: Setting<Word>,
    cx: &Resolve<'_>,
    fail: &impl Fn(String) -> ConfError,
) -> Result<Challenge, ConfError> {
    match (kind, command.take()) {
        (Kind::Http01, None) => Ok(Challenge::Http01),
        (Kind::TlsAlpn01, None) => Ok(Challenge::TlsAlpn01),
        (Kind::Dns01, Some(word)) => Ok(Challenge::Dns01(os_path(&cx.conf_path(&word.bytes)))),
        (Kind::Dns01, None) => Err(fail("\"challenge dns-01\" needs a \"dns_command\"".into())),
        (_, Some(word)) => {
            Err(ConfError::new("acme_issuer: \"dns_command\" is for \"challenge dns-01\"").at(word.span))
        }
    }
}

fn external(kid: &Word, key: &Word, cx: &Resolve<'_>) -> Result<ExternalAccount, ConfError> {
    let text = match key.bytes.strip_prefix(DATA) {
        Some(data) => data.to_vec(),
        None => read(key, "key", cx)?,
    };
    let text = Zeroizing::new(text);
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    match base64::decode(text.trim_ascii(), Alphabet::Url, &mut bytes) {
        Ok(()) if !bytes.is_empty() => Ok(ExternalAccount { id: kid.lossy().into(), key: bytes }),
        _ => {
            let message = "\"external_account_key\" directive invalid base64url encoded value";
            Err(ConfError::new(message).at(key.span))
        }
    }
}

fn read(word: &Word, what: &str, cx: &Resolve<'_>) -> Result<Vec<u8>, ConfError> {
    cx.read_file(&word.bytes).map_err(|error: io::Error| {
        let errno = tw_base::Errno::from(&error);
        let path = cx.conf_path(&word.bytes);
        let path = String::from_utf8_lossy(&path);
        ConfError::new(format!("cannot load {what} \"{path}\": open() failed ({errno})")).at(word.span)
    })
}

/// Reads the certificates of the authorities that this system trusts.
fn bundle(cx: &Resolve<'_>) -> Option<Vec<u8>> {
    cx.read_file(system_bundle(cx)?.as_bytes()).ok()
}

/// File with the certificates of the authorities that this system trusts.
pub fn system_bundle<P: Protocol>(cx: &load::Resolve<'_, P>) -> Option<&'static str> {
    BUNDLES.into_iter().find(|path| cx.read_file(path.as_bytes()).is_ok())
}
