//! Other programs of this machine.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

use tw_testkit::{Lacks, TempDir, leave_out};

/// Output of a program that runs in `dir` with this input; `None`, with a message, if it is not installed.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, dir: &TempDir, args: &[S], input: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir.path());
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        leave_out(Lacks::Machine, format_args!("no {program} to ask with"));
        return None;
    };
    // One that wants none is gone already.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
