//! `auth_basic`: users with passwords (nginx: ngx_http_auth_basic_module; RFC 7617). Access phase.
//!
//! ```text
//! no credentials ─→ 401          look at the file ─ unchanged ─→ hash of the user ─ right a moment ago ─→ granted
//!                                      └ changed ─→ read ─┘          └─→ hash the password on a pool thread
//! ```
//! Hashing takes milliseconds to seconds by design, so a loop never does it, and at most [`HASHES_AT_ONCE`] threads do.

pub(crate) mod base64;
mod des;
mod hash;
mod remember;
mod users;

use std::ffi::CString;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, SERVER, Setting, Word, record};
use tw_disk::{Disk, DiskError};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::http::variables::basic_user;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::Template;

use self::hash::{Kind, Verdict};
use self::remember::Remembered;
use self::users::{Failed, Kept, Users};

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION | LIMIT_EXCEPT;

/// Passwords that are hashed at the same time; the others wait. Fewer than a pool has threads, so that those who guess
/// passwords do not keep others from the disk.
const HASHES_AT_ONCE: usize = 4;

/// Realm and file as written.
#[derive(Default)]
pub(crate) struct Raw {
    realm: Setting<Word>,
    file: Setting<RawFile>,
}

/// `auth_basic_user_file` as written.
struct RawFile {
    word: Word,
    /// The directory of the configuration.
    prefix: Box<[u8]>,
}

/// Realm and file of one block.
pub(crate) struct AuthBasic {
    /// `None` if nobody is asked for a password.
    realm: Option<Arc<Template>>,
    file: Option<Arc<UserFile>>,
    shared: Arc<Shared>,
}

/// `auth_basic_user_file`
struct UserFile {
    name: Template,
    /// The directory of the configuration, where names that do not begin with a slash begin.
    prefix: Box<[u8]>,
}

impl UserFile {
    /// Its name for `r`. A name with a NUL is that of no file, and empty.
    fn path(&self, r: &Request) -> CString {
        CString::new(tw_conf::full_name(&self.prefix, &self.name.value(r))).unwrap_or_default()
    }
}

/// What all blocks of a configuration share.
struct Shared {
    kept: Kept,
    remembered: Remembered,
    hashing: Semaphore,
}

impl Settings for AuthBasic {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("auth_basic", "string | off", EVERYWHERE, Args::exact(1))
            .default("off")
            .doc("Asks for a user name and a password; the string names what they are for, and may have variables.")
            .set(|raw, node, _| raw.realm.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("auth_basic_user_file", "file", EVERYWHERE, Args::exact(1))
            .doc("Users and hashes of their passwords, one a line: `name:hash`. Hashes of crypt(3), apr1, {SHA}, {SSHA}, {PLAIN}.")
            .set(|raw, node, cx| {
                raw.file.set_with(node, |node| {
                    Ok(RawFile { word: node.arg(0)?.clone(), prefix: cx.conf_prefix.into() })
                })
            }),
    ];

    const LIMITS: &'static [Limit] = &[
        Limit::bytes(
            "FILE_SIZE_MAX",
            users::FILE_SIZE_MAX,
            "Bytes of a file of users",
            "nobody is let in, and the error log says why",
        ),
        Limit::bytes(
            "KEPT_SIZE_MAX",
            users::KEPT_SIZE_MAX,
            "Bytes of files of users kept in memory by a configuration",
            "the file used longest ago is read again when it is needed",
        ),
        Limit::bytes(
            "HASH_MAX",
            hash::HASH_MAX as u64,
            "A hash of a password in a file of users",
            "no password fits it, and the error log says so",
        ),
        Limit::count(
            "HASHES_AT_ONCE",
            HASHES_AT_ONCE as u64,
            "Passwords hashed at the same time",
            "other requests wait",
        ),
        Limit::count(
            "REMEMBERED_MAX",
            remember::REMEMBERED_MAX,
            "Right passwords remembered by a configuration",
            "the one used longest ago is hashed again",
        ),
        Limit::micros(
            "REMEMBER_MS",
            remember::REMEMBER_MS * 1000,
            "Time a right password is remembered",
            "it is hashed again",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let realm = match raw.realm.take() {
            Some(word) if word.is("off") => None,
            Some(word) => Some(Arc::new(cx.template(&word)?)),
            None => outer.and_then(|outer| outer.realm.clone()),
        };
        let file = match raw.file.take() {
            Some(RawFile { word, prefix }) => Some(Arc::new(UserFile { name: cx.template(&word)?, prefix })),
            None => outer.and_then(|outer| outer.file.clone()),
        };
        let shared = match outer {
            Some(outer) => outer.shared.clone(),
            None => {
                let remembered = Remembered::new()
                    .map_err(|errno| ConfError::new(format!("getrandom() failed ({errno})")))?;
                let (kept, hashing) = (Kept::default(), Semaphore::new(HASHES_AT_ONCE));
                Arc::new(Shared { kept, remembered, hashing })
            }
        };
        Ok(Self { realm, file, shared })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.realm.is_some() && self.file.is_some() {
            plan.add(Phase::Access, self.clone());
        }
    }
}

/// What a client says of itself.
struct Credentials {
    /// `user:password`
    text: Vec<u8>,
    /// Length of the user name.
    user: usize,
}

impl Credentials {
    fn user(&self) -> &[u8] {
        &self.text[..self.user]
    }

    fn password(&self) -> &[u8] {
        &self.text[self.user + 1..]
    }
}

