//! Sources of keys: `auth_jwt_key_file`, `auth_jwt_key_request`.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_conf::{ConfError, Word};
use tw_core::reach::Reach;
use tw_disk::DiskError;
use tw_http::target;
use tw_log::Text;
use tw_server::http::body::Pull as _;
use tw_server::http::request::generation::ServerId;
use tw_server::http::request::{Request, Uri};
use tw_server::http::subrequest::{ParentBody, Subrequest};
use tw_server::load::Resolve;
use tw_server::vars::Template;

use crate::shared::cached_files::{
    self, CachedFileError, CachedFiles, CachedFormat, NamedFile, RawNamedFile,
};
use crate::shared::jose::{KEY_SET_SIZE_MAX, KeySet};

/// Bytes of files of keys that a configuration keeps in memory.
pub(super) const KEPT_SIZE_MAX: u64 = 32 << 20;
/// Bytes of one read of the response to a subrequest.
const PIECE: usize = 32 << 10;

/// Files of keys, parsed.
pub(super) type KeyFiles = CachedFiles<KeySet>;

pub(super) static KEY_FILES: CachedFormat<KeySet> =
    CachedFormat { size_max: KEY_SET_SIZE_MAX as u64, kept_size_max: KEPT_SIZE_MAX, parse: KeySet::parse };

/// A source as written.
pub(super) enum RawKeySource {
    File(RawNamedFile),
    Request(Word),
}

/// A source of keys.
pub(super) enum KeySource {
    File(NamedFile),
    Request(RequestedKeys),
}

/// Keys of a subrequest.
pub(super) struct RequestedKeys {
    uri: Template,
    /// Last response by server, unless the URI has variables. Its lock is held for a look-up.
    known: FatalMutex<Vec<(ServerId, KnownKeys)>>,
}

/// Last response.
#[derive(Clone)]
struct KnownKeys {
    body: Arc<[u8]>,
    keys: Arc<KeySet>,
    received: Instant,
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

impl RawKeySource {
    pub(super) fn file(word: &Word, prefix: &[u8]) -> Self {
        Self::File(RawNamedFile::new(word, prefix))
    }

    pub(super) fn request(word: &Word) -> Self {
        Self::Request(word.clone())
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<KeySource, ConfError> {
        Ok(match self {
            Self::File(file) => KeySource::File(file.resolve(cx)?),
            Self::Request(uri) => {
                KeySource::Request(RequestedKeys { uri: cx.template(&uri)?, known: FatalMutex::default() })
            }
        })
    }
}

impl KeySource {
    /// Declares the files to the sandbox.
    pub(super) fn declare(&self, reach: &mut Reach) {
        if let Self::File(file) = self {
            file.declare(reach);
        }
    }

    /// Keys that need not be waited for; those of a subrequest are kept for `time`.
    pub(super) fn keys_now(&self, r: &Request, files: &KeyFiles, time: Duration) -> Option<Arc<KeySet>> {
        match self {
            Self::File(file) => files.content_now(r.disk()?, &file.path_below(r)),
            Self::Request(request) => request.known(r, time),
        }
    }

    /// Keys, waiting for the disk or for the subrequest.
    pub(super) async fn keys(
        &self,
        r: &mut Request,
        files: &KeyFiles,
        time: Duration,
    ) -> Result<Arc<KeySet>, KeyFailure> {
        let file = match self {
            Self::Request(request) => return request.keys(r, time).await,
            Self::File(file) => file,
        };
        // DIFF(nginx): a claim that nobody has verified yet leads to no file but those that are meant.
        let path = file.path_below(r);
        if path.is_empty() {
            return Err(KeyFailure::Disk(path, cached_files::no_such_file()));
        }
        let Some(disk) = r.disk().cloned() else { return Err(KeyFailure::Unusable("no keys".to_owned())) };
        let shown = Text(path.to_bytes()).to_string();
        files.content(&disk, &mut r.costs.account, &path).await.map_err(|error| match error {
            CachedFileError::Disk(error) => KeyFailure::Disk(path, error),
            CachedFileError::TooLarge => {
                KeyFailure::Unusable(format!("keys in \"{shown}\": more than {KEY_SET_SIZE_MAX} bytes"))
            }
            CachedFileError::Malformed(why) => KeyFailure::Unusable(format!("keys in \"{shown}\": {why}")),
        })
    }
}

impl RequestedKeys {
    /// Keys that were received less than `time` ago.
    fn known(&self, r: &Request, time: Duration) -> Option<Arc<KeySet>> {
        if time.is_zero() {
            return None;
        }
        let known = self.last(r)?;
        let age = tw_rt::clock::now().saturating_duration_since(known.received);
        (age < time).then_some(known.keys)
    }

    fn last(&self, r: &Request) -> Option<KnownKeys> {
        let known = self.known.lock();
        known.iter().find(|(server, _)| *server == r.route.server).map(|(_, known)| known.clone())
    }

    async fn keys(&self, r: &mut Request, time: Duration) -> Result<Arc<KeySet>, KeyFailure> {
        if let Some(keys) = self.known(r, time) {
            return Ok(keys);
        }
        let uri = self.uri.value(r);
        let body = response(r, &uri).await?;
        let last = self.last(r).filter(|last| *last.body == *body);
        let keys = match last {
            Some(last) => last.keys,
            None => parse(r, &uri, body.clone()).await?,
        };
        if self.uri.constant().is_some() {
            let new = KnownKeys { body, keys: keys.clone(), received: tw_rt::clock::now() };
            let mut known = self.known.lock();
            known.retain(|(server, _)| *server != r.route.server);
            known.push((r.route.server, new));
        }
        Ok(keys)
    }
}

/// Parses keys in a pool: many take milliseconds.
async fn parse(r: &mut Request, uri: &[u8], body: Arc<[u8]>) -> Result<Arc<KeySet>, KeyFailure> {
    let Some(disk) = r.disk().cloned() else { return Err(KeyFailure::Unusable("no keys".to_owned())) };
    let parsed = disk.pool().run(&mut r.costs.account, move || KeySet::parse(&body)).await;
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
    let coding = part.request().and_then(|part| part.out.fields.get(b"Content-Encoding")).map(<[u8]>::to_vec);
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
