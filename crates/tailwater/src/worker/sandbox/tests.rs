//! Rules are compared here, and enforced in child processes that then try what an attacker would.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;
use tailwater_commands::configuration::conf::Source;
use tw_core::shared_objects::SharedObjects;
use tw_testkit::{Lacks, TempDir, leave_out};

use super::*;

/// The configuration of this text, with `dir` for its prefix.
fn config(dir: &TempDir, text: &str) -> Config {
    let prefix = dir.path().as_os_str().as_encoded_bytes().to_vec();
    let text = text.replace("{prefix}", &dir.path().to_string_lossy());
    let source = Source::text(prefix, "conf", format!("events {{ }} {text}").into_bytes());
    source.load(&SharedObjects::default(), &Console::new()).unwrap().config
}

/// A directory with what configurations of these tests name.
fn site() -> TempDir {
    let dir = TempDir::new("sandbox").unwrap();
    for name in ["html", "a", "a/b", "client_body_temp", "logs"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    dir.write("users", "x:{PLAIN}x\n").unwrap();
    dir
}

#[test]
fn rules_are_compared() {
    let dir = site();
    let rules = |main: &str, http: &str, role| {
        SandboxRules::of(
            &config(&dir, &format!("{main} http {{ access_log off; server {{ {http} }} }}")),
            role,
        )
    };
    let dav = "location /d/ { root {prefix}/a; dav_methods put; }";
    let deeper = "location /d/ { root {prefix}/a/b; dav_methods put; }";
    let anywhere = "location /d/ { root $host; dav_methods put; }";
    let log = "access_log logs/$host.log;";
    let pass = "location / { proxy_pass http://127.0.0.1:1; }";
    let from_own = "location / { proxy_pass http://127.0.0.1:1; proxy_bind 127.0.0.1; }";
    let from_any = "location / { proxy_pass http://127.0.0.1:1; proxy_bind $remote_addr transparent; }";
    let worker = ProcessRole::Worker;
    for (main, old, new, expected) in [
        ("", "", "", None),
        ("", dav, "", None),
        ("", dav, deeper, None),
        ("", deeper, dav, Some("writing in \"{prefix}/a\"")),
        ("", "", log, Some("writing in \"{prefix}/logs\"")),
        ("", "", "root {prefix}/a;", None),
        ("", "", "location /d/ { root {prefix}/missing; dav_methods put; }", None),
        ("", anywhere, dav, Some("a sandbox that restricts other uses of files")),
        ("", "", "aio on;", Some("\"aio on\"")),
        ("", "aio on;", "", None),
        ("", pass, from_own, Some("addresses that connections come from")),
        ("", from_own, from_any, Some("addresses of others that connections come from")),
        ("", from_any, from_own, None),
        ("sandbox off;", from_own, from_any, Some("addresses of others that connections come from")),
        ("sandbox off;", pass, from_own, None),
        ("sandbox off;", "", dav, None),
        ("sandbox on;", "", "root {prefix}/a;", Some("reading \"{prefix}/a\"")),
        ("sandbox on;", "root {prefix};", "root {prefix}/a;", None),
        ("sandbox on;", dav, "root {prefix}/a;", None),
        (
            "sandbox on;",
            "",
            "auth_basic x; auth_basic_user_file {prefix}/users;",
            Some("reading \"{prefix}\""),
        ),
    ] {
        let old = rules(main, old, worker);
        let new = rules(main, new, worker);
        let expected = expected.map(|text: &str| text.replace("{prefix}", &dir.path().to_string_lossy()));
        assert_eq!(old.lacks(&new), expected, "{main} {old:?} {new:?}");
        assert_eq!(old.covers(&new), expected.is_none());
    }
    for main in ["", "sandbox on;", "sandbox off;"] {
        assert_eq!(rules("", "", worker).covers(&rules(main, "", worker)), main.is_empty());
        assert!(!rules(main, "", worker).covers(&rules(main, "", ProcessRole::Alone)));
    }
}

#[test]
fn only_names_need_the_files_of_the_resolver() {
    let dir = site();
    for (blocks, expected) in [
        ("http { server { location / { proxy_pass http://127.0.0.1:1; } } }", false),
        ("http { server { location / { fastcgi_pass unix:/run/x; } } }", false),
        ("http { upstream u { server 127.0.0.1:1; } server { location / { proxy_pass http://u; } } }", false),
        ("http { server { location / { api; } } }", false),
        ("stream { server { listen 127.0.0.1:1; proxy_pass 127.0.0.1:1; } }", false),
        ("http { server { location / { proxy_pass http://localhost; } } }", true),
        ("http { server { location / { proxy_pass http://$host; } } }", true),
        ("http { upstream u { server localhost:1; } server { location / { grpc_pass u; } } }", true),
        ("http { server { location / { api write=on; } } }", true),
        ("stream { server { listen 127.0.0.1:1; proxy_pass localhost:1; } }", true),
    ] {
        let config = config(&dir, &format!("sandbox on; error_log logs/error.log; {blocks}"));
        let allowed = SandboxRules::of(&config, ProcessRole::Worker).allowed().reading.unwrap();
        assert_eq!(allowed.iter().any(|path| path == Path::new("/etc")), expected, "{blocks} {allowed:?}");
    }
}

#[test]
fn kernel_without_landlock_is_a_notice_or_an_error() {
    let dir = site();
    let judged = |main: &str, status| {
        let text = format!("{main} http {{ access_log off; server {{ }} }}");
        let rules = SandboxRules::of(&config(&dir, &text), ProcessRole::Worker);
        rules.check_status(Ok(status)).map_err(|fault| fault.message)
    };
    let none = LandlockStatus::NotImplemented;
    let disabled = LandlockStatus::NotEnabled;
    let old = LandlockStatus::Available { effective_abi: ABI::V1, kernel_abi: None };
    let not = || RulesetStatus::NotEnforced;
    let notice = |text: &str| Ok((Level::Notice, format!("sandbox: {text}, files are not restricted")));
    assert_eq!(judged("", (not(), none)), notice("this kernel has no landlock"));
    assert_eq!(judged("", (not(), disabled)), notice("landlock is not enabled in this kernel"));
    assert_eq!(judged("sandbox on;", (not(), none)), Err("sandbox: this kernel has no landlock".into()));
    let (level, text) = judged("sandbox on;", (RulesetStatus::PartiallyEnforced, old)).unwrap();
    assert!(level == Level::Info && text.starts_with("sandbox: landlock 1, "), "{text}");
}

#[test]
fn replaced_directory_needs_other_rules() {
    let dir = site();
    let rules = || {
        SandboxRules::of(
            &config(&dir, "sandbox on; http { server { root {prefix}/a; } }"),
            ProcessRole::Worker,
        )
    };
    let old = rules();
    fs::rename(dir.join("a"), dir.join("old")).unwrap();
    assert!(old.covers(&rules()), "what is not there cannot be had by another process either");
    fs::create_dir(dir.join("a")).unwrap();
    assert!(!old.covers(&rules()));
}

/// Variable with the task of the child of [`sandbox_leaves_only_the_rights_of_the_configuration`]: level, directory, port.
const ORDERS: &str = "TAILWATER_TEST_SANDBOX";

/// Results of an attempt in a process that is not confined, with `auto`, and with `on`: 0 or an error. `None`: depends
/// on the user that runs the tests, or does not return.
struct Expected(&'static str, Option<i32>, i32, i32);

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EXDEV: i32 = 18;
/// `MSG_FASTOPEN`
const FASTOPEN: u32 = 0x2000_0000;
/// `AF_ALG`
const ALG: u16 = 38;

/// `AF_NETLINK`
const NETLINK: u16 = 16;

const EXPECTED: [Expected; 36] = [
    Expected("read the site", Some(0), 0, 0),
    Expected("read names of hosts", Some(0), 0, 0),
    Expected("read about itself", Some(0), 0, 0),
    Expected("write a temporary file", Some(0), 0, 0),
    Expected("move it into a collection", Some(0), 0, 0),
    Expected("start a thread", Some(0), 0, 0),
    Expected("catch a panic", Some(0), 0, 0),
    Expected("send a datagram", Some(0), 0, 0),
    Expected("read elsewhere", Some(0), 0, EACCES),
    Expected("list elsewhere", Some(0), 0, EACCES),
    Expected("read the secrets of root", Some(EACCES), EACCES, EACCES),
    Expected("read the memory of the master", None, EACCES, EACCES),
    Expected("write elsewhere", Some(0), EACCES, EACCES),
    Expected("write through a link", Some(0), EACCES, EACCES),
    Expected("append elsewhere", Some(0), EACCES, EACCES),
    Expected("empty a file elsewhere", Some(0), EACCES, EACCES),
    Expected("link to a file elsewhere", None, EXDEV, EXDEV),
    Expected("move a file out", Some(0), EACCES, EACCES),
    Expected("remove a file elsewhere", Some(0), EACCES, EACCES),
    Expected("make a directory elsewhere", Some(0), EACCES, EACCES),
    Expected("write to a device", Some(0), EACCES, EACCES),
    Expected("listen", Some(0), EPERM, EPERM),
    Expected("connect", Some(0), EACCES, EACCES),
    Expected("connect by sending", None, EPERM, EPERM),
    Expected("connect over several paths", None, EPERM, EPERM),
    Expected("talk to the kernel's cryptography", None, EPERM, EPERM),
    Expected("ask the kernel for its interfaces", None, EPERM, EPERM),
    Expected("run what it has written into memory", Some(0), EPERM, EPERM),
    Expected("run what it has written into a collection", None, EPERM, EPERM),
    Expected("make a ring", None, EPERM, EPERM),
    Expected("signal the master", None, EPERM, EPERM),
    Expected("hold the master", Some(0), EPERM, EPERM),
    Expected("become root", None, EPERM, EPERM),
    Expected("change the root directory", None, EPERM, EPERM),
    Expected("run a program", Some(0), EPERM, EPERM),
    Expected("become a program", None, EPERM, EPERM),
];

/// Code runs in a confined process, and tries what an attacker would. The process is this test, started again.
#[test]
fn sandbox_leaves_only_the_rights_of_the_configuration() {
    if let Some(actions) = std::env::var_os(ORDERS) {
        return attack(&actions.into_string().unwrap());
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (level, at) in [("off", 1), ("auto", 2), ("on", 3)] {
        let dir = site();
        for name in ["a", "client_body_temp", "elsewhere"] {
            fs::create_dir_all(dir.join(name)).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let file = dir.write("elsewhere/file", "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::symlink("../elsewhere", dir.join("a/link")).unwrap();
        dir.write("html/index.html", "x").unwrap();
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "--nocapture", "--test-threads=1"]);
        test.arg("worker::sandbox::tests::sandbox_leaves_only_the_rights_of_the_configuration");
        let output = test.env(ORDERS, format!("{level} {} {port}", dir.path().display())).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let outcome = |name: &str| {
            let line = said.lines().find_map(|line| line.split_once(&format!("<{name}>")));
            line.and_then(|(_, number)| number.trim().parse::<i32>().ok())
        };
        let abi = outcome("landlock").unwrap();
        if level != "off" && abi < 4 {
            let why = format!("this kernel has landlock {abi}: attacks in a sandbox ({level})");
            leave_out(Lacks::Machine, why);
            continue;
        }
        let failed = EXPECTED.iter().filter_map(|Expected(name, off, auto, on)| {
            let expected = [*off, Some(*auto), Some(*on)][at - 1]?;
            (outcome(name) != Some(expected)).then(|| format!("{name}: {:?}, not {expected}", outcome(name)))
        });
        let failed: Vec<_> = failed.collect();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(failed.is_empty(), "{level}: {failed:#?}\n{said}\n{errors}");
    }
}

/// Variable that marks the child of [`process_with_foreign_addresses_makes_no_packets`].
const CHILD: &str = "TAILWATER_TEST_ADDRESSES";

#[test]
fn process_with_foreign_addresses_makes_no_packets() {
    if std::env::var_os(CHILD).is_none() {
        if !rustix::process::geteuid().is_root() {
            return leave_out(Lacks::Run, "only root has privileges to keep: addresses of others");
        }
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "worker::sandbox::tests::process_with_foreign_addresses_makes_no_packets"]);
        let output = test.env(CHILD, "1").output().unwrap();
        return assert!(output.status.success(), "{output:?}");
    }
    let text = "http { access_log off; server { location / { proxy_pass http://127.0.0.1:1; proxy_bind $remote_addr transparent; } } }";
    let rules = SandboxRules::of(&config(&site(), text), ProcessRole::Worker);
    rules.become_user(Some(&Identity::nobody()), &Console::quiet()).unwrap();
    let raw = || {
        use rustix::net::{AddressFamily, SocketType, ipproto, socket};
        socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)).map(drop)
    };
    assert_eq!(raw(), Ok(()), "the privilege is there");
    rules.enforce_here().unwrap();
    assert_eq!(raw(), Err(rustix::io::Errno::PERM));
    let all = rustix::thread::capabilities(None).unwrap();
    let kept = rustix::thread::CapabilitySet::NET_RAW;
    assert_eq!((all.effective, all.permitted, all.inheritable), (kept, kept, privileges::NONE));
}

