//! Loading of the `http` block: from the configuration tree to the settings and plans of requests. Loading that is
//! independent of HTTP is in [`tw_core::load`].
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```

mod blocks;
#[cfg(test)]
mod file_settings_tests;
mod scope;

use std::sync::{Arc, OnceLock};

use tw_conf::{ConfError, ConfFiles, Contexts, Diagnostics, DirectiveInfo, MAIN, Node, Tree};
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, Prefixes, ProtocolBlocks,
    ProtocolParts, ResolveContext, Table,
};
use tw_core::metrics::Metric;
use tw_core::module::Protocol;
use tw_core::pools::UringUse;
use tw_core::process::{LoopGuard, Sandbox};
use tw_core::shared_objects::SharedObjects;
use tw_disk::Locks;
use tw_tls_settings::Ssl;

use self::blocks::LoadedHttp;
use self::scope::BlockScope;
use crate::http::acme::{self, Acme, CollectedCertificates, NOT_IN_SANDBOX};
use crate::metrics;
use tw_http_cache as cache;
use tw_http_versions::h2::directives::Http2;
use tw_http_versions::h3::directives::Http3;
use tw_proxy::health::HealthCheckGroup;
use tw_request::config::block::Block;
use tw_request::config::directories::Directory;
use tw_request::config::location::{Location, TempPath};
use tw_request::config::memory::{self, Memory};
use tw_request::config::server::ServerSettings;
use tw_request::config::upstream::Upstream;
use tw_request::generation::{Config, HttpConfig};
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Parts, Request};
use tw_request::vars::VarTable;

pub use self::scope::directives;

/// A module of HTTP.
pub type Module = tw_core::module::Module<Http>;

/// Core modules of the http context; they come before THE LIST.
static CORE: [Module; 7] = [
    Module::of::<ServerSettings>("core_server"),
    Module::of::<Location>("core"),
    Module::of::<Upstream>("upstream"),
    Module::of::<Acme>("acme"),
    // After the modules that its certificates may come from.
    Module::of::<Ssl<Request>>("ssl"),
    Module::of::<Http2>("http2"),
    Module::of::<Http3>("http3"),
];
pub(crate) const CORE_SERVER: usize = 0;
pub(crate) const CORE_LOCATION: usize = 1;
pub(crate) const CORE_UPSTREAM: usize = 2;
pub(crate) const CORE_ACME: usize = 3;
pub(crate) const CORE_SSL: usize = 4;
pub(crate) const CORE_HTTP2: usize = 5;
pub(crate) const CORE_HTTP3: usize = 6;

/// Loads a parsed configuration, and those of `files` that it names. What modules keep for the process is taken over from `previous`, the configuration before.
/// Of the tree only the directives of the main context remain.
///
/// # Errors
/// The first mistake. The others go to `diagnostics` as the warnings do.
pub fn load(
    tree: &mut Tree,
    files: &dyn ConfFiles,
    prefixes: &Prefixes,
    modules: &'static [Module],
    previous: &SharedObjects,
    diagnostics: &mut Diagnostics,
) -> Result<Config, ConfError> {
    let loaded = tw_core::load::load(tree, files, prefixes, HttpBlocks::new(modules), previous, diagnostics);
    loaded.map_err(|rejected| rejected.mistake)
}

/// HTTP while a configuration is loaded.
pub struct HttpBlocks {
    table: Arc<Table<Http>>,
    vars: VarTable,
    memory: memory::Raw,
    locks: Arc<Locks>,
    http: Option<BlockScope>,
    built: LoadedHttp,
    temp_paths: Vec<Arc<TempPath>>,
    directories: Vec<Directory>,
    secures_upstreams: bool,
    acme: tw_acme::AcmeConfig,
}

impl HttpBlocks {
    /// HTTP with these modules besides those of its core.
    pub fn new(modules: &'static [Module]) -> Self {
        let table = table(modules);
        let mut vars = VarTable::new(tw_conf::NginxVariables::HTTP);
        for variables in crate::http::variables::VARIABLES {
            vars.declare(variables);
        }
        for module in table.modules() {
            vars.declare(module.variables());
        }
        Self {
            table,
            vars,
            memory: memory::Raw::default(),
            locks: Arc::default(),
            http: None,
            built: LoadedHttp::default(),
            temp_paths: Vec::new(),
            directories: Vec::new(),
            secures_upstreams: false,
            acme: tw_acme::AcmeConfig::default(),
        }
    }
}

impl ProtocolBlocks for HttpBlocks {
    type Config = Config;

    const CONTEXTS: Contexts = Http::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = scope::STRUCTURE;

    fn directives(&self) -> CollectDirectives {
        let table = self.table.clone();
        Box::new(move || {
            memory::DIRECTIVES.iter().map(|directive| directive.info()).chain(table.infos()).collect()
        })
    }

    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        let own =
            [("requests", metrics::METRICS), ("fleet", cache::FLEET_METRICS), ("cache", cache::METRICS)];
        own.into_iter().chain(self.table.metrics()).collect()
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        if node.name.is(Http::NAME) {
            Some(self.walk_http(node, loader))
        } else {
            memory::set(&mut self.memory, node, &mut loader.cx(MAIN))
        }
    }

    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        // Locked files stay locked across a reload, whatever files the next configuration serves.
        self.locks = shared.shared_objects.keep(shared.previous, b"files", |_| true, Locks::default);
        let mut later = Mistakes::default();
        if let Some(http) = self.http.take() {
            let mut cx = Resolve::new(&mut self.vars, shared, Block::default());
            match blocks::build(http, &self.table, &mut cx) {
                Ok(built) => self.built = built,
                Err(error) => cx.mistakes.add(error),
            }
            cx.report_hidden_variables();
            later = cx.mistakes;
            self.secures_upstreams = cx.block.upstream.uses_tls;
            self.acme = std::mem::take(cx.block.notes.of::<CollectedCertificates>())
                .job(cx.block.upstream.resolving.as_ref());
            self.temp_paths = cx.block.temp_paths;
            self.directories = cx.block.directories;
        }
        mistakes.follow(later, &self.vars, Self::CONTEXTS);
    }

    fn finish(
        self,
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<LoadedBlocks<Config>> {
        let LoadedHttp { mut plans, servers, upstreams, reach, warnings } = self.built;
        await_variables(&mut plans, &self.vars, &self.table);
        warnings.into_iter().for_each(|warning| process.diagnostics.push(warning));
        let listens = blocks::listens(&servers, process, mistakes);
        let waits = plans.iter().any(|plan| plan.core.files.aio.waits_inline());
        if waits && process.main.loop_guard == LoopGuard::Enforce {
            mistakes.add_later(
                ConfError::new("\"aio off\" cannot be used with \"loop_guard enforce\"")
                    .hint("without threads, event loops wait for the disk, which the guard forbids"),
            );
        }
        let is_program =
            |work: &tw_acme::IssuerConfig| matches!(work.issuer.challenge, tw_acme::Challenge::Dns01(_));
        if self.acme.works.iter().any(is_program) && process.main.sandbox != Sandbox::Off {
            mistakes.add_later(
                ConfError::new(NOT_IN_SANDBOX).hint("\"sandbox off;\" in the main context lets it"),
            );
        }
        let uses_ring = plans.iter().any(|plan| plan.core.files.aio.uses_ring());
        let ring = if uses_ring { UringUse::Used } else { UringUse::Unused };
        let memory = Memory::resolve(self.memory);
        let sends = plans.iter().any(|plan| plan.core.files.sendfile);
        let lock_max = if sends { memory.hot_lock_size } else { 0 };
        let is_secured =
            self.secures_upstreams || listens.groups.iter().any(|group| group.ssl || group.is_quic());
        let pools = is_secured
            .then(|| tw_tls_settings::pool_settings(process.main.worker_count()))
            .into_iter()
            .collect();
        let mut modules = Parts::default();
        modules.put(Arc::new(HealthCheckGroup::gather(&plans, &servers)));
        let parts = ProtocolParts {
            listens: listens.addresses,
            reach,
            ring,
            pools,
            is_secured,
            locks: self.locks,
            lock_max,
            hot_files_size: memory.hot_files_size,
        };
        if mistakes.is_empty()
            && let Err(error) = self.vars.check()
        {
            mistakes.add_later(error);
        }
        let has_request_timeouts = plans.iter().any(|plan| plan.core.request_timeout.is_some());
        let own = HttpConfig {
            parts: modules,
            memory,
            plans: plans.into(),
            servers: servers.into(),
            upstreams: upstreams.into(),
            groups: listens.groups,
            slots: self.vars.finish(),
            temp_paths: self.temp_paths,
            directories: self.directories,
            has_request_timeouts,
            acme: Arc::new(self.acme),
        };
        let assemble = Box::new(move |process| Config { process, own });
        Some(LoadedBlocks { parts, assemble })
    }
}

/// Has plans compute awaited variables before they are read. The whole configuration has to be read: what is read may be defined further
/// down.
fn await_variables(plans: &mut [Plan], vars: &VarTable, table: &Table<Http>) {
    for plan in plans {
        let uses = std::mem::take(&mut plan.variable_uses);
        if vars.has_awaited() {
            for (module, awaited) in vars.awaited_by(&uses) {
                let has_variables =
                    table.modules().iter().any(|other| other.name == module && !other.variables().is_empty());
                plan.await_variables(module, awaited, has_variables);
            }
        }
    }
}

/// The directives of these modules and those of the core.
fn table(modules: &'static [Module]) -> Arc<Table<Http>> {
    static FIRST: OnceLock<Arc<Table<Http>>> = OnceLock::new();
    Table::kept(&FIRST, self::modules(modules).collect())
}

/// The modules of the http context, those of the core first.
pub fn modules(modules: &'static [Module]) -> impl Iterator<Item = &'static Module> {
    CORE.iter().chain(modules)
}

/// Records of all directives this program knows, with the module of each. Those of `main` and `events` come first.
pub fn all_directives(modules: &'static [Module]) -> Vec<(&'static str, DirectiveInfo)> {
    let main = tw_core::process::DIRECTIVES.iter().map(|directive| ("main", directive.info()));
    let memory = memory::DIRECTIVES.iter().map(|directive| ("main", directive.info()));
    let of = |module: &'static Module| module.directives().into_iter().map(|(_, info)| (module.name, info));
    let issuer = acme::issuer_directives().map(|info| ("acme", info));
    main.chain(memory).chain(self::modules(modules).flat_map(of)).chain(issuer).collect()
}
