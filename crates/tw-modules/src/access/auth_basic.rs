//! `auth_basic`: users with passwords (nginx: ngx_http_auth_basic_module; RFC 7617). Access phase.
//!
//! ```text
//! no credentials ─→ 401          look at the file ─ unchanged ─→ hash of the user ─ right a moment ago ─→ granted
//!                                      └ changed ─→ read ─┘          └─→ hash the password on a pool thread
//! ```
//! Hashing takes milliseconds to seconds by design, so a loop never does it, and at most [`turn_queue::TURNS_AT_ONCE`]
//! threads do. Other requests wait in a [`turn_queue`] of bounded length, in which clients take turns; a request leaves it
//! when its connection closes. An unknown user name costs as much as a known one, so that the response time
//! does not reveal names.

mod des;
mod hash;
mod password_cache;
mod users;

use std::ffi::CString;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_disk::{Disk, DiskError};
use tw_log::{Level, Text};
use tw_module_support::access_refusal::{self, try_later};
use tw_module_support::cached_files::{self, CachedFileError, CachedFiles, NamedFile, RawNamedFile};
use tw_module_support::turn_queue::{self, ClientKey, TurnQueue, TurnWait, wait_for_turn};
use tw_phases::phases;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;
use tw_server::http::variables::basic_user;

use self::hash::{HashKind, PASSWORD_MAX, PasswordVerdict};
pub use self::hash::{PasswordError, password_hash, password_line};
use self::password_cache::{PasswordCache, PasswordDigest};
use self::users::{USERS, Users};

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION | LIMIT_EXCEPT;

/// Realm and file as written.
#[derive(Default)]
pub(crate) struct Raw {
    realm: Setting<Word>,
    file: Setting<RawNamedFile>,
}

/// Realm and file of one block.
pub(crate) struct AuthBasic {
    /// `None` without authentication.
    realm: Option<Arc<Template>>,
    file: Option<Arc<NamedFile>>,
    shared: Arc<AuthBasicState>,
}

/// State that all blocks of a configuration share.
struct AuthBasicState {
    kept: CachedFiles<Users>,
    remembered: PasswordCache,
    line: Arc<TurnQueue>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use users::LIMITS;
    use hash::LIMITS;
    /// Passwords hashed at the same time.
    constant count turn_queue::TURNS_AT_ONCE, "other requests wait";
    /// Requests that wait for their passwords to be hashed.
    constant count turn_queue::WAITING_MAX, "503 with Retry-After; the error log says so";
    /// Requests of one address, or IPv6 network of 64 bits, among them.
    constant count turn_queue::WAITING_OF_CLIENT_MAX, "503 with Retry-After; the error log says so";
    /// Time a request waits for that.
    constant time turn_queue::WAIT_MAX, "503 with Retry-After; the error log says so";
    use password_cache::LIMITS;
}

