//! Request targets: path normalisation, extension, arguments, hosts (RFC 9112 section 3.2, RFC 3986).
//!
//! Decoding and rejection follow nginx: percent escapes are decoded before segments are interpreted, so `%2e%2e` is
//! `..` and `%2F` a slash; `+` stays; a decoded `?` or `#` is an ordinary character; a fragment is cut off; `%00`, a
//! bad escape and `..` above the root are errors.

use std::ops::Range;

use crate::escape::{Unescape, unescape};
use crate::scan;

/// A path that cannot be normalised: a bad percent escape, a NUL, or `..` above the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPath;

/// Offsets of the parts of a normalised target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetParts {
    /// The extension of the last segment, in the normalised path; empty if none.
    pub exten: Range<usize>,
    /// The arguments, in the target as sent, without a fragment; empty if none.
    pub args: Range<usize>,
}

/// Result of the first scan of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetScan {
    /// Bytes of the path as sent.
    pub path_len: usize,
    /// Extension and arguments; valid only if `is_normal`.
    pub parts: TargetParts,
    /// True if the path as sent is already normal: [`normalize`] is not needed.
    pub is_normal: bool,
    /// True if the path as sent has a percent escape.
    pub quoted: bool,
}

/// Looks at a target (path and arguments) once. Most need no more than this.
pub fn scan(target: &[u8]) -> TargetScan {
    let mut target_scan = TargetScan {
        path_len: target.len(),
        parts: TargetParts { exten: 0..0, args: target.len()..target.len() },
        is_normal: target.first() == Some(&b'/'),
        quoted: false,
    };
    let mut exten = None;
    let mut previous = 0;
    for (at, &byte) in target.iter().enumerate() {
        if !scan::is_plain_in_path(byte) {
            match byte {
                b'/' => {
                    exten = None;
                    target_scan.is_normal &= previous != b'/';
                }
                b'.' if previous == b'/' => target_scan.is_normal = false,
                b'.' => exten = Some(at + 1),
                b'%' => {
                    target_scan.quoted = true;
                    target_scan.is_normal = false;
                }
                _ => {
                    // `?` ends the path, `#` everything; a later `#` ends the arguments.
                    let rest = target.get(at..).unwrap_or(b"");
                    target_scan.path_len = at;
                    target_scan.parts.args = at + 1..target.len();
                    target_scan.is_normal &= memchr::memchr(b'#', rest).is_none();
                    break;
                }
            }
        }
        previous = byte;
    }
    if let Some(start) = exten {
        target_scan.parts.exten = start..target_scan.path_len;
    }
    target_scan
}

/// Normalises the path of a target (path and arguments) and writes it to `path`, which is cleared first. A target
/// that starts with `?` has the path `/`.
///
/// Cost: no allocation if `path` has the capacity of the target.
///
/// # Errors
/// [`BadPath`]; the contents of `path` are then unspecified.
pub fn normalize(target: &[u8], merge_slashes: bool, path: &mut Vec<u8>) -> Result<TargetParts, BadPath> {
    path.clear();
    if target.first() == Some(&b'?') {
        path.push(b'/');
    }

    let mut segment = path.len();
    let mut exten = None;
    let mut args = target.len()..target.len();
    let mut at = 0;
    while let Some(&raw) = target.get(at) {
        at += 1;
        let (byte, decoded) = match raw {
            b'%' => {
                let high = digit(target, at)?;
                let low = digit(target, at + 1)?;
                at += 2;
                (high << 4 | low, true)
            }
            _ => (raw, false),
        };

        match byte {
            0 => return Err(BadPath),
            b'#' if !decoded => break,
            b'?' if !decoded => {
                let rest = target.get(at..).unwrap_or(b"");
                args = at..at + memchr::memchr(b'#', rest).unwrap_or(rest.len());
                break;
            }
            b'/' => {
                exten = None;
                match segment_kind(path, segment) {
                    Segment::Dot | Segment::DotDot => close_dots(path, segment)?,
                    Segment::Empty if merge_slashes && !path.is_empty() => {}
                    Segment::Empty | Segment::Named => path.push(b'/'),
                }
                segment = path.len();
            }
            b'.' => {
                if matches!(segment_kind(path, segment), Segment::Named) {
                    exten = Some(path.len() + 1);
                }
                path.push(b'.');
            }
            _ => path.push(byte),
        }
    }
    close_dots(path, segment)?;

    let exten = exten.map_or(0..0, |start| start..path.len());
    Ok(TargetParts { exten, args })
}

