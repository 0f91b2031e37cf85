//! Records of QUIC connections (`quic_log`).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Signal, wait};

use crate::support::http3::{Http3Server, start_http3_with};
use crate::support::server;

fn start_recorded(content: &str) -> Http3Server {
    let server = start_http3_with(server().file("html/a.txt", "hello").file("qlog/keep", ""), "", content);
    // The worker process may be another user's.
    fs::set_permissions(server.server.prefix().join("qlog"), Permissions::from_mode(0o777)).unwrap();
    server
}

/// Records of the only file in a directory, once it contains `last`.
fn records(server: &Http3Server, last: &str) -> (String, Vec<Value>) {
    let directory = server.server.prefix().join("qlog");
    let mut found_entry = None;
    let read = || {
        let mut names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let Some(path) = names.find(|path| path.extension().is_some_and(|is| is == "sqlog")) else {
            return false;
        };
        let text = fs::read_to_string(&path).unwrap();
        let is_whole = text.contains(last) && text.ends_with('\n');
        found_entry = is_whole.then(|| (path.file_name().unwrap().to_string_lossy().into_owned(), text));
        is_whole
    };
    assert!(wait::until(wait::TIMEOUT, read));
    let (name, text) = found_entry.unwrap();
    let records = text.split('\x1e').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect();
    (name, records)
}

/// Data of all events with this name.
fn events<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["name"] == name).map(|record| &record["data"]).collect()
}

