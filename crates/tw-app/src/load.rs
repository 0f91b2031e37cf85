//! Loading of a configuration: the blocks of all protocols.

use tw_conf::{ConfError, ConfFiles, Contexts, Diagnostics, DirectiveInfo, Node, Tree};
use tw_core::load::{
    ConfigBuilder, LoadedBlocks, Loader, Mistakes, Prefixes, ProtocolBlocks, ResolveContext,
};
use tw_core::shared_objects::SharedObjects;
use tw_server::load::HttpBlocks;

use crate::config::Config;

/// Modules of each protocol, besides those of its core.
#[derive(Clone, Copy)]
pub struct Modules {
    /// Modules of `http`.
    pub http: &'static [tw_server::load::Module],
}

/// Loads a parsed configuration, and those of `files` that it names. What modules keep for the process is taken over from
/// `previous`, the configuration before. Of the tree only the directives of the main context remain.
///
/// # Errors
/// The first mistake. The others of the same step (reading directives, making settings of them) go to `diagnostics` as the
/// warnings do.
pub fn load(
    tree: &mut Tree,
    files: &dyn ConfFiles,
    prefixes: &Prefixes,
    modules: Modules,
    previous: &SharedObjects,
    diagnostics: &mut Diagnostics,
) -> Result<Config, ConfError> {
    let blocks = AppBlocks { http: HttpBlocks::new(modules.http) };
    tw_core::load::load(tree, files, prefixes, blocks, previous, diagnostics)
}

/// Records of all directives this program knows, with the module of each. Those of `main` and `events` come first.
pub fn all_directives(modules: Modules) -> Vec<(&'static str, DirectiveInfo)> {
    tw_server::load::all_directives(modules.http)
}

/// All protocols while a configuration is loaded.
struct AppBlocks {
    http: HttpBlocks,
}

impl ProtocolBlocks for AppBlocks {
    type Config = Config;

    const CONTEXTS: Contexts = HttpBlocks::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = HttpBlocks::STRUCTURE;

    fn directives(&self) -> Vec<DirectiveInfo> {
        self.http.directives()
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        self.http.read(node, loader)
    }

    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        self.http.resolve(shared, mistakes);
    }

    fn finish(self, process: &mut ConfigBuilder<'_>) -> Result<LoadedBlocks<Config>, ConfError> {
        let LoadedBlocks { parts, assemble } = self.http.finish(process)?;
        let assemble = Box::new(|process: tw_core::generation::ProcessConfig| Config {
            http: assemble(process.clone()),
            process,
        });
        Ok(LoadedBlocks { parts, assemble })
    }
}
