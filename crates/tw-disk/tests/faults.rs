//! Faults on purpose, through the door.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Builder;
use tw_base::fault::{FaultOp, Probability};
use tw_disk::{
    Account, Aio, CreateOptions, Disk, DiskError, Durable, Errno, FaultEffect, FaultRule, JobClass,
    JobSource, LIST_MAX, Now, OpenOptions, Pool, PoolSize, fault_counts, set_fault_rules,
};
use tw_testkit::TempDir;

/// Rules are the process's: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Two directories, of which the first gets faults.
struct Bench {
    dir: TempDir,
    disk: Disk,
    account: Account,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(aio: Aio) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = TempDir::new("faults").unwrap();
        dir.write("faulty/f", "content").unwrap();
        dir.write("sound/f", "content").unwrap();
        let size = PoolSize { device_timeout: Duration::from_millis(400), ..PoolSize::new(4, 100) };
        let disk = Disk::new(Pool::sized("bench", &size).unwrap(), aio);
        Self { dir, disk, account: Account::new(JobClass::Hit, JobSource::new(1)), _turn: turn }
    }

    fn path(&self, name: &str) -> CString {
        CString::new(self.dir.join(name).as_os_str().as_bytes()).unwrap()
    }

    fn rule(&self, ops: &[FaultOp]) -> FaultRule {
        FaultRule {
            path: self.path("faulty").to_bytes().into(),
            ops: ops.into(),
            delay: Duration::ZERO,
            error: None,
            rate: Probability::ALWAYS,
        }
    }

    async fn read(&mut self, name: &str) -> Result<Vec<u8>, DiskError> {
        let path = self.path(name);
        let file = self.disk.open(&mut self.account, &path, &OpenOptions::READ).await?;
        self.disk.read(&mut self.account, &file, 0, vec![0; 100]).await
    }

    fn run<T>(&mut self, work: impl AsyncFnOnce(&mut Self) -> T) -> T {
        Builder::new_current_thread().enable_time().build().unwrap().block_on(work(self))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        set_fault_rules(&[]);
    }
}

fn hits(op: FaultOp, effect: FaultEffect) -> u64 {
    fault_counts().into_iter().find(|count| (count.op, count.effect) == (op, effect)).map_or(0, |c| c.count)
}

#[test]
fn faults_hit_only_their_path_and_end_with_the_rule() {
    let mut bench = Bench::new(Aio::Threads);
    bench.run(async |bench| {
        // Both files are in memory from now on.
        for name in ["faulty/f", "sound/f"] {
            assert_eq!(bench.read(name).await.unwrap(), b"content");
        }
        let rule = FaultRule { error: Some(Errno::IO), ..bench.rule(&[FaultOp::Read]) };
        assert!(set_fault_rules(std::slice::from_ref(&rule)));
        assert!(!set_fault_rules(std::slice::from_ref(&rule)), "nothing new");
        let before = hits(FaultOp::Read, FaultEffect::Error);
        assert_eq!(bench.read("faulty/f").await.unwrap_err().errno(), Some(Errno::IO));
        assert_eq!(hits(FaultOp::Read, FaultEffect::Error), before + 1);
        let cold = bench.disk.open_now(&bench.path("faulty/f"), &OpenOptions::READ);
        assert!(matches!(cold, Now::Cold), "nothing of it is in memory");
        assert!(matches!(bench.disk.probe_now(&bench.path("faulty/f")), Now::Cold));
        assert_eq!(bench.read("sound/f").await.unwrap(), b"content");
        set_fault_rules(&[]);
        assert_eq!(bench.read("faulty/f").await.unwrap(), b"content");
        assert!(matches!(bench.disk.probe_now(&bench.path("faulty/f")), Now::Ready(Ok(_))));
    });
}

/// Tries every kind of operation below the faulty directory; those that fail for lack of space.
async fn failing(bench: &mut Bench) -> Vec<FaultOp> {
    let [dir, file, new, newer] =
        ["faulty", "faulty/f", "faulty/new", "faulty/newer"].map(|name| bench.path(name));
    let mut failing = Vec::new();
    let mut note = |op, result: Result<(), DiskError>| {
        if let Err(error) = result {
            assert_eq!(error.errno(), Some(Errno::NOSPC), "{op:?}");
            failing.push(op);
        }
    };
    let Bench { disk, account, .. } = &mut *bench;
    match disk.open(account, &file, &OpenOptions::READ_WRITE).await {
        Ok(open) => {
            note(FaultOp::Read, disk.read(account, &open, 0, vec![0; 9]).await.map(drop));
            note(FaultOp::Write, disk.write(account, &open, 0, b"content".to_vec()).await.map(drop));
            note(FaultOp::Fsync, disk.fsync(account, &open, Durable::Data).await);
        }
        Err(error) => note(FaultOp::Open, Err(error)),
    }
    note(FaultOp::Stat, disk.stat(account, &file).await.map(drop));
    note(FaultOp::Readdir, disk.list(account, &dir, LIST_MAX).await.map(drop));
    note(FaultOp::Create, disk.create(account, &new, &CreateOptions::NEW).await.map(drop));
    std::fs::write(new.to_str().unwrap(), "").unwrap();
    note(FaultOp::Rename, disk.rename(account, &new, &newer).await);
    std::fs::write(newer.to_str().unwrap(), "").unwrap();
    note(FaultOp::Unlink, disk.unlink(account, &newer).await);
    // A rename that failed has left the file there.
    let _ = std::fs::remove_file(new.to_str().unwrap());
    failing
}

