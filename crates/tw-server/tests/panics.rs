//! Panics on a guarded loop, seen from outside: the test is this program once more, with a loop on which a task panics
//! while the environment asks for backtraces.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tw_log::{ErrorLog, Level, SinkConfig, Sinks};
use tw_rt::{LoopGuard, Subject, Worker, WorkerOptions, spawn_local};
use tw_server::panics;

/// The file to log to, in the program that is to panic.
const LOG: &str = "PANICS_TEST_LOG";

#[test]
fn a_panic_on_a_loop_is_a_line_of_the_log_whatever_the_environment_asks_for() {
    if let Some(path) = std::env::var_os(LOG) {
        return panic_on_a_loop(&PathBuf::from(path));
    }
    for backtrace in ["0", "1", "full"] {
        let name = format!("tw-panics-{}-{backtrace}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        let name = std::thread::current().name().unwrap().to_owned();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env("RUST_BACKTRACE", backtrace)
            .env(LOG, &path)
            .output()
            .unwrap();
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "RUST_BACKTRACE={backtrace}: {}, {said}\n{log}", output.status);
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines.len(), 2, "{log}");
        for (line, message) in lines.iter().zip(["of a text", "of a number: 7\\x0Aand more"]) {
            assert!(line.contains(" [alert] "), "{line}");
            assert!(line.contains(": thread \"worker-0\" panicked at "), "{line}");
            assert!(line.contains("tests/panics.rs:"), "{line}");
            assert!(line.ends_with(&format!(": {message}")), "{line}");
        }
        assert!(!said.contains("panicked"), "{said}");
    }
}

fn panic_on_a_loop(path: &Path) {
    let sinks = Sinks::new();
    let sink = sinks.open(path, SinkConfig::default()).unwrap();
    sinks.start().unwrap();
    panics::report_to(Arc::new(Mutex::new(ErrorLog::new(vec![(sink, Level::Error)]))));
    let options = WorkerOptions { guard: LoopGuard::Enforce, ..WorkerOptions::new(0) };
    let worker = Worker::<()>::start(options, |mut inbox| async move {
        inbox.recv().await;
        let seven = inbox.recv().await.map_or(7, |()| 8);
        let subject = Subject { kind: "broken", id: 1 };
        assert!(spawn_local(subject, async { panic!("of a text") }).await.is_err());
        let number = async move { panic!("of a number: {seven}\nand more") };
        assert!(spawn_local(subject, number).await.is_err());
    })
    .unwrap();
    worker.send(()).unwrap();
    worker.join().unwrap();
    let _ = sinks.flush_and_close(Instant::now() + Duration::from_secs(10));
}
