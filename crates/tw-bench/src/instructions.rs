//! `cargo xtask bench instructions`: instructions and allocations of the server per request, counted by valgrind's
//! callgrind over a fixed script of requests.
//!
//! The counts do not depend on the load of the machine. Two runs differ by less than two percent, mostly by less than
//! one: the server has timers, and checks its memory while requests are served. The kernel, caches and waiting are not
//! part of the counts, so they are a gauge for changes of the code and no measure of speed.
//!
//! The server runs alone under callgrind, with one event loop. The profile is dumped after the requests that warm it up
//! and after each round, so that start and end do not count. Everything that the server does meanwhile counts, in all
//! threads. Valgrind 3.19, which Debian 12 has, lacks `openat2`, without which every open is a job of the thread pool;
//! therefore `aio off`, which opens files in the event loop. The loop guard and the sandbox are off: their seccomp
//! filters are made for the server's system calls, not for valgrind's.
//!
//! `cargo xtask ci` compares as well, where valgrind and a release build are there, and warns of a change of more than
//! 2 % ([`CHANGE_MAX`]). It does not fail: another compiler, allocator or build profile changes the counts of the same
//! code by more than that, and a feature may be worth its price.
//!
//! `--out DIR` writes all functions of each case, and callgrind's profile of its last round, which has the callers of each function.
//!
//! On Ctrl-C the part that measures ([`work`]) stays, out of reach of the terminal's signal, until it has ended and
//! removed everything that it has started.

mod cases;
mod kept;
mod profile;
mod script;
mod syscalls;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustix::process::getuid;
use tw_testkit::process::Group;
use tw_testkit::wait;

use self::cases::{CASES, Case, Peers};
use self::kept::{Counts, Kept, change, percent};
use self::profile::Profile;
use self::script::Session;
use super::Outcome;
use super::contestant::{Binary, PREFIX, Running, default_ours, find_program};
use super::exec::{RunPlacement, SELF};
use super::options::Options;
use super::report::{Table, number, progress};

/// Name of the command that measures.
pub(super) const WORKER: &str = "instructions-worker";
/// Requests before the first round: connections, buffers and caches are there afterwards, and hot code is translated.
const WARM_UP: u32 = 300;
/// Changes above this share are reported; two runs differ by less.
const CHANGE_MAX: f64 = 0.02;
/// Name of profiles, below the directory of the server.
const PROFILE: &str = "callgrind.out";

/// Set when the process that started the measurement has ended.
static IS_CANCELLED: AtomicBool = AtomicBool::new(false);

/// Amount of requests, and what is printed.
struct Plan {
    requests: u32,
    rounds: usize,
    top: usize,
    load_cpu: usize,
}

/// Results of one case.
struct Measured {
    counts: Counts,
    /// Medians of the rounds.
    profile: Profile,
    /// The last round as valgrind has written it, with the callers of each function.
    last_round: String,
}

/// Starts [`work`] with a pipe that tells it when this process ends, and waits for its end.
pub(super) fn run(args: &[String]) -> Outcome {
    let mut command = Command::new(SELF);
    command.args(["bench", WORKER]).args(args).stdin(Stdio::piped()).process_group(0);
    let status = command.spawn()?.wait_with_pipe()?;
    // The error was printed there.
    if status.success() { Ok(()) } else { Err(String::new().into()) }
}

/// A child with a pipe as its standard input.
trait WaitWithPipe {
    /// Waits, and holds the pipe open: `Child::wait` closes it.
    fn wait_with_pipe(self) -> io::Result<std::process::ExitStatus>;
}

impl WaitWithPipe for std::process::Child {
    fn wait_with_pipe(mut self) -> io::Result<std::process::ExitStatus> {
        let pipe = self.stdin.take();
        let status = self.wait();
        drop(pipe);
        status
    }
}

/// Reason why nothing can be measured on this machine, if there is one.
pub(super) fn lacks() -> Option<String> {
    if find_program("valgrind").is_none() || find_program("vgdb").is_none() {
        return Some("no valgrind: apt-get install valgrind".to_owned());
    }
    let ours = default_ours();
    (!ours.is_file()).then(|| format!("no {}: cargo build --release", ours.display()))
}

