//! `debug_disk_fault`: a failing disk without one.

use std::sync::atomic::Ordering::SeqCst;

use tw_testkit::origin::counting;
use tw_testkit::{Server, Signal, wait};

use crate::support::metrics::{metric, metric_sum, try_metric};
use crate::support::reload::{reload, reload_until};
use crate::support::{get, page, server};

const OPTION: &str = "--enable-fault-injection";

/// A configuration with these directives in `main`, files in `html`, and `more` in the block of the server.
fn conf(main: &str, more: &str) -> String {
    format!(
        "{main}
         http {{ server {{ listen 127.0.0.1:{{port}}; root html;
             location = /metrics {{ metrics; }} location = /status {{ status_page; }} {more} }} }}"
    )
}

fn start(main: &str, more: &str) -> Server {
    let builder = server().arg(OPTION).file("html/fast.txt", "fast").file("html/slow/a.txt", "slow");
    builder.start(&conf(main, more)).unwrap()
}

/// Output of a test of a configuration with these directives in `main`, and whether it may be used.
fn test(main: &str, arguments: &[&str]) -> (bool, String) {
    let builder = arguments.iter().fold(server().arg("-t"), |builder, argument| builder.arg(*argument));
    let output = builder.run(&conf(main, "")).unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn delayed_path_delays_only_requests_that_need_it() {
    let mut server = start("debug_disk_fault path=html/slow op=open delay=1h;", "");
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /slow/a.txt HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let delayed = "disk_faults_total{operation=\"open\",effect=\"delay\"}";
    assert!(wait::until(wait::TIMEOUT, || try_metric(&server, delayed) == Some(1)), "{}", server.error_log());
    for _ in 0..20 {
        assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    }
    // A reload without the rule lets it go on.
    reload(&mut server, &conf("", ""));
    assert_eq!(waiting.read_response().unwrap().text(), "slow");
    server.wait_error_log("fault injection has ended").unwrap();
    assert_eq!(metric(&server, delayed), 1);
}

#[test]
fn errors_have_their_status_and_log_line() {
    let mut server = start("", "location /list/ { alias html/slow/; autoindex on; }");
    let slow = server.prefix().join("html/slow").display().to_string();
    for (rule, target, status, line) in [
        ("op=open error=EIO", "/slow/a.txt", 500, "open() \"{slow}/a.txt\" failed (5: Input/output error)"),
        (
            "op=open error=EMFILE",
            "/slow/a.txt",
            503,
            "open() \"{slow}/a.txt\" failed (24: Too many open files)",
        ),
        ("op=open error=enoent", "/slow/a.txt", 404, "open() \"{slow}/a.txt\" failed (2: No such file"),
        ("error=EACCES", "/slow/a.txt", 403, "open() \"{slow}/a.txt\" failed (13: Permission denied)"),
        ("op=readdir,fsync error=EIO", "/list/", 500, "failed (5: Input/output error)"),
    ] {
        // The file is in the tables of the loops before the fault is set.
        reload_until(
            &mut server,
            &conf("", "location /list/ { alias html/slow/; autoindex on; }"),
            "/slow/a.txt",
            "slow",
        );
        let main = format!("debug_disk_fault path=html/slow/ {rule};");
        reload(&mut server, &conf(&main, "location /list/ { alias html/slow/; autoindex on; }"));
        assert!(
            wait::until(wait::TIMEOUT, || get(&server, target).status == status),
            "{rule}: {}",
            server.error_log()
        );
        server.wait_error_log(&line.replace("{slow}", &slow)).unwrap();
        assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    }
    assert!(metric(&server, "disk_faults_total{operation=\"open\",effect=\"error\"}") >= 4);
}

#[test]
fn path_that_hangs_is_refused_like_a_disk() {
    let server = start(
        "thread_pool default threads=8 device_timeout=1s; debug_disk_fault path=html/slow op=read,open delay=1h;",
        "",
    );
    let slow = server.prefix().join("html/slow").display().to_string();
    let response = get(&server, "/slow/a.txt");
    assert_eq!((response.status, response.field("Retry-After").is_some()), (503, true));
    server.wait_error_log(&format!("\"{slow}\" hangs: 1 operations of thread pool \"default\"")).unwrap();
    let hung = format!("pool_hung_operations{{pool=\"default\",mount=\"{slow}\"}}");
    assert!(try_metric(&server, &hung).is_some_and(|hung: u64| hung >= 1));
    assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    assert!(get(&server, "/status?format=json").text().contains("\"disk_faults_total\""));
}

#[test]
fn cache_on_a_full_path_passes_requests_on() {
    let (addr, requests) = counting(|conn, _, nth| conn.answer("", format!("{nth}")));
    let cache = "proxy_cache_path cache levels=1:2 keys_zone=one:1m;";
    let location =
        format!("location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h; }}");
    let http = |rule: &str| {
        format!(
            "{rule} http {{ {cache} server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} {location} }} }}"
        )
    };
    let rule = "debug_disk_fault path=cache op=create,write error=ENOSPC;";
    let mut server = server().arg(OPTION).with_master().start(&http(rule)).unwrap();
    for nth in 0..3 {
        assert_eq!(page(&server, "/a"), (200, nth.to_string()), "{}", server.error_log());
        // Until a fill has ended, further requests share its response.
        assert!(
            wait::until(wait::TIMEOUT, || metric(&server, "cache_filling") == 0),
            "{}",
            server.error_log()
        );
    }
    assert!(metric(&server, "cache_disk_failures_total") >= 1);
    reload(&mut server, &http(""));
    server.wait_error_log("fault injection has ended").unwrap();
    let is_kept = || {
        let before = requests.load(SeqCst);
        get(&server, "/b").status == 200
            && get(&server, "/b").status == 200
            && requests.load(SeqCst) <= before + 1
    };
    assert!(wait::until(wait::TIMEOUT, is_kept), "{}", server.error_log());
}

#[test]
fn fault_injection_is_refused_without_the_option() {
    let rule = "debug_disk_fault path=html/slow error=EIO;";
    let message = "\"debug_disk_fault\" is not allowed without \"--enable-fault-injection\"";
    let (is_usable, said) = test(rule, &[]);
    assert!(!is_usable && said.contains("[emerg]") && said.contains(message), "{said}");
    assert!(said.contains("the option belongs on the command line that starts the server"), "{said}");

    for builder in [server().in_one_process(), server().with_master()] {
        let mut server = builder.file("html/slow/a.txt", "slow").start(&conf("", "")).unwrap();
        reload(&mut server, &conf(rule, ""));
        server.wait_error_log(message).unwrap();
        assert_eq!(page(&server, "/slow/a.txt"), (200, "slow".to_owned()));
    }
}

#[test]
fn fault_injection_is_loud() {
    let rule = "debug_disk_fault path=html/slow op=open,read delay=50ms error=EIO rate=0.5%;";
    let effect = |slow: &str| {
        format!("0.5% of the operations (open, read) below \"{slow}\" are delayed by 50 ms and fail with EIO")
    };
    let (is_usable, said) = test(rule, &[OPTION]);
    assert!(
        is_usable && said.contains("[warn] \"debug_disk_fault\": 0.5% of the operations (open, read) below"),
        "{said}"
    );
    for builder in [server().in_one_process(), server().with_master()] {
        let server = builder.arg(OPTION).start(&conf(rule, "")).unwrap();
        let slow = server.prefix().join("html/slow").display().to_string();
        let log = server.wait_error_log(&effect(&slow)).unwrap();
        assert_eq!(log.matches(&effect(&slow)).count(), 1, "{log}");
        assert_eq!(metric_sum(&server, "disk_faults_total"), 0);
    }
}

#[test]
fn commands_leave_faults_to_the_server() {
    let rule = "debug_disk_fault path=html/slow op=open error=EIO;";
    let mut server =
        server().arg(OPTION).with_master().file("html/slow/a.txt", "slow").start(&conf("", "")).unwrap();
    server.write_conf(&conf(rule, "")).unwrap();
    let prefix = server.prefix().to_owned();
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .args(["-s", "reload", "-p"])
        .arg(&prefix)
        .arg("-c")
        .arg(prefix.join("conf/nginx.conf"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/slow/a.txt").status == 500));
    server.signal(Signal::TERM).unwrap();
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
}

#[test]
fn bad_faults_are_refused() {
    for (rule, message) in [
        ("error=EIO", "\"debug_disk_fault\" directive needs \"path=\""),
        ("path=a", "\"debug_disk_fault\" directive needs \"delay=\" or \"error=\""),
        ("path=a delay=0", "needs \"delay=\" or \"error=\""),
        ("path= error=EIO", "invalid path value \"path=\""),
        ("path=a/../b error=EIO", "invalid path value \"path=a/../b\""),
        ("path=a error=EWHAT", "invalid error value \"error=EWHAT\""),
        ("path=a error=EIO op=open,close", "unknown operation \"close\""),
        ("path=a error=EIO op=", "unknown operation \"\""),
        ("path=a delay=fast", "invalid delay value \"delay=fast\""),
        ("path=a delay=25h", "invalid delay value \"delay=25h\""),
        ("path=a delay=1s rate=2", "invalid rate value \"rate=2\""),
        ("path=a delay=1s rate=101%", "invalid rate value \"rate=101%\""),
        ("path=a delay=1s often", "invalid parameter \"often\""),
    ] {
        let (is_usable, said) = test(&format!("debug_disk_fault {rule};"), &[OPTION]);
        assert!(!is_usable && said.contains(message), "{rule}: {said}");
    }
}
