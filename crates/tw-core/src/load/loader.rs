//! The walk through a configuration: `main` and `events`, and what holds for blocks of every protocol. It goes on after
//! mistakes, so that all of them are found at once.

use std::sync::Arc;

use tw_conf::{
    Args, ConfError, ConfFiles, Contexts, Cx, Diagnostics, DirectiveInfo, EVENTS, Level, MAIN, Node, Sources,
    Tree,
};

use super::known_directives::{CollectDirectives, KnownDirectives, block};
use super::{ConfigBuilder, Mistakes, Prefixes, ProtocolParts, RawSettings, Record, ResolveContext, Table};
use crate::config_thread::yield_if_due;
use crate::generation::ProcessConfig;
use crate::log::Logs;
use crate::metrics::{Metric, MetricsTable};
use crate::module::Protocol;
use crate::process::{self, MainSettings};
use crate::regex::Regexes;
use crate::shared_objects::SharedObjects;

/// The blocks of protocols, while a configuration is loaded.
pub trait ProtocolBlocks: Sized {
    /// A configuration with what the protocols make of it.
    type Config;
    /// The kinds of block in which their variables can be used.
    const CONTEXTS: Contexts;
    /// Records of the blocks that give the configuration its structure.
    const STRUCTURE: &'static [DirectiveInfo];

    /// Collects the records of every directive of theirs besides.
    fn directives(&self) -> CollectDirectives;

    /// Metrics of every set of theirs, with its title.
    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])>;

    /// Reads a directive of `main`; `None` if it is not theirs. An error means that nothing of it was taken in.
    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>>;

    /// From settings as written to what is used. Looks for variables that are missing even if there are `mistakes` already,
    /// but not for other mistakes, which may come of these ([`Mistakes::follow`]).
    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes);

    /// Ends loading. Adds the mistakes that only show when the whole configuration is known. After mistakes, the result is as far as
    /// it could be made and serves nobody; `None` if nothing could.
    fn finish(
        self,
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<LoadedBlocks<Self::Config>>;
}

/// A configuration with mistakes.
#[derive(Debug)]
pub struct Rejected<C> {
    /// The first mistake.
    pub mistake: ConfError,
    /// The configuration as far as it could be made, for further checks; it serves nobody.
    pub partial: Option<C>,
}

/// Blocks of protocols, without mistakes unless they are part of a rejected configuration.
pub struct LoadedBlocks<C> {
    /// Their part of the configuration that every protocol shares.
    pub parts: ProtocolParts,
    /// Makes their configuration with the shared part, which is assembled of the parts of all protocols.
    pub assemble: Box<dyn FnOnce(ProcessConfig) -> C>,
}

/// Loads a parsed configuration, and those of `files` that it names. What modules keep for the process is taken over from `previous`, the configuration before.
/// Of the tree only the directives of the main context remain.
///
/// # Errors
/// The first mistake. The others go to `diagnostics` as the warnings do.
pub fn load<B: ProtocolBlocks>(
    tree: &mut Tree,
    files: &dyn ConfFiles,
    prefixes: &Prefixes,
    mut blocks: B,
    previous: &SharedObjects,
    diagnostics: &mut Diagnostics,
) -> Result<B::Config, Box<Rejected<B::Config>>> {
    let Tree { nodes, sources, failures, unbalanced, .. } = tree;
    let mut loader = Loader::new(sources, prefixes, &blocks, diagnostics);
    loader.failures = std::mem::take(failures);
    loader.walk_main(nodes, &mut blocks);
    loader.take_failures(unbalanced);
    // A million lines take more room as a tree than as settings, and both need not be there at once.
    for block in nodes.iter_mut().filter_map(|node| node.block.as_mut()) {
        for node in std::mem::take(block) {
            drop(node);
            yield_if_due();
        }
    }
    let mut mistakes = std::mem::take(&mut loader.mistakes);
    let loaded = loader.finish(blocks, files, previous, &mut mistakes);
    match (mistakes.into_first(diagnostics), loaded) {
        (None, Some(config)) => Ok(config),
        (Some(mistake), partial) => Err(Box::new(Rejected { mistake, partial })),
        (None, None) => {
            let mistake = ConfError::new("the configuration cannot be used");
            Err(Box::new(Rejected { mistake, partial: None }))
        }
    }
}

