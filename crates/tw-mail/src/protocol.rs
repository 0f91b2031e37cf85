//! `mail` as a protocol of configurations: its marker type, and the rules for TLS and for groups of auth servers in it.

use std::sync::Arc;

use tw_conf::{ConfError, Contexts, MAIL, MAIL_SERVER, MAIL_UPSTREAM, Node};
use tw_connect::session_blocks::SessionProtocol;
use tw_connect::{ConnectingProtocol, UpstreamBlock, UpstreamGroup};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls_settings::SecureProtocol;
use tw_upstream::TimeKind;

use crate::dialogue::MailProtocol;

/// The protocol.
pub struct Mail;

/// The block of `mail` that is being resolved.
#[derive(Default)]
pub struct Block {
    /// Groups of auth servers, and the resolution of their names.
    pub upstream: UpstreamBlock<Mail>,
    /// `server_name` of the block.
    pub server_name: Box<[u8]>,
    /// Group of the auth server of a `server`; `None` without `auth_http`, and outside of servers.
    pub auth_group: Option<Arc<UpstreamGroup<Mail>>>,
}

/// A session of the protocol: the type that [`Protocol`] names for it. Settings and plans know it by this name only.
pub type SessionOfMail = <Mail as Protocol>::Session;

impl SecureProtocol for Mail {
    const ALPN: &'static [&'static [&'static [u8]]] = &[&[b"pop3"], &[b"imap"], &[b"smtp"]];
}

impl MailProtocol {
    /// Index of the protocol in [`SecureProtocol::ALPN`].
    pub(crate) const fn alpn(self) -> usize {
        match self {
            Self::Pop3 => 0,
            Self::Imap => 1,
            Self::Smtp => 2,
        }
    }
}

/// Method by which a group binds sessions to servers: there is none, `sticky` stands in `http` only.
pub enum NoSticky {}

impl ConnectingProtocol for Mail {
    const SERVER_PORT: Option<u16> = Some(80);
    const LEAST_TIME: &'static [(&'static str, TimeKind)] = &[
        ("connect", TimeKind::Connect),
        ("first_byte", TimeKind::Header),
        ("header", TimeKind::Header),
        ("last_byte", TimeKind::LastByte),
    ];

    const HAS_ROUTES: bool = false;

    type Sticky = NoSticky;
    type RawSticky = NoSticky;

    fn read_sticky(node: &Node) -> Result<NoSticky, ConfError> {
        Err(node.error("is not allowed here"))
    }

    fn resolve_sticky(raw: NoSticky, _: &str, _: &mut Resolve<'_, Self>) -> Result<NoSticky, ConfError> {
        match raw {}
    }

    fn upstream_block(block: &Block) -> &UpstreamBlock<Self> {
        &block.upstream
    }

    fn upstream_block_mut(block: &mut Block) -> &mut UpstreamBlock<Self> {
        &mut block.upstream
    }
}

impl SessionProtocol for Mail {
    const OWN_CONTEXT: Contexts = MAIL;
    const SERVER_CONTEXT: Contexts = MAIL_SERVER;
    const UPSTREAM_CONTEXT: Contexts = MAIL_UPSTREAM;
}
