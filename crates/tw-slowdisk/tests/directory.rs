//! A disk over a directory: what the kernel does there, and what becomes of the directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use tw_slowdisk::{Access, Directory, Mount, Settings};
use tw_testkit::wait::{TIMEOUT, until};
use tw_testkit::{Errno, Lacks, TempDir, leave_out};

/// A directory and a disk over it.
struct Bench {
    disk: Mount<Directory>,
    below: TempDir,
    /// Unless the disk is over the directory itself.
    point: Option<TempDir>,
}

impl Bench {
    fn new() -> Option<Self> {
        let point = TempDir::new("slow").unwrap();
        let below = TempDir::new("below").unwrap();
        let disk = mount(&below, point.path().to_owned())?;
        Some(Self { disk, below, point: Some(point) })
    }

    fn over_itself(below: TempDir) -> Option<Self> {
        let disk = mount(&below, below.path().to_owned())?;
        Some(Self { disk, below, point: None })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.point.as_ref().unwrap_or(&self.below).join(name)
    }

    fn set(&self, words: &[(&str, &str)]) {
        let mut settings = Settings::default();
        words.iter().for_each(|(name, value)| settings.set(name, value).unwrap());
        self.disk.set(settings);
    }
}

fn mount(below: &TempDir, point: PathBuf) -> Option<Mount<Directory>> {
    let directory = Directory::open(below.path()).unwrap();
    Mount::new(directory, &point, Access::Checked, 2)
        .inspect_err(|why| leave_out(Lacks::Machine, format_args!("there is no slow disk: {why}")))
        .ok()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn operations_reach_the_directory_below() {
    let Some(bench) = Bench::new() else { return };
    bench.below.write("old", "seen").unwrap();
    assert_eq!(fs::read(bench.at("old")).unwrap(), b"seen");

    fs::create_dir_all(bench.at("x/y")).unwrap();
    fs::write(bench.at("x/y/f"), vec![7; 300_000]).unwrap();
    fs::rename(bench.at("x/y/f"), bench.at("g")).unwrap();
    fs::hard_link(bench.at("g"), bench.at("h")).unwrap();
    fs::remove_file(bench.at("g")).unwrap();
    assert_eq!(fs::read(bench.below.join("h")).unwrap(), vec![7; 300_000]);

    let mut log = OpenOptions::new().append(true).create(true).open(bench.at("log")).unwrap();
    log.write_all(b"one ").unwrap();
    OpenOptions::new().append(true).open(bench.at("log")).unwrap().write_all(b"two").unwrap();
    log.sync_all().unwrap();
    assert_eq!(fs::read(bench.below.join("log")).unwrap(), b"one two");

    symlink("h", bench.at("link")).unwrap();
    assert_eq!(fs::read_link(bench.below.join("link")).unwrap().to_str(), Some("h"));
    assert_eq!(fs::metadata(bench.at("link")).unwrap().len(), 300_000);

    fs::set_permissions(bench.at("h"), Permissions::from_mode(0o640)).unwrap();
    let file = OpenOptions::new().write(true).open(bench.at("h")).unwrap();
    file.set_len(5).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000)).unwrap();
    let above = fs::metadata(bench.at("h")).unwrap();
    let below = fs::metadata(bench.below.join("h")).unwrap();
    assert_eq!((below.len(), below.mode() & 0o777, below.mtime()), (5, 0o640, 1_000));
    assert_eq!(
        (above.len(), above.mode(), above.mtime(), above.uid()),
        (5, below.mode(), 1_000, below.uid())
    );

    let mut names: Vec<_> = fs::read_dir(bench.at(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["h", "link", "log", "old", "x"]);
    fs::remove_dir(bench.at("x/y")).unwrap();
    assert_eq!(errno(fs::remove_dir(bench.at("none"))), Some(Errno::NOENT.raw_os_error()));
    assert!(!bench.below.join("x/y").exists());
}