/// Measures, prints, and compares with the file of the repository.
pub(super) fn work(args: &[String]) -> Outcome {
    thread::spawn(|| {
        // Returns when the other end is closed, which the kernel does at the latest.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        IS_CANCELLED.store(true, Relaxed);
    });
    let options = Options::parse(args, &["requests", "rounds", "top", "out"], &["save", "syscalls"])?;
    let quick = options.flag("quick");
    let plan = Plan {
        requests: options.number("requests", if quick { 250 } else { 1000 })?.max(1),
        rounds: options.number("rounds", if quick { 3 } else { 5 })?.max(1),
        top: options.number("top", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    if let Some(unknown) = unknown_case(&options) {
        return Err(format!("no such case: {unknown}").into());
    }
    let mut ours = Binary::ours(&options)?;
    if getuid().is_root() {
        // Valgrind is told to write profiles over pipes that only its user may open.
        ours = ours.with_main("user root;");
    }
    let peers = Peers::start(plan.load_cpu)?;
    let cases = CASES.iter().filter(|case| options.wants(case.name));
    if options.flag("syscalls") {
        return cases.into_iter().try_for_each(|case| print_syscalls(case, &ours, &peers, &plan));
    }
    let mut results = Kept {
        arch: std::env::consts::ARCH.to_owned(),
        compiler: version(&ours.path, "-V", "built by ")?,
        valgrind: version(&valgrind()?, "--version", "")?,
        cases: BTreeMap::new(),
    };
    println!("{} · {} · {}\n", version(&ours.path, "-V", "commit: ")?, results.compiler, results.valgrind);
    for case in cases {
        progress(case.name);
        let measured = measure(case, &ours, &peers, &plan)?;
        progress("");
        if plan.top > 0 {
            println!("{}", functions(case, &measured, &plan, plan.top));
        }
        if let Some(dir) = options.text("out").map(Path::new) {
            fs::create_dir_all(dir)?;
            let text = functions(case, &measured, &plan, usize::MAX);
            fs::write(dir.join(format!("{}.txt", case.name)), text)?;
            fs::write(dir.join(format!("{}.callgrind", case.name)), &measured.last_round)?;
        }
        results.cases.insert(case.name.to_owned(), measured.counts);
    }
    let kept = Kept::read()?.filter(|kept| kept.arch == results.arch);
    println!("{}", table(&results, kept.as_ref()).text());
    let warnings = warnings(&results, kept.as_ref());
    warnings.iter().for_each(|warning| println!("warning: {warning}"));
    if options.flag("save") {
        println!("numbers: {}", results.save()?.display());
    }
    if options.flag("check") && !warnings.is_empty() {
        Err(format!("{} cases have changed", warnings.len()).into())
    } else {
        Ok(())
    }
}

/// The first name of `--only` that no case has.
fn unknown_case(options: &Options) -> Option<&str> {
    options.text("only")?.split(',').find(|name| CASES.iter().all(|case| case.name != *name))
}

/// Runs one case under callgrind.
fn measure(case: &Case, ours: &Binary, peers: &Peers, plan: &Plan) -> Outcome<Measured> {
    let runner = [
        valgrind()?.display().to_string(),
        "--tool=callgrind".to_owned(),
        format!("--callgrind-out-file={PREFIX}/{PROFILE}"),
        format!("--vgdb-prefix={PREFIX}/vgdb"),
    ];
    let place = RunPlacement { hides_auxv: true, ..RunPlacement::default() };
    let server = case.contestant(ours, peers, "aio off;").under(&runner).start(&place)?;
    let mut session = case.script.start(server.addr(), peers.client_tls())?;
    request(&mut session, WARM_UP)?;
    dump(&server)?;
    let mut profiles = Vec::new();
    let mut last_round = String::new();
    for round in 0..plan.rounds {
        request(&mut session, plan.requests)?;
        dump(&server)?;
        // The first dump, number 1, ended the warm-up.
        let file = server.prefix.join(format!("{PROFILE}.{}", round + 2));
        last_round = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let profile =
            Profile::parse(&last_round).ok_or_else(|| format!("{}: unknown format", file.display()))?;
        profiles.push(profile);
    }
    let profile = Profile::median(&profiles);
    let requests = f64::from(plan.requests);
    let counts = Counts {
        instructions: profile.total() as f64 / requests,
        allocations: profile.allocations as f64 / requests,
    };
    Ok(Measured { counts, profile, last_round })
}

/// Sends requests of a script.
fn request(session: &mut Session, count: u32) -> Outcome {
    for _ in 0..count {
        if IS_CANCELLED.load(Relaxed) {
            return Err("cancelled".into());
        }
        session.request()?;
    }
    Ok(())
}

/// Lets valgrind write the profile since the last one, and waits until it is written.
fn dump(server: &Running) -> Outcome {
    let vgdb = find_program("vgdb").ok_or("no vgdb on the PATH: it belongs to valgrind")?;
    let log = server.prefix.join("logs/vgdb.log");
    let said = File::create(&log)?;
    let mut command = Command::new(vgdb);
    command
        .arg(format!("--vgdb-prefix={}", server.prefix.join("vgdb").display()))
        .arg(format!("--pid={}", server.pid()))
        .arg("dump")
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .process_group(0);
    let status = Group::new(command.spawn()?).wait(wait::TIMEOUT);
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("vgdb: {status}: {}", fs::read_to_string(&log)?.trim()).into()),
        Err(error) => Err(format!("vgdb: {error}").into()),
    }
}

/// Prints the system calls of one case per request. Nothing but strace changes the server here.
fn print_syscalls(case: &Case, ours: &Binary, peers: &Peers, plan: &Plan) -> Outcome {
    let server = case.contestant(ours, peers, "").start(&RunPlacement::default())?;
    let mut session = case.script.start(server.addr(), peers.client_tls())?;
    request(&mut session, WARM_UP)?;
    let calls = syscalls::count(&server, || request(&mut session, plan.requests))?;
    let per_request = |count: u64| number(count as f64 / f64::from(plan.requests));
    let mut table = Table::new(case.about, &["calls/request"]);
    let mut rows: Vec<_> = calls.iter().collect();
    rows.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then(a.cmp(b)));
    for (name, count) in rows {
        table.row(name, vec![per_request(*count)]);
    }
    table.row("all", vec![per_request(calls.values().sum())]);
    println!("{}", table.text());
    Ok(())
}

