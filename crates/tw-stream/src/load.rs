//! Loading of the `stream` block: from the configuration tree to the plans of servers.
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```

mod blocks;

use std::sync::{Arc, OnceLock};

use tw_conf::{Args, ConfError, Contexts, DirectiveInfo, MAIN, Node, STREAM};
use tw_connect::session_blocks::SessionBlocks;
use tw_connect::upstream_block::Upstream;
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, ProtocolBlocks, ProtocolParts,
    ResolveContext, Table, block,
};
use tw_core::metrics::Metric;
use tw_core::module::Protocol;
use tw_tls_settings::Ssl;

use self::blocks::{Listens, LoadedStream};
use crate::config::{Config, ServerSettings, StreamConfig, health_checks};
use crate::listening::Listening;
use crate::protocol::Stream;
use crate::session::StreamSession;
use crate::variables;

/// A module of `stream`.
pub type Module = tw_core::module::Module<Stream>;

/// Core modules of the stream context; they come before THE LIST.
static CORE: [Module; 3] = [
    Module::of::<ServerSettings>("stream_core"),
    Module::of::<Upstream<Stream>>("upstream"),
    Module::of::<Ssl<StreamSession>>("ssl"),
];
const CORE_SERVER: usize = 0;
const CORE_UPSTREAM: usize = 1;
const CORE_SSL: usize = 2;

/// The blocks that give `stream` its structure, as records for documents and checks.
const STRUCTURE: &[DirectiveInfo] = &[
    block("stream", "{ … }", MAIN, Args::NONE).doc("Servers for sessions over TCP and UDP."),
    block("server", "{ … }", STREAM, Args::NONE).doc("A server for sessions."),
    block("upstream", "name { … }", STREAM, Args::exact(1))
        .doc("A group of servers that sessions are passed to."),
];

/// `stream` while a configuration is loaded. Its configuration is `None` if there is no such block.
pub struct StreamBlocks {
    blocks: SessionBlocks<Stream>,
    loaded: Option<LoadedStream>,
}

impl StreamBlocks {
    /// `stream` with these modules besides those of its core.
    pub fn new(modules: &'static [Module]) -> Self {
        let blocks =
            SessionBlocks::new(table(modules), tw_conf::NginxVariables::STREAM, &variables::VARIABLES);
        Self { blocks, loaded: None }
    }
}

impl ProtocolBlocks for StreamBlocks {
    type Config = Option<Config>;

    const CONTEXTS: Contexts = Stream::CONTEXTS;
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
        let Some(LoadedStream { mut servers, upstreams, reach, secures_upstreams, notes }) = self.loaded
        else {
            return Some(LoadedBlocks { parts: ProtocolParts::default(), assemble: Box::new(|_| None) });
        };
        notes.into_iter().for_each(|note| process.diagnostics.push(note));
        servers.iter_mut().for_each(|server| server.plan.await_variables(self.blocks.variables()));
        let Listens { addresses, groups } = blocks::listens(&servers, process, mistakes);
        let slots = self.blocks.finish_variables(mistakes);
        let is_secured = secures_upstreams || groups.iter().any(|group| group.servers.ssl);
        let pools = is_secured
            .then(|| tw_tls_settings::pool_settings(process.main.worker_count()))
            .into_iter()
            .collect();
        let parts =
            ProtocolParts { listens: addresses, reach, pools, is_secured, ..ProtocolParts::default() };
        let assemble = Box::new(move |process| {
            let own = StreamConfig {
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

/// The modules of the stream context, those of the core first.
pub fn modules(modules: &'static [Module]) -> impl Iterator<Item = &'static Module> {
    CORE.iter().chain(modules)
}

/// The directives of these modules and those of the core.
fn table(modules: &'static [Module]) -> Arc<Table<Stream>> {
    static FIRST: OnceLock<Arc<Table<Stream>>> = OnceLock::new();
    Table::kept(&FIRST, self::modules(modules).collect())
}

/// Records of all directives in `stream`, with the module of each.
pub fn all_directives(modules: &'static [Module]) -> Vec<(&'static str, DirectiveInfo)> {
    let of = |module: &'static Module| module.directives().into_iter().map(|(_, info)| (module.name, info));
    self::modules(modules).flat_map(of).collect()
}
