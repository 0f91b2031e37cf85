//! Loading of a configuration: the blocks of all protocols.

use tw_conf::{ConfError, ConfFiles, Contexts, Diagnostics, DirectiveInfo, Node, Tree, record};
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, Prefixes, ProtocolBlocks,
    ProtocolParts, Rejected, ResolveContext,
};
use tw_core::metrics::{Metric, MetricsTable};
use tw_core::shared_objects::SharedObjects;
use tw_mail::MailBlocks;
use tw_server::load::HttpBlocks;
use tw_stream::StreamBlocks;

use crate::config::Config;
use crate::fleet::{self, FleetBlocks};

/// Modules of each protocol, besides those of its core.
#[derive(Clone, Copy)]
pub struct Modules {
    /// Modules of `http`.
    pub http: &'static [tw_server::load::Module],
    /// Modules of `stream`.
    pub stream: &'static [tw_stream::load::Module],
    /// Modules of `mail`.
    pub mail: &'static [tw_mail::load::Module],
}

/// Loads a parsed configuration, and those of `files` that it names. What modules keep for the process is taken over from
/// `previous`, the configuration before. Of the tree only the directives of the main context remain.
///
/// # Errors
/// The first mistake, with the configuration as far as it could be made. The other mistakes go to `diagnostics` as the warnings do.
pub fn load(
    tree: &mut Tree,
    files: &dyn ConfFiles,
    prefixes: &Prefixes,
    modules: Modules,
    previous: &SharedObjects,
    diagnostics: &mut Diagnostics,
) -> Result<Config, Box<Rejected<Config>>> {
    tw_core::load::load(tree, files, prefixes, AppBlocks::new(modules), previous, diagnostics)
}

/// Records of all directives this program knows, with the module of each. Those of `main` and `events` come first.
pub fn all_directives(modules: Modules) -> Vec<(&'static str, DirectiveInfo)> {
    let mut all = tw_server::load::all_directives(modules.http);
    all.extend(tw_stream::load::all_directives(modules.stream));
    all.extend(tw_mail::load::all_directives(modules.mail));
    all.extend(fleet::directives().map(|info| ("fleet", info)));
    all
}

/// All metrics that this program has with `modules`.
pub fn all_metrics(modules: Modules) -> MetricsTable {
    MetricsTable::new(AppBlocks::new(modules).metrics())
}

/// Records of the blocks that give a configuration its structure.
pub fn structure_directives() -> impl Iterator<Item = DirectiveInfo> {
    tw_core::load::structure_directives(AppBlocks::STRUCTURE)
}

/// All protocols while a configuration is loaded.
struct AppBlocks {
    fleet: FleetBlocks,
    http: HttpBlocks,
    stream: StreamBlocks,
    mail: MailBlocks,
}

impl AppBlocks {
    fn new(modules: Modules) -> Self {
        Self {
            fleet: FleetBlocks::default(),
            http: HttpBlocks::new(modules.http),
            stream: StreamBlocks::new(modules.stream),
            mail: MailBlocks::new(modules.mail),
        }
    }
}

/// Records of the structural blocks of all protocols.
static STRUCTURE: [DirectiveInfo;
    HttpBlocks::STRUCTURE.len()
        + StreamBlocks::STRUCTURE.len()
        + MailBlocks::STRUCTURE.len()
        + fleet::STRUCTURE.len()] = record::joined_infos(&[
    HttpBlocks::STRUCTURE,
    StreamBlocks::STRUCTURE,
    MailBlocks::STRUCTURE,
    &fleet::STRUCTURE,
]);

impl ProtocolBlocks for AppBlocks {
    type Config = Config;

    const CONTEXTS: Contexts = HttpBlocks::CONTEXTS | StreamBlocks::CONTEXTS | MailBlocks::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = &STRUCTURE;

    fn directives(&self) -> CollectDirectives {
        let http = self.http.directives();
        let stream = self.stream.directives();
        let mail = self.mail.directives();
        Box::new(move || {
            http().into_iter().chain(stream()).chain(mail()).chain(fleet::directives()).collect()
        })
    }

    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        let mut all = tw_core::metrics::CORE.to_vec();
        all.extend(self.http.metrics());
        all.extend(self.stream.metrics());
        all.extend(self.mail.metrics());
        all
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        let own = self.fleet.read(node, loader).or_else(|| self.http.read(node, loader));
        own.or_else(|| self.stream.read(node, loader)).or_else(|| self.mail.read(node, loader))
    }

    fn resolve(&mut self, mut shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        // First: caches look for their fleets.
        self.fleet.resolve(shared.reborrow(), mistakes);
        self.http.resolve(shared.reborrow(), mistakes);
        self.stream.resolve(shared.reborrow(), mistakes);
        self.mail.resolve(shared, mistakes);
    }

    fn finish(
        self,
        process: &mut ConfigBuilder<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<LoadedBlocks<Config>> {
        let http = self.http.finish(process, mistakes)?;
        let stream = self.stream.finish(process, mistakes)?;
        let mail = self.mail.finish(process, mistakes)?;
        let own = self.fleet;
        let parts = http.parts.join(stream.parts, mistakes).join(mail.parts, mistakes);
        let own_parts = ProtocolParts { reach: own.reach, ..ProtocolParts::default() };
        let parts = parts.join(own_parts, mistakes);
        let mut temp_paths = own.temp_paths;
        let assemble = Box::new(move |process: tw_core::generation::ProcessConfig| {
            let http = (http.assemble)(process.clone());
            temp_paths.extend(http.temp_paths.iter().cloned());
            let stream = (stream.assemble)(process.clone());
            let mail = (mail.assemble)(process.clone());
            Config { http, stream, mail, process, temp_paths }
        });
        Some(LoadedBlocks { parts, assemble })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_protocols_have_one_record_in_each_context() {
        let all: Vec<DirectiveInfo> = structure_directives().collect();
        for name in ["http", "stream", "mail", "server", "upstream", "location", "fleet"] {
            assert!(all.iter().any(|info| info.name == name), "{name}");
        }
        for (at, info) in all.iter().enumerate() {
            let is_again =
                |other: &&DirectiveInfo| other.name == info.name && other.contexts & info.contexts != 0;
            let again = all[at + 1..].iter().find(is_again);
            assert!(again.is_none(), "{} stands twice in one context", info.name);
        }
    }
}
