//! `cargo xtask conformance`: nginx's public test suite, run as a whole against Tailwater, and the table of its
//! results; with `--njs`, the tests of njs for nginx, which use the library of that suite.
//!
//! Every file of the suite runs, several at a time, each with a time limit and a directory of its own. Files that
//! failed run once more alone, because many measure time or read a log at once, and then with our name where they expect that of nginx.
//! The suite finds its program in
//! `TEST_NGINX_BINARY` and prints its results in the Test Anything Protocol.

mod reasons;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tw_testkit::TempDir;
use tw_testkit::process::Group;

use self::table::Place;
use crate::{Failure, root};

/// Time for one file; the slowest ones take 40 seconds.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// The document with the table.
const DOCUMENT: &str = "docs/conformance.md";

/// Mark after a check that is expected to fail, in the Test Anything Protocol.
const EXPECTED_TO_FAIL: &str = concat!("# TO", "DO");

/// Result of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileResult {
    /// This many checks, all of which passed.
    Passed(usize),
    /// This many checks, all of which passed when they expected our name.
    PassedRenamed(usize),
    /// Why it was left out.
    Skipped(String),
    Failed {
        /// The names of the checks that failed.
        checks: Vec<String>,
        /// Number of all its checks.
        of: usize,
    },
    /// The file was not done in time.
    Late,
}

/// Files to run and the program to test.
struct Options {
    suite: Option<PathBuf>,
    /// Tests of njs, which run in place of those of the suite.
    njs: Option<PathBuf>,
    binary: PathBuf,
    jobs: usize,
    time_limit: Duration,
    /// The version of OpenSSL that the suite is to think of.
    openssl: Option<String>,
    write: bool,
    files: Vec<String>,
}

