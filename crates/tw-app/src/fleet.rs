//! `fleet`: nodes that share purges, and the engine between them. A block of `main`, because it belongs to no protocol.
//!
//! ```text
//! fleet NAME { node …; engine …; } ─► FleetSettings ─► Fleet, kept for the process ─► proxy_cache_path … fleet=NAME
//!                                                                                └─► the agent of the process (tw_fleet)
//! ```

use std::ffi::CString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tw_acme::BUNDLES;
use tw_conf::{
    Args, ConfError, Directive, DirectiveInfo, MAIN, MODULE_BLOCK, Node, Setting, Span, Word, record,
};
use tw_core::load::{Loader, Mistakes, ResolveContext, block};
use tw_core::reach::Reach;
use tw_fleet::{
    Authentication, EngineKind, EngineSettings, Fleet, FleetKeys, FleetSettings, ServerList, is_name,
    read_credentials,
};
use tw_request::config::location::TempPath;
use zeroize::Zeroizing;

/// Name of the block.
const NAME: &str = "fleet";
/// Longest time that the acknowledgement of the engine may be waited for.
const PUBLISH_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Time between two new secrets.
const SECRET_ROTATION: Duration = Duration::from_secs(12 * 60 * 60);
/// Longest such time.
const SECRET_ROTATION_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const ONE: Args = Args::exact(1);

/// Record of the block.
pub(crate) static STRUCTURE: [DirectiveInfo; 1] = [block(NAME, "name { … }", MAIN, ONE)
    .since("Tailwater 0.2")
    .doc(
        "Nodes that share purges: a purge of a cache with \"fleet=name\" on one of them is applied on all. The engine between them is \
         named inside.",
    )];

/// A block as written.
#[derive(Default)]
struct RawFleet {
    node: Setting<Box<str>>,
    engine: Setting<ServerList>,
    login: Setting<(Word, Word)>,
    token: Setting<Word>,
    credentials: Setting<Word>,
    tls: Setting<bool>,
    trusted: Setting<Word>,
    state: Setting<Word>,
    keys: Setting<Vec<Word>>,
    secret_rotation: Setting<Duration>,
    replicas: Setting<u8>,
    max_age: Setting<Duration>,
    max_messages: Setting<u64>,
    publish_timeout: Setting<Duration>,
}

