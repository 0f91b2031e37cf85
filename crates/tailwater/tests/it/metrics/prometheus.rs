//! `metrics`: the page in the text format of Prometheus.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Client, Lacks, leave_out, wait};

use crate::support::metrics::metric;
use crate::support::{get, http2, request, server, start_server};

/// Every sample of a scrape by its name and labels. Fails on anything that is not Prometheus text.
fn samples(text: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let mut families = HashSet::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            help.split_once(' ').unwrap().0.clone_into(&mut family);
            assert!(families.insert(family.clone()), "a family stands twice: {line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name == family && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with(&family), "not below its family: {line}");
            let value = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(samples.insert(series.to_owned(), value), None, "a series stands twice: {line}");
        }
    }
    samples
}

#[test]
fn requests_connections_and_disk_work_are_counted() {
    let server = start_server(
        server().file("html/file", "x".repeat(10_000)),
        "location = /metrics { metrics; } location = /moved { return 301 /; } location = /odd { return 700; }",
    );
    let before = samples(&get(&server, "/metrics").text());
    for (target, status) in [("/file", 200), ("/file", 200), ("/none", 404), ("/moved", 301), ("/odd", 700)] {
        assert_eq!(get(&server, target).status, status);
    }
    let response = get(&server, "/metrics");
    assert_eq!(response.field("Content-Type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = response.text();
    let after = samples(&text);
    let of = |samples: &HashMap<String, f64>, series: &str| samples.get(series).copied().unwrap_or_default();
    let grew = |series: &str| {
        let series = format!("tailwater_{series}");
        of(&after, &series) - of(&before, &series)
    };

    // The first scrape itself was over after it had been answered.
    let expected = [("other", 1.0), ("1xx", 0.0), ("2xx", 3.0), ("3xx", 1.0), ("4xx", 1.0), ("5xx", 0.0)];
    for (class, count) in expected {
        assert_eq!(grew(&format!("requests_total{{class=\"{class}\"}}")), count, "{class}");
    }
    assert_eq!(grew("connections_accepted_total"), 6.0);
    assert!(grew("sent_bytes_total") > 20_000.0, "{text}");
    let received = grew("received_bytes_total");
    assert!((6.0 * 50.0..6.0 * 100.0).contains(&received), "{received}");
    assert!(of(&after, "tailwater_event_loop_blocked_seconds_count{worker=\"0\"}") > 0.0, "{text}");
    assert!(of(&after, "tailwater_event_loop_blocked_max_seconds{worker=\"0\"}") > 0.0, "{text}");
    for cause in ["running", "processor", "kernel"] {
        let labels = format!("{{worker=\"0\",cause=\"{cause}\"}}");
        assert!(of(&after, &format!("tailwater_event_loop_part_seconds_count{labels}")) > 0.0, "{text}");
        assert!(of(&after, &format!("tailwater_event_loop_stalls_total{labels}")) >= 0.0, "{text}");
    }
    assert!(
        of(&after, "tailwater_event_loop_part_seconds_sum{worker=\"0\",cause=\"running\"}") > 0.0,
        "{text}"
    );
    assert!(of(&after, "tailwater_loop_major_faults_total{worker=\"0\"}") >= 0.0, "{text}");
    assert_eq!(of(&after, "tailwater_generation"), 1.0);
    assert!(of(&after, "tailwater_process_start_time_seconds") > 1.7e9, "{text}");
    assert_eq!(of(&after, "tailwater_pool_threads{pool=\"default\"}"), 32.0);

    let opened = |of_what| {
        of(&after, &format!("tailwater_disk_{of_what}_total{{pool=\"default\",operation=\"open\"}}"))
    };
    assert!(opened("inline") + opened("jobs") > 0.0, "{text}");
    assert!(text.contains("tailwater_device_info{device=\""), "{text}");
    assert!(text.contains("tailwater_log_lines_total{log=\""), "{text}");

    // A scrape omits the metric if the thread pool does not deliver it soon.
    assert!(wait::until(wait::TIMEOUT, || {
        let text = get(&server, "/metrics").text();
        of(&samples(&text), "tailwater_process_resident_memory_bytes") > 1e6
    }));
}

#[test]
fn metrics_accepts_get_and_head_only() {
    let server = start_server(server(), "location = /metrics { metrics; }");
    assert_eq!(request(&server, "HEAD /metrics", &[]).status, 200);
    assert_eq!(request(&server, "POST /metrics", &["Content-Length: 0"]).status, 405);
}

#[test]
fn log_names_are_escaped() {
    let server = start_server(server(), r#"access_log 'logs/a"b.log'; location = /metrics { metrics; }"#);
    let text = get(&server, "/metrics").text();
    assert!(text.contains(r#"logs/a\"b.log"}"#), "{text}");
    samples(&text);
}

#[test]
fn stalled_pool_does_not_block_a_scrape() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "content");
    let root = disk.path().display();
    let server = server()
        .start(&format!(
            "thread_pool default threads=1; http {{ server {{ listen 127.0.0.1:{{port}};
             location = /metrics {{ metrics; }} location /slow/ {{ alias {root}/; }} }} }}"
        ))
        .unwrap();
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /slow/a HTTP/1.0\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    let text = get(&server, "/metrics").text();
    assert!(!text.contains("\ntailwater_process_resident_memory_bytes "), "{text}");
    assert_eq!(samples(&text)["tailwater_pool_running{pool=\"default\"}"], 1.0, "{text}");
    stall.lift();
    assert_eq!(waiting.read_response().unwrap().text(), "content");
    // The metric is back as soon as a scrape finds the thread of the pool in time.
    let mut text = String::new();
    let is_told = wait::until(wait::TIMEOUT, || {
        text = get(&server, "/metrics").text();
        text.contains("\ntailwater_process_resident_memory_bytes ")
    });
    assert!(is_told, "{text}");
    assert!(samples(&text)["tailwater_pool_cancellations_total{pool=\"default\"}"] >= 1.0, "{text}");
}

