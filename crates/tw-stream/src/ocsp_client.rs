//! OCSP client of a loop: questions about certificates of clients, and about those of servers that are stapled.

use std::rc::Rc;

use tw_connect::Resolving;
use tw_log::Level;
use tw_tls::ocsp::ResponderUrl;
use tw_tls_settings::{OcspClient, StaplingHost};

use crate::config::{LoopGeneration, ServerId};
use crate::loop_services::OcspQuery;
use crate::stream_loop::StreamLoop;

/// OCSP client of a loop.
pub(crate) struct LoopOcspClient {
    /// Loop of the connections.
    pub(crate) event_loop: Rc<StreamLoop>,
    /// Name servers for hosts of responders.
    pub(crate) resolving: Resolving,
}

impl OcspClient for LoopOcspClient {
    async fn query(&self, url: &ResponderUrl, der: &[u8], size_max: usize) -> Result<Vec<u8>, String> {
        let Some(services) = self.event_loop.services() else {
            return Err("no OCSP client".to_owned());
        };
        let url = url.clone();
        let der = der.to_vec();
        let resolving = self.resolving.clone();
        services.query_ocsp(OcspQuery { url, der, size_max, resolving }).await
    }
}

/// Server with a stapled certificate.
pub(crate) struct StapledServer {
    /// Loop of the connections.
    pub(crate) event_loop: Rc<StreamLoop>,
    /// The configuration.
    pub(crate) generation: Rc<LoopGeneration>,
    /// The server.
    pub(crate) server: ServerId,
}

impl OcspClient for StapledServer {
    async fn query(&self, url: &ResponderUrl, der: &[u8], size_max: usize) -> Result<Vec<u8>, String> {
        let resolving = self.generation.server(self.server).settings.resolving.clone();
        LoopOcspClient { event_loop: self.event_loop.clone(), resolving }.query(url, der, size_max).await
    }
}

impl StaplingHost for StapledServer {
    fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.generation.server(self.server).settings.error_log.write(level, None, message);
    }
}
