//! `error_log_tag`: facts of the operator's own in the lines of an error log in JSON.

use std::sync::Arc;

use tw_conf::{ConfError, Node, Setting, Word};
use tw_log::ContextVisitor;

use crate::load::Resolve;
use crate::module::Protocol;
use crate::session::Session;
use crate::vars::Template;

/// One `error_log_tag` as written.
pub struct RawLogTag {
    name: Box<str>,
    value: Word,
}

/// One `error_log_tag`.
pub struct LogTag<S> {
    name: Box<str>,
    value: Template<S>,
}

/// Tags of one block.
pub type LogTags<S> = Arc<[LogTag<S>]>;

impl RawLogTag {
    /// Reads `name value` into the tags of a block.
    ///
    /// # Errors
    /// The name is empty, or given before.
    pub fn read(tags: &mut Setting<Vec<Self>>, node: &Node) -> Result<(), ConfError> {
        let [name, value] = node.words()?;
        let text = name.lossy();
        if text.is_empty() {
            return Err(node.fail("the name of a tag is empty").at(name.span));
        }
        if tags.get().is_some_and(|tags| tags.iter().any(|log_tag| *log_tag.name == *text)) {
            return Err(node.fail(format!("duplicate tag \"{text}\"")).at(name.span));
        }
        tags.push(node, Self { name: text.into(), value: value.clone() });
        Ok(())
    }

    /// Tags of a block: its own, or those of the enclosing block, as nginx inherits lists.
    ///
    /// # Errors
    /// A value names a variable that is not known.
    pub fn resolve<P: Protocol>(
        tags: Setting<Vec<Self>>,
        outer: Option<&LogTags<P::Session>>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<LogTags<P::Session>, ConfError> {
        let Some(tags) = tags.take() else { return Ok(outer.cloned().unwrap_or_else(|| [].into())) };
        let tag = |Self { name, value }: Self| Ok(LogTag { name, value: cx.template(&value)? });
        tags.into_iter().map(tag).collect()
    }
}

/// Passes the tags of a session to `visitor`. The session stays as it is: a line that happens to be written does not change what
/// variables have later.
pub fn visit_tags<S: Session>(tags: &[LogTag<S>], s: &S, visitor: &mut dyn ContextVisitor) {
    if tags.is_empty() || !visitor.has_tags() {
        return;
    }
    for LogTag { name, value } in tags {
        match value.constant() {
            Some(text) => visitor.tag(name, text),
            None => s.bindings().peek(|| visitor.tag(name, &value.value(s))),
        }
    }
}
