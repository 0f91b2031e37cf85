//! All providers of a configuration, and the servers that use them.

use std::collections::HashMap;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_request::config::server::ServerSettings;
use tw_request::request::Request;

use super::provider::{Provider, ProviderPage};

/// All providers of a configuration.
pub(super) struct Providers {
    pub(super) all: HashMap<Box<[u8]>, Arc<Provider>>,
    /// Providers in use, by the address of the settings of a server: there their responses and logouts are answered.
    used: FatalMutex<Vec<(usize, Arc<Provider>)>>,
}

impl Providers {
    /// These providers, which no server uses yet.
    pub(super) fn new(all: HashMap<Box<[u8]>, Arc<Provider>>) -> Self {
        Self { all, used: FatalMutex::default() }
    }

    /// Notes that a server uses a provider.
    pub(super) fn note(&self, server: &Arc<ServerSettings>, provider: &Arc<Provider>) {
        let server = Arc::as_ptr(server).addr();
        let mut used = self.used.lock();
        if !used.iter().any(|(at, known_provider)| *at == server && Arc::ptr_eq(known_provider, provider)) {
            used.push((server, provider.clone()));
        }
    }

    /// The provider of `r`'s server that has a page at this path.
    pub(super) fn page(&self, r: &Request) -> Option<(Arc<Provider>, ProviderPage)> {
        let path = r.uri.path.as_slice();
        if !self.all.values().any(|provider| provider.page(path).is_some()) {
            return None;
        }
        let server = Arc::as_ptr(&r.plan().server).addr();
        let used = self.used.lock();
        used.iter()
            .filter(|(at, _)| *at == server)
            .find_map(|(_, provider)| Some((provider.clone(), provider.page(path)?)))
    }
}
