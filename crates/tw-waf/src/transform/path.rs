//! Paths without `.`, `..` and doubled slashes.

use super::transformed::{Transformed, compared};

/// `normalizePath`
pub(super) fn normalize(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if !value.contains(&b'/') && !value.contains(&b'.') {
        return Transformed::Same;
    }
    remove_dots(value, out);
    compared(value, out)
}

/// `normalizePathWin`
pub(super) fn normalize_windows(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let slashes: Vec<u8> = value.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    remove_dots(&slashes, out);
    compared(value, out)
}

fn remove_dots(value: &[u8], out: &mut Vec<u8>) {
    let is_absolute = value.first() == Some(&b'/');
    let ends_with_slash = value.last() == Some(&b'/');
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in value.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match parts.last() {
                Some(&last) if last != b".." => {
                    parts.pop();
                }
                // Above the root there is nothing.
                _ if is_absolute => {}
                _ => parts.push(part),
            },
            _ => parts.push(part),
        }
    }
    if is_absolute {
        out.push(b'/');
    }
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            out.push(b'/');
        }
        out.extend_from_slice(part);
    }
    if ends_with_slash && !parts.is_empty() {
        out.push(b'/');
    }
}
