//! Parts shared by the modules whose locations pass requests to upstream servers: `proxy_pass`, `grpc_pass`,
//! `memcached_pass`, and those of application servers.

use std::sync::Arc;

use tw_connect::resolving;
use tw_core::reach::Reach;
use tw_server::config::location::Location;
use tw_server::http::plan::{Handler, Plan};
use tw_server::http::proxy::ProxySettings;
use tw_server::http::request::Request;

use crate::logging::otel::context;

/// Settings of a location that may pass requests on.
pub(crate) trait PassModule: Handler {
    /// Settings that gateways share.
    fn settings(&self) -> &ProxySettings;

    /// Returns `true` if the location passes requests on.
    fn passes(&self) -> bool;

    /// Returns `true` if requests may need the address of a name.
    fn has_names(&self) -> bool;
}

/// See [`Settings::are_shared`](tw_core::module::Settings::are_shared).
pub(crate) fn are_shared(pass_module: &impl PassModule) -> bool {
    !pass_module.passes() && !pass_module.settings().has_handler()
}

/// Adds the content handler of the location, and that of purges.
pub(crate) fn install(pass_module: &Arc<impl PassModule + 'static>, plan: &mut Plan) {
    if pass_module.passes() {
        plan.set_content(pass_module.clone());
        plan.add_slash();
    }
    pass_module.settings().install(plan);
}

/// Returns `true` if the request is built anew for each attempt.
pub(crate) fn is_rebuilt(r: &Request, settings: &ProxySettings) -> bool {
    settings.request.is_dynamic || context::differs_between_attempts(r)
}

/// Declares the sockets and files that requests need.
pub(crate) fn reach(pass_module: &impl PassModule, core: &Location, reach: &mut Reach) {
    if pass_module.passes() {
        pass_module.settings().reach(core, reach);
        if pass_module.has_names() {
            resolving::reach(reach);
        }
    }
}
