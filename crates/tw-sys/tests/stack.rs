//! Stacks of threads that spin, that wait, and that are gone. One test: the signal belongs to the whole process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::hint::{black_box, spin_loop};
use std::io::{PipeReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tw_sys::stack::{self, Frames, NoStack};

const TIMEOUT: Duration = Duration::from_secs(20);

/// True if the C library is part of the program. Then there is one file, without names for others to find.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

#[inline(never)]
fn spins(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        spin_loop();
    }
}

#[inline(never)]
fn waits(mut reader: PipeReader) -> u8 {
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
    black_box(byte[0])
}

#[inline(never)]
fn looks() -> Frames {
    black_box(stack::of_this_thread())
}

/// Returns true if one of the frames is in the function that begins at `function`. Each of them is smaller than this.
fn are_in(frames: &Frames, function: usize) -> bool {
    frames.addresses().iter().any(|address| (function..function + 512).contains(address))
}

/// Returns true if a thread of this process waits in the kernel.
fn sleeps(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('S')
}

#[test]
fn stack_of_another_thread_is_read() {
    stack::install_handler().unwrap();
    assert!(are_in(&looks(), looks as *const () as usize));

    let (sender, thread_ids) = mpsc::channel();
    let tid = || rustix::thread::gettid().as_raw_nonzero().get();

    let stop = Arc::new(AtomicBool::new(false));
    let spinner = {
        let stop = stop.clone();
        let sender = sender.clone();
        thread::spawn(move || {
            sender.send(tid()).unwrap();
            spins(&stop);
        })
    };
    let spinning = thread_ids.recv().unwrap();
    // The thread may not have reached the function yet.
    let function = spins as *const () as usize;
    while !are_in(&stack::of_thread(spinning, TIMEOUT).unwrap(), function) {
        thread::yield_now();
    }
    stop.store(true, Relaxed);
    spinner.join().unwrap();
    assert!(matches!(stack::of_thread(spinning, TIMEOUT), Err(NoStack::Gone(_))));

    let (reader, mut writer) = std::io::pipe().unwrap();
    let waiter = thread::spawn(move || {
        sender.send(tid()).unwrap();
        waits(reader)
    });
    let waiting = thread_ids.recv().unwrap();
    while !sleeps(waiting) {
        thread::yield_now();
    }
    let frames = stack::of_thread(waiting, TIMEOUT).unwrap();
    let innermost = stack::origin(frames.addresses()[0]).unwrap();
    match IS_STATIC {
        // musl has no tables for the unwinder: how the thread came into its call is not known.
        true => assert!(!frames.addresses().is_empty(), "{frames:?}"),
        false => {
            assert!(innermost.name.is_some_and(|name| name.contains("read")));
            assert!(frames.addresses().len() > 3, "{frames:?}");
        }
    }
    // The system call goes on as if nothing had been.
    writer.write_all(b"!").unwrap();
    assert_eq!(waiter.join().unwrap(), b'!');

    let program = stack::program().unwrap();
    assert_eq!(stack::origin(function).unwrap().base, program.base);
    assert_eq!(innermost.base == program.base, IS_STATIC);
}
