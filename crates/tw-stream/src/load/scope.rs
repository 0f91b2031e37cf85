//! The blocks of `stream` as written.

use std::sync::Arc;

use tw_conf::{Args, ConfError, DirectiveInfo, MAIN, Node, STREAM, STREAM_SERVER, STREAM_UPSTREAM, Span};
use tw_core::load::{Loader, RawSettings, block};

use super::StreamBlocks;

/// Settings as written of one block and of the blocks in it.
pub(super) struct BlockScope {
    pub(super) raws: RawSettings,
    pub(super) kind: BlockKind,
    pub(super) children: Vec<BlockScope>,
    pub(super) span: Span,
}

/// Kind of a block.
pub(super) enum BlockKind {
    Stream,
    Server,
    /// `upstream`, with its name.
    Upstream(Arc<str>),
}

impl BlockKind {
    /// The context of what is written in it.
    fn context(&self) -> u32 {
        match self {
            Self::Stream => STREAM,
            Self::Server => STREAM_SERVER,
            Self::Upstream(_) => STREAM_UPSTREAM,
        }
    }
}

/// The blocks that give `stream` its structure, as records for documents and checks.
pub(super) const STRUCTURE: &[DirectiveInfo] = &[
    block("stream", "{ … }", MAIN, Args::NONE).doc("Servers for sessions over TCP and UDP."),
    block("server", "{ … }", STREAM, Args::NONE).doc("A server for sessions."),
    block("upstream", "name { … }", STREAM, Args::exact(1))
        .doc("A group of servers that sessions are passed to."),
];

impl StreamBlocks {
    pub(super) fn walk_stream(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), ConfError> {
        loader.check_block(node, MAIN)?;
        if self.stream.is_some() {
            return Err(node.error("is duplicate"));
        }
        self.stream = Some(self.walk_scope(node, BlockKind::Stream, loader)?);
        Ok(())
    }

    /// Reads `block`, and goes on after mistakes in it.
    fn walk_scope(
        &mut self,
        block: &Node,
        kind: BlockKind,
        loader: &mut Loader<'_>,
    ) -> Result<BlockScope, ConfError> {
        let context = kind.context();
        let mut scope =
            BlockScope { raws: RawSettings::default(), kind, children: Vec::new(), span: block.span };
        loader.walk(block.children()?, context, |loader, node| {
            self.walk_node(&mut scope, node, context, loader)
        });
        Ok(scope)
    }

    /// Reads what stands in a block. An error means that nothing of it was taken in.
    fn walk_node(
        &mut self,
        scope: &mut BlockScope,
        node: &Node,
        context: u32,
        loader: &mut Loader<'_>,
    ) -> Result<(), ConfError> {
        let kind = match node.name.as_str() {
            Some("server") if context != STREAM_UPSTREAM => {
                loader.check_block(node, context)?;
                BlockKind::Server
            }
            Some("upstream") => {
                loader.check_block(node, context)?;
                let name: Arc<str> = node.arg(0)?.lossy().into();
                let is_known = |child: &BlockScope| matches!(&child.kind, BlockKind::Upstream(known) if known.eq_ignore_ascii_case(&name));
                if scope.children.iter().any(is_known) {
                    return Err(node.fail(format!("duplicate upstream \"{name}\"")));
                }
                BlockKind::Upstream(name)
            }
            _ => return loader.set(&self.table, &mut scope.raws, node, context),
        };
        let child = self.walk_scope(node, kind, loader)?;
        scope.children.push(child);
        Ok(())
    }
}
