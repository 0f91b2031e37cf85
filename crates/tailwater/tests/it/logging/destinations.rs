//! Log destinations other than plain files: gzip, syslog, memory; and logs that share a file.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Lacks, Server, leave_out, wait};

use crate::support::reload::reload;
use crate::support::{get, page, server, start, start_as_we_are, start_server, start_server_as_we_are};

/// A syslog server.
struct Syslog {
    socket: UdpSocket,
}

impl Syslog {
    fn start() -> Self {
        Self::start_at("127.0.0.1:0").unwrap()
    }

    fn start_at(address: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        Ok(Self { socket })
    }

    /// Parameter `syslog:server=…` of this server.
    fn target(&self) -> String {
        format!("syslog:server={}", self.socket.local_addr().unwrap())
    }

    fn next(&self) -> String {
        let mut bytes = vec![0; 65536];
        let n = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    }
}

/// Parts of a message around its time: `<190>` and `host nginx: text`.
fn around_time(message: &str) -> (&str, &str) {
    let (priority, rest) = message.split_once('>').unwrap();
    let (time, rest) = rest.split_at("Nov 20 11:00:00 ".len());
    let shape: String = time
        .chars()
        .map(|c| match c {
            'A'..='Z' => 'A',
            'a'..='z' => 'a',
            '0'..='9' => '0',
            c => c,
        })
        .collect();
    assert!(shape == "Aaa 00 00:00:00 " || shape == "Aaa  0 00:00:00 ", "{message}");
    (priority, rest)
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

#[test]
fn access_log_goes_to_syslog() {
    let syslog = Syslog::start();
    let to = syslog.target();
    let server = start(
        server(),
        &format!(
            "log_format f '$uri \"$arg_q'; log_format none ''; server {{ listen 127.0.0.1:{{port}};
             location / {{ access_log {to} f; return 200 x; }}
             location /set {{ access_log {to},facility=user,severity=alert,tag=My_Tag f; return 200 x; }}
             location /bare {{ access_log {to},nohostname; return 200 x; }}
             location /if {{ access_log {to} f if=$arg_l; return 200 x; }}
             location /two {{ access_log {to} f; access_log {to},facility=mail f; return 200 x; }}
             location /empty {{ access_log {to},nohostname,tag= none; return 200 x; }} }}"
        ),
    );
    let host = host();
    for (target, priority, rest) in [
        ("/x?q=%22", "<190", format!("{host} nginx: /x \"%22")),
        ("/set", "<9", format!("{host} My_Tag: /set \"-")),
        ("/if?l=1", "<190", format!("{host} nginx: /if \"-")),
        ("/empty", "<190", ": ".to_owned()),
    ] {
        get(&server, "/if");
        get(&server, target);
        let message = syslog.next();
        assert_eq!(around_time(&message), (priority, rest.as_str()), "{target}");
    }
    get(&server, "/bare");
    let message = syslog.next();
    let (priority, rest) = around_time(&message);
    assert_eq!(priority, "<190");
    assert!(
        rest.starts_with("nginx: 127.0.0.1 - - [")
            && rest.ends_with("\"GET /bare HTTP/1.1\" 200 1 \"-\" \"-\""),
        "{rest}"
    );
    get(&server, "/two");
    let messages = [syslog.next(), syslog.next()];
    let priorities: Vec<_> = messages.iter().map(|message| around_time(message).0).collect();
    assert_eq!(priorities, ["<190", "<22"]);
    // A long line is one datagram.
    let long = format!("/x?q={}", "y".repeat(5000));
    get(&server, &long);
    assert!(syslog.next().ends_with(&"y".repeat(5000)));
}

#[test]
fn syslog_server_may_have_an_ipv4_or_ipv6_address() {
    let Ok(six) = Syslog::start_at("[::1]:0") else {
        return leave_out(Lacks::Machine, "there is no IPv6: syslog over it");
    };
    let four = Syslog::start();
    let port = four.socket.local_addr().unwrap().port();
    let server = start_server(
        server(),
        &format!("access_log {}; access_log syslog:server=127.0.0.1:{port}; return 200 x;", six.target()),
    );
    get(&server, "/x");
    assert!(six.next().contains("\"GET /x HTTP/1.1\" 200"));
    assert!(four.next().contains("\"GET /x HTTP/1.1\" 200"));
}

#[test]
fn error_log_goes_to_syslog_with_the_severity_of_each_line() {
    let syslog = Syslog::start();
    let to = syslog.target();
    let server = start_server(
        server().in_one_process(),
        &format!(
            "location / {{ error_log {to}; }} location /info {{ error_log {to},facility=user,severity=alert info; }}
             location /crit {{ error_log {to} crit; error_log logs/other.log; }}"
        ),
    );
    get(&server, "/crit");
    get(&server, "/missing");
    let message = syslog.next();
    let (priority, rest) = around_time(&message);
    assert_eq!(priority, "<187");
    let text = rest.strip_prefix(&format!("{} nginx: ", host())).unwrap();
    assert!(text[19..].starts_with(&format!(" [error] {}#", server.pid())), "{text}");
    assert!(
        text.contains("html/missing\" failed (2: No such file") && text.ends_with("host: \"localhost\""),
        "{text}"
    );
    get(&server, "/info");
    assert_eq!(around_time(&syslog.next()).0, "<11");
    assert_eq!(server.log("logs/other.log", 1).unwrap().len(), 1);
}

