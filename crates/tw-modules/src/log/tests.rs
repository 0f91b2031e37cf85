use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_conf::{Diagnostics, MemoryFiles, Reader, Tree};
use tw_log::Closed;
use tw_net::listen::{Purpose, open_all};
use tw_rt::WorkerOptions;
use tw_server::http::generation::{Config, Generation};
use tw_server::load::{Prefixes, load};
use tw_server::pools::Disks;
use tw_server::worker::{Counts, Order, run};
use tw_testkit::ports::Port;
use tw_testkit::{Client, TempDir};

/// Loads `http { CONF }`; the error is a line as in the error log, without its file.
fn config(prefix: &str, conf: &str) -> Result<Config, String> {
    let mut tree = Tree::default();
    let text = format!("events {{ }} http {{ {conf} }}");
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"conf", text.as_bytes()).unwrap();
    let prefixes = Prefixes {
        prefix: prefix.into(),
        conf: prefix.into(),
        error_log: b"error.log".to_vec(),
        hostname: b"host.example".to_vec(),
    };
    load(&tree, &prefixes, &crate::MODULES, &mut Diagnostics::default())
        .map_err(|error| error.line(&tree.sources).trim_end_matches(" in conf:1").to_owned())
}

/// Sends requests, one connection each, to a loop that serves `http { CONF }`. The logs it wrote, by name.
fn logs(conf: &str, requests: &[&str]) -> BTreeMap<String, String> {
    let (dir, port) = (TempDir::new("log").unwrap(), Port::reserve().unwrap());
    fs::create_dir(dir.join("logs")).unwrap();
    let listen = format!("127.0.0.1:{}", port.number());
    let config = config(dir.path().to_str().unwrap(), &conf.replace("LISTEN", &listen)).unwrap();
    let sinks = tw_log::Sinks::new();
    config.logs.open(&sinks).unwrap();
    sinks.start().unwrap();
    let wanted: Vec<_> = config.listens.iter().map(|l| (l.address.clone(), l.options.clone())).collect();
    let sockets = open_all(&wanted, Purpose::Serve, &mut |report| panic!("{report}")).unwrap();
    let pool = tw_disk::Pool::with_defaults().unwrap();
    let generation = Arc::new(Generation { id: 1, config, disks: Disks::new([pool]) });
    // It holds the logs open until they are flushed.
    let served = generation.clone();
    let worker = tw_rt::Worker::<Order>::start(WorkerOptions::new(0), move |orders| {
        run(0, Arc::new(Counts::default()), served, sockets, orders)
    })
    .unwrap();
    for request in requests {
        let mut client = Client::connect(listen.parse().unwrap()).unwrap();
        client.send(request).unwrap();
        client.read_until_close().unwrap();
    }
    assert!(worker.send(Order::Quit).is_ok());
    worker.join().unwrap();
    assert_eq!(sinks.flush_and_close(Instant::now() + Duration::from_secs(5)), Closed::Written);
    drop(generation);
    let files = [dir.path().to_owned(), dir.join("logs")].map(|dir| fs::read_dir(dir).unwrap());
    let files = files
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path: &PathBuf| path.is_file());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files.map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect()
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.0\r\n\r\n")
}

/// Requests for these targets, and what each log then holds.
fn check(conf: &str, targets: &[&str], expected: &[(&str, &str)]) {
    let requests: Vec<_> = targets.iter().map(|target| get(target)).collect();
    let mut logs = logs(conf, &requests.iter().map(String::as_str).collect::<Vec<_>>());
    logs.remove("error.log");
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    assert_eq!(logs, expected, "{conf}");
}

