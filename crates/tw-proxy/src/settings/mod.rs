//! Settings of the `*_pass` modules, in groups. The directives are written once, for any prefix.

pub mod buffers;
pub mod kind;
pub mod request;
pub mod response;
pub mod upstream;

use tw_conf::ConfError;
use tw_core::reach::Reach;

use self::buffers::{BufferSettings, RawBuffers};
pub use self::kind::{HIDDEN_OF_APPLICATIONS, ProxyKind};
use self::request::{RawRequest, RequestSettings};
use self::response::{RawResponse, ResponseSettings};
pub use self::upstream::{HasUpstream, RawUpstream, UpstreamSettings};
use super::store::{RawStoreSettings, StoreSettings};
use tw_http_cache::{self as cache, CacheSettings};
use tw_request::config::location::Location;
use tw_request::plan::Plan;
use tw_request::protocol::Resolve;
use tw_request::vars::Template;

/// Settings of a `*_pass` module at one location.
#[derive(Clone)]
pub struct ProxySettings {
    /// Connections, and the attempts made on them.
    pub upstream: UpstreamSettings,
    /// The request to the upstream server.
    pub request: RequestSettings,
    /// The head of its response.
    pub response: ResponseSettings,
    /// The buffer of its body.
    pub buffers: BufferSettings,
    /// `cache` and the directives beside it.
    pub cache: CacheSettings,
    /// `store` and `store_access`.
    pub store: StoreSettings,
}

/// Directives of [`ProxySettings`] as written.
#[derive(Default)]
pub struct RawProxy {
    /// Directives of [`UpstreamSettings`].
    pub upstream: RawUpstream,
    /// Directives of [`RequestSettings`].
    pub request: RawRequest,
    /// Directives of [`ResponseSettings`].
    pub response: RawResponse,
    /// Directives of [`BufferSettings`].
    pub buffers: RawBuffers,
    /// Directives of [`CacheSettings`].
    pub cache: cache::settings::Raw,
    /// Directives of [`StoreSettings`].
    pub store: RawStoreSettings,
}

/// Module settings as written that contain those of [`ProxySettings`].
pub trait HasProxy {
    /// Returns that part.
    fn proxy(&mut self) -> &mut RawProxy;
}

impl<T: HasProxy> HasUpstream for T {
    fn upstream(&mut self) -> &mut RawUpstream {
        &mut self.proxy().upstream
    }
}

impl ProxySettings {
    /// Resolves the directives against the enclosing block.
    pub fn resolve(
        raw: RawProxy,
        outer: Option<&Self>,
        kind: &ProxyKind,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let page_size = rustix::param::page_size();
        let upstream = UpstreamSettings::resolve(raw.upstream, outer.map(|o| &o.upstream), page_size, cx)?;
        let outer_buffers = outer.map(|o| &o.buffers);
        let buffers = BufferSettings::resolve(raw.buffers, outer_buffers, upstream.buffer_size, kind, cx)?;
        let cache =
            CacheSettings::resolve(raw.cache, outer.map(|o| &o.cache), kind.prefix, kind.converts_head, cx)?;
        let outer_response = outer.map(|o| &o.response);
        let response = ResponseSettings::resolve(raw.response, outer_response, kind, &cache, cx)?;
        let request = RequestSettings::resolve(raw.request, outer.map(|o| &o.request));
        let store = StoreSettings::resolve(raw.store, outer.map(|o| &o.store), cx)?;
        Ok(Self { upstream, request, response, buffers, cache, store })
    }

    /// Returns true if there is a content handler besides that of the module: a location that purges a cache.
    pub fn has_handler(&self) -> bool {
        self.cache.purge_location().is_some()
    }

    /// Installs that handler.
    pub fn install(&self, plan: &mut Plan) {
        if let Some(location) = self.cache.purge_location() {
            plan.set_content(location);
        }
    }

    /// Adds to `reach` what the sandbox must allow, but for names of servers.
    pub fn reach(&self, core: &Location, reach: &mut Reach) {
        self.upstream.reach(reach);
        if let Some(temp) = &self.buffers.temp_path {
            reach.changes(&Template::text(temp.path.to_bytes()), None);
        }
        self.store.reach(core, reach);
        self.cache.reach(reach);
    }
}
