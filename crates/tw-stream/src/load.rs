//! Loading of the `stream` block: from the configuration tree to the plans of servers.
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```

mod blocks;
mod scope;

use std::sync::{Arc, OnceLock};

use tw_conf::{ConfError, Contexts, DirectiveInfo, Node};
use tw_connect::upstream_block::Upstream;
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, ProtocolBlocks, ProtocolParts, Resolve,
    ResolveContext, Table,
};
use tw_core::metrics::Metric;
use tw_core::module::Protocol;
use tw_core::vars::VarTable;
use tw_tls_settings::Ssl;

use self::blocks::{Listens, LoadedStream};
use self::scope::BlockScope;
use crate::block::Block;
use crate::config::{Config, HealthCheckGroup, ServerSettings, StreamConfig};
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

/// `stream` while a configuration is loaded. Its configuration is `None` if there is no such block.
pub struct StreamBlocks {
    table: Arc<Table<Stream>>,
    vars: VarTable<StreamSession>,
    stream: Option<BlockScope>,
    loaded: Option<LoadedStream>,
}

impl StreamBlocks {
    /// `stream` with these modules besides those of its core.
    pub fn new(modules: &'static [Module]) -> Self {
        let table = table(modules);
        let mut vars = VarTable::new(tw_conf::NginxVariables::STREAM);
        for variables in variables::VARIABLES {
            vars.declare(variables);
        }
        for module in table.modules() {
            vars.declare(module.variables());
        }
        Self { table, vars, stream: None, loaded: None }
    }
}

impl ProtocolBlocks for StreamBlocks {
    type Config = Option<Config>;

    const CONTEXTS: Contexts = Stream::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = scope::STRUCTURE;

    fn directives(&self) -> CollectDirectives {
        let table = self.table.clone();
        Box::new(move || table.infos().collect())
    }

    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        self.table.metrics().collect()
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        node.name.is(Stream::NAME).then(|| self.walk_stream(node, loader))
    }

    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        let Some(stream) = self.stream.take() else { return };
        let mut cx = Resolve::new(&mut self.vars, shared, Block::default());
        match blocks::build(stream, &self.table, &mut cx) {
            Ok(loaded) => self.loaded = Some(loaded),
            Err(error) => cx.mistakes.add(error),
        }
        cx.report_hidden_variables();
        let later = cx.mistakes;
        mistakes.follow(later, &self.vars, Self::CONTEXTS);
    }

    fn finish(
        self,
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<LoadedBlocks<Self::Config>> {
        let Some(LoadedStream { servers, upstreams, reach, secures_upstreams, notes }) = self.loaded else {
            return Some(LoadedBlocks { parts: ProtocolParts::default(), assemble: Box::new(|_| None) });
        };
        notes.into_iter().for_each(|note| process.diagnostics.push(note));
        let Listens { addresses, groups } = blocks::listens(&servers, process, mistakes);
        if mistakes.is_empty()
            && let Err(error) = self.vars.check()
        {
            mistakes.add_later(error);
        }
        let slots = self.vars.finish();
        let is_secured = secures_upstreams || groups.iter().any(|group| group.servers.ssl);
        let pools = is_secured
            .then(|| tw_tls_settings::pool_settings(process.main.worker_count()))
            .into_iter()
            .collect();
        let parts =
            ProtocolParts { listens: addresses, reach, pools, is_secured, ..ProtocolParts::default() };
        let assemble = Box::new(move |process| {
            let own = StreamConfig {
                health_checks: HealthCheckGroup::gather(&servers),
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
