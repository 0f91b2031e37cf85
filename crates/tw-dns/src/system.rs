//! System resolution of names: `/etc/hosts`, then the servers and the search list of `/etc/resolv.conf`.
//!
//! Both files are read when a configuration is loaded, and again when they have changed. Reading may wait for a disk,
//! so it is a [`Refresh`] for a thread that may wait; loops never read.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_rt::clock;

use crate::error::ResolveError;
use crate::hosts::Hosts;
use crate::name::Name;
use crate::resolv_conf::ResolvConf;
use crate::resolver::{Addresses, Resolver, Services};
use crate::search::{Failures, SearchList};
use crate::stats::Stats;

/// Time for which the files are taken to be as they were.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Files that configure the resolution of names by the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemFiles {
    /// Name servers and search list.
    pub resolv_conf: PathBuf,
    /// Path of the hosts file.
    pub hosts: PathBuf,
    /// Port of the name servers.
    pub port: u16,
}

impl Default for SystemFiles {
    fn default() -> Self {
        Self { resolv_conf: "/etc/resolv.conf".into(), hosts: "/etc/hosts".into(), port: 53 }
    }
}

/// Resolves names as the system does. One for all loops.
#[derive(Debug)]
pub struct SystemResolver {
    files: SystemFiles,
    state: FatalMutex<State>,
    is_refreshing: AtomicBool,
    stats: Arc<Stats>,
}

#[derive(Debug)]
struct State {
    current: Arc<Current>,
    texts: Arc<Texts>,
    checked: Instant,
}

/// Both files as they were read, and their versions at that time.
#[derive(Debug, Default)]
struct Texts {
    versions: [Version; 2],
    resolv_conf: Vec<u8>,
    hosts: Vec<u8>,
}

/// Meaning of both files.
#[derive(Debug)]
struct Current {
    resolver: Arc<Resolver>,
    search: SearchList,
}

/// Everything that changes when a file does; zeros for one that is not there.
type Version = (u64, u64, u64, (i64, i64), (i64, i64));

impl SystemResolver {
    /// Reads `files`. May wait for a disk. A file that cannot be read is taken to be empty.
    pub fn new(files: SystemFiles) -> Arc<Self> {
        let stats = Arc::new(Stats::default());
        let texts = files.read(files.versions(), &Texts::default());
        let current = current(&texts, files.port, &stats, None);
        let state = State { current, texts: Arc::new(texts), checked: clock::now() };
        Arc::new(Self { files, state: FatalMutex::new(state), is_refreshing: AtomicBool::new(false), stats })
    }

    /// A permit to look whether the files have changed, at most one at a time and one each second.
    pub fn begin_refresh(self: &Arc<Self>) -> Option<Refresh> {
        let is_due = clock::now() >= self.state.lock().checked + CHECK_EVERY;
        (is_due && !self.is_refreshing.swap(true, SeqCst)).then(|| Refresh(Arc::clone(self)))
    }

    /// Reads the files again if they have changed. May wait for a disk. A missing file counts as empty; an unreadable
    /// one as unchanged.
    pub fn refresh(&self) {
        let versions = self.files.versions();
        let (known_current, texts) = {
            let mut state = self.state.lock();
            state.checked = clock::now();
            if state.texts.versions == versions {
                return;
            }
            (Arc::clone(&state.current), Arc::clone(&state.texts))
        };
        let texts = self.files.read(versions, &texts);
        let current = current(&texts, self.files.port, &self.stats, Some(&known_current));
        let mut state = self.state.lock();
        (state.current, state.texts) = (current, Arc::new(texts));
    }

    /// Addresses of `name`, by the rules of the C library. Waits for at most `timeout`; on a loop only.
    ///
    /// # Errors
    /// Returns the error of the name as written if that was queried first, else of its candidates.
    pub async fn addresses(&self, name: &[u8], timeout: Duration) -> Result<Addresses, ResolveError> {
        let current = Arc::clone(&self.state.lock().current);
        let Current { resolver, search } = &*current;
        if let Some(known_addresses) = resolver.without_servers(name) {
            return Ok(known_addresses);
        }
        let deadline = resolver.deadline(timeout);
        let candidates = search.candidates(name);
        let mut failures = Failures::default();
        let mut goes_on = true;
        for (nth, candidate) in candidates.iter().enumerate() {
            if !goes_on && !candidate.is_as_is {
                continue;
            }
            match resolver.query_addresses(candidate.name.clone(), deadline).await {
                Ok(found_addresses) => return Ok(found_addresses),
                Err(error) => goes_on &= failures.goes_on(candidate, error, nth == 0),
            }
            if clock::now() >= deadline {
                break;
            }
        }
        Err(failures.error())
    }

