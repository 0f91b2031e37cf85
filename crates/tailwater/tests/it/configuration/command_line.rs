//! Command line: output, streams and exit status.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tw_testkit::process::Group;
use tw_testkit::{Lacks, TempDir, leave_out, wait};

use crate::support::server;

/// A configuration that is fine.
pub(super) const FINE: &str = "events {} http { server { listen 127.0.0.1:1; return 204; } }";

/// Runs the binary to its end, in `dir` as its prefix if one is given; returns status, standard output and error.
pub(super) fn run(prefix: Option<&Path>, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    if let Some(prefix) = prefix {
        command.arg("-p").arg(prefix);
    }
    let command = command.args(args).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("the binary can be started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("messages are UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// A prefix with a configuration.
pub(super) fn prefix(conf: &str) -> TempDir {
    let dir = TempDir::new("cli").expect("a directory can be made");
    dir.write("conf/nginx.conf", conf).expect("a file can be written");
    dir
}

/// All paths below a directory.
fn tree(dir: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("the directory is ours") {
        let path = entry.expect("nobody removes it").path();
        if path.is_dir() {
            paths.extend(tree(&path));
        }
        paths.insert(path);
    }
    paths
}

#[test]
fn version_options_print_version_and_build() {
    let version = format!("tailwater version: tailwater/{}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(None, &["-v"]), (Some(0), String::new(), version.clone()));

    let (code, out, err) = run(None, &["-V"]);
    assert_eq!((code, &*out), (Some(0), ""));
    let rest = err.strip_prefix(&version).unwrap();
    let lines: Vec<_> = rest.lines().collect();
    assert!(lines[0].starts_with("nginx version: nginx/1."), "{err}");
    assert!(lines[1].starts_with("built by rustc "), "{err}");
    assert_eq!(lines[2], "TLS SNI support enabled");
    let last = lines.last().unwrap();
    assert!(last.starts_with("configure arguments: ") && last.contains(" --with-threads"), "{err}");

    // Programs read the output of -v and -V from standard error. Options for people print to standard output.
    assert_eq!(run(None, &["--version"]), (Some(0), version.clone(), String::new()));
    for help in ["-h", "-?", "--help", "help"] {
        let (code, out, err) = run(None, &[help]);
        assert_eq!((code, &*err), (Some(0), ""));
        assert!(out.starts_with(&version) && out.contains("\nUsage: tailwater "), "{out}");
    }
    for help in [["serve", "--help"], ["help", "serve"]] {
        let (code, out, err) = run(None, &help);
        assert!(code == Some(0) && err.is_empty() && out.starts_with("Usage: tailwater serve "), "{out}");
    }
}

#[test]
fn command_line_mistakes_are_refused() {
    for (args, message) in [
        (&["-x"][..], "invalid option: \"-x\""),
        (&["nonsense"], "invalid option: \"nonsense\""),
        (&["-tqc"], "option \"-c\" requires file name"),
        (&["serve", "a", "b"], "invalid option: \"b\""),
    ] {
        let help = if args[0] == "serve" { "tailwater serve --help" } else { "tailwater -h" };
        let expected = format!("tailwater: {message}\n    = {help} lists the options\n");
        assert_eq!(run(None, args), (Some(1), String::new(), expected), "{args:?}");
    }
    for (args, message) in [
        (&["-s"][..], "option \"-s\" requires parameter"),
        (&["-s", "restart"], "invalid option: \"-s restart\""),
    ] {
        let expected = format!("tailwater: {message}\n    = -s takes one of: stop, quit, reopen, reload\n");
        assert_eq!(run(None, args), (Some(1), String::new(), expected), "{args:?}");
    }
}

#[test]
fn configuration_test_prints_its_result() {
    let dir = prefix(FINE);
    fs::create_dir(dir.join("logs")).unwrap();
    let conf = dir.join("conf/nginx.conf");
    let name = conf.display();
    let ok = format!(
        "tailwater: the configuration file {name} syntax is ok\n\
         tailwater: \"sandbox auto\" lets the running server write only in {}; its logs are open already\n\
         tailwater: configuration file {name} test is successful\n",
        dir.join("client_body_temp").display()
    );
    let before = tree(dir.path());
    assert_eq!(run(Some(dir.path()), &["-t"]), (Some(0), String::new(), ok.clone()));
    assert_eq!(run(Some(dir.path()), &["-tq"]), (Some(0), String::new(), String::new()));
    let dump = format!("# configuration file {name}:\n{FINE}\n");
    assert_eq!(run(Some(dir.path()), &["-T"]), (Some(0), dump.clone(), ok));
    assert_eq!(run(Some(dir.path()), &["-q", "-T"]), (Some(0), dump, String::new()));
    assert_eq!(tree(dir.path()), before, "a test makes nothing");

    fs::write(&conf, "events {}\nhttp { servr {} }\n").unwrap();
    let failed = format!(
        "tailwater: [emerg] unknown directive \"servr\" in {name}:2\n    \
             2 | http {{ servr {{}} }}\n      |        ^^^^^\n      = did you mean \"server\"?\n\
         tailwater: configuration file {name} test failed\n"
    );
    assert_eq!(run(Some(dir.path()), &["-t"]), (Some(1), String::new(), failed.clone()));
    assert_eq!(run(Some(dir.path()), &["-tq"]), (Some(1), String::new(), failed));
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn configuration_test_finds_files_that_a_start_could_not_create() {
    let dir = prefix(FINE);
    let elsewhere = TempDir::new("elsewhere").unwrap();
    let none = elsewhere.join("none");
    fs::write(elsewhere.join("file"), "").unwrap();
    let file = elsewhere.join("file");
    let directory = elsewhere.join("directory");
    fs::create_dir_all(directory.join("nginx.pid")).unwrap();
    let globals = |logs: &Path, pid: &Path| {
        format!("error_log {}/e.log; pid {}/nginx.pid; daemon off;", logs.display(), pid.display())
    };
    let here = dir.path();
    fs::write(
        dir.join("conf/nginx.conf"),
        FINE.replace("127.0.0.1:1", &format!("unix:{}", elsewhere.join("socket").display())),
    )
    .unwrap();
    for (globals, path, errno, hint) in [
        (
            globals(&none, here),
            none.join("e.log"),
            "2: No such file or directory",
            format!("\"mkdir -p {}\" makes the directory", none.display()),
        ),
        (
            globals(here, &none),
            none.join("nginx.pid"),
            "2: No such file or directory",
            format!("\"mkdir -p {}\" makes the directory", none.display()),
        ),
        (
            globals(&file, here),
            file.join("e.log"),
            "20: Not a directory",
            format!("{} must be a directory", file.display()),
        ),
        (
            globals(here, &directory),
            directory.join("nginx.pid"),
            "21: Is a directory",
            format!("{} must be a file", directory.join("nginx.pid").display()),
        ),
    ] {
        let said = format!("[emerg] open() \"{}\" failed ({errno})", path.display());
        let place = if path.ends_with("nginx.pid") { " in command line" } else { "" };
        let said = format!("tailwater: {said}{place}\n    = {hint}\n");
        // A test and a start report the same error.
        for args in [&["-tq", "-g", &globals] as &[&str], &["-g", &globals]] {
            let (code, _, err) = run(Some(here), args);
            assert_eq!(code, Some(1), "{args:?}: {err}");
            assert!(err.starts_with(&said), "{args:?}: {err}\n{said}");
        }
    }

    let (code, _, err) = run(Some(dir.path()), &["-t", "-c", "none.conf"]);
    let path = dir.join("none.conf");
    let expected = format!(
        "tailwater: [emerg] open() \"{path}\" failed (2: No such file or directory)\n    \
             = -c FILE says where the configuration is; \"tailwater serve\" needs none\n\
         tailwater: configuration file {path} test failed\n",
        path = path.display()
    );
    assert_eq!((code, err), (Some(1), expected));
}

#[test]
fn pid_file_that_this_user_cannot_write_is_noted() {
    let dir = prefix("events {}\n");
    fs::create_dir(dir.join("logs")).unwrap();
    fs::create_dir(dir.join("run")).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for path in [dir.path().to_owned(), dir.join("conf"), dir.join("logs")] {
        mode(&path, 0o755);
    }
    mode(&dir.join("run"), 0o555);
    let conf = dir.write("conf/nginx.conf", "events {}\nerror_log stderr;\npid run/nginx.pid;\n").unwrap();
    mode(&conf, 0o644);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.arg("-t").arg("-p").arg(dir.path()).args(["-e", "stderr"]).stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        // Root may write any file, so another user runs the check.
        command.uid(65534).gid(65534);
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return leave_out(Lacks::Machine, "another user may not start the binary");
        }
        output => output.unwrap(),
    };
    let err = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "tailwater: [notice] this user cannot start it: open() \"{pid}\" failed (13: Permission denied) in {conf}:3\n    \
             = the \"pid\" directive says where the file is; its directory must be writable\n",
        pid = dir.join("run/nginx.pid").display(),
        conf = conf.display(),
    );
    assert!(err.contains(&expected) && output.status.success(), "{err}");
}

#[test]
fn directives_on_the_command_line_have_precedence() {
    let dir = prefix(FINE);
    let (code, _, err) = run(Some(dir.path()), &["-t", "-g", "worker_processes x;"]);
    assert_eq!(code, Some(1));
    assert!(
        err.starts_with("tailwater: [emerg] \"worker_processes\" directive invalid value in command line\n"),
        "{err}"
    );
    let path = dir.join("conf/nginx.conf/error.log");
    let (code, _, err) = run(Some(dir.path()), &["-tq", "-e", "conf/nginx.conf/error.log"]);
    assert_eq!(code, Some(1));
    assert!(err.contains(&format!("open() \"{}\" failed (20:", path.display())), "{err}");
    assert_eq!(run(Some(dir.path()), &["-tq", "-e", "stderr"]).0, Some(0));
}

#[test]
fn signals_without_a_running_server_are_refused() {
    let dir = prefix(FINE);
    let path = dir.join("logs/nginx.pid");
    let name = path.display();
    for (pid, expected) in [
        (None, format!("[error] open() \"{name}\" failed (2: No such file or directory)")),
        (Some(""), format!("[error] invalid PID number \"\" in \"{name}\"")),
        (Some("x1\n"), format!("[error] invalid PID number \"x1\" in \"{name}\"")),
        // The number is larger than any PID of the kernel.
        (Some("2147483647\n"), "[alert] kill(2147483647, 3) failed (3: No such process)".to_owned()),
    ] {
        if let Some(pid) = pid {
            dir.write("logs/nginx.pid", pid).unwrap();
        }
        let (code, _, err) = run(Some(dir.path()), &["-s", "quit"]);
        assert_eq!(
            (code, err.lines().next()),
            (Some(1), Some(&*format!("tailwater: {expected}"))),
            "{pid:?}"
        );
    }
}

#[test]
fn address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let output = server().run(&format!("http {{ server {{ listen {addr}; }} }}")).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    let line = format!("tailwater: [emerg] bind() to {addr} failed (98: Address already in use)");
    assert!(
        err.lines().all(|l| l.starts_with(&line) || l == "tailwater: [emerg] still could not bind()"),
        "{err}"
    );
    assert!(err.ends_with("still could not bind()\n"), "{err}");
}

