//! Target of `proxy_pass`: an `upstream`, an address or a name; with variables, known only for a session.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_connect::UpstreamGroup;
use tw_connect::upstream_block::{self, Groups, server, warn_without_resolver};
use tw_core::load::Resolve;
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_log::{Level, Text};

use crate::protocol::Stream;
use crate::session::{SessionStatus, StreamSession};

/// Target of the sessions of a server.
pub enum PassTarget {
    /// One for all sessions.
    Fixed(Arc<UpstreamGroup<Stream>>),
    /// One that depends on the session.
    Variable {
        /// Name of a group, or an address with a port.
        address: Template<StreamSession>,
        /// Groups by name.
        groups: Arc<Groups<Stream>>,
    },
}

impl PassTarget {
    /// Resolves the argument of `proxy_pass`.
    ///
    /// # Errors
    /// No such address, or an unknown variable.
    pub fn resolve(word: &Word, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        if !word.bytes.contains(&b'$') {
            let text = word.lossy();
            let group = upstream_block::named(word, &text, None, cx);
            return group.map(Self::Fixed).map_err(|error| error.or_hint(server::hint(&text, &[], None)));
        }
        warn_without_resolver(word, &word.bytes, cx);
        Ok(Self::Variable { address: cx.template(word)?, groups: cx.block.upstream.any_group() })
    }

    /// Returns true if sessions may need the address of a name.
    pub fn has_names(&self) -> bool {
        match self {
            Self::Fixed(group) => group.may_have_names(),
            Self::Variable { .. } => true,
        }
    }

    /// Describes the servers for `--explain`.
    pub fn explain(&self) -> Vec<(&'static str, String)> {
        let Self::Fixed(group) = self else {
            return vec![("upstream", "depends on the session: \"proxy_pass\" has variables".to_owned())];
        };
        explain_group(group)
    }

    /// Describes the servers for the session `s`, for `--explain`.
    pub fn explain_session(&self, s: &StreamSession) -> Vec<(&'static str, String)> {
        match self.find(s) {
            Ok(group) => explain_group(&group),
            Err(error) => vec![("upstream", format!("none: {error}"))],
        }
    }

    /// The group for a session. An error is logged.
    pub(super) fn group(&self, s: &StreamSession) -> Result<Arc<UpstreamGroup<Stream>>, SessionStatus> {
        self.find(s).map_err(|error| {
            s.log(Level::Error, format_args!("{error}"));
            SessionStatus::INTERNAL_SERVER_ERROR
        })
    }

    /// The group for a session. The error is for the log.
    fn find(&self, s: &StreamSession) -> Result<Arc<UpstreamGroup<Stream>>, String> {
        let (address, groups) = match self {
            Self::Fixed(group) => return Ok(group.clone()),
            Self::Variable { address, groups } => (address, groups),
        };
        let text = address.value(s);
        let group = match std::str::from_utf8(&text) {
            Ok(text) => match groups.find(text) {
                Some(group) => return Ok(group.clone()),
                None => upstream_block::alone(text, None, || address.is_given(s, 0)),
            },
            Err(_) => Err("invalid host".to_owned()),
        };
        group.map_err(|error| format!("{error} in upstream \"{}\"", Text(&text)))
    }
}

/// Describes a group and its servers.
fn explain_group(group: &UpstreamGroup<Stream>) -> Vec<(&'static str, String)> {
    let mut lines = vec![("upstream", group.peers.name().to_string())];
    if group.is_named {
        let list = group.peers.list();
        lines.extend(list.servers().iter().map(|(_, server)| ("", server::text(server))));
    }
    lines
}
