//! `set_real_ip_from` of `stream` and `mail`: the client's address as the PROXY protocol header of a trusted proxy has it (nginx:
//! ngx_stream_realip_module, ngx_mail_realip_module). Post-accept phase.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, STREAM, STREAM_SERVER, record};
use tw_core::access_check::{AccessCheck, AccessDecision, PostAcceptPlan};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::vars::write::{put, put_port};
use tw_core::vars::{ProxiedSession, VarDef};
use tw_mail::Mail;
use tw_module_support::trusted_proxies::TrustedProxies;
use tw_net::Addr;
use tw_stream::Stream;

/// A protocol whose sessions have `set_real_ip_from`.
pub(crate) trait RealIpProtocol: Protocol {
    /// Version of nginx that has the directive in this protocol.
    const SINCE: &'static str;
}

impl RealIpProtocol for Stream {
    const SINCE: &'static str = "1.11.4";
}

impl RealIpProtocol for Mail {
    const SINCE: &'static str = "1.19.8";
}

/// Trusted proxies, as written.
#[derive(Default)]
pub(crate) struct Raw {
    from: TrustedProxies,
}

/// Trusted proxies of a server.
pub(crate) struct SessionRealIp {
    from: Arc<TrustedProxies>,
}

impl<P: RealIpProtocol> Settings<P> for SessionRealIp
where
    P::Session: ProxiedSession,
    P::Plan: PostAcceptPlan<P::Session>,
{
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "set_real_ip_from",
        "address | CIDR | hostname | unix:",
        STREAM | STREAM_SERVER | MAIL | MAIL_SERVER,
        Args::exact(1),
    )
    .since(P::SINCE)
    .doc("A proxy that may tell the address of its client in a PROXY protocol header. Names are looked up when the configuration is read.")
    .set(|raw, node, cx| raw.from.add(node, cx))];

    const VARIABLES: &'static [VarDef<P::Session>] = &[
        VarDef::one(
            "realip_remote_addr",
            |s, out| put(out, s.peer_text().as_bytes()),
            "Address of the connection's other end, whatever a proxy says.",
        ),
        VarDef::one(
            "realip_remote_port",
            |s, out| put_port(out, s.peer().inet().map(|addr| addr.port())),
            "Port of the connection's other end.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let from = match outer {
            Some(outer) if raw.from.is_empty() => outer.from.clone(),
            _ => Arc::new(raw.from),
        };
        Ok(Self { from })
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if !self.from.is_empty() {
            plan.add_post_accept(self.clone());
        }
    }
}

impl<S: ProxiedSession> AccessCheck<S> for SessionRealIp {
    fn check(&self, s: &mut S) -> AccessDecision {
        let addrs = s.proxy_header().and_then(|header| header.addrs.as_ref());
        if let Some(addrs) = addrs
            && self.from.has(s.peer())
        {
            s.set_client_addr(Addr::Inet(addrs.src));
        }
        AccessDecision::Pass
    }
}
