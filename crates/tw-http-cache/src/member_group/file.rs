//! File `member` in each directory of a cache that has several: it tells a mounted disk from an empty mount point, and remembers
//! over a restart which disks were left out.
//!
//! ```text
//! tailwater cache member 1
//! set 0f1e2d3c4b5a6978             the same in all directories of a cache
//! path /disk1/cache                this one
//! member /disk1/cache              all of them that were ever used
//! member /disk2/cache
//! out /disk2/cache                 those that were left out when this was written
//! ```
//! An empty file stands for a new disk: somebody has made it to say that the directory may be used.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Name of the file.
pub(crate) const NAME: &str = "member";
/// Maximum size of the file in bytes: more than [`MEMBERS_MAX`](crate::cache_path::member_path) paths have.
pub(crate) const SIZE_MAX: usize = 1 << 20;
/// First line of the file.
const TITLE: &[u8] = b"tailwater cache member 1";

/// A path, as the file has it.
pub(crate) type MemberName = Box<[u8]>;

/// Contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MemberFile {
    /// Number of the cache.
    pub(crate) set: u64,
    /// Path of the directory when it was written.
    pub(crate) path: MemberName,
    /// Directories that were ever used.
    pub(crate) members: BTreeSet<MemberName>,
    /// Directories that were left out.
    pub(crate) out: BTreeSet<MemberName>,
}

/// State of the file in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundMember {
    /// No file, or one that is no member's.
    None,
    /// An empty file: the directory is to be used.
    Accepted,
    File(MemberFile),
}

impl MemberFile {
    /// Reads the file.
    pub(crate) fn decode(file: &[u8]) -> FoundMember {
        if file.iter().all(u8::is_ascii_whitespace) {
            return FoundMember::Accepted;
        }
        let mut lines = file.split(|byte| *byte == b'\n');
        if lines.next() != Some(TITLE) {
            return FoundMember::None;
        }
        let mut member_file = Self::default();
        let mut has_set = false;
        for line in lines {
            let space = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
            let value = line.get(space + 1..).unwrap_or_default();
            match &line[..space] {
                b"set" => {
                    let set =
                        std::str::from_utf8(value).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                    has_set = set.is_some();
                    member_file.set = set.unwrap_or_default();
                }
                b"path" => member_file.path = value.into(),
                b"member" => _ = member_file.members.insert(value.into()),
                b"out" => _ = member_file.out.insert(value.into()),
                // Of a newer version.
                _ => {}
            }
        }
        if has_set { FoundMember::File(member_file) } else { FoundMember::None }
    }

    /// Contents of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut set = String::new();
        // A string takes everything.
        let _ = write!(set, "{:016x}", self.set);
        let mut file = [TITLE, b"\nset ", set.as_bytes(), b"\npath ", &self.path, b"\n"].concat();
        for (word, paths) in [(&b"member "[..], &self.members), (b"out ", &self.out)] {
            for path in paths {
                file.extend_from_slice(&[word, path, b"\n"].concat());
            }
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_file_is_read_as_written() {
        let names = |names: &[&str]| names.iter().map(|name| MemberName::from(name.as_bytes())).collect();
        let file = MemberFile {
            set: 0x1f,
            path: b"/disk 1/cache"[..].into(),
            members: names(&["/disk 1/cache", "/disk2"]),
            out: names(&["/disk2"]),
        };
        let text = file.encode();
        assert!(text.starts_with(b"tailwater cache member 1\nset 000000000000001f\npath /disk 1/cache\n"));
        assert_eq!(MemberFile::decode(&text), FoundMember::File(file));
        for empty in ["", "\n"] {
            assert_eq!(MemberFile::decode(empty.as_bytes()), FoundMember::Accepted);
        }
        for other in ["something", "tailwater cache member 1\npath /a\n", "tailwater cache member 2\nset 1\n"]
        {
            assert_eq!(MemberFile::decode(other.as_bytes()), FoundMember::None, "{other}");
        }
    }
}
