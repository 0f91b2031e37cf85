//! Sources of keys: `auth_jwt_key_file`, `auth_jwt_key_request`.

use std::cell::Cell;
use std::ffi::CString;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Word};
use tw_core::reach::Reach;
use tw_disk::DiskError;
use tw_http::target;
use tw_log::Text;
use tw_module_support::cached_files::{
    self, CachedFileError, CachedFiles, CachedFormat, NamedFile, RawNamedFile,
};
use tw_phases::subrequest::{ParentBody, Subrequest};
use tw_request::body::Pull as _;
use tw_request::generation::ServerId;
use tw_request::protocol::Resolve;
use tw_request::request::{Request, Uri};
use tw_request::vars::Template;

use crate::jose::{KEY_SET_SIZE_MAX, KeySet};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of files of keys of one format kept in memory by a configuration.
    pub(super) const KEPT_SIZE_MAX: u64 = 32 << 20, bytes, "the file used longest ago is read again when it is needed";
}

/// Bytes of one read of the response to a subrequest.
const PIECE: usize = 32 << 10;

/// Files of keys, parsed.
pub(super) struct KeyFiles {
    jwks: CachedFiles<KeySet>,
    keyval: CachedFiles<KeySet>,
}

static JWKS_FILES: CachedFormat<KeySet> = cached_format(KeyFormat::Jwks);
static KEYVAL_FILES: CachedFormat<KeySet> = cached_format(KeyFormat::Keyval);

/// Format of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyFormat {
    /// A JSON Web Key Set, or one key.
    Jwks,
    /// Public keys in PEM by their identifiers.
    Keyval,
}

/// A source as written.
pub(super) enum RawKeySource {
    File(RawNamedFile, KeyFormat),
    Request(Word, KeyFormat),
}

/// A source of keys.
pub(super) enum KeySource {
    File(NamedFile, KeyFormat),
    Request(RequestedKeys),
}

/// Keys of a subrequest.
pub(super) struct RequestedKeys {
    uri: Template,
    format: KeyFormat,
    /// Last response by server, unless the URI has variables. Its lock is held for a look-up.
    responses: FatalMutex<Vec<(ServerId, KnownKeys)>>,
}

/// Last response.
#[derive(Clone)]
struct KnownKeys {
    body: Arc<[u8]>,
    keys: Arc<KeySet>,
    received: Instant,
}

/// Subrequest for keys, known to it and to those that it begins.
struct KeyRequest {
    is_running: Cell<bool>,
}

/// Reason why there are no keys; `Display` has the text of the log.
pub(super) enum KeyFailure {
    Disk(CString, DiskError),
    /// No thread parses them.
    Pool(DiskError),
    Unusable(String),
}

impl fmt::Display for KeyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(path, error) => write!(f, "{}", error.on(path)),
            Self::Pool(error) => write!(f, "keys were not read: {error}"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl KeyFailure {
    /// Returns `true` if the keys may be there soon.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Disk(_, error) | Self::Pool(error) if error.is_passing())
    }
}

/// Failure of a file of at most `size_max` bytes, which a message calls `shown`.
pub(super) fn file_failure(error: CachedFileError, path: CString, shown: &str, size_max: u64) -> KeyFailure {
    match error {
        CachedFileError::Disk(error) => KeyFailure::Disk(path, error),
        CachedFileError::TooLarge => KeyFailure::Unusable(format!("{shown}: more than {size_max} bytes")),
        CachedFileError::Malformed(why) => KeyFailure::Unusable(format!("{shown}: {why}")),
    }
}

impl KeyFormat {
    const WORDS: &'static [(&'static str, Self)] = &[("jwks", Self::Jwks), ("keyval", Self::Keyval)];

    /// Reads the format behind the name of a source.
    fn read(node: &Node) -> Result<Self, ConfError> {
        match node.args.get(1) {
            Some(word) => word.one_of(Self::WORDS).ok_or_else(|| node.invalid_parameter(word)),
            None => Ok(Self::Jwks),
        }
    }

    const fn parser(self) -> fn(&[u8]) -> Result<KeySet, String> {
        match self {
            Self::Jwks => KeySet::parse,
            Self::Keyval => KeySet::parse_keyval,
        }
    }
}

