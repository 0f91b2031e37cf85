//! `proxy_*` and `xclient` of `mail`.

use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, MAIL, MAIL_SERVER, Setting, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::reach::Reach;

use crate::protocol::Mail;
use crate::settings::server::ServerSettings;

const ALL: u32 = MAIL | MAIL_SERVER;

/// Settings of sessions with mail servers.
pub struct MailProxy {
    /// `proxy_buffer`, bytes.
    pub buffer_size: usize,
    /// `proxy_timeout`
    pub timeout: Duration,
    /// `proxy_pass_error_message`
    pub passes_errors: bool,
    /// `proxy_protocol`
    pub proxy_protocol: ProxyProtocol,
    /// `proxy_smtp_auth`
    pub smtp_auth: bool,
    /// `xclient`
    pub xclient: bool,
}

/// PROXY protocol header that mail servers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    Off,
    /// Version 1.
    V1,
    /// Version 2.
    V2,
}

const VERSIONS: &[(&str, ProxyProtocol)] =
    &[("off", ProxyProtocol::Off), ("on", ProxyProtocol::V1), ("v2", ProxyProtocol::V2)];

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    is_on: Setting<bool>,
    buffer_size: Setting<usize>,
    timeout: Setting<Duration>,
    passes_errors: Setting<bool>,
    proxy_protocol: Setting<ProxyProtocol>,
    smtp_auth: Setting<bool>,
    xclient: Setting<bool>,
}

impl Settings<Mail> for MailProxy {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("proxy", ALL)
            .default("off")
            .doc("Accepted and without effect, as in nginx: a session is always passed to the mail server that the auth server names.")
            .set(|raw, node, _| raw.is_on.set_flag(node)),
        record::size("proxy_buffer", ALL)
            .default("4k")
            .doc("Bytes of a response of the mail server during the login, and of each direction that are read at once later.")
            .set(|raw, node, _| raw.buffer_size.set_size(node)),
        record::time("proxy_timeout", ALL)
            .default("24h")
            .doc("Time without traffic in either direction after which a session ends.")
            .set(|raw, node, _| raw.timeout.set_msec(node)),
        record::flag("proxy_pass_error_message", ALL)
            .default("off")
            .doc("Passes an error of the mail server during the login to the client.")
            .set(|raw, node, _| raw.passes_errors.set_flag(node)),
        record::new("proxy_protocol", "on | off | v2", ALL, Args::exact(1))
            .default("off")
            .since("1.19.8")
            .doc("Sends a PROXY protocol header with the address of the client to the mail server: version 1, or version 2.")
            .set(|raw, node, _| raw.proxy_protocol.set_one_of(node, VERSIONS)),
        record::flag("proxy_smtp_auth", ALL)
            .default("off")
            .since("1.19.4")
            .doc("Logs in at the mail server of SMTP with AUTH.")
            .set(|raw, node, _| raw.smtp_auth.set_flag(node)),
        record::flag("xclient", ALL)
            .default("on")
            .doc("Sends XCLIENT with address, name and login of the client to the mail server of SMTP.")
            .set(|raw, node, _| raw.xclient.set_flag(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        Ok(Self {
            buffer_size: raw.buffer_size.or(outer.map(|o| o.buffer_size), 4096),
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(24 * 3600)),
            passes_errors: raw.passes_errors.or(outer.map(|o| o.passes_errors), false),
            proxy_protocol: raw.proxy_protocol.or(outer.map(|o| o.proxy_protocol), ProxyProtocol::Off),
            smtp_auth: raw.smtp_auth.or(outer.map(|o| o.smtp_auth), false),
            xclient: raw.xclient.or(outer.map(|o| o.xclient), true),
        })
    }

    fn reach(&self, _: &ServerSettings, reach: &mut Reach) {
        reach.connects();
    }
}
