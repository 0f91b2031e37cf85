//! The blocks of `mail` as written.

use std::sync::Arc;

use tw_conf::{Args, ConfError, DirectiveInfo, MAIL, MAIL_SERVER, MAIL_UPSTREAM, MAIN, Node};
use tw_connect::upstream_block::read_name;
use tw_core::load::{Loader, block};

use super::MailBlocks;

/// Settings as written of one block and of the blocks in it.
pub(super) type BlockScope = tw_core::load::BlockScope<BlockKind>;

/// Kind of a block.
pub(super) enum BlockKind {
    Mail,
    Server,
    /// `upstream`, with its name.
    Upstream(Arc<str>),
}

impl BlockKind {
    /// The context of what is written in it.
    fn context(&self) -> u32 {
        match self {
            Self::Mail => MAIL,
            Self::Server => MAIL_SERVER,
            Self::Upstream(_) => MAIL_UPSTREAM,
        }
    }

    /// Name of an `upstream`.
    fn upstream(&self) -> Option<&str> {
        match self {
            Self::Mail | Self::Server => None,
            Self::Upstream(name) => Some(name),
        }
    }
}

/// The blocks that give `mail` its structure, as records for documents and checks.
pub(super) const STRUCTURE: &[DirectiveInfo] = &[
    block("mail", "{ … }", MAIN, Args::NONE).doc("Servers for POP3, IMAP and SMTP."),
    block("server", "{ … }", MAIL, Args::NONE).doc("A server for clients of mail."),
    block("upstream", "name { … }", MAIL, Args::exact(1)).doc("A group of auth servers for auth_http."),
];

impl MailBlocks {
    pub(super) fn walk_mail(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), ConfError> {
        loader.check_protocol_block(node, self.mail.as_ref())?;
        self.mail = Some(self.walk_scope(node, BlockKind::Mail, loader)?);
        Ok(())
    }

    fn walk_scope(
        &mut self,
        block: &Node,
        kind: BlockKind,
        loader: &mut Loader<'_>,
    ) -> Result<BlockScope, ConfError> {
        let context = kind.context();
        loader.walk_scope(block, context, kind, |loader, scope, node| {
            self.walk_node(scope, node, context, loader)
        })
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
            Some("server") if context != MAIL_UPSTREAM => {
                loader.check_block(node, context)?;
                BlockKind::Server
            }
            Some("upstream") => {
                let known = scope.children.iter().filter_map(|child| child.kind.upstream());
                BlockKind::Upstream(read_name(node, context, known, loader)?)
            }
            _ => return loader.set(&self.table, &mut scope.raws, node, context),
        };
        let child = self.walk_scope(node, kind, loader)?;
        scope.children.push(child);
        Ok(())
    }
}