#[test]
fn errors_are_those_of_nginx() {
    let unsupported = |what: &str| format!("{what} not supported by this version of Tailwater");
    for (conf, expected) in [
        ("log_format a;", "invalid number of arguments in \"log_format\" directive"),
        ("log_format combined x;", "duplicate \"log_format\" name \"combined\""),
        ("log_format a x; log_format a y;", "duplicate \"log_format\" name \"a\""),
        ("log_format a escape=xml x;", "unknown log format escaping \"xml\""),
        ("log_format a 'x$';", "invalid parameter \"$\""),
        ("log_format a 'x${';", "invalid parameter \"${\""),
        ("log_format a '$-x';", "invalid parameter \"$-x\""),
        ("log_format a '${x';", "the closing bracket in \"x\" variable is missing"),
        ("log_format a $nothing;", "unknown \"nothing\" variable"),
        ("access_log x y;", "unknown log format \"y\""),
        ("access_log x buffer=1k;", "unknown log format \"buffer=1k\""),
        ("access_log x combined buffer=0;", "invalid buffer size \"0\""),
        ("access_log x combined buffer=1g;", "invalid buffer size \"1g\""),
        ("access_log x combined buffer=1 flush=0;", "invalid flush time \"0\""),
        ("access_log x combined buffer=1 flush=1x;", "invalid flush time \"1x\""),
        ("access_log x combined flush=1s;", "no buffer is defined for access_log \"x\""),
        ("access_log x combined what;", "invalid parameter \"what\""),
        ("access_log x combined if=$x;", "unknown \"x\" variable"),
        ("access_log off on;", "invalid parameter \"on\""),
        ("access_log;", "invalid number of arguments in \"access_log\" directive"),
        (
            "access_log x combined buffer=1k; access_log x combined buffer=2k;",
            "access_log \"x\" already defined with conflicting parameters",
        ),
        ("open_log_file_cache max=0;", "\"open_log_file_cache\" must have \"max\" parameter"),
        ("open_log_file_cache max=x;", "invalid \"open_log_file_cache\" parameter \"max=x\""),
        (
            "open_log_file_cache off; open_log_file_cache off;",
            "\"open_log_file_cache\" directive is duplicate",
        ),
        ("access_log x combined gzip;", &unsupported("the \"gzip\" parameter of \"access_log\" is")),
        ("access_log x combined gzip=3;", &unsupported("the \"gzip\" parameter of \"access_log\" is")),
        ("access_log syslog:server=127.0.0.1;", &unsupported("\"access_log syslog:\" is")),
        ("access_log $host.log;", &unsupported("variables in the path of \"access_log\" are")),
    ] {
        assert_eq!(config("/p/", conf).err().as_deref(), Some(expected), "{conf}");
    }
    for conf in [
        "log_format a escape=json;",
        "access_log x COMBINED;",
        "access_log x late; log_format late x;",
        "access_log x combined buffer=1k; access_log x combined; access_log x combined buffer=1k;",
        "open_log_file_cache max=10 inactive=20s valid=1m min_uses=2;",
    ] {
        assert_eq!(config("/p/", conf).err(), None, "{conf}");
    }
}

#[test]
fn the_default_is_combined() {
    let request = "GET /a?b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Basic dTpw\r\n\
                   Referer: \"r\"\r\nUser-Agent: é\\\r\n\r\n";
    let logs = logs("server { listen LISTEN; return 200 hello; }", &[&get("/x"), request]);
    let (before, after): (Vec<_>, Vec<_>) =
        logs["access.log"].lines().map(|line| line.split_once(']').unwrap()).unzip();
    assert!(before[0].starts_with("127.0.0.1 - - [") && before[0].ends_with("+0000"), "{}", before[0]);
    assert_eq!(before[0].len(), "127.0.0.1 - - [20/Nov/2026:11:00:00 +0000".len());
    assert!(before[1].starts_with("127.0.0.1 - u ["), "{}", before[1]);
    assert_eq!(
        after,
        [
            " \"GET /x HTTP/1.0\" 200 5 \"-\" \"-\"",
            " \"GET /a?b HTTP/1.1\" 200 5 \"\\x22r\\x22\" \"\\xC3\\xA9\\x5C\"",
        ]
    );
}

