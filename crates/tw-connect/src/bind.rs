//! `proxy_bind`: where connections to upstream servers come from.

use std::net::SocketAddr;

use tw_conf::{ConfError, Node, Word};
use tw_core::vars::Template;

/// Local address of connections to upstream servers.
pub enum Bind<S> {
    /// Chosen by the kernel.
    Off,
    /// A fixed or computed address.
    From {
        /// The address.
        address: Template<S>,
        /// `transparent`: the address need not belong to this machine.
        is_transparent: bool,
    },
}

impl<S> Clone for Bind<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::From { address, is_transparent } => {
                Self::From { address: address.clone(), is_transparent: *is_transparent }
            }
        }
    }
}

/// `bind` as written.
pub enum RawBind {
    /// `off`
    Off,
    /// An address.
    From(Word, bool),
}

/// Reads the directive.
///
/// # Errors
/// Unknown parameter, or an invalid address.
pub fn read_bind(node: &Node) -> Result<RawBind, ConfError> {
    let address = node.arg(0)?;
    let is_transparent = match node.args.get(1) {
        None => false,
        Some(word) if &*word.bytes == b"transparent" => true,
        Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
    };
    if &*address.bytes == b"off" && !is_transparent {
        return Ok(RawBind::Off);
    }
    if !address.bytes.contains(&b'$') && bind_address(&address.bytes).is_none() {
        return Err(node.fail(format!("invalid address \"{address}\"")));
    }
    Ok(RawBind::From(address.clone(), is_transparent))
}

/// An address to come from: with or without a port.
pub(crate) fn bind_address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| {
        let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        Some(SocketAddr::new(text.parse().ok()?, 0))
    })
}