#[test]
fn large_scrape_does_not_block_the_loop() {
    let zones: String = (0..100)
        .map(|zone| {
            format!("location /{zone}/ {{ status_zone some-long-name-of-a-zone-{zone}; return 204; }}\n")
        })
        .collect();
    let server = start_server(server(), &format!("{zones} location = /metrics {{ metrics; }}"));
    let scrape = || {
        let text = get(&server, "/metrics").text();
        let turns = samples(&text)["tailwater_event_loop_blocked_seconds_count{worker=\"0\"}"];
        (text.len(), turns)
    };
    let (len, before) = scrape();
    let (_, after) = scrape();
    assert!(len > 200_000, "{len}");
    // 8 KiB and one sample in each.
    assert!(after - before > (len / (12 << 10)) as f64, "{len} bytes in {} turns", after - before);
}

#[test]
fn disk_variables_count_time_and_operations() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "content");
    let server = crate::support::start(
        server().file("html/fast", "content"),
        &format!(
            "log_format disk '$uri $disk_inline $disk_wait_time $disk_queue_time $worker'; access_log logs/disk.log disk;
             server {{ listen 127.0.0.1:{{port}}; root html; location /slow/ {{ alias {}/; }} }}",
            disk.path().display()
        ),
    );
    let delay = disk.on(Op::Open).inject(Fault::Delay(std::time::Duration::from_millis(30)));
    for target in ["/slow/a", "/fast", "/fast"] {
        assert_eq!(get(&server, target).status, 200);
    }
    delay.lift();
    let lines = server.log("logs/disk.log", 3).unwrap();
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    let number = |word: &str| word.parse::<f64>().unwrap();
    assert_eq!(words[0][..2], ["/slow/a", "0"]);
    assert!(number(words[0][2]) >= 0.03 && number(words[0][2]) > number(words[0][3]), "{lines:?}");
    assert_eq!(words[2], ["/fast", "1", "0.000000", "0.000000", "0"]);
}

#[test]
fn promtool_accepts_the_metrics_and_the_alert_rules() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/alerts.yml");
    let Ok(checked) = Command::new("promtool").args(["check", "rules"]).arg(rules).output() else {
        return leave_out(Lacks::Machine, "no promtool");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let server = start_server(server(), "status_zone a; location = /metrics { metrics; }");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(get(&server, "/metrics").text().as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

#[test]
fn connections_are_counted_by_protocol() {
    let conf = "http { http2 on; server { listen 127.0.0.1:{port}; location = /metrics { metrics; } } }
         stream { server { listen 127.0.0.1:{port1}; proxy_pass 127.0.0.1:{port}; } }";
    let server = server().start(conf).unwrap();
    let open =
        |protocol: &str| metric(&server, &format!("protocol_connections_open{{protocol=\"{protocol}\"}}"));
    // The connection that asks is one of HTTP/1.
    assert_eq!(["http/1", "http/2", "http/3", "stream"].map(open), [1, 0, 0, 0]);
    let http2 = http2::connect(&server);
    let mut session = Client::connect(server.addr_of(1)).unwrap();
    session.send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(session.read_response().unwrap().status, 200);
    // The session counts as two: its stream connection, and the HTTP connection that it is relayed to.
    let all = || ["http/1", "http/2", "http/3", "stream"].map(open);
    assert!(wait::until(wait::TIMEOUT, || all() == [2, 1, 0, 1]), "{:?}", all());
    drop((http2, session));
    assert!(wait::until(wait::TIMEOUT, || all() == [1, 0, 0, 0]), "{:?}", all());
}
