//! What a worker process is to serve: kept for the next one, as long as the master serves by it.

use std::cell::RefCell;
use std::ffi::OsString;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::MemoryFiles;
use tw_core::process::MainSettings;
use tw_server::http::generation::Config;
use tw_sys::heap::purge;
use tw_sys::memory::ConcealedPages;

use super::logs::LogFiles;
use super::silence::SIGN_INTERVAL;
use crate::channel::Keys;
use crate::conf::Source;
use crate::process::Process;
use crate::sockets::Sockets;
use crate::user::Identity;
use crate::watch::Used;
use crate::worker::sandbox::{Role, Rules};

/// What a file with a private key has somewhere.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

/// What a worker process is to serve, kept for the next one.
#[derive(Debug)]
pub(super) struct Handover {
    /// Where the configuration comes from.
    pub(super) source: Source,
    /// Every file of it.
    pub(super) files: MemoryFiles,
    /// Those with private keys, in memory and out of core files.
    pub(super) concealed: Vec<ConcealedPages>,
    /// Certificates that are followed.
    pub(super) used: Used,
    /// Where it listens.
    pub(super) sockets: Arc<Sockets>,
    /// Its log files.
    pub(super) logs: LogFiles,
    /// Keys of session tickets, as the last worker process had them.
    pub(super) keys: Rc<RefCell<Keys>>,
    /// Its environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Whom it becomes.
    pub(super) identity: Option<Identity>,
    /// Whether nobody looks at standard error.
    pub(super) is_daemon: bool,
    /// What it has to be able to do.
    pub(super) rules: Rules,
    /// How often it has to say that its loops turn.
    pub(super) sign_interval: Duration,
    /// How long it may take to finish what it has begun.
    pub(super) shutdown_timeout: Option<Duration>,
}

/// A configuration that was read, and what was opened for it.
pub(super) struct Opened {
    /// Loaded, to see what it needs.
    pub(super) config: Config,
    /// What was looked up for it.
    pub(super) process: Process,
    /// Where it listens.
    pub(super) sockets: Arc<Sockets>,
    /// Every file of it, for a worker process.
    pub(super) files: MemoryFiles,
    /// Its log files, for a worker process.
    pub(super) logs: LogFiles,
    /// Keys of session tickets of an old binary; none if there is no such one.
    pub(super) keys: Keys,
}

impl Handover {
    /// What a worker process needs of `opened`. The loaded configuration is forgotten: the worker loads its own. A manager of
    /// services may want signs of life more often than the master does.
    pub(super) fn of(
        opened: Opened,
        source: Source,
        is_daemon: bool,
        sign_interval: Option<Duration>,
    ) -> Self {
        let Opened { config, process: Process { identity, .. }, sockets, files, logs, keys } = opened;
        let rules = Rules::of(&config, Role::Worker);
        let (env, shutdown_timeout) = (environment(&config.main), config.main.shutdown_timeout);
        let sign_interval = sign_interval.map_or(SIGN_INTERVAL, |wanted| wanted.min(SIGN_INTERVAL));
        let used = config.watched().map(|watched| (watched.files.clone(), watched.version())).collect();
        drop(config);
        purge();
        Self {
            source,
            concealed: conceal(&files),
            files,
            used,
            sockets,
            logs,
            keys: Rc::new(RefCell::new(keys)),
            env,
            identity,
            is_daemon,
            rules,
            sign_interval,
            shutdown_timeout,
        }
    }

    /// Takes over other files of a certificate.
    pub(super) fn renew(&mut self, files: &MemoryFiles) {
        // Before anything moves: what is concealed is known by its place.
        self.concealed.clear();
        files.iter().for_each(|(name, text)| self.files.insert(name, text));
        self.concealed = conceal(&self.files);
    }
}

/// Keeps private keys in memory and out of core files, as long as they stay where they are.
fn conceal(files: &MemoryFiles) -> Vec<ConcealedPages> {
    let has_key = |text: &[u8]| text.windows(PRIVATE_KEY.len()).any(|window| window == PRIVATE_KEY);
    files.iter().filter(|(_, text)| has_key(text)).map(|(_, text)| ConcealedPages::new(text)).collect()
}

/// The environment of a worker process: the time zone, and what `env` names.
fn environment(main: &MainSettings) -> Vec<(OsString, OsString)> {
    let named = main.env.iter().map(|(name, value)| (&**name, value.as_deref()));
    let value = |(name, value): (&str, Option<&str>)| {
        Some((name.into(), value.map_or_else(|| std::env::var_os(name), |value| Some(value.into()))?))
    };
    [("TZ", None)].into_iter().chain(named).filter_map(value).collect()
}