/// The results of a run, by file.
type Results = BTreeMap<String, FileResult>;

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let options = options(words)?;
    let suite =
        options.suite.as_deref().ok_or("--suite DIRECTORY is missing: a copy of nginx's test suite")?;
    let binary =
        fs::canonicalize(&options.binary).map_err(|e| format!("{}: {e}", options.binary.display()))?;
    let tests = options.njs.as_deref().unwrap_or(suite);
    let all = all(tests)?;
    let files = if options.files.is_empty() { all.clone() } else { options.files.clone() };
    if options.write && files.len() != all.len() {
        return Err("--write is for a run of all files".to_owned());
    }
    let programs = TempDir::new("programs").map_err(|e| e.to_string())?;
    let program = match &options.openssl {
        Some(version) => wrapped(&programs, &binary, version)?,
        None if options.njs.is_some() => {
            // A script looks for the name in its arguments.
            let link = programs.join("nginx");
            std::os::unix::fs::symlink(&binary, &link).map_err(|e| e.to_string())?;
            open_to_all(programs.path()).map_err(|e| e.to_string())?;
            link
        }
        None => binary.clone(),
    };
    let path = path_with_memcached(&programs)?;
    let library = fs::canonicalize(suite.join("lib")).map_err(|e| format!("{}/lib: {e}", suite.display()))?;
    let run = Run {
        tests,
        library: &library,
        binary: &binary,
        program: &program,
        path: &path,
        time_limit: options.time_limit,
    };
    let mut results = run.all(&files, options.jobs)?;
    let is_bad =
        |file_result: &FileResult| matches!(file_result, FileResult::Failed { .. } | FileResult::Late);
    let again: Vec<_> =
        results.iter().filter(|(_, file_result)| is_bad(file_result)).map(|(file, _)| file.clone()).collect();
    if options.jobs > 1 && !again.is_empty() {
        println!("once more, alone:");
        results.extend(run.all(&again, 1)?);
    }
    for file in again {
        let has_failed = results.get(&file).is_some_and(is_bad);
        if has_failed && let Some(file_result) = run.renamed(&file)? {
            println!("{}", line(&file, &file_result));
            results.insert(file, file_result);
        }
    }
    let numbers = table::Numbers::of(&results);
    println!("{numbers}");
    if options.write {
        let path = root().join(DOCUMENT);
        let text = fs::read_to_string(&path).map_err(|e| format!("{DOCUMENT}: {e}"))?;
        let place = if options.njs.is_some() { Place::Njs } else { Place::Nginx };
        let text = table::put(&text, place, &table::text(&results))
            .ok_or(format!("{DOCUMENT} has no place for the table"))?;
        fs::write(&path, text).map_err(|e| format!("{DOCUMENT}: {e}"))?;
    }
    Ok(())
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options {
        suite: None,
        njs: None,
        binary: root().join("target/debug/tailwater"),
        jobs: thread::available_parallelism().map_or(1, usize::from) * 2,
        time_limit: TIME_LIMIT,
        openssl: None,
        write: false,
        files: Vec::new(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number =
            |text: &String| text.parse().ok().filter(|n| *n > 0).ok_or(format!("{text} is no number"));
        match word.as_str() {
            "--suite" => options.suite = Some(PathBuf::from(value()?)),
            "--njs" => options.njs = Some(PathBuf::from(value()?)),
            "--binary" => options.binary = PathBuf::from(value()?),
            "--jobs" => options.jobs = number(value()?)?,
            "--timeout" => options.time_limit = Duration::from_secs(number(value()?)? as u64),
            "--openssl" => options.openssl = Some(value()?.clone()),
            "--write" => options.write = true,
            file if !file.starts_with('-') => options.files.push(file.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// A program that is the binary, but names a version of OpenSSL besides: some files ask for one, and need none.
fn wrapped(programs: &TempDir, binary: &Path, version: &str) -> Result<PathBuf, Failure> {
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in -V) echo 'built with OpenSSL {version}' >&2 ;; esac\nexec '{}' \"$@\"\n",
        binary.display()
    );
    script(programs, "tailwater", &text)
}

/// `PATH` for the suite. As root, `memcached` only starts with an additional option.
fn path_with_memcached(programs: &TempDir) -> Result<OsString, Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    let memcached_path =
        env::split_paths(&path).map(|directory| directory.join("memcached")).find(|file| file.is_file());
    let Some(memcached) = memcached_path.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(path);
    };
    script(programs, "memcached", &format!("#!/bin/sh\nexec '{}' -u root \"$@\"\n", memcached.display()))?;
    let all = std::iter::once(programs.path().to_owned()).chain(env::split_paths(&path));
    env::join_paths(all).map_err(|e| e.to_string())
}

fn script(programs: &TempDir, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let file = programs.write(name, text).map_err(|e| e.to_string())?;
    open_to_all(programs.path()).and_then(|()| open_to_all(&file)).map_err(|e| e.to_string())?;
    Ok(file)
}

/// All files of the suite, by name.
fn all(suite: &Path) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(suite).map_err(|e| format!("{}: {e}", suite.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "t") {
            files.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    files.sort();
    Ok(files)
}

/// Settings that the runs of all files share.
struct Run<'a> {
    /// Directory of the files.
    tests: &'a Path,
    /// Directory of their library.
    library: &'a Path,
    /// The program that is tested.
    binary: &'a Path,
    /// Program that the suite starts.
    program: &'a Path,
    /// `PATH` for other programs.
    path: &'a OsStr,
    time_limit: Duration,
}

