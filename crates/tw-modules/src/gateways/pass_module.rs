//! Shape shared by the modules whose locations pass requests to upstream servers: `proxy_pass`, `grpc_pass`, `memcached_pass`, and
//! those of application servers. [`Pass`] makes a module of a [`PassModule`].

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive};
use tw_connect::resolving;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_otel::context;
use tw_proxy::ProxySettings;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;

/// Settings of a location that may pass requests on.
pub(crate) trait PassModule: Handler + Sized + 'static {
    /// Settings as written.
    type Raw: Default + 'static;
    /// Records of the directives.
    const DIRECTIVES: &'static [Directive<Self::Raw>];
    /// Variables that the module provides.
    const VARIABLES: &'static [VarDef] = &[];
    /// Limits of the directives.
    const LIMITS: &'static [Limit];

    /// Resolves settings as written against those of the enclosing block.
    fn resolve(raw: Self::Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError>;

    /// Settings that gateways share.
    fn settings(&self) -> &ProxySettings;

    /// Returns `true` if the location passes requests on.
    fn passes(&self) -> bool;

    /// Returns `true` if requests may need the address of a name.
    fn has_names(&self) -> bool;

    /// Adds variables of the location to the plan.
    fn install_variables(&self, _plan: &mut Plan) {}

    /// Returns `true` if the request is built anew for each attempt.
    fn is_rebuilt(&self, r: &Request) -> bool {
        self.settings().request.is_dynamic || context::differs_between_attempts(r)
    }
}

/// Module of the settings `M`.
pub(crate) struct Pass<M>(Arc<M>);

impl<M: PassModule> Settings<Http> for Pass<M> {
    type Raw = M::Raw;

    const DIRECTIVES: &'static [Directive<M::Raw>] = M::DIRECTIVES;
    const VARIABLES: &'static [VarDef] = M::VARIABLES;
    const LIMITS: &'static [Limit] = M::LIMITS;

    fn resolve(raw: M::Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        M::resolve(raw, outer.map(|outer| &*outer.0), cx).map(|settings| Self(Arc::new(settings)))
    }

    fn are_shared(&self) -> bool {
        !self.0.passes() && !self.0.settings().has_handler()
    }

    /// Adds the content handler of the location, and that of purges.
    fn install(self: &Arc<Self>, plan: &mut Plan) {
        self.0.install_variables(plan);
        if self.0.passes() {
            plan.set_content(self.0.clone());
            plan.add_slash();
        }
        self.0.settings().install(plan);
    }

    fn reach(&self, core: &Location, reach: &mut Reach) {
        if self.0.passes() {
            self.0.settings().reach(core, reach);
            if self.0.has_names() {
                resolving::reach(reach);
            }
        }
    }
}