#[test]
fn each_kind_of_operation_can_fail() {
    let mut bench = Bench::new(Aio::Threads);
    bench.run(async |bench| {
        assert_eq!(failing(bench).await, []);
        for op in FaultOp::ALL {
            let rule = FaultRule { error: Some(Errno::NOSPC), ..bench.rule(&[op]) };
            set_fault_rules(&[rule]);
            assert_eq!(failing(bench).await, [op]);
        }
    });
}

#[test]
fn delays_end_when_the_rules_change() {
    let mut bench = Bench::new(Aio::Threads);
    bench.run(async |bench| {
        let hour = Duration::from_secs(60 * 60);
        let rule = FaultRule { delay: hour, error: Some(Errno::IO), ..bench.rule(&[FaultOp::Open]) };
        set_fault_rules(&[rule]);
        let path = bench.path("faulty/f");
        let mut account = Account::new(JobClass::Hit, JobSource::new(2));
        let disk = bench.disk.clone();
        let before = hits(FaultOp::Open, FaultEffect::Delay);
        let mut opening = std::pin::pin!(disk.open(&mut account, &path, &OpenOptions::READ));
        while hits(FaultOp::Open, FaultEffect::Delay) == before {
            #[expect(clippy::disallowed_methods, reason = "the runtime of this test has a timer driver")]
            let early = tokio::time::timeout(Duration::from_millis(1), &mut opening).await;
            assert!(early.is_err(), "it waits for an hour");
        }
        // Other devices still have threads.
        assert_eq!(bench.read("sound/f").await.unwrap(), b"content");
        set_fault_rules(&[]);
        assert_eq!(opening.await.unwrap_err().errno(), Some(Errno::IO));
    });
}

#[test]
fn path_that_hangs_is_given_up_like_a_disk() {
    let mut bench = Bench::new(Aio::Threads);
    bench.run(async |bench| {
        let rule = FaultRule { delay: Duration::from_secs(60 * 60), ..bench.rule(&[FaultOp::Read]) };
        set_fault_rules(&[rule]);
        let mount = bench.dir.join("faulty").to_str().unwrap().to_owned();
        match bench.read("faulty/f").await {
            Err(DiskError::Hung { mount: hung, .. }) => assert_eq!(*hung, *mount),
            other => panic!("{other:?}"),
        }
        let stats = bench.disk.pool().stats();
        assert!(stats.hung.iter().any(|hung| *hung.mount == *mount), "{:?}", stats.hung);
        assert_eq!(bench.read("sound/f").await.unwrap(), b"content");
    });
}

#[test]
fn rates_hit_a_share_of_the_operations() {
    let mut bench = Bench::new(Aio::Threads);
    bench.run(async |bench| {
        let half = Probability::of_million(500_000);
        let rule = FaultRule { error: Some(Errno::IO), rate: half, ..bench.rule(&[FaultOp::Open]) };
        set_fault_rules(&[rule]);
        let mut failed = 0;
        for _ in 0..200 {
            failed += u32::from(bench.read("faulty/f").await.is_err());
        }
        assert!((60..140).contains(&failed), "{failed}");
    });
}

#[test]
fn inline_operations_have_no_faults() {
    let mut bench = Bench::new(Aio::Off);
    bench.run(async |bench| {
        let rule = FaultRule { error: Some(Errno::IO), ..bench.rule(&FaultOp::ALL) };
        set_fault_rules(&[rule]);
        assert_eq!(bench.read("faulty/f").await.unwrap(), b"content");
    });
}

#[test]
fn symbolic_links_lead_to_faults() {
    let mut bench = Bench::new(Aio::Threads);
    std::os::unix::fs::symlink("faulty", bench.dir.join("linked")).unwrap();
    bench.run(async |bench| {
        let rule = FaultRule { error: Some(Errno::IO), ..bench.rule(&[FaultOp::Open]) };
        set_fault_rules(&[rule]);
        // The first look may come from memory: links are found by jobs, and remembered.
        let path = bench.path("linked/f");
        let open = bench.disk.open_cold(&mut bench.account, &path, &OpenOptions::READ).await;
        assert_eq!(open.unwrap_err().errno(), Some(Errno::IO));
        assert_eq!(bench.read("linked/f").await.unwrap_err().errno(), Some(Errno::IO));
    });
}
