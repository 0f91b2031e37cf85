//! From the tree of a configuration to what requests use.
//!
//! ```text
//! tree ─ walk ─→ scopes (settings as written, per block) ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```
//! Nothing is opened, created or started here: `-t` runs exactly this.

mod blocks;
pub(crate) mod mistakes;
mod scope;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use tw_conf::{ConfError, Cx, Diagnostics, DirectiveInfo, Sources, Span, Tree, Word};
use tw_log::{Batch, Target};

use crate::core::location::{Location, TempPath};
use crate::core::server::ServerSettings;
use crate::http::generation::{Config, Server};
use crate::http::plan::Plan;
use crate::http::route::{Pattern, ServerName};
use crate::module::Module;
use crate::vars::{SlotKind, Template, VarTable};
use tw_core::config_thread::step_back;
use tw_core::generation::DebugLines;
use tw_core::kept::Kept;
use tw_core::log::{LogTarget, Logs, OtherBatch, SharedErrorLog, SinkRef};
use tw_core::pools::PoolSettings;
use tw_core::pools::Ring;
use tw_core::process::{LoopGuard, MainSettings};
use tw_core::reach::Reach;
use tw_core::regex::{Caseless, Regex, Regexes};

use mistakes::Mistakes;

pub use scope::directives;

/// Core modules of the http context; they come before THE LIST.
static CORE: [Module; 2] = [Module::http::<ServerSettings>("core_server"), Module::http::<Location>("core")];
pub(crate) const CORE_SERVER: usize = 0;
pub(crate) const CORE_LOCATION: usize = 1;

/// Where relative names of a configuration begin.
#[derive(Debug, Clone)]
pub struct Prefixes {
    /// `-p`: logs, roots, temporary files.
    pub prefix: Vec<u8>,
    /// Directory of the main configuration file.
    pub conf: Vec<u8>,
    /// Where errors go if the configuration does not say: a file, or `stderr`.
    pub error_log: Vec<u8>,
    /// Name of this host, for `$hostname`.
    pub hostname: Vec<u8>,
}

/// What modules may use while their settings are resolved.
pub struct Resolve<'a> {
    /// All variables.
    pub vars: &'a mut VarTable,
    /// Name of this host.
    pub hostname: &'a [u8],
    logs: &'a mut Logs,
    diagnostics: &'a mut Diagnostics,
    mistakes: &'a mut Mistakes,
    prefix: &'a [u8],
    main_error_log: SharedErrorLog,
    pools: &'a [PoolSettings],
    temp_paths: &'a mut Vec<Arc<TempPath>>,
    location: Option<Pattern>,
    nameless: bool,
    server: Option<Arc<ServerSettings>>,
    regexes: &'a mut Regexes,
    kept: Kept,
    previous: &'a Kept,
}

impl Resolve<'_> {
    /// Compiles a word with variables.
    pub fn template(&mut self, word: &Word) -> Result<Template, ConfError> {
        self.template_text(&word.bytes, Some(word.span))
    }

    /// Compiles text with variables.
    pub fn template_text(&mut self, text: &[u8], at: Option<Span>) -> Result<Template, ConfError> {
        Template::compile(text, at, self.vars)
    }

    /// Compiles a regular expression, or finds it if it was compiled before. The error is the compiler's text.
    pub fn regex(&mut self, pattern: &[u8], caseless: Caseless) -> Result<Arc<Regex>, String> {
        self.regexes.compile(pattern, caseless)
    }

    /// The names of the server that is being resolved, or whose block is.
    pub fn server_names(&self) -> &[ServerName] {
        self.server.as_ref().map(|server| &*server.names).unwrap_or_default()
    }

    /// The location that is being resolved; `None` at `http` and `server`.
    pub fn location(&self) -> Option<&Pattern> {
        self.location.as_ref()
    }

    /// Whether the block is an `if` or a `limit_except`, which is a part of its location.
    pub fn is_nameless(&self) -> bool {
        self.nameless
    }

    /// What a module keeps under `name` for the whole process: it outlives the configuration, and the next one gets the
    /// same object if it `fits` (same size, same key). One type has its own names.
    pub fn keep<T: Send + Sync + 'static>(
        &mut self,
        name: &[u8],
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        self.kept.keep(self.previous, name, fits, make)
    }

    /// The slot of a variable that a module declares with [`VarDef::stored`](crate::vars::VarDef::stored).
    pub fn slot(&mut self, name: &str) -> u16 {
        self.vars.define(name, SlotKind::Stored)
    }

    /// Keeps a warning.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.diagnostics.warn(span, message);
    }

    /// A name relative to the prefix.
    pub fn full_path(&self, name: &[u8]) -> Vec<u8> {
        tw_conf::full_name(self.prefix, name)
    }

    /// A name relative to the prefix, for system calls.
    pub fn full_path_c(&self, name: &[u8]) -> CString {
        CString::new(self.full_path(name)).unwrap_or_default()
    }

    /// An error log with these targets.
    pub fn error_log(&mut self, targets: Vec<LogTarget>) -> Result<SharedErrorLog, ConfError> {
        Ok(self.logs.error_log(&targets))
    }

    /// The error log of `main`.
    pub fn main_error_log(&self) -> SharedErrorLog {
        self.main_error_log.clone()
    }

    /// The sink of a log file, opened when the configuration goes live.
    pub fn sink(&mut self, path: &Path) -> SinkRef {
        self.sink_of(&Target::File(path.to_owned()))
    }

    /// The same for what is not one file.
    pub fn sink_of(&mut self, target: &Target) -> SinkRef {
        self.logs.sink(target)
    }

    /// The same, written in batches. The error: the file was named before with another buffer.
    pub fn batched_sink(&mut self, path: &Path, batch: Batch) -> Result<SinkRef, OtherBatch> {
        self.logs.batched(path, batch)
    }

    /// The index of a thread pool.
    pub fn pool(&self, name: &[u8], at: Span) -> Result<usize, ConfError> {
        self.pools.iter().position(|pool| pool.name.as_bytes() == name).ok_or_else(|| {
            ConfError::new(format!("unknown thread pool \"{}\"", String::from_utf8_lossy(name))).at(at)
        })
    }

    /// Remembers a directory for temporary files, to be made when the configuration goes live.
    pub fn temp_path(&mut self, path: TempPath) -> Arc<TempPath> {
        if let Some(known) = self.temp_paths.iter().find(|known| ***known == path) {
            return known.clone();
        }
        let path = Arc::new(path);
        self.temp_paths.push(path.clone());
        path
    }
}

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
        for module in table.modules() {
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
            let mut cx = Resolve {
                vars: &mut self.vars,
                hostname: &self.prefixes.hostname,
                logs: &mut logs,
                diagnostics: self.diagnostics,
                mistakes: &mut later,
                prefix: &self.prefixes.prefix,
                main_error_log: main_error_log.clone(),
                pools: &main.pools,
                temp_paths: &mut temp_paths,
                location: None,
                nameless: false,
                server: None,
                regexes: &mut self.regexes,
                kept: Kept::default(),
                previous,
            };
            let result = blocks::build(http, &self.table, &mut cx);
            kept = cx.kept;
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