impl Run<'_> {
    /// Runs these files, so many at a time.
    fn all(&self, files: &[String], jobs: usize) -> Result<Results, Failure> {
        let queue: Mutex<VecDeque<&String>> = Mutex::new(files.iter().collect());
        let results = Mutex::new(Results::new());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || -> Result<(), Failure> {
            while let Some(file) = next() {
                let file_result = self.one(file)?;
                println!("{}", line(file, &file_result));
                results.lock().unwrap_or_else(PoisonError::into_inner).insert(file.clone(), file_result);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.min(files.len())).map(|_| scope.spawn(work)).collect();
            let done =
                workers.into_iter().map(|worker| worker.join().unwrap_or(Err("a worker panicked".into())));
            done.collect::<Result<(), Failure>>()
        })?;
        Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn one(&self, file: &str) -> Result<FileResult, Failure> {
        let text = File::open(self.tests.join(file)).map_err(|e| format!("{file}: {e}"))?;
        self.script(text.into())
    }

    /// Runs a file that names the server in its checks, with our name. `None` if it does not, or does not pass.
    fn renamed(&self, file: &str) -> Result<Option<FileResult>, Failure> {
        let text = fs::read(self.tests.join(file)).map_err(|e| format!("{file}: {e}"))?;
        let Some(text) = with_our_name(&String::from_utf8_lossy(&text)) else { return Ok(None) };
        let dir = TempDir::new("renamed").map_err(|e| e.to_string())?;
        let copy = dir.write(file, &text).map_err(|e| e.to_string())?;
        let copy = File::open(copy).map_err(|e| e.to_string())?;
        Ok(match self.script(copy.into())? {
            FileResult::Passed(checks) => Some(FileResult::PassedRenamed(checks)),
            _ => None,
        })
    }

    /// Runs a file of the suite, which perl reads from its standard input: it looks for its libraries in the directory of the suite.
    fn script(&self, text: Stdio) -> Result<FileResult, Failure> {
        let dir = TempDir::new("conformance").map_err(|e| e.to_string())?;
        let output = dir.join("output");
        let tests = dir.join("tests");
        fs::create_dir(&tests).map_err(|e| e.to_string())?;
        if rustix::process::geteuid().is_root() {
            // Tests that give up privileges have to get to their directory.
            open_to_all(dir.path()).and_then(|()| open_to_all(&tests)).map_err(|e| e.to_string())?;
        }
        let out = File::create(&output).map_err(|e| e.to_string())?;
        let mut command = Command::new("perl");
        command.arg("-I").arg(self.library).arg("-").current_dir(self.tests);
        command.env("TEST_NGINX_BINARY", self.program);
        command.env("TMPDIR", &tests).env("PATH", self.path);
        if rustix::process::geteuid().is_root() && env::var_os("TEST_NGINX_GLOBALS").is_none() {
            // The directories of the suite are open to their owner only.
            command.env("TEST_NGINX_GLOBALS", "user root;");
        }
        command.stdin(text).stdout(out).stderr(Stdio::null()).process_group(0);
        let mut group = Group::new(command.spawn().map_err(|e| format!("perl: {e}"))?);
        let status = group.wait(self.time_limit);
        if status.is_err() {
            let _ = group.kill();
        }
        drop(group);
        self.end_servers(&tests);
        let text = fs::read(&output).map_err(|e| e.to_string())?;
        Ok(match status {
            Ok(status) => outcome_of(&String::from_utf8_lossy(&text), status.success()),
            Err(_) => FileResult::Late,
        })
    }

    /// Ends the servers that a file has left in the background: they have a pid file in its directory, and are this
    /// binary.
    fn end_servers(&self, tests: &Path) {
        let Ok(directories) = fs::read_dir(tests) else { return };
        for directory in directories.filter_map(Result::ok) {
            let text = fs::read_to_string(directory.path().join("nginx.pid")).unwrap_or_default();
            let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { continue };
            let program = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()));
            if program.is_ok_and(|program| program == self.binary) {
                // The server may have ended just now.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn open_to_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn line(file: &str, file_result: &FileResult) -> String {
    match file_result {
        FileResult::Passed(_) => format!("ok    {file}"),
        FileResult::PassedRenamed(_) => format!("ok    {file}, with our name"),
        FileResult::Skipped(why) => format!("skip  {file}: {why}"),
        FileResult::Failed { checks, of } => {
            format!("FAIL  {file}: {} of {of}: {}", checks.len(), checks.join("; "))
        }
        FileResult::Late => format!("LATE  {file}"),
    }
}