/// Records of the structural blocks that belong to no protocol.
static STRUCTURE: [DirectiveInfo; 1] =
    [block("events", "{ … }", MAIN, Args::NONE)
        .doc("Settings of how connections are accepted and processed.")];

/// Records of the structural blocks: those of no protocol, and `more`.
pub fn structure_directives(more: &'static [DirectiveInfo]) -> impl Iterator<Item = DirectiveInfo> {
    STRUCTURE.iter().chain(more).copied()
}

/// State while a configuration is loaded.
pub struct Loader<'a> {
    /// All regular expressions.
    pub regexes: Regexes,
    sources: &'a Sources,
    prefixes: &'a Prefixes,
    diagnostics: &'a mut Diagnostics,
    known_directives: KnownDirectives,
    structure: &'static [DirectiveInfo],
    /// Contexts in which the variables of the protocols can be used.
    contexts: Contexts,
    main: process::RawMainSettings,
    events: Occurrence,
    mistakes: Mistakes,
    /// Failures of reading.
    failures: Vec<ConfError>,
}

/// Occurrence of a block that may stand once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occurrence {
    No,
    Yes,
}

impl<'a> Loader<'a> {
    fn new<B: ProtocolBlocks>(
        sources: &'a Sources,
        prefixes: &'a Prefixes,
        blocks: &B,
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        let blocks = blocks.directives();
        let known_names = move || {
            let main = process::DIRECTIVES.iter().map(|directive| directive.info());
            main.chain(blocks()).chain(structure_directives(B::STRUCTURE)).collect()
        };
        Self {
            regexes: Regexes::default(),
            sources,
            prefixes,
            diagnostics,
            known_directives: KnownDirectives::new(Box::new(known_names)),
            structure: B::STRUCTURE,
            contexts: B::CONTEXTS,
            main: process::RawMainSettings::default(),
            events: Occurrence::No,
            mistakes: Mistakes::default(),
            failures: Vec::new(),
        }
    }