impl Settings<Http> for AuthBasic {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("auth_basic", "string | off", EVERYWHERE, Args::exact(1))
            .default("off")
            .doc("Asks for a user name and a password; the string names what they are for, and may have variables.")
            .set(|raw, node, _| raw.realm.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("auth_basic_user_file", "file", EVERYWHERE, Args::exact(1))
            .doc("Users and hashes of their passwords, one a line: `name:hash`. Hashes of crypt(3), apr1, {SHA}, {SSHA}, {PLAIN}.")
            .set(|raw, node, cx| {
                raw.file.set_with(node, |node| Ok(RawNamedFile::new(node.arg(0)?, cx.conf_prefix)))
            }),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let realm = match raw.realm.take() {
            Some(word) if word.is("off") => None,
            Some(word) => Some(Arc::new(cx.template(&word)?)),
            None => outer.and_then(|outer| outer.realm.clone()),
        };
        let file = match raw.file.take() {
            Some(named_file) => Some(Arc::new(named_file.resolve(cx)?)),
            None => outer.and_then(|outer| outer.file.clone()),
        };
        let shared = match outer {
            Some(outer) => outer.shared.clone(),
            None => {
                let remembered = PasswordCache::new()
                    .map_err(|errno| ConfError::new(format!("getrandom() failed ({errno})")))?;
                let line = Arc::new(TurnQueue::new(turn_queue::CREDENTIALS));
                Arc::new(AuthBasicState { kept: CachedFiles::new(&USERS), remembered, line })
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

    fn reach(&self, _core: &Location, reach: &mut Reach) {
        if let (Some(_), Some(file)) = (&self.realm, &self.file) {
            file.declare(reach);
        }
    }
}

/// User name and password of a client.
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
            return Step::Now(challenge(r, &realm));
        };
        let credentials = Credentials { text, user };
        let Some(disk) = r.disk().cloned() else { return Step::status(500) };
        let path = file.path(r);
        match self.shared.kept.content_now(&disk, &path) {
            Some(users) => self.check_credentials(r, realm, path, disk, &users, credentials),
            None => Step::Wait(Box::pin(async move {
                let users = if path.is_empty() {
                    Err(CachedFileError::Disk(cached_files::no_such_file()))
                } else {
                    self.shared.kept.content(&disk, &mut r.costs.account, &path).await
                };
                match users {
                    Ok(users) => match self.check_credentials(r, realm, path, disk, &users, credentials) {
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
    fn check_credentials<'a>(
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
            let path_text = Text(path.to_bytes());
            r.log(Level::Error, format_args!("user \"{user}\" was not found in \"{path_text}\""));
            return match users.decoy() {
                Some((kind, decoy)) if credentials.password().len() <= PASSWORD_MAX => {
                    Step::Wait(Box::pin(async move {
                        match self.hash(r, &disk, kind, decoy, Arc::new(credentials), None).await {
                            Ok(_) => challenge(r, &realm),
                            Err(outcome) => outcome,
                        }
                    }))
                }
                _ => Step::Now(challenge(r, &realm)),
            };
        };
        let Some(kind) = HashKind::of(&hash) else {
            let path = Text(path.to_bytes());
            let mark = mark(&hash);
            r.log(
                Level::Error,
                format_args!(
                    "user \"{user}\": the password has a hash of an unknown kind ({mark}) in \"{path}\""
                ),
            );
            return Step::Now(challenge(r, &realm));
        };
        if kind.is_quick() {
            let verdict = kind.verify(&hash, credentials.password());
            return Step::Now(decide(r, verdict, &realm, credentials.user(), &hash));
        }
        // DIFF(nginx): a password has a limit whatever computes its hash.
        if credentials.password().len() > PASSWORD_MAX {
            r.log(
                Level::Error,
                format_args!("user \"{user}\": the password has more than {PASSWORD_MAX} bytes"),
            );
            return Step::Now(challenge(r, &realm));
        }
        let token = self.shared.remembered.token(&hash, credentials.password());
        if self.shared.remembered.has(token, tw_rt::clock::now()) {
            return Step::Now(Outcome::PhaseDone);
        }
        Step::Wait(Box::pin(async move {
            let credentials = Arc::new(credentials);
            match self.hash(r, &disk, kind, hash.clone(), credentials.clone(), Some(token)).await {
                Ok(verdict) => {
                    if verdict == PasswordVerdict::Fits {
                        self.shared.remembered.keep(token, tw_rt::clock::now());
                    }
                    decide(r, verdict, &realm, credentials.user(), &hash)
                }
                Err(outcome) => outcome,
            }
        }))
    }

    /// Compares a password with a slow hash in a pool, when it is this client's turn. A password that was found right
    /// meanwhile, `token`, needs no turn.
    async fn hash(
        &self,
        r: &mut Request,
        disk: &Disk,
        kind: HashKind,
        hash: Arc<[u8]>,
        credentials: Arc<Credentials>,
        token: Option<PasswordDigest>,
    ) -> Result<PasswordVerdict, Outcome> {
        let Ok(mut place) = self.shared.line.enter(ClientKey::of(r.client_addr())) else {
            return Err(try_later(r, format_args!("too many passwords wait to be hashed")));
        };
        match wait_for_turn(r, &mut place, turn_queue::WAIT_MAX).await {
            Ok(()) => {}
            Err(TurnWait::TooLong) => {
                return Err(try_later(r, format_args!("a password waited too long to be hashed")));
            }
            Err(TurnWait::Gone(client_gone)) => return Err(phases::client_closed(r, &client_gone)),
        }
        if token.is_some_and(|token| self.shared.remembered.has(token, tw_rt::clock::now())) {
            return Ok(PasswordVerdict::Fits);
        }
        // The turn ends with the work, and not when a client goes away that cannot stop it any more.
        let work = move || {
            let _turn = place;
            kind.verify(&hash, credentials.password())
        };
        match disk.pool().run(&mut r.costs.account, work).await {
            Ok(verdict) => Ok(verdict),
            Err(error @ DiskError::QueueFull { .. }) => {
                Err(try_later(r, format_args!("a password was not hashed: {error}")))
            }
            Err(error) => {
                r.log(Level::Error, format_args!("a password was not hashed: {error}"));
                Err(Outcome::Status(500))
            }
        }
    }
}

fn decide(r: &mut Request, verdict: PasswordVerdict, realm: &[u8], user: &[u8], hash: &[u8]) -> Outcome {
    let user = Text(user);
    match verdict {
        PasswordVerdict::Fits => Outcome::PhaseDone,
        PasswordVerdict::Differs => {
            r.log(Level::Error, format_args!("user \"{user}\": password mismatch"));
            challenge(r, realm)
        }
        PasswordVerdict::Malformed => {
            let mark = mark(hash);
            r.log(
                Level::Error,
                format_args!("user \"{user}\": the hash of the password ({mark}) cannot be read"),
            );
            challenge(r, realm)
        }
    }
}

/// Prefix that tells the kind of a hash and nothing more: `$6$`, `{SSHA}`.
fn mark(hash: &[u8]) -> Text<'_> {
    let end = match hash {
        [b'$', rest @ ..] => rest.iter().position(|byte| *byte == b'$').map(|at| at + 2),
        [b'{', rest @ ..] => rest.iter().position(|byte| *byte == b'}').map(|at| at + 2),
        _ => None,
    };
    Text(&hash[..end.unwrap_or(0).min(16)])
}

/// Asks for a user and a password.
fn challenge(r: &mut Request, realm: &[u8]) -> Outcome {
    access_refusal::challenge(r, [b"Basic realm=\"", realm, b"\""].concat())
}

/// There are no users: a file that is not there forbids, everything else is our fault.
fn fail(r: &mut Request, path: &CString, failed: &CachedFileError) -> Outcome {
    match failed {
        CachedFileError::Disk(error) if cached_files::is_missing(error) => {
            r.log(Level::Error, format_args!("{}", error.on(path)));
            Outcome::Status(403)
        }
        CachedFileError::Disk(error) if error.is_passing() => {
            try_later(r, format_args!("{}", error.on(path)))
        }
        CachedFileError::Disk(error) => {
            r.log(Level::Crit, format_args!("{}", error.on(path)));
            Outcome::Status(500)
        }
        // DIFF(nginx): a file of users has a limit.
        CachedFileError::TooLarge => {
            let path = Text(path.to_bytes());
            let max = users::FILE_SIZE_MAX;
            r.log(Level::Crit, format_args!("\"{path}\" has more than {max} bytes"));
            Outcome::Status(500)
        }
        CachedFileError::Malformed(why) => {
            r.log(Level::Crit, format_args!("\"{}\": {why}", Text(path.to_bytes())));
            Outcome::Status(500)
        }
    }
}
