//! Directories that a script may use, and the place of a path in them.

use std::ffi::CString;

use rustix::io::Errno;

use crate::error::Failure;
use crate::place::Place;

/// Directory that a script may use, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedDirectory {
    /// Absolute path.
    pub path: Vec<u8>,
    /// True if files may be changed, too.
    pub is_writable: bool,
}

// DIFF(nginx): scripts of njs may use all files that the user of the worker process may use.
/// Files that a script may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAccess {
    /// All that the user may use, by paths relative to the current directory: for a script that is run by hand.
    OfUser,
    /// Directories of the configuration. A relative path begins at `base`.
    Within {
        /// Directory of relative paths, absolute.
        base: Vec<u8>,
        /// Directories, each with what is below it.
        directories: Vec<AllowedDirectory>,
    },
}

impl FileAccess {
    /// Place of a path that is read, or written to. Of several directories with the path, the innermost one decides.
    pub(crate) fn place(&self, path: &[u8], is_changed: bool) -> Result<Place, Failure> {
        let (base, directories) = match self {
            Self::OfUser => return Place::anywhere(path),
            Self::Within { base, directories } => (base, directories),
        };
        let absolute = if path.starts_with(b"/") { path.to_vec() } else { [base, &b"/"[..], path].concat() };
        let parts = parts(&absolute);
        let known = directories.iter().filter_map(|directory| {
            let own = self::parts(&directory.path);
            let rest = parts.strip_prefix(&own[..])?;
            Some((own.len(), directory, rest))
        });
        let Some((_, directory, rest)) = known.max_by_key(|(depth, ..)| *depth) else {
            return Err(Failure::denied("no \"js_fs_path\" names a directory with it"));
        };
        if is_changed && !directory.is_writable {
            return Err(Failure::denied("its \"js_fs_path\" has no \"write\""));
        }
        let root = CString::new(directory.path.clone()).map_err(|_| Errno::INVAL)?;
        Place::beneath(&root, rest)
    }
}

/// Names of a path, without `.` and empty ones. `..` stays: the kernel resolves it.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(directories: &[(&str, bool)]) -> FileAccess {
        let directory = |(path, is_writable): &(&str, bool)| AllowedDirectory {
            path: path.as_bytes().to_vec(),
            is_writable: *is_writable,
        };
        FileAccess::Within { base: b"/".to_vec(), directories: directories.iter().map(directory).collect() }
    }

    #[test]
    fn path_outside_of_all_directories_is_denied() {
        for path in ["/etc/passwd", "/tmpx/a", "/", "", "etc", "/dev/../etc"] {
            let Err(error) = within(&[("/dev", true)]).place(path.as_bytes(), false) else {
                // The kernel refuses what climbs out of a directory.
                assert_eq!(path, "/dev/../etc");
                continue;
            };
            assert_eq!(error.errno, Errno::ACCESS, "{path}");
            assert!(error.reason.contains("js_fs_path"), "{path}");
        }
    }

    #[test]
    fn innermost_directory_decides_whether_files_may_be_changed() {
        let access = within(&[("/", true), ("/dev", false), ("/dev/shm", true)]);
        for (path, is_allowed) in
            [("/a", true), ("/dev/a", false), ("/dev//./a", false), ("/dev/shm/a", true)]
        {
            assert_eq!(access.place(path.as_bytes(), true).is_ok(), is_allowed, "{path}");
            assert!(access.place(path.as_bytes(), false).is_ok(), "{path}");
        }
    }
}
