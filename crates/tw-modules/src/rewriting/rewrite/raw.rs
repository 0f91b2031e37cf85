//! Operations as written, checked as far as possible without variables.

use tw_conf::{ConfError, IF_IN_LOCATION, IF_IN_SERVER, LOCATION, Node, SERVER, Setting, Word};
use tw_request::protocol::Resolve;

use super::condition::IfCondition;
use super::return_response::{RawReturn, is_url};
use super::set_misc::{RawBase32, RawCall, UpstreamList};

/// Blocks that have programs.
pub(super) const BLOCKS: u32 = SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION;

/// A program as written.
#[derive(Default)]
pub(crate) struct Raw {
    pub(super) operations: Vec<RawOperation>,
    pub(super) log: Setting<bool>,
    pub(super) base32: RawBase32,
    pub(super) lists: Vec<UpstreamList>,
}

/// One directive.
pub(super) enum RawOperation {
    Rewrite(RewriteDirective),
    Set {
        variable: Word,
        value: Word,
    },
    Return(RawReturn),
    Break,
    /// `set_md5` and its like.
    Call(RawCall),
    /// `if`, its block, and the settings in it.
    If(IfCondition, Vec<RawOperation>, RawBase32),
}

/// `rewrite`
pub(super) struct RewriteDirective {
    pub(super) pattern: Word,
    /// Without the `?` at its end.
    pub(super) replacement: Word,
    pub(super) original_args: OriginalArgs,
    pub(super) then: AfterMatch,
}

/// Treatment of the arguments of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OriginalArgs {
    /// Appended.
    Kept,
    /// Dropped: there is a `?` at the end of the replacement.
    Dropped,
}

/// Continuation after a `rewrite` that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterMatch {
    /// The program continues; at its end the location is chosen again.
    Continue,
    /// `last`: the program ends, and the location is chosen again.
    Last,
    /// `break`: the program ends, and the location stays.
    Break,
    /// `redirect`, `permanent`, or a replacement with a scheme: the client is sent away with this status.
    Redirect(u16),
}

impl RawOperation {
    /// Returns `true` if it tests the existence of files.
    pub(super) fn looks_for_files(&self) -> bool {
        matches!(self, Self::If(IfCondition::File(..), ..))
    }

    /// Warns of an operation that stands at `http` level, where no program runs.
    pub(super) fn warn_at_http_level(&self, cx: &mut Resolve<'_>) {
        if let Self::Call(call) = self {
            call.warn_at_http_level(cx);
        }
    }

    pub(super) fn rewrite(node: &Node) -> Result<Self, ConfError> {
        let pattern = node.arg(0)?.clone();
        let mut replacement = node.arg(1)?.clone();
        if replacement.bytes.is_empty() {
            return Err(node.fail("empty replacement"));
        }
        let original_args = match replacement.bytes.strip_suffix(b"?") {
            Some(rest) => {
                replacement.bytes = rest.into();
                OriginalArgs::Dropped
            }
            None => OriginalArgs::Kept,
        };
        let is_url = is_url(&replacement.bytes);
        let then = match node.args.get(2) {
            None if is_url => AfterMatch::Redirect(302),
            None => AfterMatch::Continue,
            Some(flag) => match &*flag.bytes {
                b"redirect" => AfterMatch::Redirect(302),
                b"permanent" => AfterMatch::Redirect(301),
                b"last" | b"break" if is_url => AfterMatch::Redirect(302),
                b"last" => AfterMatch::Last,
                b"break" => AfterMatch::Break,
                _ => return Err(node.invalid_parameter(flag)),
            },
        };
        Ok(Self::Rewrite(RewriteDirective { pattern, replacement, original_args, then }))
    }

    pub(super) fn set(node: &Node) -> Result<Self, ConfError> {
        let [variable, value] = node.words()?;
        tw_module_support::block::variable_name(node, variable)?;
        Ok(Self::Set { variable: variable.clone(), value: value.clone() })
    }
}
