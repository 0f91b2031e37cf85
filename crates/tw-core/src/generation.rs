//! Everything one configuration makes: immutable, shared by all loops, replaced as a whole.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use tw_conf::Span;
use tw_disk::Locks;
use tw_net::listen::SocketKind;
use tw_net::{Addr, ListenOptions};

use crate::config_thread::{FreeInSteps, GenerationRef};
use crate::log::{Logs, SharedErrorLog};
use crate::metrics::MetricsTable;
use crate::pools::{Disks, UringUse};
use crate::process::MainSettings;
use crate::reach::Reach;
use crate::shared_objects::SharedObjects;

/// Parts of a loaded configuration that do not depend on protocols. Nothing in it is open or running.
pub struct Config {
    /// Settings of the process.
    pub main: MainSettings,
    /// Listening addresses.
    pub listens: Vec<ListenAddress>,
    /// Logs to open.
    pub logs: Logs,
    /// `error_log` of `main`.
    pub error_log: SharedErrorLog,
    /// Possibility of debug lines in some log.
    pub debug_lines: DebugLines,
    /// Use of io_uring for reading files.
    pub ring: UringUse,
    /// Files and connections that requests need, for the sandbox.
    pub reach: Reach,
    /// True if there are TLS handshakes, with clients or upstream servers.
    pub is_secured: bool,
    /// Files of the process that are locked in memory.
    pub locks: Arc<Locks>,
    /// Largest number of bytes of them: `hot_lock_size`, or 0 where no location sends files that way.
    pub lock_max: u64,
    /// Largest number of bytes of small files in memory, per loop.
    pub hot_files_size: usize,
    /// Name of this host: `$hostname`.
    pub hostname: Box<[u8]>,
    /// Metrics of the core and of every module.
    pub metrics: Arc<MetricsTable>,
    /// Objects of modules that outlive this configuration.
    pub shared_objects: SharedObjects,
}

/// Possibility of debug lines: tells if each step has to look at the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugLines {
    /// No log takes them.
    Never,
    /// Some log does, or those of some clients.
    Possible,
}

/// A listening address.
pub struct ListenAddress {
    /// The address.
    pub address: Addr,
    /// Socket options.
    pub options: ListenOptions,
    /// Socket that accepts its connections.
    pub socket: SocketSharing,
    /// Position in the configuration; `None` if it is implied.
    pub span: Option<Span>,
}

/// Sockets of addresses with the same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketSharing {
    /// A socket of its own.
    Own,
    /// A socket of its own, which also accepts for other addresses: `*:80` beside `127.0.0.1:80`.
    Shared,
    /// None: the socket of another address accepts its connections.
    UsesWildcard,
}

/// Gives each address its socket. A port that is open on every address cannot be opened on one of them as well: the one
/// socket serves both.
pub(crate) fn share_sockets(listens: &mut [ListenAddress]) {
    /// Listening addresses of one port, family and kind.
    #[derive(Default, Clone, Copy)]
    struct Port {
        count: usize,
        on_every_address: bool,
    }
    let key = |addr: SocketAddr, kind: SocketKind| (addr.port(), addr.is_ipv4(), kind);
    let mut ports: HashMap<_, Port> = HashMap::new();
    for listen in &*listens {
        let Some(addr) = listen.address.inet() else { continue };
        let port = ports.entry(key(addr, listen.options.kind)).or_default();
        port.count += 1;
        port.on_every_address |= addr.ip().is_unspecified();
    }
    for listen in listens {
        let Some(own) = listen.address.inet() else { continue };
        let port = ports.get(&key(own, listen.options.kind)).copied().unwrap_or_default();
        listen.socket = match own.ip().is_unspecified() {
            true if port.count > 1 => SocketSharing::Shared,
            false if port.on_every_address => SocketSharing::UsesWildcard,
            _ => SocketSharing::Own,
        };
    }
}

/// Configuration of a protocol.
pub trait Configuration: Send + Sync + Sized + 'static {
    /// The part that every protocol shares.
    fn process(&self) -> &ProcessConfig;

    /// Frees it part by part, and [yields](crate::config_thread::yield_if_due) between them.
    fn free(self);
}

/// Configuration of no protocol, which the configurations of all protocols share.
pub type ProcessConfig = Arc<Config>;
/// Live configuration of no protocol.
pub type ProcessGeneration = Generation<ProcessConfig>;

impl Configuration for ProcessConfig {
    fn process(&self) -> &ProcessConfig {
        self
    }

    fn free(self) {}
}

/// Configuration of one protocol: the part that every protocol shares, and its own.
pub struct ProtocolConfig<T> {
    /// Part that every protocol shares.
    pub process: ProcessConfig,
    /// Part of the protocol.
    pub own: T,
}

impl<T> Deref for ProtocolConfig<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.own
    }
}

impl<T: FreeInSteps> Configuration for ProtocolConfig<T> {
    fn process(&self) -> &ProcessConfig {
        &self.process
    }

    fn free(self) {
        self.own.free();
    }
}

/// A configuration that is live: its logs are open and its pools run.
pub struct Generation<C> {
    /// Number of this generation, from 1.
    pub id: u64,
    /// Loaded configuration.
    pub config: C,
    /// Thread pools.
    pub disks: Arc<Disks>,
}

impl<C> Deref for Generation<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.config
    }
}

/// Configuration of an application, with the part of it that every protocol shares.
pub trait LoopConfiguration: Clone + Send + 'static {
    /// The part of no protocol.
    fn process(&self) -> GenerationRef<ProcessGeneration>;
}

impl<C: Configuration> LoopConfiguration for GenerationRef<Generation<C>> {
    fn process(&self) -> GenerationRef<ProcessGeneration> {
        self.publish_with(|generation| Generation {
            id: generation.id,
            config: generation.config.process().clone(),
            disks: generation.disks.clone(),
        })
    }
}

impl<C: Configuration> FreeInSteps for Generation<C> {
    fn free(self) {
        self.config.free();
    }
}

/// A generation as one loop holds it: counting references costs no atomic operation.
pub struct LoopGeneration<C: Configuration>(GenerationRef<Generation<C>>);

impl<C: Configuration> LoopGeneration<C> {
    /// A generation for this loop.
    pub fn new(generation: GenerationRef<Generation<C>>) -> Rc<Self> {
        Rc::new(Self(generation))
    }
}

impl<C: Configuration> Deref for LoopGeneration<C> {
    type Target = Generation<C>;

    fn deref(&self) -> &Generation<C> {
        &self.0
    }
}