#[test]
fn levels_replace_each_other() {
    let format = "log_format f '$uri';";
    let locations = "location /in { return 204; } location /off { access_log off; return 204; }
                     location /own { access_log own.log f; access_log own2.log f; return 204;
                         location /own/in { return 204; } }
                     location /both { access_log both.log f; access_log off; return 204; }";
    check(
        &format!("{format} access_log http.log f; server {{ listen LISTEN; {locations} }}"),
        &["/in", "/off", "/own", "/own/in", "/both"],
        &[
            ("http.log", "/in\n"),
            ("own.log", "/own\n/own/in\n"),
            ("own2.log", "/own\n/own/in\n"),
            ("both.log", ""),
        ],
    );
    // The default is opened only where something needs it.
    check(
        &format!("server {{ listen LISTEN; access_log s.log f; {locations} }} {format}"),
        &["/in", "/nowhere"],
        &[("s.log", "/in\n/nowhere\n"), ("own.log", ""), ("own2.log", ""), ("both.log", "")],
    );
}

#[test]
fn escapes() {
    check(
        "log_format d escape=default '$uri' '$arg_b' \"\\\"$arg_c\"; log_format n escape=none $uri$arg_b$arg_c;
         log_format j escape=json '{\"u\":\"$uri\",\"b\":\"${arg_b}\"}\"';
         server { listen LISTEN; return 200 x; access_log d.log d; access_log n.log n; access_log j.log j; }",
        &["/%22%5c%01%c3%a9?c=2"],
        &[
            ("d.log", "/\\x22\\x5C\\x01\\xC3\\xA9-\"2\n"),
            ("n.log", "/\"\\\u{1}é2\n"),
            ("j.log", "{\"u\":\"/\\\"\\\\\\u0001é\",\"b\":\"\"}\"\n"),
        ],
    );
}

#[test]
fn conditions() {
    check(
        "log_format f '$uri'; server { listen LISTEN; return 200 x;
         access_log one.log f if=$arg_a; access_log two.log f if=$arg_a$arg_b; }",
        &["/", "/0?a=0", "/1?a=1", "/2?b=1", "/3?a=0&b=0", "/4?a="],
        &[("one.log", "/1\n"), ("two.log", "/1\n/2\n/3\n")],
    );
}

#[test]
fn buffers_lose_nothing() {
    let targets: Vec<_> = (0..50).map(|n| format!("/{n}")).collect();
    let expected: String = targets.iter().map(|target| format!("{target}\n")).collect();
    check(
        "log_format f '$uri'; server { listen LISTEN; return 200 x;
         access_log a.log f buffer=4k flush=1h; access_log b.log f buffer=2m; }",
        &targets.iter().map(String::as_str).collect::<Vec<_>>(),
        &[("a.log", &expected), ("b.log", &expected)],
    );
}

#[test]
fn what_was_sent_and_received() {
    let conf =
        "log_format f '$status $bytes_sent $body_bytes_sent $request_length $request_completion $pipe \
                $connection_requests $sent_http_content_length $sent_http_connection $sent_http_location';
                server { listen LISTEN; access_log f.log f;
                location / { return 200 hello; } location /to { return 301 /there; } }";
    let two = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /22 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let head = "HEAD / HTTP/1.0\r\n\r\n";
    let bad = "GET / HTTP/1.1\r\n\r\n";
    let to = "GET /to HTTP/1.0\r\nHost: h.example\r\n\r\n";
    let log = logs(conf, &[two, head, bad, to]).remove("f.log").unwrap();
    let lines: Vec<Vec<_>> = log.lines().map(|line| line.split(' ').collect()).collect();
    let column = |at: usize| lines.iter().map(|line| line[at]).collect::<Vec<_>>();
    assert_eq!(column(0), ["200", "200", "200", "400", "301"]);
    assert_eq!(column(2)[..3], ["5", "5", "0"]);
    assert_eq!(column(3), ["28", "48", "19", "18", "37"]);
    assert_eq!(column(4), ["OK"; 5]);
    assert_eq!(column(5), [".", "p", ".", ".", "."]);
    assert_eq!(column(6), ["1", "2", "1", "1", "1"]);
    assert_eq!(column(7)[..3], ["5", "5", "5"]);
    assert_eq!(column(8), ["keep-alive", "close", "close", "close", "close"]);
    assert!(column(9)[4].starts_with("http://h.example:") && column(9)[4].ends_with("/there"), "{log}");
    for line in &lines {
        let sizes: Vec<u64> = line[1..3].iter().map(|size| size.parse().unwrap()).collect();
        assert!(sizes[0] > sizes[1] + 100, "{log}");
    }
}
