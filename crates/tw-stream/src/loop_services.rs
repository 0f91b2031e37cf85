//! Services of a loop that another protocol has: connections for other listening addresses, and OCSP, which is a matter of HTTP.

use std::rc::Rc;

use tw_connect::Resolving;
use tw_core::event_loop::AcceptedConnection;
use tw_log::Level;
use tw_tls::ocsp::ResponderUrl;
use tw_tls_settings::{OcspClient, StaplingHost};

use crate::application::StreamLoop;
use crate::config::{LoopGeneration, ServerId};
use crate::plan::LocalFuture;

/// Services of a loop that the application has, as it knows all protocols.
pub trait LoopServices {
    /// Serves a connection as one that was accepted on its listening address, until it is closed.
    fn serve(&self, connection: AcceptedConnection) -> LocalFuture<'static, ()>;

    /// Asks an OCSP responder.
    fn query_ocsp(&self, query: OcspQuery) -> LocalFuture<'static, Result<Vec<u8>, String>>;
}

/// Question for an OCSP responder.
pub struct OcspQuery {
    /// URL of the responder.
    pub url: ResponderUrl,
    /// Request in DER.
    pub der: Vec<u8>,
    /// Bytes of a response at most.
    pub size_max: usize,
    /// Name servers for the host of the responder.
    pub resolving: Resolving,
}

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