/// One record for each word.
const WORDS: &[Directive<RawFleet>] = &[
    record::new("node", "name", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Name of this node, which no other node of the fleet has.")
        .set(|raw, node, _| raw.node.set_with(node, |node| name(node, node.arg(0)?))),
    record::new("engine", "nats://host[:port][,host[:port]…] | etcd://host[:port][,host[:port]…]", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Servers of NATS with JetStream or of etcd, of which one is used at a time.")
        .set(|raw, node, _| {
            raw.engine.set_with(node, |node| {
                let word = node.arg(0)?;
                // The word itself is not shown, because it may contain a password.
                let failed = |why: &dyn std::fmt::Display| {
                    node.fail(format!("invalid engine: {why}")).at(word.span).hint("nats://host:port,host:port, or etcd://host:port,host:port")
                };
                let text = word.as_str().ok_or_else(|| failed(&"it is no text"))?;
                ServerList::parse(text).map_err(|why| failed(&why))
            })
        }),
    record::new("login", "user file", MODULE_BLOCK, Args::exact(2))
        .since("Tailwater 0.2")
        .doc("User of the engine, and a file whose first line is the password.")
        .set(|raw, node, _| {
            let [user, file] = node.words()?;
            raw.login.set_once(node, (user.clone(), file.clone()))
        }),
    record::new("token", "file", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("File whose first line is the token of the engine.")
        .set(|raw, node, _| raw.token.set_once(node, node.arg(0)?.clone())),
    record::new("credentials", "file", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("File with the seed of an NKEY, or with a JWT and its seed as nsc writes it.")
        .set(|raw, node, _| raw.credentials.set_once(node, node.arg(0)?.clone())),
    record::flag("tls", MODULE_BLOCK)
        .default("off")
        .since("Tailwater 0.2")
        .doc("Encrypts connections to the engine, and verifies its certificate.")
        .set(|raw, node, _| raw.tls.set_flag(node)),
    record::new("trusted_certificate", "file", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Trusted CA certificates for connections to the engine, in PEM; without it those of the system.")
        .set(|raw, node, _| raw.trusted.set_once(node, node.arg(0)?.clone())),
    record::new("state_directory", "path", MODULE_BLOCK, ONE)
        .since("Tailwater 0.2")
        .doc("Directory for the position in the log and the purges that wait for the engine; without it fleet_name.")
        .set(|raw, node, _| raw.state.set_once(node, node.arg(0)?.clone())),
    record::new("encryption_key", "file [file …]", MODULE_BLOCK, Args::at_least(1))
        .since("Tailwater 0.2")
        .doc(
            "Files with the keys that encrypt private keys and secrets in the store: 32 bytes in base64 or hexadecimal digits. The first one \
             encrypts, all decrypt.",
        )
        .set(|raw, node, _| raw.keys.set_once(node, node.args.to_vec())),
    record::time("secret_rotation", MODULE_BLOCK)
        .default("12h")
        .since("Tailwater 0.2")
        .doc("Time after which new keys for session tickets and QUIC are used, where all nodes share them (ssl_session_ticket_key fleet=name, quic_host_key fleet=name).")
        .set(|raw, node, _| raw.secret_rotation.set_sec(node)),
    record::new("replicas", "number", MODULE_BLOCK, ONE)
        .default("1")
        .since("Tailwater 0.2")
        .doc("Servers of the engine that have a copy of the log, when Tailwater creates it: 1, 3 or 5.")
        .set(|raw, node, _| {
            raw.replicas.set_with(node, |node| {
                let word = node.arg(0)?;
                word.one_of(&[("1", 1), ("3", 3), ("5", 5)]).ok_or_else(|| node.invalid_value(word))
            })
        }),
    record::time("log_max_age", MODULE_BLOCK)
        .default("7d")
        .since("Tailwater 0.2")
        .doc("Age at which the engine drops purges, when Tailwater creates the log.")
        .set(|raw, node, _| raw.max_age.set_sec(node)),
    record::number("log_max_messages", MODULE_BLOCK)
        .default("1000000")
        .since("Tailwater 0.2")
        .doc("Number of purges that the engine keeps, when Tailwater creates the log.")
        .set(|raw, node, _| {
            raw.max_messages.set_with(node, |node| {
                let word = node.arg(0)?;
                let number = tw_conf::units::number(&word.bytes).filter(|number| *number > 0);
                number.ok_or_else(|| node.invalid_value(word))
            })
        }),
    record::time("publish_timeout", MODULE_BLOCK)
        .default("2s")
        .since("Tailwater 0.2")
        .doc("Longest wait of a purge for the engine; after that it is queued on disk.")
        .set(|raw, node, _| raw.publish_timeout.set_msec(node)),
];

/// Records of the directives in the block.
pub(crate) fn directives() -> impl Iterator<Item = DirectiveInfo> {
    WORDS.iter().map(|record| record.info())
}

/// The blocks while a configuration is loaded.
#[derive(Default)]
pub(crate) struct FleetBlocks {
    blocks: Vec<(Box<str>, Span, RawFleet)>,
    /// Files and connections that the agents need.
    pub(crate) reach: Reach,
    /// Directories to make.
    pub(crate) temp_paths: Vec<Arc<TempPath>>,
}

impl FleetBlocks {
    /// Reads a block; `None` if `node` is none.
    pub(crate) fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        node.name.is(NAME).then(|| self.read_block(node, loader))
    }

    fn read_block(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), ConfError> {
        loader.check_block(node, MAIN)?;
        let fleet = name(node, node.arg(0)?)?;
        if self.blocks.iter().any(|(candidate, ..)| *candidate == fleet) {
            return Err(node.fail(format!("duplicate fleet \"{fleet}\"")));
        }
        let mut raw = RawFleet::default();
        loader.walk(node.children()?, MODULE_BLOCK, |loader, line| {
            let word = line.name.as_str().unwrap_or_default();
            let Some(record) = WORDS.iter().find(|record| record.name == word) else {
                return Err(line.fail(format!("unknown directive \"{}\" in \"fleet\"", line.name)));
            };
            tw_conf::check(line, &record.info(), MODULE_BLOCK)?;
            (record.set)(&mut raw, line, &mut loader.cx(MODULE_BLOCK))
        });
        self.blocks.push((fleet, node.span, raw));
        Ok(())
    }

    /// Makes the fleets, before caches look for them.
    pub(crate) fn resolve(&mut self, mut shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        for (name, span, raw) in std::mem::take(&mut self.blocks) {
            let settings = match raw.resolve(&name, span, &mut shared) {
                Ok(settings) => settings,
                Err(error) => {
                    mistakes.add(error);
                    continue;
                }
            };
            self.reach.connects();
            self.reach.resolves_as_system(tw_fleet::system_files);
            let path = settings.state.as_os_str().as_encoded_bytes().to_vec();
            self.reach.replaces_file(&[&path, &b"/position"[..]].concat());
            if let Ok(path) = CString::new(path) {
                self.temp_paths.push(Arc::new(TempPath { path, levels: [0; 3] }));
            }
            let fits = |fleet: &Fleet| *fleet.settings() == settings;
            shared
                .shared_objects
                .keep(shared.previous, name.as_bytes(), fits, || Fleet::new(settings.clone()));
        }
    }
}

impl RawFleet {
    fn resolve(
        self,
        name: &str,
        span: Span,
        shared: &mut ResolveContext<'_>,
    ) -> Result<FleetSettings, ConfError> {
        let missing = |what: &str| ConfError::new(format!("fleet \"{name}\" has no \"{what}\"")).at(span);
        let node = self.node.take().ok_or_else(|| missing("node"))?;
        let servers = self.engine.take().ok_or_else(|| missing("engine"))?;
        let proofs = [self.login.is_set(), self.token.is_set(), self.credentials.is_set()];
        if proofs.into_iter().filter(|is_set| *is_set).count() > 1 {
            let message =
                format!("fleet \"{name}\" has more than one of \"login\", \"token\" and \"credentials\"");
            return Err(ConfError::new(message).at(span));
        }
        let authentication = if let Some((user, file)) = self.login.take() {
            let user = user.as_str().ok_or_else(|| ConfError::new("invalid user").at(user.span))?;
            Authentication::Password(user.to_owned(), first_line(&file, "password", shared)?)
        } else if let Some(file) = self.token.take() {
            Authentication::Token(first_line(&file, "token", shared)?)
        } else if let Some(file) = self.credentials.take() {
            let text = secret(&file, "credentials", shared)?;
            read_credentials(&text).map_err(|why| {
                ConfError::new(format!("invalid credentials \"{file}\": {why}")).at(file.span)
            })?
        } else {
            Authentication::Anonymous
        };
        let is_password = matches!(authentication, Authentication::Anonymous | Authentication::Password(..));
        if servers.kind() == EngineKind::Etcd && !is_password {
            let message = format!("fleet \"{name}\" has an etcd as its engine, which knows only \"login\"");
            return Err(ConfError::new(message).at(span));
        }
        let tls = self.tls.or(None, false);
        let trusted = match (tls, self.trusted.take()) {
            (false, None) => None,
            (false, Some(word)) => {
                return Err(ConfError::new("\"trusted_certificate\" needs \"tls on\"").at(word.span));
            }
            (true, Some(word)) => Some(read(&word, "certificate", shared)?),
            (true, None) => {
                let bundle = BUNDLES.into_iter().find_map(|path| shared.files.read(path.as_bytes()).ok());
                Some(bundle.ok_or_else(|| {
                    ConfError::new(format!(
                        "no certificates of authorities are found ({})",
                        BUNDLES.join(", ")
                    ))
                    .at(span)
                    .hint("install ca-certificates, or name a file by \"trusted_certificate\"")
                })?)
            }
        };
        if tls {
            tw_fleet::check_trusted(trusted.as_deref())
                .map_err(|error| ConfError::new(format!("\"trusted_certificate\": {error}")).at(span))?;
        }
        let publish_timeout = self.publish_timeout.or(None, Duration::from_secs(2));
        if publish_timeout > PUBLISH_TIMEOUT_MAX {
            let most = PUBLISH_TIMEOUT_MAX.as_secs();
            return Err(ConfError::new(format!("\"publish_timeout\" is longer than {most}s")).at(span));
        }
        let secret_rotation = self.secret_rotation.or(None, SECRET_ROTATION);
        if secret_rotation.is_zero() || secret_rotation > SECRET_ROTATION_MAX {
            return Err(ConfError::new("\"secret_rotation\" must be between 1s and 30d").at(span));
        }
        let keys = match self.keys.take() {
            Some(words) => encryption_keys(&words, shared)?,
            None => FleetKeys::default(),
        };
        let state = match self.state.take() {
            Some(word) => word.bytes.to_vec(),
            None => format!("fleet_{name}").into_bytes(),
        };
        Ok(FleetSettings {
            name: name.into(),
            node,
            state: os_path(tw_conf::full_name(shared.prefix, &state)),
            publish_timeout,
            keys,
            secret_rotation,
            engine: EngineSettings {
                servers,
                authentication,
                tls,
                trusted,
                replicas: self.replicas.or(None, 1),
                max_age: self.max_age.or(None, Duration::from_secs(7 * 86_400)),
                max_messages: self.max_messages.or(None, 1_000_000),
            },
        })
    }
}

fn os_path(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

fn name(node: &Node, word: &Word) -> Result<Box<str>, ConfError> {
    let text = word.as_str().filter(|text| is_name(text)).ok_or_else(|| {
        node.fail(format!("invalid name \"{word}\""))
            .at(word.span)
            .hint("letters, digits, - and _, at most 64")
    })?;
    Ok(text.into())
}

fn read(word: &Word, what: &str, shared: &ResolveContext<'_>) -> Result<Vec<u8>, ConfError> {
    let path = tw_conf::full_name(shared.conf_prefix, &word.bytes);
    shared.files.read(&path).map_err(|error: io::Error| {
        let path = String::from_utf8_lossy(&path);
        let errno = tw_base::Errno::from(&error);
        ConfError::new(format!("cannot load {what} \"{path}\": open() failed ({errno})")).at(word.span)
    })
}

/// A text that is wiped.
fn secret(word: &Word, what: &str, shared: &ResolveContext<'_>) -> Result<Zeroizing<String>, ConfError> {
    let bytes = Zeroizing::new(read(word, what, shared)?);
    match str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(ConfError::new(format!("the {what} file \"{word}\" is no text")).at(word.span)),
    }
}

fn encryption_keys(words: &[Word], shared: &ResolveContext<'_>) -> Result<FleetKeys, ConfError> {
    let files = words.iter().map(|word| read(word, "encryption key", shared).map(Zeroizing::new));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let files: Vec<&[u8]> = files.iter().map(|file| file.as_slice()).collect();
    FleetKeys::read(&files).map_err(|why| {
        let error = ConfError::new(format!("invalid \"encryption_key\": {why}"));
        let error = match words.first() {
            Some(word) => error.at(word.span),
            None => error,
        };
        error.hint("openssl rand -base64 32")
    })
}

fn first_line(word: &Word, what: &str, shared: &ResolveContext<'_>) -> Result<Zeroizing<String>, ConfError> {
    let text = secret(word, what, shared)?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Zeroizing::new(line.to_owned())),
        _ => {
            Err(ConfError::new(format!("the {what} file \"{word}\" begins with an empty line")).at(word.span))
        }
    }
}