#[test]
fn syslog_only_error_log_also_writes_the_default_file() {
    let syslog = Syslog::start();
    let mut server = server();
    let conf =
        format!("http {{ server {{ listen 127.0.0.1:{{port}}; }} }} error_log {} notice;", syslog.target());
    server = server.file("html/index.html", "hello");
    let running = server.start(&conf).unwrap();
    assert!(std::iter::repeat_with(|| syslog.next()).take(9).any(|message| message.contains("[notice]")));
    assert_eq!(page(&running, "/"), (200, "hello".to_owned()));
}

#[test]
fn syslog_server_may_be_a_unix_socket() {
    let dir = tw_testkit::TempDir::new("syslog").unwrap();
    let path = dir.join("log");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    let server = start_server_as_we_are(
        server(),
        &format!("access_log syslog:server=unix:{},nohostname; return 200 x;", path.display()),
    );
    get(&server, "/x");
    let mut bytes = [0; 1000];
    let n = socket.recv(&mut bytes).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..n]).contains("\"GET /x HTTP/1.1\" 200"));
}

#[test]
fn missing_or_hung_syslog_server_blocks_nothing() {
    let dir = tw_testkit::TempDir::new("syslog").unwrap();
    let away = dir.join("away");
    let hanging = dir.join("hanging");
    // No process reads from this socket, so the kernel soon accepts no more datagrams.
    let _hanging = UnixDatagram::bind(&hanging).unwrap();
    let mut server = start_as_we_are(
        server(),
        &format!(
            "access_log syslog:server=unix:{away}; access_log syslog:server=unix:{hanging}; access_log logs/access.log;
             server {{ listen 127.0.0.1:{{port}}; error_log syslog:server=unix:{away};
             location / {{ return 200 x; }} location /missing {{ }} }}",
            away = away.display(),
            hanging = hanging.display()
        ),
    );
    for _ in 0..300 {
        assert_eq!(get(&server, "/").status, 200);
        assert_eq!(get(&server, "/missing").status, 404);
    }
    assert_eq!(server.access_log(600).unwrap().len(), 600);
    let line = server.wait_error_log("while logging to syslog").unwrap();
    let expected = format!(
        ": connect() failed (2: No such file or directory) while logging to syslog, server: unix:{}",
        away.display()
    );
    assert!(line.contains("[alert]") && line.ends_with(&expected), "{line}");
    assert_eq!(server.error_log().matches("while logging to syslog").count(), 1);

    // The syslog server comes back.
    let socket = UnixDatagram::bind(&away).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    get(&server, "/back");
    let mut bytes = [0; 1000];
    let n = socket.recv(&mut bytes).unwrap();
    assert!(n > 0);
    // Lines that cannot be sent do not delay the shutdown.
    assert!(server.stop().unwrap().success());
}

/// Text of the complete gzip members: an incomplete one is still being written.
fn unpacked(file: &[u8]) -> String {
    let mut text = Vec::new();
    let mut rest = file;
    loop {
        let mut inflate = zlib_rs::Inflate::new(true, 31);
        let mut room = vec![0; 1 << 20];
        let status = inflate.decompress(rest, &mut room, zlib_rs::InflateFlush::Finish);
        if status != Ok(zlib_rs::Status::StreamEnd) {
            return String::from_utf8(text).unwrap();
        }
        text.extend_from_slice(&room[..inflate.total_out() as usize]);
        rest = &rest[inflate.total_in() as usize..];
    }
}

#[test]
fn gzip_parameter_compresses_the_log() {
    let mut server = start(
        server(),
        "log_format f '$uri'; server { listen 127.0.0.1:{port}; return 200 x;
         access_log logs/soon.gz f gzip flush=20ms; access_log logs/end.gz f gzip=9 buffer=16k;
         access_log logs/small.gz f gzip buffer=1; }",
    );
    for n in 0..100 {
        get(&server, &format!("/{n}"));
    }
    let expected: String = (0..100).map(|n| format!("/{n}\n")).collect();
    let logs = server.prefix().join("logs");
    let read = |name: &str| fs::read(logs.join(name)).unwrap();
    assert!(wait::until(wait::TIMEOUT, || unpacked(&read("soon.gz")) == expected));
    assert_eq!(fs::metadata(logs.join("end.gz")).unwrap().len(), 0);
    assert!(server.stop().unwrap().success());
    for name in ["soon.gz", "end.gz", "small.gz"] {
        assert_eq!(unpacked(&read(name)), expected, "{name}");
    }
    assert!(fs::metadata(logs.join("end.gz")).unwrap().len() < expected.len() as u64);
}