    /// The servers of a service, whose name is always a whole one.
    ///
    /// # Errors
    /// Fails as [`Resolver::services`] does.
    pub async fn services(
        &self,
        service: &[u8],
        name: &[u8],
        timeout: Duration,
    ) -> Result<Services, ResolveError> {
        let current = Arc::clone(&self.state.lock().current);
        current.resolver.services(service, name, timeout).await
    }

    /// Names of an address, as name servers have them.
    ///
    /// # Errors
    /// Fails as [`Resolver::names`] does.
    pub async fn names(&self, addr: IpAddr, timeout: Duration) -> Result<Arc<[Name]>, ResolveError> {
        let current = Arc::clone(&self.state.lock().current);
        current.resolver.names(addr, timeout).await
    }
}

/// The right to read the files of a resolver, on a thread that may wait. Dropping it gives the right back.
#[derive(Debug)]
#[must_use]
pub struct Refresh(Arc<SystemResolver>);

impl Refresh {
    /// Reads the files again if they have changed. May wait for a disk.
    pub fn run(self) {
        self.0.refresh();
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, SeqCst);
    }
}

impl SystemFiles {
    /// Paths of both files, and of what they are links to. May wait for a disk.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.resolv_conf.clone(), self.hosts.clone()];
        let targets: Vec<_> = paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        paths.extend(targets);
        paths
    }

    fn versions(&self) -> [Version; 2] {
        [&self.resolv_conf, &self.hosts].map(|path| {
            fs::metadata(path).map_or_else(
                |_| Version::default(),
                |of| {
                    let changed = (of.ctime(), of.ctime_nsec());
                    let modified = (of.mtime(), of.mtime_nsec());
                    (of.dev(), of.ino(), of.size(), changed, modified)
                },
            )
        })
    }

    /// Reads both, which had these versions just before.
    fn read(&self, versions: [Version; 2], texts: &Texts) -> Texts {
        let text = |path: &Path, candidate: &[u8]| match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(_) => candidate.to_vec(),
        };
        Texts {
            versions,
            resolv_conf: text(&self.resolv_conf, &texts.resolv_conf),
            hosts: text(&self.hosts, &texts.hosts),
        }
    }
}

/// Makes a resolver of the files. Cached answers are kept while servers and options are the same.
fn current(texts: &Texts, port: u16, stats: &Arc<Stats>, known_current: Option<&Current>) -> Arc<Current> {
    let mut conf = ResolvConf::parse(&texts.resolv_conf, port);
    if !conf.says_domains {
        let uname = rustix::system::uname();
        conf.set_domain_of(uname.nodename().to_bytes());
    }
    let mut settings = conf.settings();
    settings.hosts = Some(Arc::new(Hosts::parse(&texts.hosts)));
    let resolver = match known_current {
        Some(known_current) if *known_current.resolver.settings() == settings => {
            Arc::clone(&known_current.resolver)
        }
        _ => Resolver::new(settings, Arc::clone(stats)),
    };
    Arc::new(Current { resolver, search: conf.search })
}

/// Resolves names in one of two ways.
#[derive(Debug, Clone)]
pub enum NameService {
    /// Resolver of a `resolver` directive.
    Resolver(Arc<Resolver>),
    /// Resolves as the system does.
    System(Arc<SystemResolver>),
}

impl NameService {
    /// The addresses of a name: see [`Resolver::addresses`].
    ///
    /// # Errors
    /// Why there are none.
    pub async fn addresses(&self, name: &[u8], timeout: Duration) -> Result<Addresses, ResolveError> {
        match self {
            Self::Resolver(resolver) => resolver.addresses(name, timeout).await,
            Self::System(system) => system.addresses(name, timeout).await,
        }
    }

    /// The servers of a service: see [`Resolver::services`].
    ///
    /// # Errors
    /// Why there are none.
    pub async fn services(
        &self,
        service: &[u8],
        name: &[u8],
        timeout: Duration,
    ) -> Result<Services, ResolveError> {
        match self {
            Self::Resolver(resolver) => resolver.services(service, name, timeout).await,
            Self::System(system) => system.services(service, name, timeout).await,
        }
    }

    /// The names of an address: see [`Resolver::names`].
    ///
    /// # Errors
    /// Why there are none.
    pub async fn names(&self, addr: IpAddr, timeout: Duration) -> Result<Arc<[Name]>, ResolveError> {
        match self {
            Self::Resolver(resolver) => resolver.names(addr, timeout).await,
            Self::System(system) => system.names(addr, timeout).await,
        }
    }

    /// System resolver, if this is one.
    pub fn system(&self) -> Option<&Arc<SystemResolver>> {
        match self {
            Self::Resolver(_) => None,
            Self::System(system) => Some(system),
        }
    }
}
