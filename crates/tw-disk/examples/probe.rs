//! Costs of checking that a cached path still leads to the same version of a file, and of opening and reading it.
//!
//! `cargo run --profile profiling -p tw-disk --example probe -- PATH [ROUNDS]`, with a small file on a local file system.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, fstat, openat, openat2, statx};
use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;
use tw_disk::{Aio, Disk, Now, OpenOptions, Pool};

/// Runs `work` in five batches and prints the best batch: the others were disturbed.
fn time(what: &str, rounds: u32, mut work: impl FnMut()) {
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_nanos() as u64 / u64::from(rounds)
        })
        .min()
        .unwrap_or(0);
    show(what, best);
}

#[expect(clippy::print_stdout, reason = "a program that measures prints what it measured")]
fn show(what: &str, ns: u64) {
    println!("{ns:6} ns  {what}");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = CString::new(args.next().ok_or("usage: probe PATH [ROUNDS]")?.into_vec())?;
    let rounds = args.next().and_then(|n| n.to_str()?.parse().ok()).unwrap_or(200_000);
    let disk = Disk::new(Pool::new("probe", 1, 16)?, Aio::Threads);
    let mut buf = vec![0; 1024];

    // The first opens and reads warm the names and let a job learn about the device.
    let mut account = tw_disk::Account::hit(tw_disk::JobSource::NONE);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let file = runtime.block_on(async {
        let file = disk.open(&mut account, &path, &OpenOptions::READ).await?;
        disk.read(&mut account, &file, 0, vec![0; 1024]).await?;
        disk.open(&mut account, &path, &OpenOptions::READ).await
    })?;

    let cached = ResolveFlags::CACHED;
    time("openat2(O_PATH, RESOLVE_CACHED) + fstat + close", rounds, || {
        let fd = openat2(CWD, &*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), cached);
        black_box(fd.and_then(fstat).is_ok());
    });
    time("statx(path, AT_STATX_DONT_SYNC)", rounds, || {
        black_box(statx(CWD, &*path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS).is_ok());
    });
    time("openat(O_RDONLY) + fstat + close, as nginx", rounds, || {
        let fd = openat(CWD, &*path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        black_box(fd.and_then(fstat).is_ok());
    });
    time("Disk::probe_now", rounds, || {
        black_box(matches!(disk.probe_now(&path), Now::Ready(Ok(_))));
    });
    time("Disk::open_now and close", rounds, || {
        black_box(matches!(disk.open_now(&path, &OpenOptions::READ), Now::Ready(Ok(_))));
    });
    time("Disk::stat_now", rounds, || {
        black_box(matches!(disk.stat_now(&file), Now::Ready(Ok(_))));
    });
    time("Disk::read_now, 1 KiB", rounds, || {
        black_box(matches!(disk.read_now(&file, 0, &mut buf), Now::Ready(Ok(_))));
    });
    Ok(())
}