#[test]
fn logs_of_one_file_share_its_buffer() {
    let mut server = start(
        server(),
        "log_format a 'a $uri'; log_format b 'b $uri'; server { listen 127.0.0.1:{port}; return 200 x;
         access_log logs/one.log a buffer=64k; access_log logs/one.log b;
         location /missing { access_log off; error_log logs/one.log; root html; try_files /none =404; } }",
    );
    get(&server, "/1");
    get(&server, "/2");
    assert_eq!(fs::read(server.prefix().join("logs/one.log")).unwrap(), b"");
    assert!(server.stop().unwrap().success());
    let text = fs::read_to_string(server.prefix().join("logs/one.log")).unwrap();
    assert_eq!(text, "a /1\nb /1\na /2\nb /2\n");
}

#[test]
fn reload_changes_the_buffer_of_a_log() {
    let conf = |parameters: &str| {
        format!(
            "http {{ log_format f '$uri'; server {{ listen 127.0.0.1:{{port}}; return 200 x;
             access_log logs/one.log f {parameters}; }} }}"
        )
    };
    let mut server = server().start(&conf("buffer=64k")).unwrap();
    get(&server, "/1");
    reload(&mut server, &conf(""));
    let served = || {
        get(&server, "/2");
        fs::read_to_string(server.prefix().join("logs/one.log")).unwrap().contains("/2\n")
    };
    assert!(wait::until(wait::TIMEOUT, served));
    // The old buffer is written once no configuration uses it.
    let old = || fs::read_to_string(server.prefix().join("logs/one.log")).unwrap().contains("/1\n");
    assert!(wait::until(wait::TIMEOUT, old));
}

/// Lines in the memory log of a server with this name, read from its descriptors.
fn memory(server: &Server, name: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap() {
        let path = entry.unwrap().path();
        if fs::read_link(&path).is_ok_and(|link| link.to_string_lossy().contains(name)) {
            texts.push(fs::read_to_string(path).unwrap());
        }
    }
    texts
}

#[test]
fn memory_error_log_keeps_the_newest_lines() {
    let server = start_server(
        server().in_one_process(),
        "error_log memory:4k info; error_log logs/server.log info; location /own { error_log memory:1m; }",
    );
    for n in 0..50 {
        get(&server, &format!("/missing{n}"));
    }
    get(&server, "/own");
    let lines = server.log("logs/server.log", 50).unwrap();
    let newest = lines.last().unwrap();
    let size = 4096;
    let is_found = || {
        let texts = memory(&server, "memfd:error_log memory in ");
        texts.len() == 2
            && texts.iter().any(|text| text.len() <= size && text.contains(&format!("{newest}\n---")))
            && texts.iter().any(|text| text.matches('\n').count() == 2 && text.contains("html/own"))
    };
    assert!(wait::until(wait::TIMEOUT, is_found), "{:?}", memory(&server, "memfd"));
    assert!(!server.error_log().contains("missing"));
}

#[test]
fn lines_are_kept_until_a_failing_disk_recovers() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let slow = disk.path().display().to_string();
    let mut server = start_as_we_are(
        server(),
        &format!(
            "log_format f '$uri'; server {{ listen 127.0.0.1:{{port}}; root html; error_log {slow}/error.log;
             access_log {slow}/a.gz f gzip flush=10ms; access_log {slow}/b.log f buffer=1k flush=10ms; }}"
        ),
    );
    let full = disk.on(Op::Write).inject(Fault::Error(rustix::io::Errno::NOSPC));
    for n in 0..20 {
        assert_eq!(get(&server, &format!("/{n}")).status, 404);
    }
    for name in ["error.log", "a.gz", "b.log"] {
        let line = server
            .wait_error_log(&format!("write() to \"{slow}/{name}\" failed (28: No space left on device)"));
        assert!(line.unwrap().contains("[alert]"));
    }
    // In this order, no log line is written between the two faults.
    let stall = disk.on(Op::Write).inject(Fault::Stall);
    full.lift();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    for n in 20..40 {
        assert_eq!(get(&server, &format!("/{n}")).status, 404);
    }
    stall.lift();
    let expected: String = (0..40).map(|n| format!("/{n}\n")).collect();
    let content = |name: &str| disk.read(name).unwrap_or_default();
    assert!(wait::until(wait::TIMEOUT, || content("b.log") == expected.as_bytes()));
    let is_whole = || unpacked(&content("a.gz")) == expected;
    assert!(wait::until(wait::TIMEOUT, is_whole));
    let errors = || String::from_utf8_lossy(&content("error.log")).matches("failed (2: No such file").count();
    assert!(wait::until(wait::TIMEOUT, || errors() == 40));
    assert!(server.stop().unwrap().success());
}
