//! The machine of a measurement and its limits, for the report.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::statfs;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::cgroup;
use super::contestant::{find_program, version_line};
use super::home;

/// Programs of the load and peers other than nginx, and the argument for their version.
const PROGRAMS: [(&str, &str); 6] = [
    ("wrk", "-v"),
    ("h2load", "--version"),
    ("haproxy", "-v"),
    ("varnishd", "-V"),
    ("traffic_server", "--version"),
    ("valgrind", "--version"),
];

/// Kernel, processor, memory, file system, limits and versions of programs.
pub(super) fn describe() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(|line| line.trim_start_matches([' ', '\t', ':']).to_owned()).unwrap_or_default()
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kilobytes: f64 = memory.split(' ').next().and_then(|kb| kb.parse().ok()).unwrap_or(f64::NAN);
    let programs: Vec<Value> = PROGRAMS
        .iter()
        .map(|(name, argument)| {
            let version = find_program(name).and_then(|path| version_line(&path, argument).ok());
            json!({ "name": name, "version": version })
        })
        .collect();
    json!({
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_gb": (kilobytes / 1e5).round() / 10.0,
        "file_system": file_system(&home()),
        "cgroup": cgroup::version(),
        "locked_memory_max": limit(Resource::Memlock),
        "open_files_max": limit(Resource::Nofile),
        "programs": programs,
        "date": date(),
    })
}

/// The machine in one line.
pub(super) fn line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or_default().to_owned();
    format!(
        "Linux {}, {} cores of {}, {} GB of memory, {}, {}, open files ≤ {}, locked memory ≤ {}",
        text("kernel"),
        machine["cores"],
        text("processor"),
        machine["memory_gb"],
        text("file_system"),
        text("cgroup"),
        text("open_files_max"),
        text("locked_memory_max"),
    )
}

fn limit(resource: Resource) -> String {
    getrlimit(resource).maximum.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
}

/// Name of the file system that a directory, or the nearest one above it, is on.
fn file_system(dir: &Path) -> String {
    const NAMES: [(u64, &str); 6] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs"),
        (0x794C_7630, "overlayfs"),
        (0x2FC1_2FC1, "zfs"),
    ];
    let file_stat = dir.ancestors().find_map(|dir| statfs(dir).ok());
    let magic = file_stat.map_or(0, |result| u64::try_from(result.f_type).unwrap_or(0));
    let name = NAMES.iter().find(|(number, _)| *number == magic).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("file system {magic:#x}"))
}

/// Day of the measurement.
fn date() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_names_kernel_and_programs() {
        let machine = describe();
        assert!(line(&machine).starts_with("Linux ") && machine["cores"].as_u64() > Some(0));
        assert_eq!(machine["programs"].as_array().unwrap().len(), PROGRAMS.len());
        assert_eq!(machine["date"].as_str().unwrap().len(), 10);
    }
}
