//! From the tree of a configuration to what requests use.
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```
//! Nothing is opened, created or started here: `-t` runs exactly this.

mod block;
mod blocks;
mod scope;

use tw_conf::{ConfError, Cx, Diagnostics, DirectiveInfo, Sources, Tree};

use crate::core::location::Location;
use crate::core::server::ServerSettings;
use crate::http::Http;
use crate::http::generation::{Config, Server};
use crate::http::plan::Plan;
use crate::vars::VarTable;
use tw_core::config_thread::step_back;
use tw_core::generation::DebugLines;
use tw_core::kept::Kept;
use tw_core::load::{Mistakes, Shared};
use tw_core::log::Logs;
use tw_core::pools::Ring;
use tw_core::process::{LoopGuard, MainSettings};
use tw_core::reach::Reach;
use tw_core::regex::Regexes;

pub use block::Block;
pub use scope::directives;
pub use tw_core::load::Prefixes;

/// What modules of HTTP may use while their settings are resolved.
pub type Resolve<'a> = tw_core::load::Resolve<'a, Http>;
/// A module of HTTP.
pub type Module = tw_core::module::Module<Http>;

/// Core modules of the http context; they come before THE LIST.
static CORE: [Module; 2] = [Module::of::<ServerSettings>("core_server"), Module::of::<Location>("core")];
pub(crate) const CORE_SERVER: usize = 0;
pub(crate) const CORE_LOCATION: usize = 1;

/// Loads a parsed configuration. What modules keep for the process is taken over from `previous`, the configuration before.
/// Of the tree only the directives of the main context remain.
///
/// # Errors
/// The first mistake. The others of the same step (reading directives, making settings of them) go to `diagnostics` as the
/// warnings do.
pub fn load(
    tree: &mut Tree,
    prefixes: &Prefixes,
    modules: &'static [Module],
    previous: &Kept,
    diagnostics: &mut Diagnostics,
) -> Result<Config, ConfError> {
    let Tree { nodes, sources } = tree;
    let mut loader = Loader::new(sources, prefixes, modules, diagnostics);
    loader.walk_main(nodes);
    // A million lines take more room as a tree than as settings, and both need not be there at once.
    for block in nodes.iter_mut().filter_map(|node| node.block.as_mut()) {
        for node in std::mem::take(block) {
            drop(node);
            step_back();
        }
    }
    let mut mistakes = std::mem::take(&mut loader.mistakes);
    let loaded = loader.finish(previous, &mut mistakes);
    match (mistakes.into_first(diagnostics), loaded) {
        (Some(first), _) => Err(first),
        (None, loaded) => loaded,
    }
}

/// State while a configuration is loaded.
struct Loader<'a> {
    sources: &'a Sources,
    prefixes: &'a Prefixes,
    diagnostics: &'a mut Diagnostics,
    table: scope::Table,
    vars: VarTable,
    regexes: Regexes,
    main: tw_core::process::Raw,
    http: Option<scope::Scope>,
    events: Seen,
    mistakes: Mistakes,
}

/// Whether a block that may stand once has been seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    No,
    Yes,
}

impl<'a> Loader<'a> {
    fn new(
        sources: &'a Sources,
        prefixes: &'a Prefixes,
        modules: &'static [Module],
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        let table = scope::Table::new(CORE.iter().chain(modules).collect());
        let mut vars = VarTable::default();
        for variables in crate::http::variables::VARIABLES {
            vars.declare(variables);
        }
        for module in table.http.modules() {
            vars.declare(module.variables());
        }
        Self {
            sources,
            prefixes,
            diagnostics,
            table,
            vars,
            regexes: Regexes::default(),
            main: tw_core::process::Raw::default(),
            http: None,
            events: Seen::No,
            mistakes: Mistakes::default(),
        }
    }

    fn cx(&mut self, context: u32) -> Cx<'_> {
        Cx {
            sources: self.sources,
            diagnostics: self.diagnostics,
            prefix: &self.prefixes.prefix,
            conf_prefix: &self.prefixes.conf,
            context,
        }
    }

    /// From settings as written to what is used. Looks for variables that are missing even if there are mistakes already,
    /// but not for other mistakes, which may come of these.
    fn finish(mut self, previous: &Kept, mistakes: &mut Mistakes) -> Result<Config, ConfError> {
        if self.events == Seen::No && mistakes.is_empty() {
            return Err(ConfError::new("no \"events\" section in configuration"));
        }
        let raw = std::mem::take(&mut self.main);
        let prefixes = self.prefixes;
        let main = MainSettings::resolve(raw, &prefixes.error_log, &self.cx(tw_conf::MAIN))?;
        let mut logs = Logs::default();
        let main_error_log = logs.error_log(&main.error_log);
        let mut temp_paths = Vec::new();
        let mut built = Built::default();
        let mut kept = Kept::default();
        let mut later = Mistakes::default();
        if let Some(http) = self.http.take() {
            let shared = Shared {
                hostname: &self.prefixes.hostname,
                prefix: &self.prefixes.prefix,
                pools: &main.pools,
                main_error_log: main_error_log.clone(),
                logs: &mut logs,
                diagnostics: self.diagnostics,
                mistakes: &mut later,
                regexes: &mut self.regexes,
                previous,
            };
            let mut cx = Resolve::new(&mut self.vars, shared, Block::default());
            let result = blocks::build(http, &self.table, &mut cx);
            kept = cx.kept;
            temp_paths = cx.block.temp_paths;
            match result {
                Ok(result) => built = result,
                Err(error) => later.add(error),
            }
        }
        mistakes.follow(later, &self.vars);
        if !mistakes.is_empty() {
            return Err(ConfError::new("the configuration cannot be used"));
        }
        let listens = blocks::listens(&built.servers, self.diagnostics)?;
        let waits = built.plans.iter().any(|plan| plan.core.files.aio.waits_inline());
        if waits && main.loop_guard == LoopGuard::Enforce {
            return Err(ConfError::new("\"aio off\" cannot be used with \"loop_guard enforce\"")
                .hint("without threads, event loops wait for the disk, which the guard forbids"));
        }
        built.reach.check(main.sandbox, self.diagnostics)?;
        let slots = self.vars.finish()?;
        let debug_lines = match logs.has_debug() || !main.debug_connections.is_empty() {
            true => DebugLines::Perhaps,
            false => DebugLines::Never,
        };
        let ring = built.plans.iter().any(|plan| plan.core.files.aio.uses_ring());
        let process = tw_core::generation::Config {
            main,
            listens: listens.addresses,
            logs,
            error_log: main_error_log,
            debug_lines,
            ring: if ring { Ring::Used } else { Ring::Unused },
            reach: built.reach,
            hostname: self.prefixes.hostname.as_slice().into(),
            kept,
        };
        Ok(Config {
            process,
            plans: built.plans.into(),
            servers: built.servers.into(),
            groups: listens.groups,
            slots,
            temp_paths,
        })
    }
}

/// Plans and servers as they are built.
#[derive(Default)]
struct Built {
    plans: Vec<Plan>,
    servers: Vec<Server>,
    reach: Reach,
}

/// The modules of the http context, those of the core first.
pub fn modules(modules: &'static [Module]) -> impl Iterator<Item = &'static Module> {
    CORE.iter().chain(modules)
}

/// Records of all directives this program knows, with the context words of `main` and `events` first.
pub fn all_directives(modules: &'static [Module]) -> Vec<(&'static str, DirectiveInfo)> {
    let main = tw_core::process::DIRECTIVES.iter().map(|d| ("main", d.info()));
    let http = self::modules(modules).flat_map(|m| m.directives().into_iter().map(|d| (m.name, d)));
    main.chain(http).collect()
}
