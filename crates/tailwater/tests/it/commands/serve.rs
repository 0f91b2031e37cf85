//! `tailwater serve`: a directory without a configuration file.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Signal, TempDir, wait};

/// A running `tailwater serve`.
struct Served {
    site: TempDir,
    out: TempDir,
    port: Port,
    group: Group,
}

impl Served {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Self {
        let port = Port::reserve().expect("a port is free");
        let site = TempDir::new("site").expect("a directory can be made");
        for (name, content) in [
            ("page.html", "<p>page"),
            ("sub dir/notes.md", "# notes"),
            (".env", "secret"),
            (".git/config", "secret"),
            ("sub dir/.hidden", "secret"),
        ] {
            site.write(name, content).expect("a file can be written");
        }
        // The output is outside of the site, which must not change.
        let out = TempDir::new("serve").expect("a directory can be made");
        let file = |name| File::create(out.join(name)).expect("a file can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.arg("serve").arg(site.path()).arg(format!("--listen={}", port.number())).args(options);
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let group = Group::new(command.process_group(0).spawn().expect("the binary can be started"));
        Self { site, out, port, group }
    }

    fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.out.join("stdout")).unwrap_or_default()
    }

    /// An idle keep-alive connection.
    fn idle(&self) -> Client {
        let mut client = Client::connect(self.addr()).expect("it listens");
        client.send("GET /page.html HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is accepted");
        assert_eq!(client.read_response().expect("it answers").status, 200);
        client
    }

    fn wait_ready(&self) {
        let line = format!("Serving {} at http://{}/\n", self.site.path().display(), self.addr());
        assert!(wait::until(wait::TIMEOUT, || self.printed().starts_with(&line)), "{}", self.printed());
    }
}