fn digit(target: &[u8], at: usize) -> Result<u8, BadPath> {
    target.get(at).and_then(|&byte| scan::hex(byte)).ok_or(BadPath)
}

enum Segment {
    Empty,
    Dot,
    DotDot,
    Named,
}

fn segment_kind(path: &[u8], start: usize) -> Segment {
    match path.get(start..) {
        None | Some(b"") => Segment::Empty,
        Some(b".") => Segment::Dot,
        Some(b"..") => Segment::DotDot,
        Some(_) => Segment::Named,
    }
}

/// Takes away a last segment `.`, or `..` together with the segment before it.
fn close_dots(path: &mut Vec<u8>, segment: usize) -> Result<(), BadPath> {
    match segment_kind(path, segment) {
        Segment::Dot => path.truncate(segment),
        Segment::DotDot => {
            path.truncate(segment.saturating_sub(1));
            let parent = memchr::memrchr(b'/', path).ok_or(BadPath)?;
            path.truncate(parent + 1);
        }
        Segment::Empty | Segment::Named => {}
    }
    Ok(())
}

/// Extension of the last segment of a normalised path, without the dot; empty if none. For paths that are not from a
/// request line (rewrites, internal redirects), in which nginx searches backwards.
pub fn exten(path: &[u8]) -> &[u8] {
    let Some(at) = memchr::memrchr2(b'.', b'/', path) else { return b"" };
    let after_slash = at.checked_sub(1).and_then(|before| path.get(before)) == Some(&b'/');
    match path.get(at) {
        Some(b'.') if at > 1 && !after_slash => path.get(at + 1..).unwrap_or(b""),
        _ => b"",
    }
}

/// Splits a URI at its first `?`: path, arguments (empty if there is no `?`).
pub fn split_args(uri: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'?', uri) {
        Some(at) => (uri.get(..at).unwrap_or(b""), uri.get(at + 1..).unwrap_or(b"")),
        None => (uri, b""),
    }
}

/// A URI that leads above its root, or has a NUL in it: its path, without escapes if it had some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AboveRoot(pub Vec<u8>);

/// Unescaped path and arguments of a URI of this server, such as an included page or an internal redirect. Segments
/// are checked before and after unescaping. Costs two copies.
///
/// # Errors
/// The path is empty, or leads above the root.
pub fn local(uri: &[u8]) -> Result<(Vec<u8>, Vec<u8>), AboveRoot> {
    let (path, args) = split_args(uri);
    if path.is_empty() || leads_up(path) {
        return Err(AboveRoot(uri.to_vec()));
    }
    if !path.contains(&b'%') {
        return Ok((path.to_vec(), args.to_vec()));
    }
    let mut plain = Vec::with_capacity(path.len());
    unescape(path, Unescape::All, &mut plain);
    if plain.is_empty() || leads_up(&plain) { Err(AboveRoot(plain)) } else { Ok((plain, args.to_vec())) }
}

/// Returns `true` if a path has a segment `..`, or a NUL.
pub fn leads_up(path: &[u8]) -> bool {
    path.contains(&0) || path.split(|byte| *byte == b'/').any(|segment| segment == b"..")
}

/// The value of one argument as sent: name in any case, first one that has a `=`. nginx's `$arg_NAME`.
pub fn arg<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|&byte| byte == b'&').find_map(|part| {
        let (head, tail) = part.split_at_checked(name.len())?;
        let value = tail.strip_prefix(b"=")?;
        (!name.is_empty() && head.eq_ignore_ascii_case(name)).then_some(value)
    })
}

#[cfg(test)]
mod tests;
