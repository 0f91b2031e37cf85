//! Other programs of this machine.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tw_testkit::{Lacks, TempDir, leave_out, wait};

/// Paths at which distributions install a browser that runs without a display.
const BROWSERS: [&str; 4] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/usr/bin/google-chrome-stable",
];

/// Output of a program that runs in `dir` with this input; `None`, with a message, if it is not installed.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, dir: &TempDir, args: &[S], input: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir.path());
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        leave_out(Lacks::Machine, format_args!("no {program} to ask with"));
        return None;
    };
    // A program that reads no input may have ended already.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// The document at `url` after a browser has loaded it and run its script; `None`, with a message, without a browser.
pub(crate) fn browse(url: &str, options: &[String]) -> Option<String> {
    let Some(browser) = BROWSERS.iter().find(|browser| Path::new(browser).exists()) else {
        leave_out(Lacks::Machine, format_args!("there is no browser to load {url}"));
        return None;
    };
    let profile = TempDir::new("browser").unwrap();
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args(options)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The browser writes the document when it ends.
    let reader = child.stdout.take().map(|out| std::thread::spawn(move || std::io::read_to_string(out)));
    let has_ended = wait::until(wait::TIMEOUT * 6, || child.try_wait().unwrap().is_some());
    if !has_ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(has_ended, "the browser did not end");
    Some(reader.unwrap().join().unwrap().unwrap())
}
