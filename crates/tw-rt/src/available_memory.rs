//! Memory that the process can still take before the kernel ends it: the least of what its cgroups (v1 and v2) and the machine
//! have left.
//!
//! A thread that may wait reads the files of the kernel ([`refresh`]); loops read one number ([`bytes`]). The account of memory
//! ([`tw_base::memory`]) gets its bound here, and what is left of it: of a cgroup, or of a size that the configuration names
//! ([`set_budget`]).

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_base::memory::{self, FilePages};

/// Bytes as last read; `u64::MAX` before that, and where the kernel says nothing.
static AVAILABLE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Bytes below which memory counts as short.
const SHORT: u64 = 512 << 20;

/// Part of the limit of a cgroup that is left to what no account counts: tables of pages, and pages of files that are not
/// written yet.
const RESERVED_PART: u64 = 16;

/// Bound of the account: a size, or one of these two.
static BUDGET: AtomicU64 = AtomicU64::new(BUDGET_OFF);
const BUDGET_OFF: u64 = 0;
const BUDGET_AUTO: u64 = u64::MAX;

/// Bound of the memory of the process (`memory_budget`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// None.
    Off,
    /// The limit of its cgroup, if there is one.
    Auto,
    /// A number of bytes, or the limit of its cgroup if that is less.
    Size(u64),
}

/// Sets the bound of the account, which the next [`refresh`] takes over.
pub fn set_budget(budget: Budget) {
    let bytes = match budget {
        Budget::Off => BUDGET_OFF,
        Budget::Auto => BUDGET_AUTO,
        Budget::Size(bytes) => bytes.clamp(BUDGET_OFF + 1, BUDGET_AUTO - 1),
    };
    BUDGET.store(bytes, Relaxed);
}

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
    let read = read(Path::new("/"));
    AVAILABLE.store(read.available.unwrap_or(u64::MAX), Relaxed);
    let (bound, remaining) = bounded(BUDGET.load(Relaxed), read);
    let pages = if read.limit.is_some() { FilePages::Count } else { FilePages::DoNotCount };
    memory::look(bound, remaining, pages);
}

/// Bound of the account, and what is left of it.
fn bounded(budget: u64, read: Reading) -> (Option<u64>, u64) {
    let in_group = read.limit.map(|limit| {
        let reserved = limit / RESERVED_PART;
        (limit - reserved, read.available.unwrap_or(limit).saturating_sub(reserved))
    });
    match (budget, in_group) {
        (BUDGET_OFF, _) | (BUDGET_AUTO, None) => (None, u64::MAX),
        (BUDGET_AUTO, Some((bound, remaining))) => (Some(bound), remaining),
        (size, in_group) => {
            let remaining = size.saturating_sub(read.resident.unwrap_or(0));
            match in_group {
                Some((bound, left_in_group)) => (Some(bound.min(size)), remaining.min(left_in_group)),
                None => (Some(size), remaining),
            }
        }
    }
}

/// Numbers of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reading {
    /// Bytes that the process can still take.
    available: Option<u64>,
    /// The least limit of its cgroups, if that is less than the machine has.
    limit: Option<u64>,
    /// Bytes of the process that are in memory and no pages of files.
    resident: Option<u64>,
}

/// Numbers of the files below `root`, which is `/` but in tests.
fn read(root: &Path) -> Reading {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let meminfo = text("proc/meminfo");
    let of_machine = |name: &str| field(&meminfo, name).map(|kb| kb.saturating_mul(1024));
    let machine = of_machine("MemAvailable:");
    let mounts = text("proc/self/mountinfo");
    let groups = text("proc/self/cgroup");
    let in_groups: Vec<_> = groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let number = parts.next()?;
            let controllers = parts.next()?;
            let path = parts.next()?;
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
                .find_map(|(top, directory)| version.read_to(&inside(root, &top), &inside(root, &directory)))
        })
        .collect();
    let total = of_machine("MemTotal:").unwrap_or(u64::MAX);
    Reading {
        available: in_groups.iter().map(|group| group.available).chain(machine).min(),
        limit: in_groups.iter().map(|group| group.limit).min().filter(|limit| *limit < total),
        resident: resident(&text("proc/self/statm")),
    }
}

/// Bytes of the process that are in memory and no pages of files, by `/proc/self/statm`.
fn resident(statm: &str) -> Option<u64> {
    let mut pages = statm.split_ascii_whitespace().skip(1).map(|word| word.parse::<u64>().ok());
    let resident = pages.next()??;
    let shared = pages.next()??;
    Some(resident.saturating_sub(shared).saturating_mul(rustix::param::page_size() as u64))
}

