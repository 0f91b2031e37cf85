//! Tests that concern a whole process and so need one of their own: signals, limits, priority.

#![allow(clippy::unwrap_used, reason = "a test, though without the harness that clippy knows")]

use std::time::Duration;

use rustix::process::{DumpableBehavior, Signal as Number, getpid, kill_process};
use tw_rt::signal::{ReceivedSignal, Signal, Signals};
use tw_rt::{LoopOptions, LoopThread, limits};

fn signals_reach_the_thread_that_waits_and_no_loop() {
    let signals = Signals::take().unwrap();
    assert_eq!(signals.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(signals.wait(Some(Duration::from_millis(5))).unwrap(), None);

    let worker = LoopThread::<()>::start(LoopOptions::new(0), |mut inbox| async move {
        inbox.recv().await;
    })
    .unwrap();
    let pid = getpid().as_raw_nonzero().get();
    for signal in
        [Signal::Term, Signal::Int, Signal::Quit, Signal::Hup, Signal::Usr1, Signal::Usr2, Signal::Winch]
    {
        kill_process(getpid(), Number::from_named_raw(signal.number()).unwrap()).unwrap();
        assert_eq!(signals.wait(None).unwrap(), Some(ReceivedSignal { signal, pid }), "{}", signal.name());
    }
    std::process::Command::new("true").spawn().unwrap().wait().unwrap();
    assert_eq!(signals.wait(None).unwrap().unwrap().signal, Signal::Chld);
    worker.send(()).unwrap();
    worker.join().unwrap();
}

fn limits_and_priority() {
    let before = limits::open_files().unwrap();
    limits::set_open_files(before - 1).unwrap();
    assert_eq!(limits::open_files(), Some(before - 1));
    limits::set_core_size(0).unwrap();
    for (set, expected) in [
        (limits::forbid_core_files as fn() -> std::io::Result<()>, DumpableBehavior::NotDumpable),
        (limits::allow_core_files, DumpableBehavior::Dumpable),
    ] {
        set().unwrap();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), expected);
    }
    limits::set_priority(1).unwrap();
    let inherited = std::thread::spawn(|| rustix::process::getpriority_process(None).unwrap());
    assert_eq!(inherited.join().unwrap(), 1);
}

fn main() {
    signals_reach_the_thread_that_waits_and_no_loop();
    limits_and_priority();
}