/// Confines this process and tries everything; says what became of each attempt.
fn attack(actions: &str) {
    let words: Vec<&str> = actions.split(' ').collect();
    let [level, dir, port] = words[..] else { panic!("{actions}") };
    let dir = Path::new(dir);
    let text = format!(
        "sandbox {level}; events {{ }} http {{ access_log off; server {{
            location /d/ {{ root {}/a; dav_methods put; }} }} }}",
        dir.display()
    );
    let prefix = dir.as_os_str().as_encoded_bytes().to_vec();
    let source = Source::text(prefix, "conf", text.into_bytes());
    let config = source.load(&SharedObjects::default(), &Console::new()).unwrap().config;
    let rules = SandboxRules::of(&config, ProcessRole::Worker);
    let user = rustix::process::geteuid().is_root().then(Identity::nobody);
    rules.become_user(user.as_ref(), &Console::quiet()).unwrap();
    let (SandboxReport(said), _) = rules.enforce_here().unwrap();
    let abi = said.iter().find_map(|(_, line)| line.strip_prefix("sandbox: landlock ")?.split_once(','));
    println!("<landlock>{}", abi.map_or("0", |(abi, _)| abi));
    for Expected(name, off, ..) in EXPECTED {
        if level == "off" && off.is_none() {
            continue;
        }
        let errno = match attempt(name, dir, port) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(-1),
        };
        println!("<{name}>{errno}");
    }
}

