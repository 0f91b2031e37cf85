//! tar archives in the format of POSIX (ustar), the same bytes for the same entries.

use super::files::{Content, Entry, Files};

/// Bytes of a record: a header, or the unit that content is filled up to.
const RECORD: usize = 512;
/// Longest name in the field for it; a longer path has its directories in the prefix.
const NAME_MAX: usize = 100;
/// Longest prefix.
const PREFIX_MAX: usize = 155;

/// Writes all entries below a directory (`.` or a name), sorted by path, with one time for all of them.
pub(super) fn write(files: &Files, below: &str, mtime: u64) -> Result<Vec<u8>, String> {
    write_named(files, &format!("{below}/"), mtime)
}

/// Writes all entries as [`write()`], but with nothing before their names.
pub(super) fn write_plain(files: &Files, mtime: u64) -> Result<Vec<u8>, String> {
    write_named(files, "", mtime)
}

fn write_named(files: &Files, before: &str, mtime: u64) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for (path, entry) in files.iter() {
        let mut path = format!("{before}{path}");
        if matches!(entry.content, Content::Directory) {
            path.push('/');
        }
        out.extend_from_slice(&header(&path, entry, mtime)?);
        if let Content::File(bytes) = &entry.content {
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(RECORD), 0);
        }
    }
    // Two empty records end the archive.
    out.resize(out.len() + 2 * RECORD, 0);
    Ok(out)
}

fn header(path: &str, entry: &Entry, mtime: u64) -> Result<[u8; RECORD], String> {
    let (prefix, name) = split(path).ok_or_else(|| format!("{path}: too long for a tar archive"))?;
    let (kind, size, link) = match &entry.content {
        Content::File(bytes) => (b'0', bytes.len() as u64, ""),
        Content::Link(to) => (b'2', 0, to.as_str()),
        Content::Directory => (b'5', 0, ""),
    };
    let mut record = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |number: u64, width: usize| format!("{number:0width$o}\0").into_bytes();
    put(0, name.as_bytes());
    put(100, &octal(entry.mode.into(), 7));
    put(108, &octal(entry.owner.user.into(), 7));
    put(116, &octal(entry.owner.group.into(), 7));
    put(124, &octal(size, 11));
    put(136, &octal(mtime, 11));
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    if entry.owner.user == 0 {
        put(265, b"root");
    }
    if entry.owner.group == 0 {
        put(297, b"root");
    }
    put(345, prefix.as_bytes());
    let sum: u64 = record.iter().map(|byte| u64::from(*byte)).sum();
    record[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(record)
}

/// Prefix and name of a path.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= NAME_MAX {
        return Some(("", path));
    }
    let begin = path.len() - NAME_MAX - 1;
    let slash = begin + path.get(begin..path.len() - 1)?.find('/')?;
    let prefix = &path[..slash];
    let name = &path[slash + 1..];
    (prefix.len() <= PREFIX_MAX).then_some((prefix, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_split_at_a_slash() {
        let long = format!("{}/{}/name", "a".repeat(60), "b".repeat(60));
        let (prefix, name) = split(&long).unwrap();
        assert_eq!(format!("{prefix}/{name}"), long);
        assert!(name.len() <= NAME_MAX);
        assert_eq!(split("./short/"), Some(("", "./short/")));
        assert_eq!(split(&"a".repeat(101)), None);
        assert_eq!(split(&format!("{}/b", "a".repeat(156))), None);
    }

    #[test]
    fn headers_have_a_correct_checksum() {
        let mut files = Files::default();
        files.add_file("a/b", 0o644, "text");
        let bytes = write(&files, ".", 1).unwrap();
        assert_eq!(bytes.len(), 5 * RECORD);
        let record = &bytes[RECORD..2 * RECORD];
        let stated_value = u64::from_str_radix(std::str::from_utf8(&record[148..154]).unwrap(), 8).unwrap();
        let blank = 8 * u64::from(b' ');
        let sum: u64 = record.iter().map(|byte| u64::from(*byte)).sum();
        let field: u64 = record[148..156].iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(stated_value, sum - field + blank);
        assert!(record.starts_with(b"./a/b\0") && &bytes[2 * RECORD..2 * RECORD + 4] == b"text");
    }
}
