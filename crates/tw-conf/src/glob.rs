//! File names with `*`, `?` and `[…]`, as glob(3) expands them: leading dots hidden, sorted by bytes.

use crate::source::ConfFiles;

/// Names of the files that a name or pattern of `include` stands for, in order: that name itself if it is no pattern.
pub fn expand_names(files: &dyn ConfFiles, name: &[u8]) -> Vec<Vec<u8>> {
    if is_pattern(name) { expand(files, name) } else { vec![name.to_vec()] }
}

/// Returns `true` if `include` treats this name as a pattern.
pub(crate) fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Names that match a pattern. Directories that cannot be listed count as empty.
pub(crate) fn expand(files: &dyn ConfFiles, pattern: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    expand_from(files, Vec::new(), pattern, &mut names);
    names.sort_unstable();
    names
}

/// Expands `rest` below `base`; recursion ends because every turn consumes a component.
fn expand_from(files: &dyn ConfFiles, mut base: Vec<u8>, rest: &[u8], names: &mut Vec<Vec<u8>>) {
    let Some(special) = rest.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\')) else {
        base.extend_from_slice(rest);
        if files.exists(&base) {
            names.push(base);
        }
        return;
    };
    let start = rest[..special].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let end =
        rest[special..].iter().position(|&byte| byte == b'/').map_or(rest.len(), |slash| special + slash);
    base.extend_from_slice(&rest[..start]);

    let directory: &[u8] = if base.is_empty() { b"." } else { &base };
    for name in files.list(directory).unwrap_or_default() {
        if !matches(&rest[start..end], &name) {
            continue;
        }
        let path = [&base[..], &name].concat();
        if end == rest.len() {
            names.push(path);
        } else {
            expand_from(files, path, &rest[end..], names);
        }
    }
}

/// Returns `true` if a name without `/` matches one component of a pattern. A leading dot is matched only by a dot.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !(pattern.starts_with(b".") || pattern.starts_with(b"\\.")) {
        return false;
    }
    let mut p = 0;
    let mut n = 0;
    // Position to go on from after the last `*` has taken one more byte. One star is enough, so there is no recursion.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        let Some(&byte) = name.get(n) else { return p == pattern.len() };
        match step(&pattern[p..], byte) {
            Some(taken) => {
                p += taken;
                n += 1;
            }
            None => {
                let Some((after_star, taken)) = retry else { return false };
                (p, n) = (after_star, taken + 1);
                retry = Some((p, n));
            }
        }
    }
}

/// Length of the pattern's part that matches this byte; `None` if it does not.
fn step(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', next, ..] => (*next == byte).then_some(2),
        [b'\\'] => None,
        [b'[', rest @ ..] => match bracket(rest, byte) {
            Some((size, matched)) => matched.then_some(1 + size),
            // A `[` without its end is an ordinary byte.
            None => (byte == b'[').then_some(1),
        },
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// The size of a bracket expression up to its `]`, and whether it matches; `None` if it has no end.
fn bracket(rest: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let first = usize::from(negated);
    let mut at = first;
    let mut matched = false;
    loop {
        match rest.get(at)? {
            b']' if at > first => return Some((at + 1, matched != negated)),
            b'[' if rest.get(at + 1) == Some(&b':') => {
                let name = &rest[at + 2..];
                let end = name.windows(2).position(|pair| pair == b":]")?;
                matched |= in_class(&name[..end], byte);
                at += 2 + end + 2;
            }
            _ => {
                let (low, size) = member(&rest[at..])?;
                at += size;
                let mut high = low;
                if rest.get(at) == Some(&b'-') && rest.get(at + 1).is_some_and(|&next| next != b']') {
                    let (end, size) = member(&rest[at + 1..])?;
                    high = end;
                    at += 1 + size;
                }
                matched |= (low..=high).contains(&byte);
            }
        }
    }
}

/// One byte of a bracket expression, which a `\` may protect, and its size in the pattern. `[.x.]` and `[=x=]` are
/// bytes too: without a locale, no other byte collates with them.
fn member(rest: &[u8]) -> Option<(u8, usize)> {
    match rest {
        [b'[', b'.', byte, b'.', b']', ..] | [b'[', b'=', byte, b'=', b']', ..] => Some((*byte, 5)),
        [b'\\', next, ..] => Some((*next, 2)),
        [first, ..] => Some((*first, 1)),
        [] => None,
    }
}

fn in_class(name: &[u8], byte: u8) -> bool {
    match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemoryFiles;

    #[test]
    fn components() {
        let table: [(&str, &str, bool); 36] = [
            ("*", "a.conf", true),
            ("*", "", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("\\.*", ".hidden", true),
            ("[.]hidden", ".hidden", false),
            ("?hidden", ".hidden", false),
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf~", false),
            ("*.conf", "a.conf.conf", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**a", "a", true),
            ("?", "", false),
            ("?", "a", true),
            ("??", "a", false),
            ("[abc]", "b", true),
            ("[abc]", "d", false),
            ("[!abc]", "d", true),
            ("[^abc]", "b", false),
            ("[a-c]x", "bx", true),
            ("[a-]", "-", true),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[\\]]", "]", true),
            ("[[:digit:]]", "5", true),
            ("[[:digit:]]", "x", false),
            ("[[:nosuch:]]", "x", false),
            ("[[.-.]x]", "-", true),
            ("[[=a=]-c]", "b", true),
            ("[0-9[:upper:]]", "Q", true),
            ("[ab", "[ab", true),
            ("[ab", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("?\\", "a\\", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn expansion_is_sorted_and_complete() {
        let mut files = MemoryFiles::default();
        for name in
            ["/c/b.conf", "/c/a.conf", "/c/B.conf", "/c/.x.conf", "/c/d/1.conf", "/c/e/1.conf", "/c/e/2.conf"]
        {
            files.insert(name, "");
        }
        let table: [(&str, &[&str]); 8] = [
            ("/c/*.conf", &["/c/B.conf", "/c/a.conf", "/c/b.conf"]),
            ("/c//*.conf", &["/c//B.conf", "/c//a.conf", "/c//b.conf"]),
            ("/c/*/1.conf", &["/c/d/1.conf", "/c/e/1.conf"]),
            ("/c/*/2.conf", &["/c/e/2.conf"]),
            ("/c/[de]/*", &["/c/d/1.conf", "/c/e/1.conf", "/c/e/2.conf"]),
            ("/*/?.conf", &["/c/B.conf", "/c/a.conf", "/c/b.conf"]),
            ("/c/*.none", &[]),
            ("/none/*", &[]),
        ];
        for (pattern, expected) in table {
            let names = expand(&files, pattern.as_bytes());
            let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            assert_eq!(names, expected, "{pattern}");
        }
    }
}