#[test]
fn directory_is_listed_and_served() {
    let mut served = Served::start();
    served.wait_ready();
    let get = |target| Client::get(served.addr(), target).unwrap();
    let list = get("/").text();
    assert!(list.contains("width=device-width"), "{list}");
    assert!(list.contains("page.html") && list.contains("sub%20dir/"), "{list}");
    assert!(!list.contains(".env") && !list.contains(".git"), "{list}");
    for (target, status, content_type, text) in [
        ("/page.html", 200, "text/html; charset=utf-8", "<p>page"),
        ("/sub%20dir/notes.md", 200, "text/markdown; charset=utf-8", "# notes"),
    ] {
        let response = get(target);
        assert_eq!(
            (response.status, response.field("Content-Type")),
            (status, Some(content_type)),
            "{target}"
        );
        assert_eq!(response.text(), text);
    }
    for target in ["/.env", "/.git/config", "/.git/", "/sub%20dir/.hidden", "/%2Eenv", "/x/../.env", "/none"]
    {
        assert_eq!(get(target).status, 404, "{target}");
    }
    let line = "\"GET /page.html HTTP/1.1\" 200 7";
    assert!(wait::until(wait::TIMEOUT, || served.printed().contains(line)), "{}", served.printed());

    // SIGINT is what Ctrl-C sends.
    let mut idle = served.idle();
    served.group.signal(Signal::INT).unwrap();
    assert_eq!(served.group.wait(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(idle.read_until_close().unwrap().is_empty());
    assert_eq!(fs::read_to_string(served.out.join("stderr")).unwrap(), "");
    assert_eq!(fs::read_dir(served.site.path()).unwrap().count(), 4, "nothing was put into it");
}

#[test]
fn spa_option_answers_missing_paths() {
    let mut served = Served::start_with(&["--spa"]);
    assert!(!served.group.wait(wait::TIMEOUT).unwrap().success());
    let err = fs::read_to_string(served.out.join("stderr")).unwrap();
    assert!(err.starts_with("tailwater: [emerg] \"--spa\" needs index.html in "), "{err}");
    served.site.write("index.html", "the app").unwrap();

    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command
        .args(["serve", "--spa"])
        .arg(served.site.path())
        .arg(format!("--listen={}", served.port.number()));
    let out = |name| File::create(served.out.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(out("stdout")).stderr(out("stderr"));
    served.group = Group::new(command.process_group(0).spawn().unwrap());
    served.wait_ready();
    let get = |target| Client::get(served.addr(), target).unwrap();
    for (target, expected) in [
        ("/", "the app"),
        ("/some/route?x=1", "the app"),
        ("/sub%20dir/", "the app"),
        ("/page.html", "<p>page"),
    ] {
        let response = get(target);
        assert_eq!((response.status, &*response.text()), (200, expected), "{target}");
    }
    assert_eq!(get("/.env").status, 404);
}

#[test]
fn responses_are_compressed_on_request() {
    let served = Served::start_with(&["--compress"]);
    served.site.write("large.js", "let it = 'be'; ".repeat(1000)).unwrap();
    served.site.write("large.bin", "x".repeat(10_000)).unwrap();
    served.wait_ready();
    let coding = |target: &str, accept: &str| {
        let mut client = Client::connect(served.addr()).unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {accept}\r\n\r\n");
        client.send(head).unwrap();
        client.read_response().unwrap().field("Content-Encoding").map(str::to_owned)
    };
    for (target, accept, expected) in [
        ("/large.js", "gzip", Some("gzip")),
        ("/large.js", "br", Some("br")),
        ("/large.js", "zstd", Some("zstd")),
        ("/large.js", "identity", None),
        ("/large.bin", "gzip", None),
    ] {
        assert_eq!(coding(target, accept).as_deref(), expected, "{target} {accept}");
    }
}

#[test]
fn password_is_required_on_request() {
    let served = Served::start_with(&["--auth", "me:sec:ret"]);
    served.wait_ready();
    let status = |credentials: &str| {
        let mut client = Client::connect(served.addr()).unwrap();
        let field = match credentials {
            "" => String::new(),
            credentials => format!("Authorization: Basic {credentials}\r\n"),
        };
        client.send(format!("GET /page.html HTTP/1.1\r\nHost: x\r\n{field}\r\n")).unwrap();
        client.read_response().unwrap().status
    };
    let said = || fs::read_to_string(served.out.join("stderr")).unwrap();
    // me:sec:ret
    assert_eq!([status(""), status("bWU6c2VjOnJldA==")], [401, 200]);
    assert_eq!(said(), "");
    // me:wrong
    assert_eq!(status("bWU6d3Jvbmc="), 401);
    assert!(wait::until(wait::TIMEOUT, || said().contains("user \"me\": password mismatch")), "{}", said());
}

#[test]
fn second_ctrl_c_ends_at_once() {
    let mut served = Served::start();
    served.site.write("large", vec![b'x'; 24 << 20]).unwrap();
    served.wait_ready();
    let mut client = Client::connect(served.addr()).unwrap();
    client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.read_head().unwrap();
    let mut idle = served.idle();
    served.group.signal(Signal::INT).unwrap();
    assert!(idle.read_until_close().unwrap().is_empty());
    assert!(!served.group.ended(), "a download is under way");
    served.group.signal(Signal::INT).unwrap();
    assert_eq!(served.group.wait(wait::TIMEOUT).unwrap().code(), Some(0));
}

#[test]
fn unusable_arguments_are_refused_with_their_reason() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let dir = TempDir::new("serve").unwrap();
    let file = dir.write("file", "").unwrap();
    let dollar = dir.join("a$b");
    fs::create_dir(&dollar).unwrap();
    let [root, file, dollar] = [dir.path(), &file, &dollar].map(|path| path.to_str().unwrap());
    for (args, expected) in [
        (vec!["/no/such"], "open() \"/no/such\" failed (2: No such file or directory)".to_owned()),
        (vec![file], format!("open() \"{file}\" failed (20: Not a directory)")),
        (vec![dollar], format!("cannot serve \"{dollar}\": its name contains a dollar sign")),
        (vec![root, "--listen", &taken.to_string()], format!("another process listens on {taken}")),
        (vec![root, "--listen", "127.0.0.1:x"], "invalid port in \"--listen 127.0.0.1:x\"".to_owned()),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tailwater")).arg("serve").args(&args).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        let expected = format!("tailwater: [emerg] {expected}");
        assert_eq!((output.status.code(), err.lines().next()), (Some(1), Some(&*expected)), "{args:?}");
    }
}
