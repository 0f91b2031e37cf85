//! `tunnel_pass`: a tunnel for CONNECT to the server that the client names (nginx: ngx_http_tunnel_module). Content
//! phase.
//!
//! `tunnel_allow_upstream` restricts the destinations: by the name that the client sent (`$host`, `$request_port`), and
//! by the address connected to (`$upstream_last_addr`). The address checked is the one connected to: the name is not
//! resolved again in between.
//!
//! `proxy_connect` answers the CONNECT requests of a server whatever its locations are, and builds on this one.

mod directives;
mod open;
mod proxy_connect;
mod response;
mod variables;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::Method;
use tw_proxy::UpstreamSettings;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;

pub(crate) use self::directives::Raw;
use self::open::{SCHEMES, open, warn_unrestricted};
use self::proxy_connect::ProxyConnect;
use crate::gateways::cgi::address::PassAddress;

/// `tunnel_buffer_size` by default.
const BUFFER_SIZE: usize = 16 << 10;

/// Settings of one location.
pub(crate) struct TunnelPass {
    settings: UpstreamSettings,
    target: Option<PassAddress>,
    connect: Option<Arc<ProxyConnect>>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes in memory for each side of a tunnel.
    directive "tunnel_buffer_size", "the other side waits";
    /// Time until a connection is there.
    directive "tunnel_connect_timeout", "the next server, or 504";
    /// Time for which a server takes nothing.
    directive "tunnel_send_timeout", "the tunnel ends";
    /// Time in which nothing happens.
    directive "tunnel_read_timeout", "the tunnel ends";
    /// Time until a connection of a tunnel of `proxy_connect` is there.
    directive "proxy_connect_connect_timeout", "504";
    /// Time in which nothing happens in a tunnel of `proxy_connect`.
    directive "proxy_connect_data_timeout", "the tunnel ends";
    /// Servers that are tried for one tunnel.
    directive "tunnel_next_upstream_tries", "the last one's failure";
}

impl Settings<Http> for TunnelPass {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = directives::DIRECTIVES;
    const VARIABLES: &'static [VarDef] = variables::ALL;
    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let span = raw.pass.span();
        let target = match raw.pass.take() {
            Some(target) => Some(target.resolve(SCHEMES, cx)?),
            // A part of a location has the target of the whole.
            None if cx.block.is_nameless() => outer.and_then(|o| o.target.clone()),
            None => None,
        };
        let outer_settings = outer.map(|o| &o.settings);
        let settings = UpstreamSettings::resolve(raw.settings, outer_settings, BUFFER_SIZE, cx)?;
        if let (Some(span), Some(target)) = (span, &target) {
            cx.block.opens_tunnels = true;
            if target.fixed().is_none() {
                warn_unrestricted("tunnel_pass", span, &settings, cx);
            }
        }
        let connect = raw.connect.resolve(&settings, cx)?.map(Arc::new);
        Ok(Self { settings, target, connect })
    }

    fn are_shared(&self) -> bool {
        self.target.is_none() && self.connect.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.target.is_some() {
            plan.set_content(self.clone());
        }
        if let Some(connect) = &self.connect {
            plan.set_connect(connect.clone());
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        if self.target.is_some() || self.connect.is_some() {
            self.settings.reach(reach);
        }
        if self.connect.is_some() || self.target.as_ref().is_some_and(PassAddress::has_names) {
            tw_connect::resolving::reach(reach);
        }
    }
}

impl Handler for TunnelPass {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match r.method() {
            // A part of a response has no connection that could become a tunnel.
            Method::Connect if !r.is_subrequest() => Step::Wait(Box::pin(self.pass(r))),
            _ => Step::status(405),
        }
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        self.target.as_ref().and_then(|target| target.explain(r, SCHEMES)).into_iter().collect()
    }
}

impl TunnelPass {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some(target) = &self.target else { return Outcome::Pass };
        match target.destination(r, SCHEMES) {
            Ok(to) => open(r, &self.settings, to).await,
            Err(status) => Outcome::Status(status),
        }
    }
}