/// Numbers of a cgroup, or the least ones of several around each other.
#[derive(Debug, Clone, Copy)]
struct GroupReading {
    limit: u64,
    available: u64,
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
        let top = fields.next()?;
        let point = fields.next()?;
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

    /// The least of the group in `directory` and those around it, up to `top`; `None` without a limit.
    fn read_to(self, top: &Path, directory: &Path) -> Option<GroupReading> {
        directory
            .ancestors()
            .take_while(|group| group.starts_with(top))
            .filter_map(|group| self.read(group))
            .reduce(|one, other| GroupReading {
                limit: one.limit.min(other.limit),
                available: one.available.min(other.available),
            })
    }

    /// Limit of one group, and the bytes it has left: what is below the limit, and pages of files that the kernel would drop for it.
    fn read(self, group: &Path) -> Option<GroupReading> {
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
        // As for `MemAvailable`, not all file pages in use count as droppable. Dirty pages have to be written first,
        // which may take longer than the memory lasts.
        let prefix_of_kind = if self == Self::V1 { "" } else { "file_" };
        let unwritten = ["dirty", "writeback"].map(|kind| of_files(&format!("{prefix_of_kind}{kind}")));
        let droppable = of_files("inactive_file") + of_files("active_file") / 2;
        let droppable = droppable.saturating_sub(unwritten.iter().sum());
        let limit = limit?;
        Some(GroupReading { limit, available: limit.saturating_sub(used.saturating_sub(droppable)) })
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
        read(root.path()).available
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
        // Pages of files that are not written yet.
        let stat = (
            "sys/fs/cgroup/memory/memory.stat",
            format!("total_inactive_file {}\ntotal_dirty {}\ntotal_writeback {}\n", 60 * MB, 20 * MB, 5 * MB),
        );
        files.push(stat);
        assert_eq!(available(&files), Some(45 * MB));
        files.pop();
        // More memory is in use than the limit, which was lowered.
        let over = v1("sys/fs/cgroup/memory", 70 * MB, 80 * MB, 0);
        files.extend(over.iter().map(|(path, text)| (&**path, text.clone())));
        assert_eq!(available(&files), Some(0));
    }

    #[test]
    fn bound_is_that_of_the_group_or_a_size() {
        let read = |limit: Option<u64>| Reading { available: Some(70), limit, resident: Some(40) };
        for (budget, limit, expected) in [
            (BUDGET_OFF, Some(160), (None, u64::MAX)),
            (BUDGET_AUTO, None, (None, u64::MAX)),
            (BUDGET_AUTO, Some(160), (Some(150), 60)),
            (100, None, (Some(100), 60)),
            (100, Some(160), (Some(100), 60)),
            (30, None, (Some(30), 0)),
            (200, Some(160), (Some(150), 60)),
            (170, Some(160), (Some(150), 60)),
        ] {
            assert_eq!(bounded(budget, read(limit)), expected, "{budget} {limit:?}");
        }
        assert_eq!(bounded(BUDGET_AUTO, Reading::default()), (None, u64::MAX));
        let page = rustix::param::page_size() as u64;
        assert_eq!(resident("900 30 10 5 0 70 0\n"), Some(20 * page));
        assert_eq!(resident(""), None);
    }

    #[test]
    fn limit_is_the_least_of_the_groups_and_less_than_the_machine() {
        let group = |limit: u64| {
            let root = TempDir::new("limit").unwrap();
            let mut files = vec![
                ("proc/meminfo".to_owned(), format!("MemTotal: {} kB\nMemAvailable: 9 kB\n", 300 * 1024)),
                ("proc/self/cgroup".to_owned(), "4:memory:/a\n".to_owned()),
                ("proc/self/mountinfo".to_owned(), V1.to_owned()),
            ];
            files.extend(v1("sys/fs/cgroup/memory/a", limit, 1, 0));
            files.extend(v1("sys/fs/cgroup/memory", 200 * MB, 1, 0));
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            read(root.path()).limit
        };
        assert_eq!(group(100 * MB), Some(100 * MB));
        assert_eq!(group(250 * MB), Some(200 * MB));
    }

    #[test]
    fn process_reads_its_own_group() {
        refresh();
        assert!(bytes() > 0);
    }
}
