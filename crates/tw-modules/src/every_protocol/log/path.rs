//! Path of an access log with variables, of which a peer may have chosen a part.

use std::ffi::CStr;
use std::fmt;

use tw_conf::{ConfError, Span, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::session::Session;
use tw_core::vars::Template;

/// A path with variables.
pub(super) struct VarPath<S> {
    pub(super) path: Template<S>,
    /// Position in the configuration.
    pub(super) at: Span,
    /// Bytes before the first variable that are whole names: the directory no value leads out of.
    directory: usize,
}

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathError {
    /// A name behind the directory is `..`.
    Leaves,
    /// There is a zero byte in it.
    Zero,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaves => "its variables lead out of its directory",
            Self::Zero => "there is a zero byte in it",
        })
    }
}

impl<S: Session> VarPath<S> {
    /// Compiles a path, relative to the prefix.
    pub(super) fn compile<P: Protocol<Session = S>>(
        word: &Word,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        let prefix = if word.bytes.starts_with(b"/") { Vec::new() } else { cx.full_path(b"") };
        let path = Template::joined([Template::text(&prefix), cx.template(word)?]);
        Ok(Self { path, at: word.span, directory: prefix.len() + directory(&word.bytes) })
    }

    /// Writes the path for `s` into `buf`.
    pub(super) fn eval<'b>(&self, s: &S, buf: &'b mut Vec<u8>) -> Result<&'b CStr, PathError> {
        buf.clear();
        self.path.eval(s, buf);
        // DIFF(nginx): what variables say never leads out of the directory that is written before the first one.
        check(buf, self.directory)?;
        buf.push(0);
        CStr::from_bytes_with_nul(buf).map_err(|_| PathError::Zero)
    }
}

/// Bytes of a path as written that are whole names without variables.
fn directory(path: &[u8]) -> usize {
    let text = path.iter().position(|byte| *byte == b'$').unwrap_or(path.len());
    path[..text].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)
}

fn check(path: &[u8], directory: usize) -> Result<(), PathError> {
    if path.contains(&0) {
        return Err(PathError::Zero);
    }
    let rest = path.get(directory..).unwrap_or_default();
    if rest.split(|byte| *byte == b'/').any(|name| name == b"..") { Err(PathError::Leaves) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_ends_before_the_first_variable() {
        for (path, expected) in
            [("/a/b/$x.log", "/a/b/"), ("/a/b$x/c", "/a/"), ("$x", ""), ("../$x", "../"), ("a$x", "")]
        {
            assert_eq!(&path[..directory(path.as_bytes())], expected, "{path}");
        }
    }

    #[test]
    fn values_stay_in_the_directory() {
        for (path, expected) in [
            ("/logs/a.log", Ok(())),
            ("/logs/a/b.log", Ok(())),
            ("/logs//etc/passwd", Ok(())),
            ("/logs/..a/b..", Ok(())),
            ("/logs/...", Ok(())),
            ("/logs/", Ok(())),
            ("/logs/..", Err(PathError::Leaves)),
            ("/logs/../etc/passwd", Err(PathError::Leaves)),
            ("/logs/a/../../x", Err(PathError::Leaves)),
            ("/logs/a/..", Err(PathError::Leaves)),
            ("/logs/a\0.log", Err(PathError::Zero)),
        ] {
            assert_eq!(check(path.as_bytes(), "/logs/".len()), expected, "{path:?}");
        }
        assert_eq!(check(b"/x/../logs/a", "/x/../logs/".len()), Ok(()));
    }
}