const fn cached_format(format: KeyFormat) -> CachedFormat<KeySet> {
    CachedFormat { size_max: KEY_SET_SIZE_MAX as u64, kept_size_max: KEPT_SIZE_MAX, parse: format.parser() }
}

impl KeyFiles {
    /// No files yet.
    pub(super) fn new() -> Self {
        Self { jwks: CachedFiles::new(&JWKS_FILES), keyval: CachedFiles::new(&KEYVAL_FILES) }
    }

    fn of(&self, format: KeyFormat) -> &CachedFiles<KeySet> {
        match format {
            KeyFormat::Jwks => &self.jwks,
            KeyFormat::Keyval => &self.keyval,
        }
    }
}

impl RawKeySource {
    pub(super) fn file(node: &Node, prefix: &[u8]) -> Result<Self, ConfError> {
        Ok(Self::File(RawNamedFile::new(node.arg(0)?, prefix), KeyFormat::read(node)?))
    }

    pub(super) fn request(node: &Node) -> Result<Self, ConfError> {
        Ok(Self::Request(node.arg(0)?.clone(), KeyFormat::read(node)?))
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<KeySource, ConfError> {
        Ok(match self {
            Self::File(file, format) => KeySource::File(file.resolve(cx)?, format),
            Self::Request(uri, format) => {
                let uri = cx.template(&uri)?;
                KeySource::Request(RequestedKeys { uri, format, responses: FatalMutex::default() })
            }
        })
    }
}

impl KeySource {
    /// Declares the files to the sandbox.
    pub(super) fn declare(&self, reach: &mut Reach) {
        if let Self::File(file, _) = self {
            file.declare(reach);
        }
    }

    /// Keys that need not be waited for; those of a subrequest are kept for `time`.
    pub(super) fn keys_now(&self, r: &Request, files: &KeyFiles, time: Duration) -> Option<Arc<KeySet>> {
        match self {
            Self::File(file, format) => files.of(*format).content_now(r.disk()?, &file.path_below(r)),
            Self::Request(request) => request.recent_keys(r, time),
        }
    }

    /// Keys, waiting for the disk or for the subrequest.
    pub(super) async fn keys(
        &self,
        r: &mut Request,
        files: &KeyFiles,
        time: Duration,
    ) -> Result<Arc<KeySet>, KeyFailure> {
        let (file, format) = match self {
            Self::Request(request) => return request.keys(r, time).await,
            Self::File(file, format) => (file, *format),
        };
        // DIFF(nginx): a claim that nobody has verified yet leads to no file but those that are meant.
        let path = file.path_below(r);
        if path.is_empty() {
            return Err(KeyFailure::Disk(path, cached_files::no_such_file()));
        }
        let Some(disk) = r.disk().cloned() else { return Err(KeyFailure::Unusable("no keys".to_owned())) };
        let shown = Text(path.to_bytes()).to_string();
        let keys = files.of(format).content(&disk, &mut r.costs.account, &path).await;
        let size_max = KEY_SET_SIZE_MAX as u64;
        keys.map_err(|error| file_failure(error, path, &format!("keys in \"{shown}\""), size_max))
    }
}

impl RequestedKeys {
    /// Keys that were received less than `time` ago.
    fn recent_keys(&self, r: &Request, time: Duration) -> Option<Arc<KeySet>> {
        if time.is_zero() {
            return None;
        }
        let keys = self.last(r)?;
        let age = tw_rt::clock::now().saturating_duration_since(keys.received);
        (age < time).then_some(keys.keys)
    }

    fn last(&self, r: &Request) -> Option<KnownKeys> {
        let known_values = self.responses.lock();
        known_values.iter().find(|(server, _)| *server == r.route.server).map(|(_, keys)| keys.clone())
    }

