//! NATS as an engine: what all connections to it share.

use std::cell::Cell;
use std::sync::Arc;

use rustls::ClientConfig;
use tw_dns::{NameService, SystemFiles, SystemResolver};

use crate::settings::EngineSettings;

/// NATS as an engine.
pub(crate) struct Nats {
    pub(crate) settings: EngineSettings,
    pub(crate) fleet: Box<str>,
    pub(crate) node: Box<str>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) names: NameService,
    /// Number of connections made: each begins with the next server.
    pub(crate) tries: Cell<usize>,
}

impl Nats {
    /// The engine of these settings. Reads the files of the system's resolver.
    pub(crate) fn new(settings: &EngineSettings, fleet: &str, node: &str) -> Result<Self, String> {
        let tls = settings.tls.then(|| tw_tls::client_config(settings.trusted.as_deref())).transpose()?;
        Ok(Self {
            settings: settings.clone(),
            fleet: fleet.into(),
            node: node.into(),
            tls,
            names: NameService::System(SystemResolver::new(SystemFiles::default())),
            tries: Cell::new(0),
        })
    }
}
