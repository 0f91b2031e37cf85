//! The blocks of a protocol as written, before they are resolved.

use tw_conf::{ConfError, Contexts, MAIN, Node, Span};

use super::{Loader, RawSettings};

/// Settings as written of one block and of the blocks in it. `K` is the kind of a block.
pub struct BlockScope<K> {
    /// Settings.
    pub raws: RawSettings,
    /// Kind of the block.
    pub kind: K,
    /// Blocks in it.
    pub children: Vec<Self>,
    /// Place of the directive.
    pub span: Span,
}

impl Loader<'_> {
    /// Reads `block`, in which directives of `context` stand, and goes on after mistakes in it. An error of `read` means that nothing of
    /// a directive was taken in.
    ///
    /// # Errors
    /// A directive without a block.
    pub fn walk_scope<K>(
        &mut self,
        block: &Node,
        context: Contexts,
        kind: K,
        mut read: impl FnMut(&mut Self, &mut BlockScope<K>, &Node) -> Result<(), ConfError>,
    ) -> Result<BlockScope<K>, ConfError> {
        let mut scope =
            BlockScope { raws: RawSettings::default(), kind, children: Vec::new(), span: block.span };
        self.walk(block.children()?, context, |loader, node| read(loader, &mut scope, node));
        Ok(scope)
    }

    /// Checks the block of a protocol in `main`, which stands there once.
    ///
    /// # Errors
    /// A second block, or one that is written otherwise.
    pub fn check_protocol_block<K>(
        &self,
        node: &Node,
        block_scope: Option<&BlockScope<K>>,
    ) -> Result<(), ConfError> {
        self.check_block(node, MAIN)?;
        block_scope.map_or(Ok(()), |_| Err(node.error("is duplicate")))
    }
}
