//! Files of an archive: paths with content, mode and owner, sorted.

use std::collections::BTreeMap;

/// Files, directories and links by path, without a slash at the beginning. The directories above each are among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files(BTreeMap<String, Entry>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) owner: Owner,
    pub(crate) role: Role,
    pub(crate) content: Content,
}

/// Content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    File(Vec<u8>),
    /// Target of a symbolic link.
    Link(String),
    Directory,
}

/// Numbers of user and group; 0 is root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Treatment of an entry by package managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Replaced by an upgrade.
    Program,
    /// Kept if the administrator has changed it.
    Configuration,
    /// Documentation, which an installation may leave out.
    Document,
    /// Directory that belongs to others as well.
    Shared,
}

impl Files {
    /// Adds a file that an upgrade replaces.
    pub(crate) fn add_file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        self.add(path, mode, Role::Program, Content::File(content.into()));
    }

    /// Adds an entry of root, and the directories above it.
    pub(crate) fn add(&mut self, path: &str, mode: u32, role: Role, content: Content) {
        let mut above = path;
        while let Some((parent, _)) = above.rsplit_once('/') {
            self.0.entry(parent.to_owned()).or_insert_with(Entry::shared_directory);
            above = parent;
        }
        self.0.insert(path.to_owned(), Entry { mode, owner: Owner::default(), role, content });
    }

    /// Adds a directory of its own.
    pub(crate) fn add_directory(&mut self, path: &str, mode: u32) {
        self.add(path, mode, Role::Program, Content::Directory);
    }

    /// Sets the owner of an entry that is there.
    pub(crate) fn set_owner(&mut self, path: &str, owner: Owner) {
        if let Some(entry) = self.0.get_mut(path) {
            entry.owner = owner;
        }
    }

    /// All entries, sorted by path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Content of a file.
    #[cfg(test)]
    pub(crate) fn file(&self, path: &str) -> Option<&[u8]> {
        match &self.0.get(path)?.content {
            Content::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Moves everything below a directory to the top.
    pub(crate) fn lift(self, directory: &str) -> Self {
        let mut lifted = Self::default();
        let outside = |path: &str| directory == path || directory.starts_with(&format!("{path}/"));
        for (path, entry) in self.0 {
            let inside = path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
            let to = inside.map(str::to_owned);
            if inside.is_some() || !outside(&path) {
                lifted.0.insert(to.unwrap_or(path), entry);
            }
        }
        lifted
    }

    /// Bytes of all files together.
    pub(crate) fn size(&self) -> u64 {
        let size = |entry: &Entry| match &entry.content {
            Content::File(bytes) => bytes.len() as u64,
            _ => 0,
        };
        self.0.values().map(size).sum()
    }
}

impl Entry {
    fn shared_directory() -> Self {
        Self { mode: 0o755, owner: Owner::default(), role: Role::Shared, content: Content::Directory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_above_a_file_come_first() {
        let mut files = Files::default();
        files.add_file("a/b/c", 0o644, "x");
        files.add_file("a/b-", 0o644, "y");
        let paths: Vec<_> = files.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a", "a/b", "a/b-", "a/b/c"]);
        assert_eq!((files.file("a/b/c"), files.size()), (Some(&b"x"[..]), 2));
    }

    #[test]
    fn lifted_files_lose_their_directory() {
        let mut files = Files::default();
        files.add_file("usr/local/bin/x", 0o755, "");
        files.add_file("etc/y", 0o644, "");
        let lifted = files.lift("usr/local");
        let paths: Vec<_> = lifted.iter().map(|(path, _)| path.to_owned()).collect();
        assert_eq!(paths, ["bin", "bin/x", "etc", "etc/y"]);
    }
}
