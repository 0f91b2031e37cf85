//! Modules that a source imports, found without a parser: every text in quotes behind `import` or `from` could name one.
//!
//! Words in comments and strings are found, too. A file that is not there for one of them is no error here: the script process reports an
//! `import` that has no source.

/// Texts that could name a module, in their order.
pub(crate) fn specifiers(source: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in [&b"import"[..], b"from"] {
        let mut at = 0;
        while let Some(start) = find(source, word, at) {
            at = start + word.len();
            let is_inside = |byte: Option<&u8>| {
                byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_$".contains(byte))
            };
            if is_inside(start.checked_sub(1).and_then(|before| source.get(before)))
                || is_inside(source.get(at))
            {
                continue;
            }
            let rest = source.get(at..).unwrap_or_default().trim_ascii_start();
            let rest = rest.strip_prefix(b"(").map_or(rest, <[u8]>::trim_ascii_start);
            let Some((quote @ (b'\'' | b'"'), rest)) = rest.split_first() else { continue };
            let Some(end) = rest.iter().position(|byte| byte == quote || *byte == b'\n') else { continue };
            let text = rest.get(..end).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default();
            if rest.get(end) == Some(quote) && !text.is_empty() && !found.iter().any(|known| known == text) {
                found.push(text.to_owned());
            }
        }
    }
    found
}

fn find(source: &[u8], word: &[u8], from: usize) -> Option<usize> {
    let rest = source.get(from..)?;
    rest.windows(word.len()).position(|window| window == word).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_behind_import_and_from() {
        for (source, expected) in [
            ("import a from 'a.js';\nimport {b as c} from \"./b.js\"", &["a.js", "./b.js"][..]),
            ("import 'x.js'; import('y.js'); import ( \"z.js\" )", &["x.js", "y.js", "z.js"]),
            ("import a from\n  'a.js'; export * from 'b.js';", &["a.js", "b.js"]),
            ("import fs from'fs'", &["fs"]),
            ("imports 'no'; _from 'no'; $import('no'); from1 'no'", &[]),
            ("import 'open\nend'; import '' ; from", &[]),
            ("// import x from 'comment.js'", &["comment.js"]),
            ("Buffer.from('61', 'hex'); Buffer.from('61')", &["61"]),
        ] {
            assert_eq!(specifiers(source.as_bytes()), expected, "{source}");
        }
    }
}
