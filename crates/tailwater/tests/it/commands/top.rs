//! `tailwater top`: another program, which is found beside this one.

use std::process::{Command, Output};

use tw_testkit::TempDir;

/// Runs `tailwater top` of a directory of its own.
fn run(dir: &TempDir, words: &[&str]) -> Output {
    let binary = dir.join("tailwater");
    if !binary.exists() {
        // By another process: children that other tests start would hold the copy open for writing, and it could not be started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tailwater")).arg(&binary).status().unwrap();
        assert!(copied.success());
    }
    Command::new(binary).arg("top").args(words).env("PATH", dir.path()).output().unwrap()
}

#[test]
fn missing_program_is_an_error() {
    let dir = TempDir::new("top").unwrap();
    let output = run(&dir, &[]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(error.contains("tailwater-top is not installed\n"), "{error}");
}

#[test]
fn program_beside_gets_all_words() {
    let dir = TempDir::new("top").unwrap();
    dir.write_program("tailwater-top", "echo \"$#: $*\"\nexit 7", 0o755).unwrap();
    let output = run(&dir, &["--once", "a b", "-h"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3: --once a b -h\n");
    assert_eq!(output.status.code(), Some(7));
}
