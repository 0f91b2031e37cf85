//! Memory that the process can still take before the kernel ends it: the least of what its cgroups (v1 and v2) and the machine
//! have left.
//!
//! A thread that may wait reads the files of the kernel ([`refresh`]); loops read one number ([`bytes`]).

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes as last read; `u64::MAX` before that, and where the kernel says nothing.
static AVAILABLE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Bytes below which memory counts as short.
const SHORT: u64 = 512 << 20;

/// Available bytes when they were last read; `u64::MAX` where they are not known. Never waits.
pub fn bytes() -> u64 {
    AVAILABLE.load(Relaxed)
}

/// Returns true if so little is left that it is worth reading more often.
pub fn is_short() -> bool {
    bytes() < SHORT
}

/// Reads it anew. Reads files of the kernel: not on a loop.
pub fn refresh() {
    AVAILABLE.store(read(Path::new("/")).unwrap_or(u64::MAX), Relaxed);
}

/// Available bytes as the files below `root` say, which is `/` but in tests.
fn read(root: &Path) -> Option<u64> {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = field(&text("proc/meminfo"), "MemAvailable:").map(|kb| kb.saturating_mul(1024));
    let mounts = text("proc/self/mountinfo");
    let groups = text("proc/self/cgroup");
    let in_groups = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let version = if controllers.split(',').any(|name| name == "memory") {
            Version::V1
        } else if number == "0" && controllers.is_empty() {
            Version::V2
        } else {
            return None;
        };
        mounts
            .lines()
            .filter_map(|mount| version.directory(mount, path))
            .find_map(|(top, directory)| version.available_to(&inside(root, &top), &inside(root, &directory)))
    });
    in_groups.chain(machine).min()
}

/// An absolute path below `root`, without parts that lead out of it.
fn inside(root: &Path, path: &Path) -> PathBuf {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .fold(root.into(), |path, part| path.join(part))
}

/// Version of the memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// The mount point of the hierarchy and the directory of the group `path` in it, if this line of `mountinfo` has it. Inside a
    /// container the mount may begin at the group, of which `path` still has the name outside.
    fn directory(self, mount: &str, path: &str) -> Option<(PathBuf, PathBuf)> {
        // proc_pid_mountinfo(5): number, parent, device, root, mount point, options, optional fields, a dash, type, source, super.
        let (fields, kind) = mount.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (top, point) = (fields.next()?, fields.next()?);
        let mut kind = kind.split(' ');
        let is_of_this_version = match (self, kind.next()?) {
            (Self::V1, "cgroup") => kind.nth(1)?.split(',').any(|option| option == "memory"),
            (Self::V2, "cgroup2") => true,
            _ => false,
        };
        let point = is_of_this_version.then(|| PathBuf::from(point))?;
        let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
        let directory = point.join(below);
        Some((point, directory))
    }

    /// The least that the group in `directory` and those around it, up to `top`, have left; `None` without a limit.
    fn available_to(self, top: &Path, directory: &Path) -> Option<u64> {
        directory
            .ancestors()
            .take_while(|group| group.starts_with(top))
            .filter_map(|group| self.available(group))
            .min()
    }

    /// Bytes that one group has left: what is below its limit, and pages of files that the kernel would drop for it.
    fn available(self, group: &Path) -> Option<u64> {
        let text = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let (limit, used, prefix) = match self {
            Self::V1 => (number("memory.limit_in_bytes"), number("memory.usage_in_bytes")?, "total_"),
            // Beyond `memory.high` processes are slowed down until they hardly run.
            Self::V2 => (
                number("memory.max").into_iter().chain(number("memory.high")).min(),
                number("memory.current")?,
                "",
            ),
        };
        let stat = text("memory.stat").unwrap_or_default();
        let of_files = |kind: &str| field(&stat, &format!("{prefix}{kind}")).unwrap_or(0);
        // As `MemAvailable` counts: not all of what is in use can go.
        let droppable = of_files("inactive_file") + of_files("active_file") / 2;
        Some(limit?.saturating_sub(used.saturating_sub(droppable)))
    }
}

