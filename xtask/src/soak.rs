//! `cargo xtask soak`: the tests, repeated beside processes that keep the machine busy.
//!
//! A test that fails by chance keeps good work from landing, and one that passes by chance is worth nothing. A test
//! that waits for conditions passes every time, however slow the machine is. The tests are built once; each run
//! executes every test program, one after the other, whatever fails. The output of a program is kept in
//! `target/soak`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use serde_json::Value;
use tw_testkit::wait;

use crate::left_out::LeftOut;
use crate::{Failure, cargo, root, target};

const RUNS_DEFAULT: u32 = 20;
const BUSY_DEFAULT: u32 = 2;
/// Concurrent tests per processor, unless `RUST_TEST_THREADS` is set. A test waits most of its time: with one per
/// processor a run takes twice as long (349 and 160 s, two processors), and fewer tests overlap by chance.
const TESTS_PER_CORE: usize = 4;
/// Variable that sets the number of threads of the test runner.
const TESTS_VARIABLE: &str = "RUST_TEST_THREADS";
/// Time limit of one test program. The longest takes five minutes on two cores that are busy four times over.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Argument that turns this program into one of the busy processes.
const SPIN: &str = "--spin";
/// Time for which a busy process spins between two checks of its parent.
const SPIN_TURN: Duration = Duration::from_millis(50);

/// Options of the command.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    runs: u32,
    busy: u32,
}

/// A program that cargo built of the tests of one target.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    /// Directory in which cargo runs it.
    dir: PathBuf,
}

/// Failures by test, with the paths of the output.
type Failures = BTreeMap<String, Vec<PathBuf>>;

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    if let [word, parent] = words
        && word == SPIN
    {
        spin(parent);
        return Ok(());
    }
    let Options { runs, busy } = options(words)?;
    let programs = build()?;
    let logs = target().join("soak");
    let left_out = LeftOut::new()?;
    let mut failures = Failures::new();
    // Logs of earlier runs must not be taken for those of this one.
    let _ = fs::remove_dir_all(&logs);
    println!("soak: {runs} runs of {} programs beside {busy} busy processes", programs.len());
    let _busy: Vec<Busy> =
        (0..busy).map(|_| Busy::start()).collect::<io::Result<_>>().map_err(|error| error.to_string())?;
    for run in 1..=runs {
        let begin = Instant::now();
        let dir = logs.join(format!("run-{run}"));
        fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        let mut failed = 0;
        for program in &programs {
            let log = dir.join(format!("{}.log", program.name));
            for name in program.failures(&log, &left_out)? {
                failed += 1;
                println!("soak: run {run}: {name} failed: {}", log.display());
                failures.entry(name).or_default().push(log.clone());
            }
        }
        println!("soak: run {run} of {runs}: {failed} failed, {:.0} s", begin.elapsed().as_secs_f64());
    }
    left_out.print();
    if failures.is_empty() {
        println!("soak: nothing failed in {runs} runs");
        return Ok(());
    }
    for (name, logs) in by_count(&failures) {
        println!("{:>4} of {runs}  {name}", logs.len());
        logs.iter().for_each(|log| println!("              {}", log.display()));
    }
    Err(format!("{} tests failed in {runs} runs", failures.len()))
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options { runs: RUNS_DEFAULT, busy: BUSY_DEFAULT };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| format!("{word} needs a number"));
        match word.as_str() {
            "--runs" => options.runs = number?,
            "--busy" => options.busy = number?,
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(options)
}

/// Builds all tests; cargo prints their paths.
fn build() -> Result<Vec<Program>, Failure> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json"]).current_dir(root());
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built".to_owned());
    }
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Test programs in the output of cargo, which has a line for each step.
fn programs(said: &str) -> Vec<Program> {
    let program = |line: &str| {
        let step: Value = serde_json::from_str(line).ok()?;
        let is_test = step["profile"]["test"].as_bool()?;
        let path = step["executable"].as_str()?;
        let manifest = step["manifest_path"].as_str()?;
        let target = step["target"]["name"].as_str()?;
        let dir = Path::new(manifest).parent()?;
        let package = dir.file_name()?.to_string_lossy();
        let kind = step["target"]["kind"][0].as_str()?;
        let name = format!("{package}-{kind}-{target}");
        is_test.then(|| Program { name, path: path.into(), dir: dir.to_owned() })
    };
    said.lines().filter_map(program).collect()
}

