//! The `upstream` blocks of a protocol: their names as they are read, and their groups as they are resolved.

use std::sync::Arc;

use tw_conf::{ConfError, Contexts, Node, Span};
use tw_core::load::{Loader, RawSettings, Resolve, Table, settings_of};
use tw_core::module::Resolved;
use tw_core::reach::Reach;

use super::block::{GroupUsage, NamedGroup};
use super::directives::Upstream;
use super::groups::Groups;
use super::shared_groups::{keep_groups, lacks_servers};
use crate::group::UpstreamGroup;
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;

/// An `upstream` block as written.
pub struct WrittenUpstream {
    /// Name of the block.
    pub name: Arc<str>,
    /// Settings in it.
    pub raws: RawSettings,
    /// Place of the directive.
    pub span: Span,
}

/// Reads the name of an `upstream` block in `context`. `known_names` are the names of those before it.
///
/// # Errors
/// A name that is there twice, in nginx's words.
pub fn read_name<'a>(
    node: &Node,
    context: Contexts,
    mut known_names: impl Iterator<Item = &'a str>,
    loader: &Loader<'_>,
) -> Result<Arc<str>, ConfError> {
    loader.check_block(node, context)?;
    let name: Arc<str> = node.arg(0)?.lossy().into();
    match known_names.any(|candidate| candidate.eq_ignore_ascii_case(&name)) {
        true => Err(node.fail(format!("duplicate upstream \"{name}\""))),
        false => Ok(name),
    }
}

/// Resolves the `upstream` blocks of a protocol against its own block `outer`, whose servers can name them from now on. `module` is the
/// place of [`Upstream`] among the modules.
///
/// # Errors
/// A mistake that leaves a module without settings. Others are kept.
pub fn resolve_blocks<P: ConnectingProtocol>(
    blocks: impl IntoIterator<Item = WrittenUpstream>,
    outer: &[Resolved],
    resolving: Resolving,
    table: &Table<P>,
    module: usize,
    cx: &mut Resolve<'_, P>,
    reach: &mut Reach,
) -> Result<Vec<Arc<UpstreamGroup<P>>>, ConfError> {
    P::upstream_block_mut(&mut cx.block).resolving = Some(resolving);
    let mut groups = Groups::default();
    let (mut all, mut named_groups) = (Vec::new(), Vec::new());
    for WrittenUpstream { name, raws, span } in blocks {
        named_groups.push(NamedGroup { name: name.clone(), span, usage: GroupUsage::Unused });
        P::upstream_block_mut(&mut cx.block).name = Some(name.clone());
        let settings = table.resolve(raws, Some(outer), cx, |_, _, _| {})?;
        P::upstream_block_mut(&mut cx.block).name = None;
        let upstream = settings_of::<Upstream<P>>(&settings, module);
        if let Some(message) = lacks_servers(&name, upstream.group.as_deref()) {
            cx.mistakes.add(ConfError::new(message).at(span));
        }
        if let Some(group) = &upstream.group {
            if let Some(state) = &group.state {
                reach.replaces_file(state.path().to_bytes());
            }
            all.push(group.clone());
            groups.insert(group.clone());
        }
    }
    let groups = keep_groups(groups, cx);
    let block = P::upstream_block_mut(&mut cx.block);
    block.groups = groups;
    block.named_groups = named_groups;
    Ok(all)
}