/// The number behind a word at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    const MB: u64 = 1 << 20;
    const V1: &str = "36 30 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
    const V2: &str = "42 30 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    fn available(files: &[(&str, String)]) -> Option<u64> {
        let root = TempDir::new("available").unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        read(root.path())
    }

    fn meminfo(mb: u64) -> (&'static str, String) {
        ("proc/meminfo", format!("MemTotal: 1 kB\nMemAvailable:   {} kB\nBuffers: 2 kB\n", mb * 1024))
    }

    fn v1(group: &str, limit: u64, used: u64, inactive: u64) -> Vec<(String, String)> {
        let file = |name: &str, text: String| (format!("{group}/memory.{name}"), text);
        vec![
            file("limit_in_bytes", format!("{limit}\n")),
            file("usage_in_bytes", format!("{used}\n")),
            file("stat", format!("inactive_file 1\ntotal_inactive_file {inactive}\ntotal_active_file 0\n")),
        ]
    }

    #[test]
    fn available_memory_is_the_least_of_machine_and_groups() {
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[meminfo(300)]), Some(300 * MB));
        // v1, with a tighter group around.
        let of_group = ("proc/self/cgroup", "5:cpu:/\n4:memory:/a/b\n".into());
        let mounts = ("proc/self/mountinfo", V1.into());
        let inner = v1("sys/fs/cgroup/memory/a/b", 100 * MB, 60 * MB, 10 * MB);
        let outer = v1("sys/fs/cgroup/memory/a", 110 * MB, 90 * MB, 5 * MB);
        let unlimited = v1("sys/fs/cgroup/memory", 0x7FFF_FFFF_FFFF_F000, 4000 * MB, 0);
        let groups = [inner, outer, unlimited].concat();
        let files = |count: usize| {
            let groups = groups[..count].iter().map(|(path, text)| (&**path, text.clone()));
            [meminfo(300), of_group.clone(), mounts.clone()].into_iter().chain(groups).collect::<Vec<_>>()
        };
        assert_eq!(available(&files(3)), Some(50 * MB));
        assert_eq!(available(&files(9)), Some(25 * MB));
    }

    #[test]
    fn groups_of_version_2_and_of_containers_are_found() {
        let file = |path: &'static str, text: &str| (path, text.to_owned());
        let stat = "anon 5\ninactive_file 2097152\nactive_file 4194304\n";
        let base = [meminfo(300), file("proc/self/cgroup", "0::/x\n"), file("proc/self/mountinfo", V2)];
        let group = [
            file("sys/fs/cgroup/x/memory.max", "104857600\n"),
            file("sys/fs/cgroup/x/memory.high", "max\n"),
            file("sys/fs/cgroup/x/memory.current", "52428800\n"),
            file("sys/fs/cgroup/x/memory.stat", stat),
        ];
        assert_eq!(available(&[&base[..], &group].concat()), Some(54 * MB));
        let high = [file("sys/fs/cgroup/x/memory.high", "62914560\n")];
        assert_eq!(available(&[&base[..], &group, &high].concat()), Some(14 * MB));
        // The group is the mount's own beginning, and has another name outside.
        let mount = V1.replace("0:32 / ", "0:32 /docker/1 ");
        let mut files = vec![
            meminfo(300),
            file("proc/self/cgroup", "4:memory:/docker/1\n"),
            ("proc/self/mountinfo", mount),
        ];
        let group = v1("sys/fs/cgroup/memory", 90 * MB, 80 * MB, 0);
        files.extend(group.iter().map(|(path, text)| (&**path, text.clone())));
        assert_eq!(available(&files), Some(10 * MB));
        // More in use than the limit, which was lowered.
        let over = v1("sys/fs/cgroup/memory", 70 * MB, 80 * MB, 0);
        files.extend(over.iter().map(|(path, text)| (&**path, text.clone())));
        assert_eq!(available(&files), Some(0));
    }

    #[test]
    fn process_reads_its_own_group() {
        refresh();
        assert!(bytes() > 0);
    }
}