impl Program {
    /// Runs the program to its end and returns the failed tests. The output goes into `log`.
    fn failures(&self, log: &Path, left_out: &LeftOut) -> Result<Vec<String>, Failure> {
        let failed = |error: io::Error| format!("cannot run {}: {error}", self.path.display());
        let output = File::create(log).map_err(failed)?;
        let mut command = Command::new(&self.path);
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir);
        if env::var_os(TESTS_VARIABLE).is_none() {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            command.env(TESTS_VARIABLE, (cores * TESTS_PER_CORE).to_string());
        }
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        // The process group keeps Ctrl-C from the program, which goes on to its end, because the servers that it has
        // started end with it.
        command.process_group(0);
        let mut child = left_out.collect_from(&mut command).spawn().map_err(failed)?;
        let status = wait::some(TIMEOUT, || child.try_wait().transpose()).transpose().map_err(failed)?;
        if status.is_none() {
            // Nothing can be done about a program that cannot be killed.
            let _ = child.kill().and_then(|()| child.wait());
        }
        let printed = fs::read(log).map_err(failed)?;
        Ok(self.failed(&String::from_utf8_lossy(&printed), status))
    }

    /// Failed tests by the output, or else the program as a whole.
    fn failed(&self, printed: &str, status: Option<ExitStatus>) -> Vec<String> {
        let name = |line: &str| {
            // Another thread may have written to the same line before.
            let (_, line) = line.rsplit_once("test ").unwrap_or_default();
            line.strip_suffix(" ... FAILED").map(|test| format!("{}: {test}", self.name))
        };
        let mut names: Vec<_> = printed.lines().filter_map(name).collect();
        match status {
            Some(status) if status.success() => {}
            Some(status) if names.is_empty() => names.push(format!("{}: as a whole, {status}", self.name)),
            Some(_) => {}
            None => names.push(format!("{}: does not end", self.name)),
        }
        names
    }
}

/// The most frequent first.
fn by_count(failures: &Failures) -> Vec<(&String, &Vec<PathBuf>)> {
    let mut sorted: Vec<_> = failures.iter().collect();
    sorted.sort_by_key(|(_, logs)| std::cmp::Reverse(logs.len()));
    sorted
}

/// Process that uses all it gets of a core, until this is dropped or this process ends.
struct Busy(Child);

impl Busy {
    fn start() -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["soak", SPIN, &std::process::id().to_string()]).stdin(Stdio::null());
        command.spawn().map(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // The process ends by itself as well.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Keeps a core busy as long as `parent` is the parent process: when that is killed, the parent changes, and this
/// ends within one turn.
fn spin(parent: &str) {
    while parent_id().to_string() == parent {
        let begin = Instant::now();
        while begin.elapsed() < SPIN_TURN {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn words() {
        let options =
            |words: &[&str]| options(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(options(&[]), Ok(Options { runs: 20, busy: 2 }));
        assert_eq!(options(&["--busy", "0", "--runs", "3"]), Ok(Options { runs: 3, busy: 0 }));
        for wrong in [&["--runs"][..], &["--runs", "x"], &["--what", "1"], &["3"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn built_test_programs_are_listed() {
        let said = r#"
            {"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":false},"executable":null}
            {"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":true},"executable":"/t/a-1"}
            {"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"it","kind":["test"]},"profile":{"test":true},"executable":"/t/it-1"}
            {"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"name":"a","kind":["bin"]},"profile":{"test":false},"executable":"/t/a"}
            {"reason":"build-finished","success":true}"#;
        let program = |name: &str, path: &str| Program {
            name: name.into(),
            path: path.into(),
            dir: "/w/crates/a".into(),
        };
        assert_eq!(programs(said), [program("a-lib-a", "/t/a-1"), program("a-test-it", "/t/it-1")]);
    }

    #[test]
    fn failed_tests_are_found() {
        let program = Program { name: "p".into(), path: PathBuf::new(), dir: PathBuf::new() };
        let printed = "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\nleft out: xtest d ... FAILED\ntest e - should panic ... FAILED\n";
        let good = ExitStatus::from_raw(0);
        let bad = ExitStatus::from_raw(101 << 8);
        for (printed, status, expected) in [
            ("test a ... ok\n", Some(good), &[][..]),
            (printed, Some(bad), &["p: a::c", "p: d", "p: e - should panic"]),
            ("test a ... ", Some(ExitStatus::from_raw(9)), &["p: as a whole, signal: 9 (SIGKILL)"]),
            ("test a ... FAILED\n", None, &["p: a", "p: does not end"]),
        ] {
            assert_eq!(program.failed(printed, status), expected);
        }
    }

    #[test]
    fn the_most_frequent_failure_comes_first() {
        let failures =
            Failures::from([("a".into(), vec!["1".into()]), ("b".into(), vec!["1".into(), "2".into()])]);
        let names: Vec<_> = by_count(&failures).into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }
}
