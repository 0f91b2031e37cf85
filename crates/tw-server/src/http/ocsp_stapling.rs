//! OCSP stapling of the servers of a generation (`ssl_stapling`).

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use tw_core::event_loop::LoopShare;
use tw_log::Level;
use tw_tls::ocsp::ResponderUrl;
use tw_tls_settings::{OcspClient, StaplingHost, keep_stapled};

use tw_proxy::ocsp_client::LoopOcspClient;
use tw_request::event_loop::Loop;
use tw_request::generation::{LoopGeneration, PlanId};

/// Keeps the responses of the loop's certificates up to date. Never ends by itself.
pub(crate) async fn run(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let certificates = generation.servers.iter().flat_map(|server| {
        let stapled = |stapling: &_| {
            let event_loop = event_loop.clone();
            let generation = generation.clone();
            (Arc::clone(stapling), StapledServer { event_loop, generation, plan: server.plan })
        };
        server.ssl.tls.iter().flat_map(|tls| tls.staplings()).map(stapled)
    });
    keep_stapled(certificates, LoopShare { index: event_loop.index, loops }).await;
}

/// Server with a stapled certificate.
struct StapledServer {
    event_loop: Rc<Loop>,
    generation: Rc<LoopGeneration>,
    /// Plan of the server's own block, for name servers and the error log.
    plan: PlanId,
}

impl OcspClient for StapledServer {
    async fn query(&self, url: &ResponderUrl, der: &[u8], size_max: usize) -> Result<Vec<u8>, String> {
        let resolving = self.generation.plan(self.plan).core.resolving.clone();
        LoopOcspClient { event_loop: self.event_loop.clone(), resolving }.query(url, der, size_max).await
    }
}

impl StaplingHost for StapledServer {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.generation.plan(self.plan).core.error_log.write(level, None, message);
    }
}
