//! Loading of the `mail` block: from the configuration tree to the plans of servers.
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```

mod blocks;

use std::sync::{Arc, OnceLock};

use tw_conf::{Args, ConfError, Contexts, DirectiveInfo, MAIL, MAIN, Node};
use tw_connect::session_blocks::SessionBlocks;
use tw_connect::upstream_block::Upstream;
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, ProtocolBlocks, ProtocolParts,
    ResolveContext, Table, block,
};
use tw_core::metrics::Metric;
use tw_core::module::Protocol;
use tw_tls_settings::Ssl;

use self::blocks::{Listens, LoadedMail};
use crate::auth_http::settings::AuthHttp;
use crate::config::{Config, Listening, MailConfig, health_checks};
use crate::login_delay::LoginDelay;
use crate::protocol::Mail;
use crate::session::MailSession;
use crate::settings::protocols::{ImapSettings, Pop3Settings, SmtpSettings};
use crate::settings::server::ServerSettings;
use crate::settings::starttls::StartTlsSettings;
use crate::upstream::settings::MailProxy;
use crate::variables;

/// A module of `mail`.
pub type Module = tw_core::module::Module<Mail>;

/// Core modules of the mail context; they come before THE LIST.
static CORE: [Module; 10] = [
    Module::of::<ServerSettings>("mail_core"),
    Module::of::<Upstream<Mail>>("upstream"),
    Module::of::<Ssl<MailSession>>("ssl"),
    Module::of::<StartTlsSettings>("mail_ssl"),
    Module::of::<Pop3Settings>("mail_pop3"),
    Module::of::<ImapSettings>("mail_imap"),
    Module::of::<SmtpSettings>("mail_smtp"),
    Module::of::<AuthHttp>("mail_auth_http"),
    Module::of::<MailProxy>("mail_proxy"),
    Module::of::<LoginDelay>("failed_login_delay"),
];
const CORE_SERVER: usize = 0;
const CORE_UPSTREAM: usize = 1;
const CORE_SSL: usize = 2;
const CORE_STARTTLS: usize = 3;
const CORE_POP3: usize = 4;
const CORE_IMAP: usize = 5;
const CORE_SMTP: usize = 6;
const CORE_AUTH_HTTP: usize = 7;
const CORE_PROXY: usize = 8;
const CORE_LOGIN_DELAY: usize = 9;

/// The blocks that give `mail` its structure, as records for documents and checks.
const STRUCTURE: &[DirectiveInfo] = &[
    block("mail", "{ … }", MAIN, Args::NONE).doc("Servers for POP3, IMAP and SMTP."),
    block("server", "{ … }", MAIL, Args::NONE).doc("A server for clients of mail."),
    block("upstream", "name { … }", MAIL, Args::exact(1)).doc("A group of auth servers for auth_http."),
];

/// `mail` while a configuration is loaded. Its configuration is `None` if there is no such block.
pub struct MailBlocks {
    blocks: SessionBlocks<Mail>,
    loaded: Option<LoadedMail>,
}

impl MailBlocks {
    /// `mail` with these modules besides those of its core.
    pub fn new(modules: &'static [Module]) -> Self {
        let blocks = SessionBlocks::new(table(modules), tw_conf::NginxVariables::MAIL, &variables::VARIABLES);
        Self { blocks, loaded: None }
    }
}

impl ProtocolBlocks for MailBlocks {
    type Config = Option<Config>;

    const CONTEXTS: Contexts = Mail::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = STRUCTURE;

    fn directives(&self) -> CollectDirectives {
        self.blocks.directives()
    }

    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        self.blocks.metrics()
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        self.blocks.read(node, loader)
    }

    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        self.loaded = self.blocks.resolve(shared, mistakes, blocks::build);
    }

    fn finish(
        self,
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<LoadedBlocks<Self::Config>> {
        let Some(LoadedMail { servers, upstreams, reach, secures_upstreams, notes }) = self.loaded else {
            return Some(LoadedBlocks { parts: ProtocolParts::default(), assemble: Box::new(|_| None) });
        };
        notes.into_iter().for_each(|note| process.diagnostics.push(note));
        let Listens { addresses, groups } = blocks::listens(&servers, process, mistakes);
        let slots = self.blocks.finish_variables(mistakes);
        let has_tls = |server: &crate::config::Server| server.ssl.tls.is_some();
        let is_secured = secures_upstreams || servers.iter().any(has_tls);
        let pools = is_secured
            .then(|| tw_tls_settings::pool_settings(process.main.worker_count()))
            .into_iter()
            .collect();
        let parts =
            ProtocolParts { listens: addresses, reach, pools, is_secured, ..ProtocolParts::default() };
        let assemble = Box::new(move |process| {
            let own = MailConfig {
                health_checks: health_checks(&servers),
                servers: servers.into(),
                upstreams: upstreams.into(),
                listening: Listening::new(groups),
                slots,
            };
            Some(Config { process, own })
        });
        Some(LoadedBlocks { parts, assemble })
    }
}

/// The modules of the mail context, those of the core first.
pub fn modules(modules: &'static [Module]) -> impl Iterator<Item = &'static Module> {
    CORE.iter().chain(modules)
}

/// The directives of these modules and those of the core.
fn table(modules: &'static [Module]) -> Arc<Table<Mail>> {
    static FIRST: OnceLock<Arc<Table<Mail>>> = OnceLock::new();
    Table::kept(&FIRST, self::modules(modules).collect())
}

/// Records of all directives in `mail`, with the module of each.
pub fn all_directives(modules: &'static [Module]) -> Vec<(&'static str, DirectiveInfo)> {
    let of = |module: &'static Module| module.directives().into_iter().map(|(_, info)| (module.name, info));
    self::modules(modules).flat_map(of).collect()
}
