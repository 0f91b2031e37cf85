//! Files of a cache, directory by directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::device::Device;
use super::names::{self, FileName};
use super::response_file::ResponseFile;
use super::segment_file::SegmentPlace;

/// Deepest level of directories that `levels=` has.
const LEVELS_MAX: usize = 3;

/// File of a cache.
#[derive(Clone, Debug)]
pub(super) enum CacheFile {
    /// A stored response in a file of its own.
    Response(ResponseFile),
    /// A segment.
    Segment(SegmentPlace),
    /// A response that is not complete.
    Unfinished {
        /// Bytes on the disk.
        size: u64,
    },
}

/// Number of files that do not belong to a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForeignFiles(pub(super) u64);

/// Visits all files of the cache in this directory, the segments last, in the order of their numbers. `visit` returns an error to
/// end the walk.
///
/// # Errors
/// A directory cannot be read, or `visit` has failed. A directory that is gone is left out.
pub(super) fn walk(
    dir: &Path,
    visit: &mut dyn FnMut(CacheFile) -> io::Result<()>,
) -> io::Result<ForeignFiles> {
    let mut foreign_files = ForeignFiles::default();
    // The first one has to exist.
    fs::read_dir(dir).map_err(|error| named(dir, &error))?;
    let mut directories = vec![(dir.to_owned(), 0)];
    while let Some((below, depth)) = directories.pop() {
        for (name, meta) in entries(&below)? {
            let path = below.join(OsStr::from_bytes(&name));
            if meta.is_dir() {
                if depth < LEVELS_MAX && names::is_level(&name) {
                    directories.push((path, depth + 1));
                }
                continue;
            }
            match FileName::of(&name) {
                _ if !meta.is_file() => foreign_files.0 += 1,
                FileName::Response(key) => visit(CacheFile::Response(ResponseFile {
                    path,
                    key,
                    size: meta.len(),
                    changed: meta.mtime(),
                }))?,
                FileName::Unfinished => visit(CacheFile::Unfinished { size: meta.len() })?,
                FileName::Own => {}
                FileName::Other => foreign_files.0 += 1,
            }
        }
    }
    let segments = dir.join(names::SEGMENTS);
    for (name, meta) in entries(&segments)? {
        match tw_cache::segment::number_of(&name).filter(|_| meta.is_file()) {
            Some(number) => {
                let path = segments.join(OsStr::from_bytes(&name));
                visit(CacheFile::Segment(SegmentPlace { path, number, base: 0, size: None }))?;
            }
            None => foreign_files.0 += 1,
        }
    }
    // A device that cannot be read is reported by the command.
    if let Some(Ok(device)) = Device::of(dir) {
        for place in device.segments().map_err(|error| named(&device.path, &error))? {
            visit(CacheFile::Segment(place))?;
        }
    }
    Ok(foreign_files)
}

/// Entries of a directory, sorted by name; none if there is no such directory.
fn entries(dir: &Path) -> io::Result<Vec<(Vec<u8>, fs::Metadata)>> {
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(named(dir, &error)),
    };
    let mut results = Vec::new();
    for entry in listed {
        let entry = entry.map_err(|error| named(dir, &error))?;
        match entry.metadata() {
            Ok(meta) => results.push((entry.file_name().as_bytes().to_vec(), meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(&entry.path(), &error)),
        }
    }
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(results)
}

/// An error with the path that it is about.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
