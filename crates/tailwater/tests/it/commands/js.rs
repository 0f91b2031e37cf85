//! `tailwater js`: a script by hand, by the program that runs the scripts of a server.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tw_testkit::{Lacks, TempDir, leave_out};

const BINARY: &str = env!("CARGO_BIN_EXE_tailwater");

/// Runs a script with words behind it, if the program for scripts was built.
fn run(dir: &TempDir, script: &str, words: &[&str]) -> Option<Output> {
    let program = Path::new(BINARY).with_file_name("tailwater-scripts");
    if !program.exists() {
        leave_out(Lacks::Machine, format_args!("no {}: cargo build -p tailwater-scripts", program.display()));
        return None;
    }
    let file = dir.write("main.js", script).unwrap();
    let mut command = Command::new(BINARY);
    Some(
        command
            .current_dir(dir.path())
            .env("COLOR", "blue")
            .arg("js")
            .arg(file)
            .args(words)
            .output()
            .unwrap(),
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn missing_program_is_an_error() {
    let dir = TempDir::new("js").unwrap();
    let binary = dir.join("tailwater");
    fs::copy(BINARY, &binary).unwrap();
    let output = Command::new(binary).args(["js", "main.js"]).env("PATH", dir.path()).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("tailwater-scripts is not installed\n"), "{output:?}");
}

#[test]
fn script_has_arguments_environment_files_and_timers() {
    let script = "
        import fs from 'fs';
        import lib from './lib.js';
        console.log(process.argv.slice(2).join(' '), process.env.COLOR, lib.name);
        fs.writeFileSync('made.txt', 'sync');
        await fs.promises.appendFile('made.txt', ' and later');
        setTimeout(() => console.log(fs.readFileSync('made.txt', 'utf8')), 5);
        console.error('to the side');
        try { fs.readFileSync('none.txt'); } catch (e) { console.log(e.code, e.syscall, e.path); }";
    let dir = TempDir::new("js").unwrap();
    dir.write("lib.js", "export default {name: 'library'};").unwrap();
    let Some(output) = run(&dir, script, &["a", "--help", "b c"]) else { return };
    assert!(output.status.success(), "{output:?}");
    let expected = "a --help b c blue library\nENOENT open none.txt\nsync and later\n";
    assert_eq!(text(&output.stdout), expected);
    assert_eq!(text(&output.stderr), "to the side\n");
    assert_eq!(fs::read_to_string(dir.join("made.txt")).unwrap(), "sync and later");
}

#[test]
fn exceptions_make_the_command_fail() {
    let dir = TempDir::new("js").unwrap();
    for (script, message) in [
        ("let broken = (;", "SyntaxError"),
        ("null.x;", "TypeError"),
        ("await Promise.reject(new Error('late'));", "late"),
        ("setTimeout(() => { throw new RangeError('in a timer'); }, 1);", "RangeError: in a timer"),
        ("await new Promise(() => {});", "waits for something that does not happen"),
        ("ngx.shared.x.get('a')", "TypeError"),
        ("import x from './none.js';", "none.js"),
    ] {
        let Some(output) = run(&dir, script, &[]) else { return };
        assert!(!output.status.success() && text(&output.stderr).contains(message), "{script}: {output:?}");
    }
}