    async fn keys(&self, r: &mut Request, time: Duration) -> Result<Arc<KeySet>, KeyFailure> {
        if let Some(keys) = self.recent_keys(r, time) {
            return Ok(keys);
        }
        let uri = self.uri.value(r);
        // Subrequests are checked in the preaccess phase, too, so the location of the keys must not ask itself for keys
        // endlessly.
        if r.extensions.get::<KeyRequest>().is_some_and(|outer| outer.is_running.get()) {
            let shown = Text(&uri);
            return Err(KeyFailure::Unusable(format!(
                "keys of \"{shown}\": its location asks for keys itself"
            )));
        }
        let running = Rc::new(KeyRequest { is_running: Cell::new(true) });
        r.extensions.put(running.clone());
        let body = response(r, &uri).await;
        running.is_running.set(false);
        let body = body?;
        let last = self.last(r).filter(|last| *last.body == *body);
        let keys = match last {
            Some(last) => last.keys,
            None => parse(r, &uri, self.format, body.clone()).await?,
        };
        if self.uri.constant().is_some() {
            let new = KnownKeys { body, keys: keys.clone(), received: tw_rt::clock::now() };
            let mut known_values = self.responses.lock();
            known_values.retain(|(server, _)| *server != r.route.server);
            known_values.push((r.route.server, new));
        }
        Ok(keys)
    }
}

/// Parses keys in a pool: many take milliseconds.
async fn parse(
    r: &mut Request,
    uri: &[u8],
    format: KeyFormat,
    body: Arc<[u8]>,
) -> Result<Arc<KeySet>, KeyFailure> {
    let Some(disk) = r.disk().cloned() else { return Err(KeyFailure::Unusable("no keys".to_owned())) };
    let parsed = disk.pool().run(&mut r.costs.account, move || format.parser()(&body)).await;
    let shown = Text(uri);
    let parsed = parsed.map_err(KeyFailure::Pool)?;
    parsed.map(Arc::new).map_err(|why| KeyFailure::Unusable(format!("keys of \"{shown}\": {why}")))
}

/// Body of the response to a subrequest.
async fn response(r: &mut Request, uri: &[u8]) -> Result<Arc<[u8]>, KeyFailure> {
    let failed = |why: fmt::Arguments<'_>| KeyFailure::Unusable(format!("keys of \"{}\": {why}", Text(uri)));
    let (path, args) = target::split_args(uri);
    // DIFF(nginx): a claim that nobody has verified yet leads to no keys but those that are meant.
    if !path.starts_with(b"/") || target::leads_up(path) {
        return Err(failed(format_args!("unsafe URI")));
    }
    let to = Uri { path: path.to_vec(), args: args.to_vec() };
    let mut part = match Subrequest::run(r, to, ParentBody::Hidden).await {
        Ok(part) => part,
        Err(refused) => return Err(failed(format_args!("{refused}"))),
    };
    let coding =
        part.request().and_then(|part| part.response.fields.get(b"Content-Encoding")).map(<[u8]>::to_vec);
    let status = part.status();
    if status != 200 || coding.is_some() {
        part.end(r).await;
        return Err(match coding {
            Some(coding) if status == 200 => failed(format_args!(
                "the response has Content-Encoding \"{}\"; proxy_set_header Accept-Encoding \"\" asks for none",
                Text(&coding)
            )),
            _ => failed(format_args!("the response has status {status}")),
        });
    }
    let mut body = Vec::new();
    loop {
        match part.next(PIECE, r).await {
            Ok(Some(piece)) if body.len() + piece.len() > KEY_SET_SIZE_MAX => {
                part.end(r).await;
                return Err(failed(format_args!("more than {KEY_SET_SIZE_MAX} bytes")));
            }
            Ok(Some(piece)) if piece.is_empty() => tw_rt::yield_now().await,
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => return Ok(body.into()),
            Err(error) => return Err(failed(format_args!("{error}"))),
        }
    }
}