#[test]
fn daemon_obeys_signals_of_the_command_line() {
    let port = tw_testkit::ports::Port::reserve().unwrap();
    let conf = format!(
        "user root; loop_guard enforce; worker_processes 2; error_log logs/error.log notice; events {{}}
         http {{ server {{ listen 127.0.0.1:{}; return 200 here; }} }}",
        port.number()
    );
    let dir = prefix(&conf);
    fs::create_dir(dir.join("logs")).unwrap();
    let background = Background(dir.join("logs/nginx.pid"));
    // The output goes to a file, because the daemon would keep a pipe open as long as it runs.
    let printed = dir.join("printed");
    let file = fs::File::create(&printed).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let command = command.arg("-p").arg(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let status = Group::new(command.spawn().unwrap()).wait(wait::TIMEOUT).unwrap();
    assert!(status.success(), "{}", fs::read_to_string(&printed).unwrap());

    // The foreground process exits only when the server is ready.
    let addr = ([127, 0, 0, 1], port.number()).into();
    assert_eq!(tw_testkit::Client::get(addr, "/").unwrap().text(), "here");
    // A second start names the running process, and does not report each address in use.
    let pid = background.pid().unwrap().as_raw_nonzero();
    let expected = format!("tailwater: started in the background, process {pid}\n");
    assert_eq!(fs::read_to_string(&printed).unwrap(), expected);
    let (code, _, err) = run(Some(dir.path()), &[]);
    assert!(code == Some(1) && err.contains(&format!("[emerg] already running, pid {pid}\n")), "{err}");
    assert!(err.contains("tailwater -s reload") && !err.contains("bind()"), "{err}");
    let log = || fs::read_to_string(dir.join("logs/error.log")).unwrap_or_default();
    for (order, line) in [("reopen", "reopening logs"), ("reload", "reconfiguring"), ("quit", "exit\n")] {
        let (code, _, err) = run(Some(dir.path()), &["-s", order]);
        assert_eq!(code, Some(0), "{order}: {err}");
        assert!(wait::until(wait::TIMEOUT, || log().contains(line)), "{order}: {}", log());
    }
    assert!(wait::until(wait::TIMEOUT, || background.pid().is_none()), "{}", log());
    assert_eq!(log().matches("reopening logs").count(), 1, "{}", log());
}

/// A daemon, found by its pid file; dropping it ends it.
struct Background(PathBuf);

impl Background {
    fn pid(&self) -> Option<rustix::process::Pid> {
        let text = fs::read_to_string(&self.0).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
