//! Letter case, white space, comments and null bytes.

use super::transformed::{Transformed, compared};

/// White space of these transformations.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// No-break space of ISO 8859-1.
const NBSP: u8 = 0xa0;

/// `lowercase`
pub(super) fn lowercase(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if !value.iter().any(u8::is_ascii_uppercase) {
        return Transformed::Same;
    }
    out.extend(value.iter().map(u8::to_ascii_lowercase));
    Transformed::Changed
}

/// `uppercase`
pub(super) fn uppercase(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend(value.iter().map(u8::to_ascii_uppercase));
    compared(value, out)
}

/// `removeNulls`
pub(super) fn remove_nulls(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if !value.contains(&0) {
        return Transformed::Same;
    }
    out.extend(value.iter().filter(|byte| **byte != 0));
    Transformed::Changed
}

/// `replaceNulls`
pub(super) fn replace_nulls(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend(value.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }));
    compared(value, out)
}

/// `removeWhitespace`
pub(super) fn remove_whitespace(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        // The two bytes of a no-break space in UTF-8.
        if byte == 0xc2 && after.first() == Some(&NBSP) {
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        if !is_space(byte) && byte != NBSP {
            out.push(byte);
        }
        rest = after;
    }
    compared(value, out)
}

/// `compressWhitespace`
pub(super) fn compress_whitespace(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut in_space = false;
    for &byte in value {
        let space = is_space(byte) || byte == NBSP;
        if !space {
            out.push(byte);
        } else if !in_space {
            out.push(b' ');
        }
        in_space = space;
    }
    compared(value, out)
}

/// `trim`
pub(super) fn trim(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let begin = value.iter().take_while(|byte| is_space(**byte)).count();
    out.extend_from_slice(trimmed_right(value.get(begin..).unwrap_or_default()));
    compared(value, out)
}

/// `trimLeft`
pub(super) fn trim_left(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let begin = value.iter().take_while(|byte| is_space(**byte)).count();
    out.extend_from_slice(value.get(begin..).unwrap_or_default());
    compared(value, out)
}

/// `trimRight`
pub(super) fn trim_right(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    out.extend_from_slice(trimmed_right(value));
    compared(value, out)
}

fn trimmed_right(value: &[u8]) -> &[u8] {
    let end = value.iter().rposition(|byte| !is_space(*byte)).map_or(0, |at| at + 1);
    value.get(..end).unwrap_or_default()
}

/// `cmdLine`: undoes what hides commands of shells.
pub(super) fn cmd_line(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut in_space = false;
    for &byte in value {
        match byte {
            b'"' | b'\'' | b'\\' | b'^' => {}
            b' ' | b',' | b';' | b'\t' | b'\r' | b'\n' => {
                if !in_space {
                    out.push(b' ');
                }
                in_space = true;
            }
            b'/' | b'(' => {
                if in_space {
                    out.pop();
                }
                in_space = false;
                out.push(byte);
            }
            _ => {
                in_space = false;
                out.push(byte.to_ascii_lowercase());
            }
        }
    }
    compared(value, out)
}

/// `replaceComments`: each `/* … */` becomes a space.
pub(super) fn replace_comments(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut rest = value;
    let mut is_changed = false;
    while let Some(begin) = memchr::memmem::find(rest, b"/*") {
        is_changed = true;
        let (before, comment) = rest.split_at(begin);
        out.extend_from_slice(before);
        out.push(b' ');
        let body = comment.get(2..).unwrap_or_default();
        rest = match memchr::memmem::find(body, b"*/") {
            Some(end) => body.get(end + 2..).unwrap_or_default(),
            None => &[],
        };
    }
    if !is_changed {
        return Transformed::Same;
    }
    out.extend_from_slice(rest);
    Transformed::Changed
}

/// `removeComments`: of C, HTML, SQL and shells.
pub(super) fn remove_comments(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        let end = match rest {
            [b'/', b'*', ..] => Some(&b"*/"[..]),
            [b'<', b'!', b'-', b'-', ..] => Some(&b"-->"[..]),
            [b'-', b'-', ..] | [b'#', ..] => None,
            _ => {
                out.push(byte);
                rest = after;
                continue;
            }
        };
        let position = end.and_then(|end| memchr::memmem::find(after, end).map(|at| at + end.len()));
        if end.is_some() && position.is_none() {
            out.push(b' ');
        }
        rest = position.and_then(|at| after.get(at..)).unwrap_or_default();
    }
    compared(value, out)
}

/// `removeCommentsChar`: removes the marks of comments and leaves what is between them.
pub(super) fn remove_comment_characters(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    const MARKS: [&[u8]; 6] = [b"/*", b"*/", b"<!--", b"-->", b"--", b"#"];
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        match MARKS.iter().find_map(|mark| rest.strip_prefix(*mark)) {
            Some(behind) => rest = behind,
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    compared(value, out)
}
