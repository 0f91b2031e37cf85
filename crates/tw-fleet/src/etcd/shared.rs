//! State that all connections to etcd share.

use std::cell::Cell;
use std::sync::Arc;

use rustls::ClientConfig;
use tw_dns::NameService;

use crate::settings::EngineSettings;

/// Settings of etcd as an engine, and its server that is used next.
pub(crate) struct Etcd {
    pub(super) settings: EngineSettings,
    pub(super) fleet: Box<str>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) names: NameService,
    /// Number of connections made: each begins with the next server.
    pub(super) tries: Cell<usize>,
}