#[test]
fn connection_is_recorded_from_its_first_datagram_to_its_end() {
    let server = start_recorded("quic_log qlog; location /id { return 200 $connection; }");
    let mut client = server.client();
    let own = client.udp.local_addr().unwrap();
    assert_eq!(client.get("/a.txt").text(), "hello");
    let number = client.get("/id").text();
    client.udp.rebind().unwrap();
    let new = client.udp.local_addr().unwrap();
    let is_moved = || {
        client.get("/a.txt");
        fs::read_dir(server.server.prefix().join("qlog")).unwrap().any(|entry| {
            fs::read_to_string(entry.unwrap().path()).unwrap().contains("\"new\":\"migration_complete\"")
        })
    };
    assert!(wait::until(wait::TIMEOUT, is_moved));
    client.udp.client.close(0x100, std::time::Instant::now());
    client.udp.until(|_| Some(())).unwrap();
    let (name, records) = records(&server, "connection_closed");
    let head = &records[0];
    assert_eq!((&head["qlog_version"], &head["qlog_format"]), (&"0.3".into(), &"JSON-SEQ".into()));
    assert_eq!(head["trace"]["vantage_point"]["type"], "server");
    let id = head["trace"]["common_fields"]["ODCID"].as_str().unwrap();
    assert_eq!(name, format!("{id}-{number}.sqlog"));
    let times: Vec<_> = records[1..].iter().map(|record| record["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] == 0.0, "{times:?}");

    let started = events(&records, "connectivity:connection_started")[0];
    assert_eq!((&started["src_ip"], &started["src_port"]), (&"127.0.0.1".into(), &own.port().into()));
    assert_eq!(events(&records, "connectivity:connection_state_updated")[0]["new"], "handshake_complete");
    assert!(events(&records, "transport:datagrams_received")[0]["raw"][0]["length"].as_u64() >= Some(1200));
    let migrations = events(&records, "connectivity:migration_state_updated");
    assert_eq!(migrations[0]["new"], "probing_started");
    assert_eq!(migrations[1]["path_remote"]["port_v4"], new.port());
    let closed = events(&records, "connectivity:connection_closed");
    assert_eq!((closed.len(), &closed[0]["owner"]), (1, &"remote".into()));
    assert_eq!((&closed[0]["application_code"], &closed[0]["reason"]), (&0x100.into(), &"bye".into()));
    assert!(events(&records, "recovery:metrics_updated")[0]["congestion_window"].as_u64() > Some(10_000));

    let sent = events(&records, "transport:packet_sent");
    let kinds: Vec<_> = sent.iter().map(|packet| packet["header"]["packet_type"].as_str().unwrap()).collect();
    assert!(["initial", "handshake", "1RTT"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    let has = |packets: &[&Value], check: &dyn Fn(&Value) -> bool| {
        packets.iter().any(|packet| packet["frames"].as_array().unwrap().iter().any(check))
    };
    let received = events(&records, "transport:packet_received");
    // The second request is on stream 4.
    let of_stream = |frame: &Value| frame["frame_type"] == "stream" && frame["stream_id"] == 4;
    assert!(has(&sent, &of_stream) && has(&received, &of_stream));
    assert!(has(&sent, &|frame| frame["frame_type"] == "handshake_done"));
    assert!(has(&received, &|frame| frame["frame_type"] == "ack"));
    let datagrams = events(&records, "transport:datagrams_sent");
    assert!(datagrams.iter().any(|datagrams| datagrams["ecn"] == "ECT(0)"), "{datagrams:?}");
}

#[test]
fn path_challenge_leaves_before_the_response_to_a_client_that_has_moved() {
    let server = start_recorded("quic_log qlog;");
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").text(), "hello");
    client.udp.rebind().unwrap();
    assert_eq!(client.get("/a.txt").text(), "hello");
    client.close();
    let (_, records) = records(&server, "connection_closed");
    let has_moved = |record: &&Value| record["data"]["new"] != "probing_started";
    let since: Vec<_> = records.iter().skip_while(has_moved).cloned().collect();
    let sent = events(&since, "transport:packet_sent");
    let has = |packet: &Value, kind: &str| {
        packet["frames"].as_array().unwrap().iter().any(|frame| frame["frame_type"] == kind)
    };
    assert!(has(sent[0], "path_challenge") && !has(sent[0], "stream"), "{sent:?}");
    assert!(sent.iter().any(|packet| has(packet, "stream")));
}

#[test]
fn failed_handshake_is_recorded() {
    let server = start_recorded("quic_log qlog; http3 off;");
    let mut udp = server.raw_unconnected();
    udp.until(|client| client.lost.clone()).unwrap();
    let (_, records) = records(&server, "connection_closed");
    // no_application_protocol
    assert_eq!(events(&records, "connectivity:connection_closed")[0]["connection_code"], 0x100 + 120);
}

#[test]
fn missing_directory_does_not_affect_connections() {
    let server = start_recorded("quic_log nowhere;");
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").text(), "hello");
    server.server.wait_error_log("/nowhere\" existence failed (2: No such file or directory)").unwrap();
    assert_eq!(client.get("/a.txt").text(), "hello");
}

#[test]
fn full_disk_does_not_affect_connections() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let server = start_recorded(&format!("quic_log {};", disk.path().display()));
    for fault in [Fault::Error(rustix::io::Errno::NOSPC), Fault::Stall] {
        let fault = disk.on(Op::Write).inject(fault);
        let mut client = server.client();
        for _ in 0..20 {
            assert_eq!(client.get("/a.txt").text(), "hello");
        }
        assert!(wait::until(wait::TIMEOUT, || fault.hits() > 0));
        fault.lift();
    }
    server.server.wait_error_log("sqlog\" failed (28: No space left on device)").unwrap();
}

#[test]
fn records_end_with_the_setting() {
    let server = start_recorded("quic_log qlog;");
    let conf = server.server.prefix().join("conf/nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("quic_log qlog;", "location /off { return 204; }")).unwrap();
    server.server.signal(Signal::HUP).unwrap();
    let mut client = server.client();
    assert!(wait::until(wait::TIMEOUT, || {
        client = server.client();
        client.get("/off").status == 204
    }));
    let count = || fs::read_dir(server.server.prefix().join("qlog")).unwrap().count();
    let before = count();
    assert_eq!(server.client().get("/off").status, 204);
    assert_eq!(count(), before);
}
