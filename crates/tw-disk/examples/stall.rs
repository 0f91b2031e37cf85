//! Time for which the disk stops a loop: many tasks read cold files while one reads a hot one, all on one thread.
//!
//! `cargo run --profile profiling -p tw-disk --example stall -- DIR [raw]`, with a few hundred cold files in DIR, on a device
//! slow enough to matter (a blkio or io cgroup helps). `raw` tries `preadv2(RWF_NOWAIT)` for every read, as if nobody knew
//! that a miss may wait.

use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use tw_disk::{Account, Aio, Disk, File, JobSource, Now, OpenOptions, Pool};

const CHUNK_SIZE: usize = 32 * 1024;
const RUN: Duration = Duration::from_secs(5);

/// Measurements of the loop.
#[derive(Default)]
struct Measurements {
    longest: Cell<Duration>,
    hot: Cell<u64>,
    hot_jobs: Cell<u64>,
    cold: Cell<u64>,
}

struct Bench {
    disk: Disk,
    is_raw: bool,
    scratch: RefCell<Vec<u8>>,
    measurements: Measurements,
}

impl Bench {
    async fn read(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
    ) -> Result<usize, tw_disk::DiskError> {
        let start = Instant::now();
        let now = {
            let buf = &mut self.scratch.borrow_mut()[..];
            match (self.is_raw, file.fd()) {
                (true, Some(fd)) => {
                    match preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
                        Err(tw_disk::Errno::AGAIN) => Now::Cold,
                        other => Now::Ready(other),
                    }
                }
                _ => self.disk.read_now(file, offset, buf),
            }
        };
        self.measurements.longest.set(self.measurements.longest.get().max(start.elapsed()));
        match now {
            Now::Ready(Ok(n)) => Ok(n),
            _ => Ok(self.disk.read_cold(account, file, offset, vec![0; CHUNK_SIZE]).await?.len()),
        }
    }

    async fn cold(&self, files: &[File], mut at: usize) -> Result<(), tw_disk::DiskError> {
        let end = Instant::now() + RUN;
        while Instant::now() < end {
            at = at.wrapping_mul(25_214_903_917).wrapping_add(11);
            let file = &files[(at >> 16) % files.len()];
            let mut account = Account::hit(JobSource::new(file.meta().ino));
            let offset = (at >> 8) as u64 % file.meta().size.max(1);
            self.read(&mut account, file, offset).await?;
            self.measurements.cold.set(self.measurements.cold.get() + 1);
            if let (true, Some(fd)) = (at.is_multiple_of(4), file.fd()) {
                let _ = fadvise(fd, 0, None, Advice::DontNeed);
            }
        }
        Ok(())
    }

    async fn hot(&self, file: &File) -> Result<(), tw_disk::DiskError> {
        let end = Instant::now() + RUN;
        let mut account = Account::hit(JobSource::new(1));
        while Instant::now() < end {
            self.read(&mut account, file, 0).await?;
            self.measurements.hot.set(self.measurements.hot.get() + 1);
            tokio::task::yield_now().await;
        }
        self.measurements.hot_jobs.set(account.jobs().into());
        Ok(())
    }
}

#[expect(clippy::print_stdout, reason = "a program that measures prints what it measured")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = args.next().ok_or("usage: stall DIR [raw]")?;
    let is_raw = args.next().is_some();
    let disk = Disk::new(Pool::with_defaults()?, Aio::Threads);
    let bench =
        Bench { disk, is_raw, scratch: vec![0; CHUNK_SIZE].into(), measurements: Measurements::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let local = tokio::task::LocalSet::new();
    let bench: &'static Bench = Box::leak(Box::new(bench));
    local.block_on(&runtime, async {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_file() {
                let path = CString::new(path.as_os_str().as_bytes())?;
                let file =
                    bench.disk.open(&mut Account::hit(JobSource::NONE), &path, &OpenOptions::READ).await?;
                file.fd().map(|fd| fadvise(fd, 0, None, Advice::DontNeed)).transpose()?;
                files.push(file);
            }
        }
        let hot = files.pop().ok_or("no files")?;
        let files: &'static [File] = Vec::leak(files);
        bench.read(&mut Account::hit(JobSource::NONE), &hot, 0).await?;
        bench.measurements.longest.take();
        let mut tasks: Vec<_> =
            (0..200).map(|i| tokio::task::spawn_local(bench.cold(files, i * 7919))).collect();
        tasks.push(tokio::task::spawn_local(async move { bench.hot(&hot).await }));
        for task in tasks {
            task.await??;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    let measurements = &bench.measurements;
    println!(
        "longest stop {:?}; hot reads {} ({} by jobs), cold reads {}",
        measurements.longest.get(),
        measurements.hot.get(),
        measurements.hot_jobs.get(),
        measurements.cold.get()
    );
    Ok(())
}
