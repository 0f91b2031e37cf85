//! Sets of cold files: made once, reused, and evicted from memory before each run.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use rustix::fs::{Advice, fadvise, syncfs};

use super::Outcome;
use crate::root;

/// Files in one directory: small enough that a directory is one read.
const PER_DIRECTORY: usize = 512;
/// The mark of a set that was written to its end; holds the number of files.
const COMPLETE: &str = "complete";

/// Files of one size with random content, named `DIRECTORY/NUMBER`.
#[derive(Debug, Clone)]
pub(super) struct ColdSet {
    dir: PathBuf,
    pub(super) count: usize,
}

impl ColdSet {
    /// Makes the set under `data`, or takes the one that is there if it is large enough.
    pub(super) fn prepare(data: &Path, file_size: usize, total: u64) -> Outcome<Self> {
        let dir = data.join(file_size.to_string());
        let count = usize::try_from(total.div_ceil(file_size as u64))?.max(1);
        let set = Self { dir, count };
        let present =
            fs::read_to_string(set.dir.join(COMPLETE)).ok().and_then(|text| text.trim().parse().ok());
        if present.unwrap_or(0) < count {
            set.make(present.unwrap_or(0), file_size)?;
        }
        Ok(set)
    }

    fn make(&self, first: usize, file_size: usize) -> Outcome {
        let Self { dir, count } = self;
        eprintln!("making {} files of {file_size} bytes in {}", count - first, dir.display());
        for number in first..*count {
            let path = dir.join(name(number));
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(&path, noise(number as u64 + 1, file_size))?;
        }
        fs::write(dir.join(COMPLETE), count.to_string())?;
        // Pages that are not written yet cannot be dropped.
        Ok(syncfs(File::open(dir)?)?)
    }

    /// Puts all the files out of memory. The data: names and inodes may stay.
    pub(super) fn drop_from_memory(&self) -> Outcome {
        for number in 0..self.count {
            drop_file(&self.dir.join(name(number)))?;
        }
        Ok(())
    }

    /// Name of one of the files, chosen by a random number.
    pub(super) fn name(&self, random: u64) -> String {
        // The upper bits are the most random ones.
        name((random >> 16) as usize % self.count)
    }

    /// Lua for `wrk`: each request takes any of the files under the given prefix of paths.
    pub(super) fn random_requests(&self, prefix: &str) -> String {
        format!(
            "math.randomseed(os.time())
request = function()
    local number = math.random(0, {last})
    return wrk.format(\"GET\", string.format(\"{prefix}%d/%d\", math.floor(number / {PER_DIRECTORY}), number))
end
",
            last = self.count - 1
        )
    }
}

fn name(number: usize) -> String {
    format!("{}/{number}", number / PER_DIRECTORY)
}

/// Numbers that look random, the same for the same seed (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Writes a hot file of this name and size below `data`, unless it is there.
pub(super) fn hot_file(data: &Path, name: &str, size: usize) -> Outcome<PathBuf> {
    let path = data.join("hot").join(name);
    if fs::metadata(&path).map(|metadata| metadata.len()).ok() != Some(size as u64) {
        fs::create_dir_all(data.join("hot"))?;
        fs::write(&path, noise(1, size))?;
        File::open(&path)?.sync_all()?;
    }
    Ok(path)
}

/// Puts the data of one file out of memory.
pub(super) fn drop_file(path: &Path) -> Outcome {
    Ok(fadvise(File::open(path)?, 0, None, Advice::DontNeed)?)
}

/// Puts the data of all files below a directory out of memory. Names and inodes may stay.
pub(super) fn drop_from_memory(dir: &Path) -> Outcome {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            drop_from_memory(&entry.path())?;
        } else {
            drop_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a directory and all below it, several directories at a time: on file systems that tell the device which
/// blocks are free, each removal waits for it.
pub(super) fn remove_tree(dir: &Path) -> io::Result<()> {
    const THREADS: usize = 8;
    let mut dirs = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(dir) = dirs.get(next) {
        let below: Vec<PathBuf> = fs::read_dir(dir)?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        dirs.extend(below);
        next += 1;
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(dir) = dirs.get(next.fetch_add(1, Relaxed)) {
                    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                        // Fails for a directory; what stays is removed below, or is an error there.
                        let _ = fs::remove_file(entry.path());
                    }
                }
            });
        }
    });
    fs::remove_dir_all(dir)
}

/// Bytes that do not compress, the same for the same seed.
pub(super) fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Text as people write it: our own sources, one after the other, from the beginning as often as it takes.
pub(super) fn text(size: usize) -> Outcome<Vec<u8>> {
    let dir = root().join("crates/tw-phases/src");
    let mut files: Vec<_> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    let mut text = Vec::with_capacity(size);
    for path in files.iter().cycle() {
        text.extend_from_slice(&fs::read(path)?);
        if text.len() >= size {
            break;
        }
    }
    text.truncate(size);
    Ok(text)
}

/// Lets the whole machine forget everything it has read and can read again, names and directories too. Only root may.
///
/// A set larger than memory has names that are not in memory either; opening one of them waits for the disk as much as
/// reading does. There is no way to forget the names of one directory.
pub(super) fn forget_everything() -> Outcome {
    const PAGES_DENTRIES_AND_INODES: &str = "3";
    Ok(fs::write("/proc/sys/vm/drop_caches", PAGES_DENTRIES_AND_INODES)?)
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn data_set_is_made_once_and_grows_on_demand() {
        let dir = TempDir::new("data").unwrap();
        let set = ColdSet::prepare(dir.path(), 1000, 1_500).unwrap();
        assert_eq!(set.count, 2);
        assert_eq!(fs::read(dir.join("1000/0/1")).unwrap().len(), 1000);

        fs::write(dir.join("1000/0/1"), "kept").unwrap();
        let set = ColdSet::prepare(dir.path(), 1000, 513_000).unwrap();
        assert_eq!(fs::read(dir.join("1000/0/1")).unwrap(), b"kept");
        assert!(dir.join("1000/1/512").is_file());
        assert!(set.random_requests("/x/").contains("math.random(0, 512)"));
        set.drop_from_memory().unwrap();
        remove_tree(&dir.join("1000")).unwrap();
        assert!(!dir.join("1000").exists() && remove_tree(&dir.join("1000")).is_err());
    }

    #[test]
    fn noise_depends_on_its_seed_alone() {
        assert_eq!(noise(7, 100), noise(7, 100));
        assert_ne!(noise(7, 100), noise(8, 100));
        assert_eq!(noise(7, 13).len(), 13);
    }
}
