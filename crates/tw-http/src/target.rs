//! Request targets: path normalisation, extension, arguments, hosts (RFC 9112 section 3.2, RFC 3986).
//!
//! The rules are nginx's: what it refuses, what it decodes and what it leaves alone.

use std::ops::Range;

/// A path that cannot be normalised: a bad percent escape, a NUL, or `..` above the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPath;

/// Where the parts of a normalised target are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The extension of the last segment, in the normalised path.
    pub exten: Range<usize>,
    /// The arguments, in the target as sent; a fragment is left out.
    pub args: Range<usize>,
}

/// A host that is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHost;

/// A host that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes of the host itself: port and trailing dot are left out, brackets are not.
    pub len: usize,
    /// The port, if there is one; `host:` has none.
    pub port: Option<u16>,
    /// Whether it has capital letters.
    pub has_upper: bool,
}
