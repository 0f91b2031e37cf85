//! The block of a protocol of sessions (`stream`, `mail`) while a configuration is loaded: directives, and the blocks `server` and
//! `upstream` in it, as written.

use std::sync::Arc;

use tw_conf::{ConfError, Contexts, NginxVariables, Node, Span};
use tw_core::load::{
    BlockScope, CollectDirectives, Loader, Mistakes, RawSettings, Resolve, ResolveContext, Table,
};
use tw_core::metrics::Metric;
use tw_core::vars::{Slots, VarDef, VarTable};

use crate::protocol::ConnectingProtocol;
use crate::upstream_block::{WrittenUpstream, read_name};

/// Protocol whose block has the blocks `server` and `upstream`.
pub trait SessionProtocol: ConnectingProtocol {
    /// Context of the protocol's own block.
    const OWN_CONTEXT: Contexts;
    /// Context of `server`.
    const SERVER_CONTEXT: Contexts;
    /// Context of `upstream`.
    const UPSTREAM_CONTEXT: Contexts;
}

/// Kind of a block.
enum BlockKind {
    /// The block of the protocol.
    Own,
    Server,
    /// `upstream`, with its name.
    Upstream(Arc<str>),
}

impl BlockKind {
    /// The context of what is written in it.
    fn context<P: SessionProtocol>(&self) -> Contexts {
        match self {
            Self::Own => P::OWN_CONTEXT,
            Self::Server => P::SERVER_CONTEXT,
            Self::Upstream(_) => P::UPSTREAM_CONTEXT,
        }
    }

    /// Name of an `upstream`.
    fn upstream(&self) -> Option<&str> {
        match self {
            Self::Own | Self::Server => None,
            Self::Upstream(name) => Some(name),
        }
    }
}

/// Settings as written, sorted by the kind of their block.
pub struct WrittenBlocks {
    /// Settings of the protocol's own block.
    pub own: RawSettings,
    /// `upstream` blocks.
    pub upstreams: Vec<WrittenUpstream>,
    /// Settings of `server` blocks, each with the place of the directive.
    pub servers: Vec<(RawSettings, Span)>,
}

impl WrittenBlocks {
    fn sort(scope: BlockScope<BlockKind>) -> Self {
        let mut blocks = Self { own: scope.raws, upstreams: Vec::new(), servers: Vec::new() };
        for BlockScope { raws, kind, span, .. } in scope.children {
            match kind {
                BlockKind::Upstream(name) => blocks.upstreams.push(WrittenUpstream { name, raws, span }),
                BlockKind::Own | BlockKind::Server => blocks.servers.push((raws, span)),
            }
        }
        blocks
    }

    /// Settings of a module, which has this place in the table, in the protocol's own block and in its servers, as far as they are
    /// written.
    pub fn module_settings<R: 'static>(&self, module: usize) -> impl Iterator<Item = &R> + Clone {
        let servers = self.servers.iter().map(|(raws, _)| raws);
        std::iter::once(&self.own).chain(servers).filter_map(move |raws| raws.get(module))
    }
}

/// The block of a protocol while a configuration is loaded.
pub struct SessionBlocks<P: SessionProtocol> {
    table: Arc<Table<P>>,
    vars: VarTable<P::Session>,
    /// The block as written; `None` if there is none.
    scope: Option<BlockScope<BlockKind>>,
}

impl<P: SessionProtocol> SessionBlocks<P> {
    /// The block with the directives of `table`, its variables and those in `variables`.
    pub fn new(
        table: Arc<Table<P>>,
        nginx: NginxVariables,
        variables: &[&'static [VarDef<P::Session>]],
    ) -> Self {
        let mut vars = VarTable::new(nginx);
        for variables in variables {
            vars.declare(variables);
        }
        for module in table.modules() {
            vars.declare(module.variables());
        }
        Self { table, vars, scope: None }
    }

    /// Collects the records of all directives.
    pub fn directives(&self) -> CollectDirectives {
        let table = self.table.clone();
        Box::new(move || table.infos().collect())
    }

    /// Metrics of every module, with its name.
    pub fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        self.table.metrics().collect()
    }

    /// Reads a directive of `main`; `None` if it is another one than the block of the protocol.
    pub fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        node.name.is(P::NAME).then(|| {
            loader.check_protocol_block(node, self.scope.as_ref())?;
            self.scope = Some(self.walk_scope(node, BlockKind::Own, loader)?);
            Ok(())
        })
    }

    fn walk_scope(
        &self,
        block: &Node,
        kind: BlockKind,
        loader: &mut Loader<'_>,
    ) -> Result<BlockScope<BlockKind>, ConfError> {
        let context = kind.context::<P>();
        loader.walk_scope(block, context, kind, |loader, scope, node| {
            self.walk_node(scope, node, context, loader)
        })
    }

    /// Reads what stands in a block. An error means that nothing of it was taken in.
    fn walk_node(
        &self,
        scope: &mut BlockScope<BlockKind>,
        node: &Node,
        context: Contexts,
        loader: &mut Loader<'_>,
    ) -> Result<(), ConfError> {
        let kind = match node.name.as_str() {
            Some("server") if context != P::UPSTREAM_CONTEXT => {
                loader.check_block(node, context)?;
                BlockKind::Server
            }
            Some("upstream") => {
                let known_names = scope.children.iter().filter_map(|child| child.kind.upstream());
                BlockKind::Upstream(read_name(node, context, known_names, loader)?)
            }
            _ => return loader.set(&self.table, &mut scope.raws, node, context),
        };
        let child = self.walk_scope(node, kind, loader)?;
        scope.children.push(child);
        Ok(())
    }

    /// Resolves what is written by `build`; `None` if there is no such block, or a mistake leaves nothing of it.
    pub fn resolve<L>(
        &mut self,
        shared: ResolveContext<'_>,
        mistakes: &mut Mistakes,
        build: impl FnOnce(WrittenBlocks, &Table<P>, &mut Resolve<'_, P>) -> Result<L, ConfError>,
    ) -> Option<L>
    where
        P::Block: Default,
    {
        let scope = self.scope.take()?;
        let mut cx = Resolve::new(&mut self.vars, shared, P::Block::default());
        let built = build(WrittenBlocks::sort(scope), &self.table, &mut cx);
        let built = built.map_err(|error| cx.mistakes.add(error)).ok();
        cx.report_hidden_variables();
        let later = cx.mistakes;
        mistakes.follow(later, &self.vars, P::CONTEXTS);
        built
    }

    /// Variables of the configuration.
    pub fn variables(&self) -> &VarTable<P::Session> {
        &self.vars
    }

    /// Slots of all variables. Unknown ones are mistakes, unless there are others that may be their cause.
    pub fn finish_variables(self, mistakes: &mut Mistakes) -> Slots<P::Session> {
        if mistakes.is_empty()
            && let Err(error) = self.vars.check()
        {
            mistakes.add_later(error);
        }
        self.vars.finish()
    }
}
