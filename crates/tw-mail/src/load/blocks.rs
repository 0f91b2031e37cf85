//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::sync::Arc;

use tw_accept::listen::{AddressServers, ServersByAddress};
use tw_conf::{ConfError, Span};
use tw_connect::UpstreamGroup;
use tw_connect::session_blocks::WrittenBlocks;
use tw_connect::upstream_block::resolve_blocks;
use tw_core::config_thread::yield_if_due;
use tw_core::generation::ListenAddress;
use tw_core::load::{ConfigBuilder, Mistakes, RawSettings, Resolve, Table, settings_of};
use tw_core::module::Resolved;
use tw_core::reach::Reach;
use tw_core::server_names::ServerId;
use tw_tls_settings::preload_keys;

use super::{
    CORE_AUTH_HTTP, CORE_IMAP, CORE_LOGIN_DELAY, CORE_POP3, CORE_PROXY, CORE_SERVER, CORE_SMTP, CORE_SSL,
    CORE_STARTTLS, CORE_UPSTREAM,
};
use crate::auth_http::settings::AuthHttp;
use crate::config::Server;
use crate::dialogue::{MailProtocol, StartTls};
use crate::plan::Plan;
use crate::protocol::Mail;
use crate::settings::protocols::{ImapSettings, Pop3Settings, SmtpSettings};
use crate::settings::server::ServerSettings;
use crate::settings::starttls::StartTlsSettings;

/// Servers and groups as they are built.
#[derive(Default)]
pub(super) struct LoadedMail {
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup<Mail>>>,
    pub(super) reach: Reach,
    /// True if auth servers are connected to over TLS.
    pub(super) secures_upstreams: bool,
    /// Notes that mean nothing if something is wrong.
    pub(super) notes: Vec<ConfError>,
}

/// Resolves the `mail` block and everything in it.
pub(super) fn build(
    mail: WrittenBlocks,
    table: &Table<Mail>,
    cx: &mut Resolve<'_, Mail>,
) -> Result<LoadedMail, ConfError> {
    let mut loaded = LoadedMail::default();
    preload_keys(mail.module_settings(CORE_SSL), cx);
    let outer = resolve(mail.own, None, table, cx)?;
    // Groups come first: a server may name one that stands further down.
    let resolving = settings_of::<ServerSettings>(&outer, CORE_SERVER).resolving.clone();
    loaded.upstreams =
        resolve_blocks(mail.upstreams, &outer, resolving, table, CORE_UPSTREAM, cx, &mut loaded.reach)?;
    for (raws, span) in mail.servers {
        yield_if_due();
        let settings = resolve(raws, Some(&outer), table, cx)?;
        let core = settings_of::<ServerSettings>(&settings, CORE_SERVER);
        if core.listens.is_empty() {
            cx.mistakes.add(ConfError::new("no \"listen\" is defined for server").at(span));
            continue;
        }
        let Some(protocol) = core.protocol else {
            cx.mistakes.add(ConfError::new("unknown mail protocol for server").at(span));
            continue;
        };
        if settings_of::<AuthHttp>(&settings, CORE_AUTH_HTTP).target.is_none() {
            cx.mistakes.add(ConfError::new("no \"auth_http\" is defined for server").at(span));
            continue;
        }
        let server = server(&settings, core, protocol, span, table, &mut loaded.reach);
        if server.starttls != StartTls::Off && server.ssl.tls.is_none() {
            let message = "no \"ssl_certificate\" is defined for the \"starttls\" directive";
            cx.mistakes.add(ConfError::new(message).at(span));
        }
        loaded.servers.push(server);
    }
    loaded.secures_upstreams = cx.block.upstream.uses_tls;
    loaded.notes = cx.block.upstream.unused();
    Ok(loaded)
}

/// Makes a server with its plan.
fn server(
    settings: &[Resolved],
    core: Arc<ServerSettings>,
    protocol: MailProtocol,
    span: Span,
    table: &Table<Mail>,
    reach: &mut Reach,
) -> Server {
    let mut plan = Plan::default();
    for (module, settings) in table.modules().iter().zip(settings) {
        module.install(settings, &mut plan);
        module.reach(settings, &core, reach);
    }
    let smtp = settings_of::<SmtpSettings>(settings, CORE_SMTP);
    let dialogue = match protocol {
        MailProtocol::Pop3 => settings_of::<Pop3Settings>(settings, CORE_POP3).0.clone(),
        MailProtocol::Imap => settings_of::<ImapSettings>(settings, CORE_IMAP).0.clone(),
        MailProtocol::Smtp => smtp.shared.clone(),
    };
    Server {
        settings: core,
        protocol,
        dialogue,
        greeting_delay: smtp.greeting_delay,
        starttls: settings_of::<StartTlsSettings>(settings, CORE_STARTTLS).0,
        ssl: settings_of(settings, CORE_SSL),
        auth_http: settings_of(settings, CORE_AUTH_HTTP),
        proxy: settings_of(settings, CORE_PROXY),
        login_delay: settings_of(settings, CORE_LOGIN_DELAY),
        plan,
        span,
    }
}

fn resolve(
    raws: RawSettings,
    outer: Option<&[Resolved]>,
    table: &Table<Mail>,
    cx: &mut Resolve<'_, Mail>,
) -> Result<Vec<Resolved>, ConfError> {
    table.resolve(raws, outer, cx, |at, settings, block| {
        if at == CORE_SERVER {
            let core = settings_of::<ServerSettings>(settings, CORE_SERVER);
            block.upstream.has_resolver = core.resolving.is_said();
            block.server_name = core.name.clone();
        }
    })
}

/// Gathers the server of every listening address.
pub(super) fn listens(
    servers: &[Server],
    process: &mut ConfigBuilder<'_>,
    mistakes: &mut Mistakes,
) -> Listens {
    let ServersByAddress { addresses, servers: groups, .. } =
        ServersByAddress::gather(servers, &[], |_, _| {}, process, mistakes);
    for group in &groups {
        let Some(second) = group.members.get(1) else { continue };
        let message = format!("duplicate \"{}\" address and port pair", group.address);
        let error = ConfError::new(message);
        mistakes.add_later(match servers.get(second.0 as usize) {
            Some(server) => error.at(server.span),
            None => error,
        });
    }
    Listens { addresses, groups }
}

/// Listening addresses, and the server of each.
pub(super) struct Listens {
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) groups: Vec<AddressServers<ServerId>>,
}