/// The most expensive functions of a case.
fn functions(case: &Case, measured: &Measured, plan: &Plan, count: usize) -> String {
    let per_request = |count: u64| number(count as f64 / f64::from(plan.requests));
    let Profile { calls, .. } = &measured.profile;
    let mut text = format!("{}: own instructions and calls of functions per request\n", case.about);
    for (name, own) in measured.profile.by_cost().into_iter().take(count) {
        let calls = calls.get(name).copied().unwrap_or(0);
        text += &format!("{:>10}  {:>8}  {name}\n", per_request(own), per_request(calls));
    }
    text
}

/// The table of all cases.
fn table(results: &Kept, kept: Option<&Kept>) -> Table {
    let columns = ["instructions/request", "kept", "change", "allocations/request", "kept"];
    let mut table = Table::new("case", &columns);
    for case in CASES {
        let Some(counts) = results.cases.get(case.name) else { continue };
        let old = kept.and_then(|kept| kept.cases.get(case.name));
        let change = old.and_then(|old| change(old.instructions, counts.instructions));
        let cells = vec![
            number(counts.instructions),
            number(old.map_or(f64::NAN, |old| old.instructions)),
            change.map_or_else(|| "—".to_owned(), percent),
            format!("{:.1}", counts.allocations),
            old.map_or_else(|| "—".to_owned(), |old| format!("{:.1}", old.allocations)),
        ];
        table.row(&format!("{} ({})", case.about, case.name), cells);
    }
    table
}

/// One line for each case that has changed by more than [`CHANGE_MAX`].
fn warnings(results: &Kept, kept: Option<&Kept>) -> Vec<String> {
    let Some(kept) = kept else { return Vec::new() };
    let mut warnings = Vec::new();
    for (name, old) in &kept.cases {
        let Some(new) = results.cases.get(name) else { continue };
        if let Some(change) = change(old.instructions, new.instructions)
            && change.abs() > CHANGE_MAX
        {
            let mut warning = format!("{name}: {} instructions per request", percent(change));
            if kept.compiler != results.compiler {
                warning += &format!("; the kept number is of {}", kept.compiler);
            }
            warnings.push(warning);
        }
    }
    warnings
}

fn valgrind() -> Outcome<std::path::PathBuf> {
    find_program("valgrind").ok_or_else(|| "no valgrind on the PATH: apt-get install valgrind".into())
}

/// Rest of the line of a program's version that begins so.
fn version(program: &Path, argument: &str, begin: &str) -> Outcome<String> {
    let output = Command::new(program).arg(argument).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or("unknown");
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(compiler: &str, cases: &[(&str, f64)]) -> Kept {
        let counts = |instructions| Counts { instructions, allocations: 1.0 };
        Kept {
            compiler: compiler.to_owned(),
            cases: cases.iter().map(|(name, count)| ((*name).to_owned(), counts(*count))).collect(),
            ..Kept::default()
        }
    }

    #[test]
    fn only_large_changes_are_reported() {
        let old = kept("rustc 1", &[("static", 1000.0), ("proxy", 1000.0), ("log", 1000.0), ("h2", 1000.0)]);
        let new = kept("rustc 1", &[("static", 1019.0), ("proxy", 1030.0), ("log", 970.0)]);
        let expected = ["log: -3.0 % instructions per request", "proxy: +3.0 % instructions per request"];
        assert_eq!(warnings(&new, Some(&old)), expected);
        assert_eq!(warnings(&new, None), [""; 0]);
        let other = kept("rustc 2", &[("log", 1030.0)]);
        let expected = ["log: +3.0 % instructions per request; the kept number is of rustc 1"];
        assert_eq!(warnings(&other, Some(&old)), expected);
    }

    #[test]
    fn functions_are_listed_per_request() {
        let profile = Profile {
            own: [("a".to_owned(), 500), ("b".to_owned(), 2000)].into(),
            calls: [("a".to_owned(), 20)].into(),
            allocations: 0,
        };
        let counts = Counts { instructions: 250.0, allocations: 0.0 };
        let measured = Measured { counts, profile, last_round: String::new() };
        let plan = Plan { requests: 10, rounds: 1, top: 1, load_cpu: 0 };
        let text = functions(&CASES[0], &measured, &plan, usize::MAX);
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines, ["       200      0.00  b", "      50.0      2.00  a"]);
        assert_eq!(functions(&CASES[0], &measured, &plan, 1).lines().count(), 2);
    }

    #[test]
    fn unknown_cases_are_named() {
        let options = |only: &str| Options::parse(&["--only".to_owned(), only.to_owned()], &[], &[]).unwrap();
        assert_eq!(unknown_case(&options("static,statics")), Some("statics"));
        assert_eq!(unknown_case(&options("static,h2")), None);
    }
}