/// A file that expects our name where it expects that of nginx: as a string or at the start of a pattern. `None` if it expects no name.
fn with_our_name(text: &str) -> Option<String> {
    let mut renamed = text.to_owned();
    for (theirs, ours) in
        [("'nginx'", "'tailwater'"), ("qr/nginx", "qr/tailwater"), ("qr!nginx", "qr!tailwater")]
    {
        renamed = renamed.replace(theirs, ours);
    }
    (renamed != text).then_some(renamed)
}

/// Reads what a file printed.
fn outcome_of(text: &str, success: bool) -> FileResult {
    if let Some((_, why)) = text.lines().find_map(|line| line.strip_prefix("1..0")?.split_once("SKIP ")) {
        return FileResult::Skipped(why.to_owned());
    }
    let planned = text.lines().find_map(|line| line.strip_prefix("1..")?.trim().parse::<usize>().ok());
    let is_check = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
    let seen_count = text.lines().filter(is_check).count();
    let failed = text.lines().filter_map(|line| line.strip_prefix("not ok "));
    let mut checks: Vec<_> =
        failed.filter(|line| !line.contains(EXPECTED_TO_FAIL)).map(str::to_owned).collect();
    let of = planned.unwrap_or(seen_count).max(seen_count);
    match (checks.is_empty(), success) {
        (true, true) => FileResult::Passed(of),
        (true, false) => {
            checks.push("ended early".to_owned());
            FileResult::Failed { checks, of: of.max(1) }
        }
        (false, _) => FileResult::Failed { checks, of },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_file_is_judged() {
        let failed = |checks: &[&str], of| FileResult::Failed {
            checks: checks.iter().map(|check| (*check).to_owned()).collect(),
            of,
        };
        for (text, success, file_result) in [
            ("1..2\nok 1 - a\nok 2 - b\n", true, FileResult::Passed(2)),
            ("ok 1 - a\nok 2 - b\n1..2\n", true, FileResult::Passed(2)),
            (concat!("1..1\nnot ok 1 - a # TO", "DO later\n"), true, FileResult::Passed(1)),
            ("1..0 # SKIP no proxy available\n", true, FileResult::Skipped("no proxy available".to_owned())),
            ("1..2\nok 1 - a\nnot ok 2 - b\n", false, failed(&["2 - b"], 2)),
            ("1..3\nok 1 - a\n", false, failed(&["ended early"], 3)),
            ("", false, failed(&["ended early"], 1)),
        ] {
            assert_eq!(outcome_of(text, success), file_result, "{text}");
        }
    }

    #[test]
    fn file_that_does_not_end_is_cut_off_and_does_not_stop_the_others() {
        let suite = TempDir::new("suite").unwrap();
        suite.write("good.t", "print \"1..1\\nok 1\\n\";").unwrap();
        suite.write("hangs.t", "sleep 1000;").unwrap();
        suite.write("name.t", "my $name = 'nginx'; print '1..1', \"\\n\", $name eq 'tailwater' ? 'ok 1' : 'not ok 1', \"\\n\";").unwrap();
        suite.write("other.txt", "").unwrap();
        let files = all(suite.path()).unwrap();
        assert_eq!(files, ["good.t", "hangs.t", "name.t"]);
        if !Command::new("perl").arg("-v").output().is_ok_and(|output| output.status.success()) {
            tw_testkit::leave_out(tw_testkit::Lacks::Machine, "there is no perl");
            return;
        }
        let binary = env::current_exe().unwrap();
        let path = env::var_os("PATH").unwrap();
        let time_limit = Duration::from_secs(3);
        let (tests, library) = (suite.path(), suite.path());
        let run = Run { tests, library, binary: &binary, program: &binary, path: &path, time_limit };
        let results = run.all(&files, 2).unwrap();
        assert_eq!(results["good.t"], FileResult::Passed(1));
        assert_eq!(results["hangs.t"], FileResult::Late);
        assert!(matches!(results["name.t"], FileResult::Failed { .. }));
        assert_eq!(run.renamed("name.t").unwrap(), Some(FileResult::PassedRenamed(1)));
        assert_eq!(run.renamed("good.t").unwrap(), None);
    }
}
