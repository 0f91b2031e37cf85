//! Value of `ssl_session_cache`.

use tw_conf::{ConfError, Node, units};

/// Sessions of a `builtin` cache without a size, as in nginx.
const BUILTIN_SESSIONS: u64 = 20_480;
/// Bytes of a session (nginx: "one megabyte can store about 4000 sessions").
const SESSION_SIZE: usize = (1 << 20) / 4000;
/// Least size of a shared session cache, as in nginx: eight pages.
const SESSION_CACHE_MIN: usize = 8 * 4096;

/// `ssl_session_cache`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionCache {
    /// `off` and `none`: no session is kept.
    None,
    /// One cache for this server and all loops; size in bytes.
    Builtin { size: usize },
    /// Named cache for all servers that name it; size in bytes.
    Shared { name: Box<[u8]>, size: usize },
}

impl SessionCache {
    /// Reads the arguments of the directive.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut cache = Self::None;
        for word in &node.args {
            let invalid = || node.fail(format!("invalid session cache \"{word}\""));
            match &*word.bytes {
                b"off" | b"none" => {}
                bytes if bytes.starts_with(b"builtin") => {
                    let count = match &bytes[b"builtin".len()..] {
                        b"" => BUILTIN_SESSIONS,
                        count => count.strip_prefix(b":").and_then(units::number).ok_or_else(invalid)?,
                    };
                    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(invalid)?;
                    // With both, the shared cache does the work of the other one.
                    if cache == Self::None {
                        cache = Self::Builtin { size: count.saturating_mul(SESSION_SIZE) };
                    }
                }
                bytes => {
                    let rest = bytes.strip_prefix(b"shared:").ok_or_else(invalid)?;
                    let colon = rest.iter().position(|byte| *byte == b':').ok_or_else(invalid)?;
                    let (name, size) = (&rest[..colon], &rest[colon + 1..]);
                    let size = units::size(size).and_then(|size| usize::try_from(size).ok());
                    let size = size.filter(|_| !name.is_empty()).ok_or_else(invalid)?;
                    if size < SESSION_CACHE_MIN {
                        return Err(node.fail(format!("session cache \"{word}\" is too small")));
                    }
                    cache = Self::Shared { name: name.into(), size };
                }
            }
        }
        Ok(cache)
    }
}
