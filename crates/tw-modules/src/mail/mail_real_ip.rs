//! `set_real_ip_from` of `mail`: the client's address as the PROXY protocol header of a trusted proxy has it (nginx:
//! ngx_mail_realip_module). Post-accept phase.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, record};
use tw_core::access_check::{AccessCheck, AccessDecision};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::vars::VarDef;
use tw_core::vars::write::{put, put_port};
use tw_mail::Mail;
use tw_mail::plan::Plan;
use tw_mail::session::MailSession;
use tw_net::Addr;

use crate::shared::trusted_proxies::TrustedProxies;

/// Trusted proxies, as written.
#[derive(Default)]
pub(crate) struct Raw {
    from: TrustedProxies,
}

/// Trusted proxies of a server.
pub(crate) struct MailRealIp {
    from: Arc<TrustedProxies>,
}

impl Settings<Mail> for MailRealIp {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "set_real_ip_from",
        "address | CIDR | hostname | unix:",
        MAIL | MAIL_SERVER,
        Args::exact(1),
    )
    .since("1.19.8")
    .doc("A proxy that may tell the address of its client in a PROXY protocol header. Names are looked up when the configuration is read.")
    .set(|raw, node, cx| raw.from.add(node, cx))];

    const VARIABLES: &'static [VarDef<MailSession>] = &[
        VarDef::one(
            "realip_remote_addr",
            |s, out| put(out, s.client.peer_text().as_bytes()),
            "Address of the connection's other end, whatever a proxy says.",
        ),
        VarDef::one(
            "realip_remote_port",
            |s, out| put_port(out, s.client.peer().inet().map(|addr| addr.port())),
            "Port of the connection's other end.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        let from = match outer {
            Some(outer) if raw.from.is_empty() => outer.from.clone(),
            _ => Arc::new(raw.from),
        };
        Ok(Self { from })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.from.is_empty() {
            plan.add_post_accept(self.clone());
        }
    }
}

impl AccessCheck<MailSession> for MailRealIp {
    fn check(&self, s: &mut MailSession) -> AccessDecision {
        let told = s.client.proxy.get().and_then(|header| header.addrs.as_ref());
        if let Some(addrs) = told
            && self.from.has(s.client.peer())
        {
            s.client.set_addr(Addr::Inet(addrs.src));
        }
        AccessDecision::Pass
    }
}
