//! Configuration and resources of a worker process: kept for the next one, as long as the master serves by them.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tailwater_commands::configuration::certificate_watch::WatchedCertificates;
use tailwater_commands::configuration::conf::Source;
use tailwater_commands::configuration::process::Process;
use tailwater_commands::configuration::user::Identity;
use tw_app::Config;
use tw_conf::MemoryFiles;
use tw_core::process::MainSettings;
use tw_sys::heap::purge;
use tw_sys::memory::ConcealedPages;

use super::liveness::SIGN_INTERVAL;
use super::logs::LogFiles;
use super::script_processes::ScriptNeeds;
use crate::ipc::channel::Keys;
use crate::sockets::Sockets;
use crate::worker::sandbox::{ProcessRole, SandboxRules};

/// Text that every file with a private key contains.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

/// Configuration and resources of a worker process, kept for the next one.
#[derive(Debug)]
pub(super) struct Handover {
    /// Loaded configuration, which has been checked and is not needed any more.
    pub(super) checked: CheckedConfig,
    /// Source of the configuration.
    pub(super) source: Source,
    /// Every file of it.
    pub(super) files: MemoryFiles,
    /// Files with private keys, in memory and excluded from core files.
    pub(super) concealed: Vec<ConcealedPages>,
    /// Certificates that are followed.
    pub(super) used: WatchedCertificates,
    /// Listening sockets.
    pub(super) sockets: Arc<Sockets>,
    /// Log files.
    pub(super) logs: LogFiles,
    /// Keys of session tickets, as the last worker process had them.
    pub(super) keys: Rc<RefCell<Keys>>,
    /// Environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// User and group to become.
    pub(super) identity: Option<Identity>,
    /// Set if standard error is not read.
    pub(super) is_daemon: bool,
    /// Script processes that it needs; `None` without scripts.
    pub(super) scripts: Option<ScriptNeeds>,
    /// Rights that it needs.
    pub(super) rules: SandboxRules,
    /// Interval of its signs of life.
    pub(super) sign_interval: Duration,
    /// Longest time to finish open requests.
    pub(super) shutdown_timeout: Option<Duration>,
}

/// A configuration that was read, and what was opened for it.
pub(super) struct Opened {
    /// Loaded, to see what it needs.
    pub(super) config: Config,
    /// Properties of the process that were looked up.
    pub(super) process: Process,
    /// Listening sockets.
    pub(super) sockets: Arc<Sockets>,
    /// Every file of it, for a worker process.
    pub(super) files: MemoryFiles,
    /// Log files, for a worker process.
    pub(super) logs: LogFiles,
    /// Keys of session tickets of an old binary; none if there is no such one.
    pub(super) keys: Keys,
}

/// Configuration that the master has loaded to check it. A large one takes as long to free as half of its loading; a worker
/// process loads its own meanwhile.
#[derive(Default)]
pub(super) struct CheckedConfig(RefCell<Option<Config>>);

impl CheckedConfig {
    /// Frees the configuration, and returns its memory to the system.
    pub(super) fn free(&self) {
        if let Some(config) = self.0.take() {
            drop(config);
            purge();
        }
    }
}

impl Drop for CheckedConfig {
    fn drop(&mut self) {
        self.free();
    }
}

impl fmt::Debug for CheckedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CheckedConfig").field(&self.0.borrow().is_some()).finish()
    }
}

impl Handover {
    /// Resources of `opened` that a worker process needs. The loaded configuration is not among them: the worker loads its
    /// own. A service manager may require signs of life more often than the master does.
    pub(super) fn of(
        opened: Opened,
        source: Source,
        is_daemon: bool,
        sign_interval: Option<Duration>,
    ) -> Self {
        let Opened { config, process: Process { identity, .. }, sockets, files, logs, keys } = opened;
        let rules = SandboxRules::of(&config, ProcessRole::Worker);
        let scripts = ScriptNeeds::of(&config, identity.as_ref());
        let env = environment(&config.main);
        let shutdown_timeout = config.main.shutdown_timeout;
        let sign_interval = sign_interval.map_or(SIGN_INTERVAL, |interval| interval.min(SIGN_INTERVAL));
        let used =
            config.watched_certificates().map(|watched| (watched.files.clone(), watched.version())).collect();
        Self {
            checked: CheckedConfig(RefCell::new(Some(config))),
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
            scripts,
            rules,
            sign_interval,
            shutdown_timeout,
        }
    }

    /// Takes over other files of a certificate.
    pub(super) fn renew(&mut self, files: &MemoryFiles) {
        // Concealed memory is identified by its address, so it is released before the texts move.
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
