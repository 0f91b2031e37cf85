//! Servers with little memory.

use std::fs;
use std::path::PathBuf;

use tw_testkit::server::Builder;
use tw_testkit::{Lacks, Server, leave_out, wait};

/// A cgroup (v1) of the memory controller, below that of the test; removed with its owner.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates it, or leaves the test `name` out if that is not possible.
    pub(crate) fn new(name: &str, limit: u64) -> Option<Self> {
        let lacking = |why: String| {
            leave_out(Lacks::Machine, why);
            None
        };
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(own) = groups.lines().find_map(|line| line.split_once(":memory:")) else {
            return lacking("no memory controller of cgroup v1".into());
        };
        let own = PathBuf::from("/sys/fs/cgroup/memory").join(own.1.trim_start_matches('/'));
        let path = own.join(format!("tailwater-test-{}-{name}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            return lacking(format!("no cgroup can be made: {error}"));
        }
        let group = Self(path);
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).unwrap();
        Some(group)
    }

    /// Starts a server in it.
    pub(crate) fn start(&self, builder: Builder, conf: &str) -> Server {
        // A child begins in the group of the thread that forks it.
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let own = self.0.parent().unwrap().join("tasks");
        fs::write(self.0.join("tasks"), &thread).unwrap();
        let server = builder.start(conf);
        fs::write(own, thread).unwrap();
        server.unwrap()
    }

    /// Number of processes that the kernel killed for lack of memory.
    pub(crate) fn killed(&self) -> u64 {
        let control = fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        control.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }

    /// The most bytes that it had.
    pub(crate) fn peak(&self) -> u64 {
        fs::read_to_string(self.0.join("memory.max_usage_in_bytes")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The server is gone by now; its memory of files goes to the group above.
        let is_gone = wait::until(wait::TIMEOUT, || fs::remove_dir(&self.0).is_ok());
        assert!(is_gone || std::thread::panicking(), "{} has processes left", self.0.display());
    }
}