    /// For reading a directive in a block of this kind.
    pub fn cx(&mut self, context: Contexts) -> Cx<'_> {
        Cx {
            sources: self.sources,
            diagnostics: self.diagnostics,
            prefix: &self.prefixes.prefix,
            conf_prefix: &self.prefixes.conf,
            context,
        }
    }

    /// Reads directives that stand in `context` one by one, and goes on after mistakes.
    pub fn walk(
        &mut self,
        nodes: &[Node],
        context: Contexts,
        mut read: impl FnMut(&mut Self, &Node) -> Result<(), ConfError>,
    ) {
        for node in nodes {
            yield_if_due();
            if self.mistakes.is_full() {
                break;
            }
            if self.is_failure(node) {
                continue;
            }
            if let Err(error) = read(self, node) {
                self.go_on_after(node, context, error);
            }
        }
    }

    /// Keeps the failure in whose place a node stands. Returns `false` for directives.
    fn is_failure(&mut self, node: &Node) -> bool {
        let failure = node.failure().and_then(|at| self.failures.get(at));
        match failure.cloned() {
            Some(failure) => self.mistakes.add(failure),
            None => return false,
        }
        true
    }

    /// Makes sure that a configuration with a failure is not used, and leaves out what most likely follows from it.
    fn take_failures(&mut self, unbalanced: &[u32]) {
        if self.mistakes.is_empty()
            && let Some(first) = self.failures.first()
        {
            self.mistakes.add(first.clone());
        }
        if !self.failures.is_empty() {
            self.mistakes.expect_more_definitions();
        }
        self.mistakes.leave_out_misplaced(unbalanced);
    }

    /// The first failure in a block of this module's own, which is not taken in then.
    fn failure_in(&self, node: &Node) -> Option<ConfError> {
        if self.failures.is_empty() {
            return None;
        }
        let inside = |node: &Node| match node.failure() {
            Some(at) => self.failures.get(at).cloned(),
            None => self.failure_in(node),
        };
        node.block.iter().flatten().find_map(inside)
    }

    /// Checks how a block is written that gives the configuration its structure.
    pub fn check_block(&self, node: &Node, context: Contexts) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let named = || structure_directives(self.structure).filter(|info| info.name == name);
        // Protocols have blocks of the same name. One that stands nowhere here is refused by any of their records.
        match named().find(|info| info.contexts & context != 0).or_else(|| named().next()) {
            Some(info) => tw_conf::check(node, &info, context),
            None => Ok(()),
        }
    }

    /// Reads a directive of a module, in a block of which `raws` is written.
    pub fn set<P: Protocol>(
        &mut self,
        table: &Table<P>,
        raws: &mut RawSettings,
        node: &Node,
        context: Contexts,
    ) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let Some(Record { module, index, info }) = table.find(name, context) else {
            return Err(self.known_directives.unknown(node, context, self.mistakes.guess()));
        };
        tw_conf::check(node, &info, context)?;
        if let Some(failure) = self.failure_in(node) {
            return Err(failure);
        }
        table.modules()[module].set(index, raws.of(module), node, &mut self.cx(context))
    }

    /// Lets the modules take in an `if` block, of which `inner` is written, into the one around it. Whether they could; a
    /// mistake is kept.
    pub fn take_if<P: Protocol>(
        &mut self,
        table: &Table<P>,
        outer: &mut RawSettings,
        inner: &mut RawSettings,
        node: &Node,
        context: Contexts,
    ) -> IfBlock {
        for (at, module) in table.modules().iter().enumerate() {
            if module.takes_ifs()
                && let Err(error) = module.take_if(outer.of(at), inner.of(at), node, &mut self.cx(context))
            {
                // The directives in the block were checked before; the variables that it defines must not be reported
                // as unknown.
                self.mistakes.expect_definitions(node);
                self.mistakes.add(self.advised(error, node));
                return IfBlock::Rejected;
            }
        }
        IfBlock::Accepted
    }

    fn walk_main(&mut self, nodes: &[Node], blocks: &mut impl ProtocolBlocks) {
        self.walk(nodes, MAIN, |loader, node| match node.name.as_str() {
            Some("events") => loader.walk_events(node),
            Some("load_module") => loader.load_module(node),
            _ => blocks.read(node, loader).unwrap_or_else(|| loader.set_main(node, MAIN)),
        });
    }

    fn walk_events(&mut self, node: &Node) -> Result<(), ConfError> {
        self.check_block(node, MAIN)?;
        if std::mem::replace(&mut self.events, Occurrence::Yes) == Occurrence::Yes {
            return Err(node.error("is duplicate"));
        }
        self.walk(node.children()?, EVENTS, |loader, inner| loader.set_main(inner, EVENTS));
        Ok(())
    }

    fn set_main(&mut self, node: &Node, context: Contexts) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let Some(directive) = process::DIRECTIVES.iter().find(|directive| directive.name == name) else {
            return Err(self.known_directives.unknown(node, context, self.mistakes.guess()));
        };
        tw_conf::check(node, &directive.info(), context)?;
        let mut raw = std::mem::take(&mut self.main);
        let done = (directive.set)(&mut raw, node, &mut self.cx(context));
        self.main = raw;
        done
    }

    // DIFF(nginx): no code is loaded.
    /// Everything is built in: there is nothing to load, but something to say. What is not there does no harm until a directive
    /// of it is used.
    fn load_module(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_main(node, MAIN)?;
        let file = node.arg(0)?;
        let module = tw_conf::module_of_file(file);
        if !tw_conf::is_built_in(&module, self.known_directives.all()) {
            self.diagnostics.push(tw_conf::missing_module(node, file));
            return Ok(());
        }
        let message = format!("module \"{module}\" is built in, \"load_module\" has no effect");
        self.diagnostics.push(ConfError { level: Level::Notice, ..node.fail(message) });
        Ok(())
    }

    /// Keeps the mistake of a directive, and looks through its block for what is missing in there.
    fn go_on_after(&mut self, node: &Node, context: Contexts, error: ConfError) {
        let module = error.missing.as_ref().and_then(|_| tw_conf::module_of(&node.name.lossy(), context));
        if module.is_some() {
            self.record_variables(node, context);
        }
        self.mistakes.expect_definitions(node);
        self.mistakes.add(self.advised(error, node));
        self.survey(node, context, module);
    }

    /// Looks through the block of a directive that was not taken in. Of the directives that only nginx has, those of
    /// `module` go with that directive and need no mention.
    fn survey(&mut self, block: &Node, context: Contexts, module: Option<&'static str>) {
        let Some(inside) = tw_conf::inside(&block.name.lossy(), context) else {
            if let Some(failure) = self.failure_in(block) {
                self.mistakes.add(failure);
            }
            return;
        };
        for node in block.block.iter().flatten() {
            yield_if_due();
            if self.mistakes.is_full() {
                break;
            }
            if self.is_failure(node) {
                continue;
            }
            if self.known_directives.has(node, inside) {
                self.survey(node, inside, None);
                continue;
            }
            let theirs = tw_conf::module_of(&node.name.lossy(), inside);
            match theirs {
                Some(theirs) => {
                    self.record_variables(node, inside);
                    if Some(theirs) != module {
                        self.mistakes.add(tw_conf::missing_directive(node, theirs));
                    }
                }
                // Directives in the block of a foreign module cannot be checked.
                None if module.is_some() => {}
                None => self.mistakes.add(
                    self.advised(self.known_directives.unknown(node, inside, self.mistakes.guess()), node),
                ),
            }
            self.survey(node, inside, theirs);
        }
    }

    /// Remembers the variables of a directive that is not read. Those of other protocols have the same names and are others.
    fn record_variables(&mut self, node: &Node, context: Contexts) {
        if context & self.contexts != 0 {
            self.mistakes.record_variables(node, context);
        }
    }

    /// An error about a directive with what its words show.
    fn advised(&self, error: ConfError, node: &Node) -> ConfError {
        let info = self.known_directives.record(&node.name.lossy());
        let begins = |name: &str| {
            self.known_directives.record(name).is_some()
                || tw_conf::nginx_directives().any(|directive| directive.name == name)
        };
        tw_conf::advise(error, node, info, self.sources, begins)
    }

    /// Makes settings of what was read, and a configuration of them.
    fn finish<B: ProtocolBlocks>(
        mut self,
        mut blocks: B,
        files: &dyn ConfFiles,
        previous: &SharedObjects,
        mistakes: &mut Mistakes,
    ) -> Option<B::Config> {
        if self.events == Occurrence::No {
            mistakes.add_later(
                ConfError::new("no \"events\" section in configuration")
                    .hint("add \"events { }\" to the main context, beside \"http\""),
            );
        }
        let raw = std::mem::take(&mut self.main);
        let prefixes = self.prefixes;
        let main = MainSettings::resolve(raw, &prefixes.error_log, &self.cx(MAIN));
        let mut logs = Logs::default();
        let error_log = logs.error_log(&main.error_log);
        let mut shared_objects = SharedObjects::default();
        let metrics = Arc::new(MetricsTable::new(blocks.metrics()));
        let shared = ResolveContext {
            hostname: &prefixes.hostname,
            prefix: &prefixes.prefix,
            conf_prefix: &prefixes.conf,
            files,
            pools: &main.pools,
            loops: main.worker_count(),
            main_error_log: error_log.clone(),
            logs: &mut logs,
            diagnostics: self.diagnostics,
            regexes: &mut self.regexes,
            metrics: &metrics,
            shared_objects: &mut shared_objects,
            previous,
        };
        blocks.resolve(shared, mistakes);
        mistakes.end_step(self.sources);
        mistakes.add_unknown_variables(self.sources);
        // Warnings about the whole most likely follow from mistakes in a part.
        let mut unheard = Diagnostics::default();
        let diagnostics = if mistakes.is_empty() { self.diagnostics } else { &mut unheard };
        let hostname = &prefixes.hostname;
        let sources = self.sources;
        let mut process =
            ConfigBuilder { main, diagnostics, sources, logs, error_log, metrics, shared_objects, hostname };
        let loaded = blocks.finish(&mut process, mistakes).map(|LoadedBlocks { parts, assemble }| {
            let process = process.build(parts, mistakes);
            assemble(process.into())
        });
        mistakes.end_step(sources);
        loaded
    }
}

/// Result of merging an `if` block into the block around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum IfBlock {
    /// The block is merged.
    Accepted,
    /// Something is wrong with it.
    Rejected,
}