impl Handler for AuthBasic {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let (Some(realm), Some(file)) = (&self.realm, &self.file) else { return Step::PASS };
        let realm = realm.value(r);
        if realm == b"off" {
            return Step::PASS;
        }
        let mut text = Vec::new();
        let Some(user) = basic_user(r, &mut text) else {
            r.log(Level::Info, format_args!("no user/password was provided for basic authentication"));
            return Step::Now(ask(r, &realm));
        };
        let credentials = Credentials { text, user };
        let Some(disk) = r.disk().cloned() else { return Step::status(500) };
        let path = file.path(r);
        match self.shared.kept.users_now(&disk, &path) {
            Some(users) => self.judge(r, realm, path, disk, &users, credentials),
            None => Step::Wait(Box::pin(async move {
                let users = match path.is_empty() {
                    true => Err(Failed::Disk(users::no_name())),
                    false => self.shared.kept.users(&disk, &mut r.account, &path).await,
                };
                match users {
                    Ok(users) => match self.judge(r, realm, path, disk, &users, credentials) {
                        Step::Now(outcome) => outcome,
                        Step::Wait(outcome) => outcome.await,
                    },
                    Err(failed) => fail(r, &path, &failed),
                }
            })),
        }
    }
}

impl AuthBasic {
    fn judge<'a>(
        &'a self,
        r: &'a mut Request,
        realm: Vec<u8>,
        path: CString,
        disk: Disk,
        users: &Users,
        credentials: Credentials,
    ) -> Step<'a> {
        let user = Text(credentials.user());
        let Some(hash) = users.hash_of(credentials.user()) else {
            let path = Text(path.to_bytes());
            r.log(Level::Error, format_args!("user \"{user}\" was not found in \"{path}\""));
            return Step::Now(ask(r, &realm));
        };
        let Some(kind) = Kind::of(&hash) else {
            let path = Text(path.to_bytes());
            let mark = mark(&hash);
            r.log(
                Level::Error,
                format_args!(
                    "user \"{user}\": the password has a hash of an unknown kind ({mark}) in \"{path}\""
                ),
            );
            return Step::Now(ask(r, &realm));
        };
        if kind.is_quick() {
            let verdict = kind.verify(&hash, credentials.password());
            return Step::Now(decide(r, verdict, &realm, credentials.user(), &hash));
        }
        let token = self.shared.remembered.token(&hash, credentials.password());
        if self.shared.remembered.has(token, tw_rt::clock::now()) {
            return Step::Now(Outcome::PhaseDone);
        }
        Step::Wait(Box::pin(async move {
            let credentials = Arc::new(credentials);
            let (text, work) = (hash.clone(), credentials.clone());
            let verdict = {
                let Ok(_permit) = self.shared.hashing.acquire().await else { return Outcome::Status(500) };
                let work = move || kind.verify(&text, work.password());
                disk.pool().run(&mut r.account, work).await
            };
            match verdict {
                Ok(verdict) => {
                    if verdict == Verdict::Fits {
                        self.shared.remembered.keep(token, tw_rt::clock::now());
                    }
                    decide(r, verdict, &realm, credentials.user(), &hash)
                }
                Err(error) => {
                    r.log(Level::Error, format_args!("a password was not hashed: {error}"));
                    Outcome::Status(if matches!(error, DiskError::QueueFull { .. }) { 503 } else { 500 })
                }
            }
        }))
    }
}

fn decide(r: &mut Request, verdict: Verdict, realm: &[u8], user: &[u8], hash: &[u8]) -> Outcome {
    let user = Text(user);
    match verdict {
        Verdict::Fits => Outcome::PhaseDone,
        Verdict::Differs => {
            r.log(Level::Error, format_args!("user \"{user}\": password mismatch"));
            ask(r, realm)
        }
        Verdict::Malformed => {
            let mark = mark(hash);
            r.log(
                Level::Error,
                format_args!("user \"{user}\": the hash of the password ({mark}) cannot be read"),
            );
            ask(r, realm)
        }
    }
}

/// What tells the kind of a hash and nothing more: `$6$`, `{SSHA}`.
fn mark(hash: &[u8]) -> Text<'_> {
    let end = match hash {
        [b'$', rest @ ..] => rest.iter().position(|byte| *byte == b'$').map(|at| at + 2),
        [b'{', rest @ ..] => rest.iter().position(|byte| *byte == b'}').map(|at| at + 2),
        _ => None,
    };
    Text(&hash[..end.unwrap_or(0).min(16)])
}

/// Asks for a user and a password.
fn ask(r: &mut Request, realm: &[u8]) -> Outcome {
    let challenge = [b"Basic realm=\"", realm, b"\""].concat();
    let (name, code) = match r.method() {
        Method::Connect => ("Proxy-Authenticate", 407),
        _ => ("WWW-Authenticate", 401),
    };
    r.out.fields.append(name, bytes::Bytes::from(challenge));
    Outcome::Status(code)
}

/// There are no users: a file that is not there forbids, everything else is our fault.
fn fail(r: &Request, path: &CString, failed: &Failed) -> Outcome {
    match failed {
        Failed::Disk(error) if users::is_missing(error) => {
            r.log(Level::Error, format_args!("{}", error.on(path)));
            Outcome::Status(403)
        }
        Failed::Disk(error @ DiskError::QueueFull { .. }) => {
            r.log(Level::Error, format_args!("{}", error.on(path)));
            Outcome::Status(503)
        }
        Failed::Disk(error) => {
            r.log(Level::Crit, format_args!("{}", error.on(path)));
            Outcome::Status(500)
        }
        // DIFF(nginx): a file of users has a limit.
        Failed::TooLarge => {
            let (path, max) = (Text(path.to_bytes()), users::FILE_SIZE_MAX);
            r.log(Level::Crit, format_args!("\"{path}\" has more than {max} bytes"));
            Outcome::Status(500)
        }
    }
}