#[test]
fn open_files_survive_their_names() {
    let Some(bench) = Bench::new() else { return };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).open(bench.at("f")).unwrap();
    file.write_all(b"content").unwrap();
    fs::remove_file(bench.at("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.set_len(4).unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "cont");
    // A new file under the same name does not change the open one.
    fs::write(bench.at("f"), "new").unwrap();
    assert_eq!((file.metadata().unwrap().len(), fs::metadata(bench.at("f")).unwrap().len()), (4, 3));
    fs::create_dir(bench.at("d")).unwrap();
    let inside = File::create(bench.at("d/f")).unwrap();
    fs::rename(bench.at("d"), bench.at("e")).unwrap();
    inside.write_all_at(b"moved", 0).unwrap();
    assert_eq!(fs::read(bench.at("e/f")).unwrap(), b"moved");
}

#[test]
fn directories_with_many_names_are_listed_once_each() {
    let Some(bench) = Bench::new() else { return };
    for name in 0..1000 {
        bench.below.write(format!("file-with-a-long-name-{name}"), "").unwrap();
    }
    let names: std::collections::BTreeSet<_> =
        fs::read_dir(bench.at("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1000);
}

#[test]
fn a_directory_can_be_covered_by_its_own_disk() {
    let below = TempDir::new("below").unwrap();
    below.write("f", "content").unwrap();
    let Some(bench) = Bench::over_itself(below) else { return };
    assert_eq!(fs::read(bench.at("f")).unwrap(), b"content");
    bench.set(&[("eio", "100%")]);
    assert_eq!(errno(fs::read(bench.at("f"))), Some(Errno::IO.raw_os_error()));
    let Bench { disk, below, .. } = bench;
    drop(disk);
    assert_eq!(fs::read(below.join("f")).unwrap(), b"content");
}

#[test]
fn settings_delay_and_fail_their_operations_until_they_change() {
    let Some(bench) = Bench::new() else { return };
    bench.below.write("f", "content").unwrap();
    bench.set(&[("read", "1h")]);
    let path = bench.at("f");
    let reader = thread::spawn(move || fs::read(path));
    assert!(until(TIMEOUT, || bench.disk.report().contains("read     1 operations, 1 delayed, 0 failed")));
    // Other operations go on meanwhile.
    fs::write(bench.at("g"), "written").unwrap();
    assert!(!reader.is_finished());
    bench.set(&[("enospc", "100%")]);
    assert_eq!(reader.join().unwrap().unwrap(), b"content");
    assert_eq!(errno(File::create(bench.at("h"))), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(errno(fs::write(bench.at("g"), "more")), Some(Errno::NOSPC.raw_os_error()));
    bench.set(&[]);
    fs::write(bench.at("g"), "more").unwrap();
}

#[test]
fn full_disk_has_room_again_when_files_are_removed() {
    let Some(bench) = Bench::new() else { return };
    bench.below.write("old", vec![1; 40_000]).unwrap();
    bench.set(&[("enospc", "64k")]);
    fs::write(bench.at("a"), vec![1; 30_000]).unwrap();
    assert_eq!(errno(fs::write(bench.at("b"), "x")), Some(Errno::NOSPC.raw_os_error()));
    let room = rustix::fs::statvfs(bench.at("")).unwrap();
    assert_eq!((room.f_bavail, room.f_blocks * room.f_frsize), (0, 64 << 10));

    // A file that is open keeps its bytes.
    let file = File::open(bench.at("old")).unwrap();
    fs::remove_file(bench.at("old")).unwrap();
    assert_eq!(errno(fs::write(bench.at("b"), "x")), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    assert!(until(TIMEOUT, || fs::write(bench.at("b"), "x").is_ok()));
    let room = rustix::fs::statvfs(bench.at("")).unwrap();
    assert!(room.f_bavail * room.f_frsize > 30_000);
}
