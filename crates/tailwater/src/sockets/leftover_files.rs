//! Files of Unix sockets that this process has closed while another one may listen there: an old or a new binary,
//! systemd. Each is removed when no process listens any more. Listeners are read from the kernel's table, because a
//! connection could make systemd start a service that is being stopped.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tailwater_commands::output::console::{Console, Fault};
use tw_log::Level;

/// All Unix sockets of the network name space: `Num RefCount Protocol Flags Type St Inode Path`.
const TABLE: &str = "/proc/net/unix";
/// `__SO_ACCEPTCON` in the flags: it listens.
const LISTENS: u32 = 1 << 16;

/// The files.
// DIFF(nginx): a socket that a new binary's configuration does not name keeps its file, because the old one listens there.
#[derive(Debug, Default)]
pub(crate) struct LeftoverFiles(Vec<LeftoverFile>);

#[derive(Debug, PartialEq, Eq)]
struct LeftoverFile {
    path: PathBuf,
    /// Device and number: another server may make a file of the same name.
    identity: (u64, u64),
}

impl LeftoverFiles {
    /// Looks after these files, too.
    pub(crate) fn add(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.0.extend(
            paths.into_iter().filter_map(|path| Some(LeftoverFile { identity: identity(&path)?, path })),
        );
    }

    /// Removes those without a listener. A file that cannot be removed is removed by the next start.
    pub(crate) fn remove(&mut self, console: &Console) {
        if self.0.is_empty() {
            return;
        }
        // Without the table the files stay.
        let Ok(table) = fs::read(TABLE) else { return };
        let is_heard = |path: &Path| listening(&table).any(|candidate| candidate == path.as_os_str());
        self.0.retain(|file| is_heard(&file.path) || remove(file, console).is_some());
    }
}

/// `None` when there is nothing more to do.
fn remove(file: &LeftoverFile, console: &Console) -> Option<()> {
    if identity(&file.path) == Some(file.identity)
        && let Err(error) = fs::remove_file(&file.path)
        && error.kind() != io::ErrorKind::NotFound
    {
        let fault = Fault::call("unlink()", &file.path.to_string_lossy(), &error);
        console.report(Level::Notice, format_args!("{fault}"));
    }
    None
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.file_type().is_socket().then(|| (metadata.dev(), metadata.ino()))
}

/// Paths that a socket of the table listens on.
fn listening(table: &[u8]) -> impl Iterator<Item = &OsStr> {
    table.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let mut rest = line;
        let mut flags = 0;
        for field in 0..7 {
            rest = rest.trim_ascii_start();
            let (word, after) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
            if field == 3 {
                flags = u32::from_str_radix(str::from_utf8(word).ok()?, 16).ok()?;
            }
            rest = after;
        }
        (flags & LISTENS != 0).then(|| OsStr::from_bytes(rest.get(1..).unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use tw_testkit::{TempDir, wait};

    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_table_of_the_kernel() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            ffff1: 00000002 00000000 00010000 0001 01 17371 /run/a b\n\
            ffff2: 00000002 00000000 00000000 0001 03    12 /run/connected\n\
            ffff3: 00000003 00000000 00000000 0001 03 17990\n\
            ffff4: 00000002 00000000 00010000 0001 01     9 @tailwater/1\n";
        let results: Vec<_> = listening(table).map(|path| path.to_str().unwrap()).collect();
        assert_eq!(results, ["/run/a b", "@tailwater/1"]);
    }

    #[test]
    fn a_file_goes_with_its_last_listener() {
        let dir = TempDir::new("left").unwrap();
        let path = dir.join("s");
        let console = Console::new();
        let listener = UnixListener::bind(&path).unwrap();
        let mut leftover_files = LeftoverFiles::default();
        leftover_files.add([path.clone(), dir.write("file", "").unwrap(), dir.join("none")]);
        assert_eq!(leftover_files.0.len(), 1);
        leftover_files.remove(&console);
        assert!(path.exists() && leftover_files.0.len() == 1);

        drop(listener);
        // A process that another test starts at this moment has a copy of it until its own program begins.
        assert!(wait::until(wait::TIMEOUT, || {
            leftover_files.remove(&console);
            leftover_files.0.is_empty()
        }));
        assert!(!path.exists());
    }
}