fn attempt(name: &str, dir: &Path, port: &str) -> io::Result<()> {
    let master = || Pid::from_raw(std::os::unix::process::parent_id().cast_signed()).unwrap();
    let file = || dir.join("elsewhere/file");
    match name {
        "read the site" => fs::read(dir.join("html/index.html")).map(drop),
        "read names of hosts" => fs::read("/etc/hosts").map(drop),
        "read about itself" => fs::read("/proc/self/status").map(drop),
        "write a temporary file" => fs::write(dir.join("client_body_temp/1"), "x"),
        "move it into a collection" => fs::rename(dir.join("client_body_temp/1"), dir.join("a/b1")),
        "start a thread" => std::thread::Builder::new().spawn(|| ()).map(drop),
        "catch a panic" => match std::panic::catch_unwind(|| panic!("on purpose")) {
            Ok(()) => Err(io::Error::other("no panic")),
            Err(_) => Ok(()),
        },
        "send a datagram" => {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
            Ok(rustix::net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], 9)))?)
        }
        "read elsewhere" => fs::read(file()).map(drop),
        "list elsewhere" => fs::read_dir(dir.join("elsewhere")).map(drop),
        "read the secrets of root" => fs::read("/etc/shadow").map(drop),
        "read the memory of the master" => File::open(format!("/proc/{}/mem", master())).map(drop),
        "write elsewhere" => File::create_new(dir.join("elsewhere/new")).map(drop),
        "write through a link" => File::create_new(dir.join("a/link/newer")).map(drop),
        "append elsewhere" => File::options().append(true).open(file()).map(drop),
        "empty a file elsewhere" => {
            let truncate = OFlags::TRUNC.bits().cast_signed();
            File::options().read(true).custom_flags(truncate).open(file()).map(drop)
        }
        "link to a file elsewhere" => fs::hard_link(file(), dir.join("a/hard")),
        "move a file out" => {
            fs::write(dir.join("a/2"), "x")?;
            fs::rename(dir.join("a/2"), dir.join("elsewhere/2"))
        }
        "remove a file elsewhere" => fs::remove_file(file()),
        "make a directory elsewhere" => fs::create_dir(dir.join("elsewhere/directory")),
        "write to a device" => File::options().write(true).open("/dev/null").map(drop),
        "listen" => TcpListener::bind("127.0.0.1:0").map(drop),
        "connect" => TcpStream::connect(format!("127.0.0.1:{port}")).map(drop),
        "connect by sending" => {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
            let to = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
            let flags = rustix::net::SendFlags::from_bits_retain(FASTOPEN);
            Ok(rustix::net::sendto(&socket, b"x", flags, &to).map(drop)?)
        }
        "connect over several paths" => {
            let family = rustix::net::AddressFamily::INET;
            let kind = rustix::net::SocketType::STREAM;
            Ok(rustix::net::socket(family, kind, Some(rustix::net::ipproto::MPTCP)).map(drop)?)
        }
        "talk to the kernel's cryptography" => {
            let family = rustix::net::AddressFamily::from_raw(ALG);
            let kind = rustix::net::SocketType::SEQPACKET;
            Ok(rustix::net::socket(family, kind, None).map(drop)?)
        }
        "ask the kernel for its interfaces" => {
            let family = rustix::net::AddressFamily::from_raw(NETLINK);
            let kind = rustix::net::SocketType::RAW;
            rustix::net::socket(family, kind, None)?;
            Ok(rustix::net::socket(family, rustix::net::SocketType::DGRAM, None).map(drop)?)
        }
        "run what it has written into memory" => {
            let mut file = File::from(rustix::fs::memfd_create("code", rustix::fs::MemfdFlags::CLOEXEC)?);
            file.write_all(&[0xc3; 4096])?;
            tw_sys::memory::try_map_executable(file.as_fd())
        }
        "run what it has written into a collection" => {
            fs::write(dir.join("a/code"), [0xc3; 4096])?;
            tw_sys::memory::try_map_executable(File::open(dir.join("a/code"))?.as_fd())
        }
        "make a ring" => tw_sys::uring::Ring::<File, ()>::new(8).map(drop),
        "signal the master" => Ok(rustix::process::test_kill_process(master())?),
        "hold the master" => {
            let none = rustix::process::PidfdFlags::empty();
            Ok(rustix::process::pidfd_open(master(), none).map(drop)?)
        }
        "become root" => Ok(rustix::thread::set_thread_uid(rustix::process::Uid::ROOT)?),
        "change the root directory" => std::os::unix::fs::chroot(dir),
        "run a program" => Command::new("/bin/true").status().map(drop),
        "become a program" => Err(Command::new("/bin/true").exec()),
        other => panic!("{other}"),
    }
}
