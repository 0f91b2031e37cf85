//! Upstream servers of the block that is being resolved: the groups that its directives can name.

use std::collections::HashMap;
use std::sync::Arc;

use tw_conf::{ConfError, Span};

use super::groups::Groups;
use crate::group::UpstreamGroup;
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;

/// Part of the position of a block that is being resolved: names of upstream servers and their resolution.
pub struct UpstreamBlock<P: ConnectingProtocol> {
    /// Name of the `upstream` that is being resolved.
    pub name: Option<Arc<str>>,
    /// Groups of the `upstream` blocks, by name.
    pub groups: Arc<Groups<P>>,
    /// Name resolution as set in the block of the protocol.
    pub resolving: Option<Resolving>,
    /// True if a `resolver` holds in the block that is being resolved.
    pub has_resolver: bool,
    /// True once a warning said that there is none where one is needed.
    pub(super) is_resolver_missed: bool,
    /// The `upstream` blocks, and whether something names them.
    pub(crate) named_groups: Vec<NamedGroup>,
    /// Groups made by addresses.
    pub(super) implicit: HashMap<Box<str>, Arc<UpstreamGroup<P>>>,
    /// True if connections to upstream servers may use TLS.
    pub uses_tls: bool,
}

impl<P: ConnectingProtocol> Default for UpstreamBlock<P> {
    fn default() -> Self {
        Self {
            name: None,
            groups: Arc::default(),
            resolving: None,
            has_resolver: false,
            is_resolver_missed: false,
            named_groups: Vec::new(),
            implicit: HashMap::new(),
            uses_tls: false,
        }
    }
}

/// An `upstream` block and its use.
pub(crate) struct NamedGroup {
    pub(crate) name: Arc<str>,
    /// Place of the block.
    pub(crate) span: Span,
    pub(crate) usage: GroupUsage,
}

/// Use of an `upstream` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupUsage {
    /// Nothing names it.
    Unused,
    /// Something names it, or may by a variable.
    Used,
}

impl<P: ConnectingProtocol> UpstreamBlock<P> {
    /// All groups, for something that finds them by a name that has variables.
    pub fn any_group(&mut self) -> Arc<Groups<P>> {
        self.named_groups.iter_mut().for_each(|group| group.usage = GroupUsage::Used);
        self.groups.clone()
    }

    /// Notes about the `upstream` blocks that nothing names, at the end of the block of the protocol.
    pub fn unused(&mut self) -> Vec<ConfError> {
        let groups = std::mem::take(&mut self.named_groups).into_iter();
        let unused = groups.filter(|group| group.usage == GroupUsage::Unused);
        let note = |group: NamedGroup| {
            let message = format!("nothing passes to the upstream \"{}\"", group.name);
            ConfError::notice(message).at(group.span)
        };
        unused.map(note).collect()
    }

    /// Notes that something names a group.
    pub(super) fn use_group(&mut self, name: &str) {
        for group in &mut self.named_groups {
            if group.name.eq_ignore_ascii_case(name) {
                group.usage = GroupUsage::Used;
            }
        }
    }
}
