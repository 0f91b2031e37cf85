//! Sinks with real files, a stalled pipe and a full disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::pipe::fcntl_setpipe_size;
use tw_log::{
    Batch, CacheConfig, CloseResult, ErrorLog, ErrorTarget, Facility, Level, LineFormat, Links, Memory,
    NamedFiles, Opener, PushResult, RING_SIZE_MIN, Sink, SinkConfig, Sinks, SyslogHead, SyslogServer, Target,
    debug, error, warn,
};
use tw_testkit::wait::{TIMEOUT, until};
use tw_testkit::{Lacks, TempDir, leave_out};

const SMALL: SinkConfig = SinkConfig { ring_size: RING_SIZE_MIN, batch: None };

/// Started sinks and a directory for their logs.
fn setup() -> (Sinks, TempDir) {
    let sinks = Sinks::new();
    sinks.start().unwrap();
    (sinks, TempDir::new("log").unwrap())
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

/// Waits until `path` holds exactly `expected`.
fn expect_text(path: &Path, expected: &str) {
    assert!(until(TIMEOUT, || text(path) == expected), "{:?} is {:?}", path, text(path));
}

/// Makes the error log of `sinks` a file that tests can read.
fn error_log(sinks: &Sinks, dir: &TempDir) -> (ErrorLog, PathBuf) {
    let path = dir.join("error.log");
    let log = ErrorLog::new(vec![(sinks.open(&path, SinkConfig::default()).unwrap(), Level::Warn)]);
    sinks.report_to(log.clone());
    (log, path)
}

/// Pipe that holds one page and is not read until the test reads it.
fn stalled(dir: &TempDir) -> (PathBuf, File) {
    let path = dir.join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let reader = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
    fcntl_setpipe_size(&reader, 4096).unwrap();
    (path, reader)
}

/// Pushes numbered lines until one is dropped; returns how many were queued.
fn fill(sink: &Sink) -> u64 {
    (0..).find(|n| sink.push(format!("line {n}\n").as_bytes()) == PushResult::Dropped).unwrap()
}

/// Reads the available bytes of the pipe, without waiting.
fn read_some(reader: &mut File, into: &mut Vec<u8>) {
    // An error is EAGAIN: nothing there now.
    let _ = reader.read_to_end(into);
}

#[test]
fn lines_reach_the_file_in_order() {
    let (sinks, dir) = setup();
    let path = dir.write("access.log", "before\n").unwrap();
    let sink = sinks.open(&path, SinkConfig::default()).unwrap();
    let mut expected = String::from("before\n");
    for n in 0..2000 {
        let line = format!("{n}\n");
        assert_eq!(sink.push(line.as_bytes()), PushResult::Queued);
        expected += &line;
    }
    expect_text(&path, &expected);
    assert!(until(TIMEOUT, || sink.counts().written_lines.value() == 2000));
    assert_eq!(sink.counts().written_bytes.value() + 7, expected.len() as u64);
    assert_eq!(sink.counts().dropped.value(), 0);
}

#[test]
fn shutdown_waits_for_unused_logs() {
    let (sinks, dir) = setup();
    let (path, mut reader) = stalled(&dir);
    let sink = sinks.open(&path, SinkConfig::default()).unwrap();
    // The line is longer than the pipe takes.
    let line = [b'x'; 3 * 4096];
    assert_eq!(sink.push(&line), PushResult::Queued);
    drop(sink);
    assert_eq!(sinks.flush_and_close(Instant::now()), CloseResult::Late);
    // The writer is still late after another log was opened.
    let other = sinks.open(&dir.join("other.log"), SinkConfig::default()).unwrap();
    drop(other);
    assert_eq!(sinks.flush_and_close(Instant::now() + Duration::from_millis(50)), CloseResult::Late);
    let mut read = Vec::new();
    assert!(until(TIMEOUT, || {
        read_some(&mut reader, &mut read);
        read.len() == line.len()
    }));
    assert_eq!(sinks.flush_and_close(soon()), CloseResult::Written);
}

#[test]
fn lines_of_many_threads_all_arrive_each_thread_in_order() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log");
    let sink = sinks.open(&path, SinkConfig { ring_size: 8 << 20, batch: None }).unwrap();
    thread::scope(|scope| {
        for id in 0..8 {
            let sink = &sink;
            scope.spawn(move || {
                for n in 0..1000 {
                    assert_eq!(sink.push(format!("{id} {n}\n").as_bytes()), PushResult::Queued);
                }
            });
        }
    });
    assert_eq!(sinks.flush_and_close(soon()), CloseResult::Written);
    let text = text(&path);
    assert_eq!(text.lines().count(), 8000);
    for id in 0..8 {
        let prefix = format!("{id} ");
        let numbers: Vec<u32> =
            text.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse().ok()).collect();
        assert!(numbers.is_sorted() && numbers.len() == 1000, "thread {id}");
    }
}

#[test]
fn every_line_of_a_quiet_log_wakes_the_writer() {
    let (sinks, dir) = setup();
    let sink = sinks.open(&dir.join("access.log"), SMALL).unwrap();
    for n in 1..=500 {
        let deadline = soon();
        assert_eq!(sink.push(b"line\n"), PushResult::Queued);
        while sink.counts().written_lines.value() < n {
            assert!(Instant::now() < deadline, "line {n} waits");
            thread::yield_now();
        }
    }
}

#[test]
fn open_errors_have_the_text_of_nginx() {
    let (sinks, dir) = setup();
    let path = dir.join("no/such/error.log");
    let error = sinks.open(&path, SMALL).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("open() \"{}\" failed (2: No such file or directory)", path.display())
    );
    assert!(sinks.all().is_empty());
}

#[test]
fn path_has_one_sink_while_in_use() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log");
    let first = sinks.open(&path, SMALL).unwrap();
    let second = sinks.open(&path, SMALL).unwrap();
    assert_eq!(sinks.all().len(), 1);
    drop(first);
    assert_eq!(second.push(b"one\n"), PushResult::Queued);
    drop(second);
    assert!(sinks.all().is_empty());
    // The writer of a dropped sink still writes what was queued.
    expect_text(&path, "one\n");
}

#[test]
fn lines_before_the_start_are_queued_and_written_without_a_start() {
    let dir = TempDir::new("log").unwrap();
    let sinks = Sinks::new();
    let early = dir.join("early.log");
    let never = dir.join("never.log");
    let early_sink = sinks.open(&early, SMALL).unwrap();
    assert_eq!(early_sink.push(b"before\n"), PushResult::Queued);
    assert_eq!(text(&early), "");
    sinks.start().unwrap();
    sinks.start().unwrap();
    expect_text(&early, "before\n");

    let sinks = Sinks::new();
    let sink = sinks.open(&never, SMALL).unwrap();
    assert_eq!(sinks.flush_and_close(soon()), CloseResult::Written);
    let other = Sinks::new().open(&never, SMALL).unwrap();
    assert_eq!(other.push(b"test\n"), PushResult::Queued);
    assert_eq!(other.flush_and_close(soon()), CloseResult::Written);
    assert_eq!(text(&never), "test\n");
    drop(sink);
}

#[test]
fn after_closing_lines_are_dropped() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log");
    let sink = sinks.open(&path, SMALL).unwrap();
    assert_eq!(sink.push(b"last\n"), PushResult::Queued);
    assert_eq!(sink.flush_and_close(soon()), CloseResult::Written);
    assert_eq!(sink.flush_and_close(soon()), CloseResult::Written);
    assert_eq!(text(&path), "last\n");
    assert_eq!(sink.push(b"late\n"), PushResult::Dropped);
    assert_eq!(sink.counts().dropped.value(), 1);
}

#[test]
fn reopening_goes_on_in_a_new_file() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log");
    let rotated = dir.join("access.log.1");
    let sink = sinks.open(&path, SMALL).unwrap();
    assert_eq!(sink.push(b"old\n"), PushResult::Queued);
    fs::rename(&path, &rotated).unwrap();
    sinks.reopen();
    assert!(until(TIMEOUT, || path.exists()));
    // Lines pushed before the command are in the old file, whether or not they had been written.
    assert_eq!(text(&rotated), "old\n");
    assert!(until(TIMEOUT, || {
        let _ = sink.push(b"new\n");
        text(&path).starts_with("new\n")
    }));
}

#[test]
fn a_failed_reopen_keeps_the_old_file_and_is_reported() {
    let (sinks, dir) = setup();
    let (_log, errors) = error_log(&sinks, &dir);
    let path = dir.write("logs/access.log", "").unwrap();
    let rotated = dir.join("moved/access.log");
    let sink = sinks.open(&path, SMALL).unwrap();
    fs::rename(dir.join("logs"), dir.join("moved")).unwrap();
    sink.reopen();
    let report = format!("open() \"{}\" failed (2: No such file or directory)\n", path.display());
    assert!(until(TIMEOUT, || text(&errors).ends_with(&report)));
    assert_eq!(sink.push(b"line\n"), PushResult::Queued);
    expect_text(&rotated, "line\n");
}

#[test]
fn a_stalled_log_drops_counts_and_reports_once_it_flows_again() {
    let (sinks, dir) = setup();
    let (_log, errors) = error_log(&sinks, &dir);
    let (path, mut reader) = stalled(&dir);
    let sink = sinks.open(&path, SMALL).unwrap();
    let queued = fill(&sink);
    assert!(queued > 0);
    let mut read = Vec::new();
    assert!(until(TIMEOUT, || {
        read_some(&mut reader, &mut read);
        sink.counts().written_lines.value() == queued
    }));
    read_some(&mut reader, &mut read);
    let lines: Vec<&str> = str::from_utf8(&read).unwrap().lines().collect();
    assert_eq!(lines.len() as u64, queued);
    assert!(lines.iter().enumerate().all(|(n, line)| *line == format!("line {n}")));
    let report = format!(": 1 lines dropped, log \"{}\" could not keep up\n", path.display());
    assert!(until(TIMEOUT, || text(&errors).ends_with(&report)), "{}", text(&errors));
    assert!(text(&errors).contains("[crit]"));
    assert_eq!(sink.push(b"again\n"), PushResult::Queued);
}

#[test]
fn stalled_log_does_not_delay_the_shutdown() {
    let (sinks, dir) = setup();
    let (path, reader) = stalled(&dir);
    let sink = sinks.open(&path, SMALL).unwrap();
    let _ = fill(&sink);
    assert_eq!(sinks.flush_and_close(Instant::now() + Duration::from_millis(20)), CloseResult::Late);
    // The writer goes on: its next write fails, and it has been told to close.
    drop(reader);
    assert_eq!(sink.flush_and_close(soon()), CloseResult::Late);
    assert!(sink.counts().dropped.value() > 1);
}

#[test]
fn descriptor_that_is_not_ready_is_polled() {
    let (sinks, dir) = setup();
    let (path, mut reader) = stalled(&dir);
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let writer = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
    let sink = sinks.adopt(&path, writer.into(), SMALL).unwrap();
    let queued = fill(&sink);
    let mut read = Vec::new();
    assert!(until(TIMEOUT, || {
        read_some(&mut reader, &mut read);
        sink.counts().written_lines.value() == queued
    }));
    assert_eq!(sink.counts().failed.value(), 0);
    let _ = fill(&sink);
    assert_eq!(sink.flush_and_close(soon()), CloseResult::Late);
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing_that_is_queued() {
    let (sinks, dir) = setup();
    let (_log, errors) = error_log(&sinks, &dir);
    let sink = sinks.open(Path::new("/dev/full"), SMALL).unwrap();
    assert_eq!(sink.push(b"one\n"), PushResult::Queued);
    let report = "[alert] ";
    let words = ": write() to \"/dev/full\" failed (28: No space left on device)\n";
    assert!(until(TIMEOUT, || text(&errors).ends_with(words)));
    assert!(text(&errors).contains(report));
    assert_eq!(sink.push(b"two\n"), PushResult::Queued);
    let path = dir.write("room.log", "").unwrap();
    sink.reopen_with(OwnedFd::from(OpenOptions::new().append(true).open(&path).unwrap()));
    expect_text(&path, "one\ntwo\n");
    assert_eq!(sink.counts().dropped.value(), 0);
    assert!(sink.counts().failed.value() > 0);
    assert_eq!(text(&errors).lines().count(), 1, "reported once a minute");
}

#[test]
fn full_disk_does_not_delay_the_shutdown() {
    let (sinks, _dir) = setup();
    let sink = sinks.open(Path::new("/dev/full"), SMALL).unwrap();
    assert_eq!(sink.push(b"one\n"), PushResult::Queued);
    assert_eq!(sinks.flush_and_close(soon()), CloseResult::Late);
    assert_eq!(sink.counts().dropped.value(), 1);
}

#[test]
fn a_batch_waits_for_its_size_the_flush_a_reopen_or_the_end() {
    let (sinks, dir) = setup();
    let open = |name: &str, batch| {
        let path = dir.join(name);
        (sinks.open(&path, SinkConfig { batch: Some(batch), ..SinkConfig::default() }).unwrap(), path)
    };
    let (by_size, size_path) = open("size.log", Batch { size: 16 << 10, flush: None, gzip: None });
    let (by_flush, flush_path) =
        open("flush.log", Batch { size: 64 << 10, flush: Some(Duration::from_millis(5)), gzip: None });
    let (by_end, end_path) = open("end.log", Batch { size: 64 << 10, flush: None, gzip: None });
    let (by_reopen, reopen_path) = open("reopen.log", Batch { size: 64 << 10, flush: None, gzip: None });
    for sink in [&by_flush, &by_end, &by_reopen] {
        assert_eq!(sink.push(b"line\n"), PushResult::Queued);
    }
    expect_text(&flush_path, "line\n");
    by_reopen.reopen();
    expect_text(&reopen_path, "line\n");

    let line = [b'x'; 1024];
    for _ in 0..17 {
        assert_eq!(by_size.push(&line), PushResult::Queued);
    }
    assert!(until(TIMEOUT, || text(&size_path).len() >= 16 << 10));

    assert_eq!(text(&end_path), "");
    assert_eq!(by_end.flush_and_close(soon()), CloseResult::Written);
    assert_eq!(text(&end_path), "line\n");
}

#[test]
fn an_error_log_writes_to_every_target_that_admits_the_level() {
    let (sinks, dir) = setup();
    let all = dir.join("all.log");
    let bad = dir.join("bad.log");
    let log = ErrorLog::new(vec![
        (sinks.open(&all, SMALL).unwrap(), Level::Warn),
        (sinks.open(&bad, SMALL).unwrap(), Level::Error),
    ]);
    assert!(log.enabled(Level::Warn) && !log.enabled(Level::Notice));
    warn!(log, *5, "upstream {} is slow", "a");
    error!(log, "two\nlines");
    debug!(log, "{}", panic_if_formatted());
    assert_eq!(sinks.flush_and_close(soon()), CloseResult::Written);
    let messages = |path| -> Vec<String> {
        text(path).lines().map(|line| line.split_once(": ").unwrap().1.to_owned()).collect()
    };
    assert_eq!(messages(&all), ["*5 upstream a is slow", "two\\x0Alines"]);
    assert_eq!(messages(&bad), ["two\\x0Alines"]);
}

fn panic_if_formatted() -> String {
    panic!("arguments of a level that is not logged were evaluated")
}

#[test]
fn the_error_log_reports_its_own_drops_in_itself() {
    let (sinks, dir) = setup();
    let (path, mut reader) = stalled(&dir);
    let sink = sinks.open(&path, SMALL).unwrap();
    sinks.report_to(ErrorLog::new(vec![(sink.clone(), Level::Error)]));
    let _ = fill(&sink);
    let mut read = Vec::new();
    let report = format!("lines dropped, log \"{}\" could not keep up\n", path.display());
    assert!(until(TIMEOUT, || {
        read_some(&mut reader, &mut read);
        read.ends_with(report.as_bytes())
    }));
}

#[test]
fn other_settings_are_another_sink_on_the_same_file() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log");
    let old = sinks.open(&path, SMALL).unwrap();
    let batch = Some(Batch { size: 4096, flush: None, gzip: None });
    let new = sinks.open(&path, SinkConfig { batch, ..SMALL }).unwrap();
    assert_eq!(new.push(b"new\n"), PushResult::Queued);
    assert_eq!(old.push(b"old\n"), PushResult::Queued);
    expect_text(&path, "old\n");
    drop(new);
    expect_text(&path, "old\nnew\n");
}

#[test]
fn errors_do_not_wait_for_the_buffer_of_an_access_log() {
    let (sinks, dir) = setup();
    let path = dir.join("both.log");
    let batch = Some(Batch { size: 4096, flush: None, gzip: None });
    let sink = sinks.open(&path, SinkConfig { batch, ..SMALL }).unwrap();
    assert_eq!(sink.push(b"request\n"), PushResult::Queued);
    let log = ErrorLog::new(vec![(sink.clone(), Level::Error)]);
    error!(log, "first");
    assert!(until(TIMEOUT, || text(&path).ends_with(": first\n")));
    assert!(text(&path).starts_with("request\n"));
    error!(log, "second");
    assert!(until(TIMEOUT, || text(&path).ends_with(": second\n")));
}

#[test]
fn syslog_server_gets_one_datagram_per_message_and_may_return() {
    let (sinks, dir) = setup();
    let (log, errors) = error_log(&sinks, &dir);
    sinks.report_to(log);
    let path = dir.join("syslog");
    let target = Target::Syslog(SyslogServer::Unix(path.clone()));
    let sink = sinks.get(&target, SMALL).unwrap();
    assert_eq!(sink.push(b"lost"), PushResult::Queued);
    let report = format!(
        "connect() failed (2: No such file or directory) while logging to syslog, server: unix:{}\n",
        path.display()
    );
    assert!(until(TIMEOUT, || text(&errors).ends_with(&report)), "{}", text(&errors));
    assert_eq!(sink.push(b"lost, too"), PushResult::Queued);
    assert!(until(TIMEOUT, || sink.counts().dropped.value() == 2));
    assert_eq!(text(&errors).matches("connect()").count(), 1);

    let receive = |server: &UnixDatagram| {
        let mut bytes = [0; 9000];
        let n = server.recv(&mut bytes).unwrap();
        bytes[..n].to_vec()
    };
    for _ in 0..2 {
        let server = UnixDatagram::bind(&path).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(sink.push_parts(&[b"head ", b"text"]), PushResult::Queued);
        assert_eq!(sink.push(&[b'x'; 8000]), PushResult::Queued);
        assert_eq!(receive(&server), b"head text");
        assert_eq!(receive(&server), [b'x'; 8000]);
        drop(server);
        fs::remove_file(&path).unwrap();
    }
    assert!(until(TIMEOUT, || sink.counts().written_lines.value() == 4));
    assert_eq!(sink.counts().dropped.value(), 2);
    assert!(!text(&errors).contains("could not keep up"));
}

#[test]
fn absent_udp_server_is_reported_and_may_return() {
    let (sinks, dir) = setup();
    let (_log, errors) = error_log(&sinks, &dir);
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    drop(server);
    let sink = sinks.get(&Target::Syslog(SyslogServer::Inet(address)), SMALL).unwrap();
    let report =
        format!("send() failed (111: Connection refused) while logging to syslog, server: {address}\n");
    assert!(until(TIMEOUT, || {
        let _ = sink.push(b"lost");
        text(&errors).ends_with(&report)
    }));
    assert!(text(&errors).contains(" [error] "), "a server that is away is no alert: {}", text(&errors));
    assert!(sink.counts().failed.value() > 0);
    let Ok(server) = UdpSocket::bind(address) else {
        return leave_out(Lacks::Run, "somebody else has got the port: a syslog server that comes back");
    };
    server.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = sink.push(b"back");
    let mut bytes = [0; 10];
    assert!(server.recv(&mut bytes).is_ok());
}

#[test]
fn hanging_syslog_server_blocks_no_logging() {
    let (sinks, dir) = setup();
    let path = dir.join("syslog");
    let server = UnixDatagram::bind(&path).unwrap();
    let sink = sinks.get(&Target::Syslog(SyslogServer::Unix(path)), SMALL).unwrap();
    let _ = fill(&sink);
    assert_eq!(sinks.flush_and_close(Instant::now() + TIMEOUT), CloseResult::Late);
    let counts = sink.counts();
    assert!(counts.written_lines.value() > 0 && counts.dropped.value() > 0);
    drop(server);
}

#[test]
fn failure_of_the_error_log_has_details() {
    let (sinks, dir) = setup();
    let (file, errors) = error_log(&sinks, &dir);
    drop(file);
    let syslog = sinks.get(&Target::Syslog(SyslogServer::Unix(dir.join("none"))), SMALL).unwrap();
    let head = SyslogHead::new(Facility::LOCAL7, None, "nginx");
    let file = sinks.open(&errors, SMALL).unwrap();
    let log = ErrorLog::to(vec![
        ErrorTarget { sink: syslog, level: Level::Error, syslog: Some(head), format: LineFormat::Text },
        ErrorTarget { sink: file, level: Level::Error, syslog: None, format: LineFormat::Text },
    ]);
    sinks.report_to(log.clone());
    error!(log, "message");
    assert!(until(TIMEOUT, || text(&errors).contains("while logging to syslog, server: unix:")));
    assert_eq!(text(&errors).matches(": message\n").count(), 1);
}

#[test]
fn compressed_batches_are_one_text() {
    let (sinks, dir) = setup();
    let path = dir.join("access.log.gz");
    let batch = Some(Batch { size: 4096, flush: Some(Duration::from_millis(1)), gzip: Some(1) });
    let sink = sinks.open(&path, SinkConfig { batch, ..SMALL }).unwrap();
    for n in 0..3 {
        assert_eq!(sink.push(format!("line {n}\n").as_bytes()), PushResult::Queued);
        assert!(until(TIMEOUT, || sink.counts().written_lines.value() == n + 1));
    }
    let file = fs::read(&path).unwrap();
    let mut unpacked = Vec::new();
    let mut rest = 0;
    while rest < file.len() {
        let mut inflate = zlib_rs::Inflate::new(true, 31);
        let mut text = [0; 64];
        let status = inflate.decompress(&file[rest..], &mut text, zlib_rs::InflateFlush::Finish);
        assert_eq!(status, Ok(zlib_rs::Status::StreamEnd));
        unpacked.extend_from_slice(&text[..inflate.total_out() as usize]);
        rest += inflate.total_in() as usize;
    }
    assert_eq!(String::from_utf8(unpacked).unwrap(), "line 0\nline 1\nline 2\n");
    assert_eq!(fs::metadata(&path).unwrap().len(), sink.counts().written_bytes.value());
}

#[test]
fn lines_go_to_the_files_they_name() {
    let (sinks, dir) = setup();
    let (_log, errors) = error_log(&sinks, &dir);
    let opener = Opener(|path, _| {
        let path = str::from_utf8(path.to_bytes()).unwrap();
        Ok(OpenOptions::new().append(true).create(true).open(path)?.into())
    });
    let cache = Some(CacheConfig {
        max: 9,
        inactive: Duration::from_secs(60),
        min_uses: 1,
        valid: Duration::from_secs(60),
    });
    for (cache, name) in [(None, "plain"), (cache, "cached")] {
        let target = Target::Files(NamedFiles { name: name.into(), cache, opener });
        let sink = sinks.get(&target, SMALL).unwrap();
        let push = |file: &str, line: &[u8]| {
            let path = dir.join(format!("{name}-{file}"));
            let root = dir.path();
            sink.push_to(path.as_os_str().as_bytes(), root.as_os_str().as_bytes(), Links::Follow, line)
        };
        for (file, line) in [("a", "1\n"), ("b", "2\n"), ("a", "3\n")] {
            assert_eq!(push(file, line.as_bytes()), PushResult::Queued);
        }
        assert!(until(TIMEOUT, || sink.counts().written_lines.value() == 3));
        expect_text(&dir.join(format!("{name}-b")), "2\n");
        expect_text(&dir.join(format!("{name}-a")), "1\n3\n");
        // A rotation: an open file is left.
        fs::rename(dir.join(format!("{name}-a")), dir.join("rotated")).unwrap();
        sinks.reopen();
        assert!(until(TIMEOUT, || {
            let _ = push("a", b"4\n");
            dir.join(format!("{name}-a")).exists()
        }));
        assert_eq!(push("no/such", b"5\n"), PushResult::Queued);
        assert!(until(TIMEOUT, || sink.counts().dropped.value() == 1));
    }
    let report = format!("open() \"{}\" failed (2: No such", dir.join("plain-no/such").display());
    assert!(until(TIMEOUT, || text(&errors).contains(&report)), "{}", text(&errors));
}

#[test]
fn a_log_in_memory_is_read_through_its_descriptor() {
    let (sinks, _dir) = setup();
    let target = Target::Memory(Memory { name: "memory-of-this-test".into(), size: 8192 });
    let log = ErrorLog::new(vec![(sinks.get(&target, SMALL).unwrap(), Level::Debug)]);
    let descriptor = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|fd| fs::read_link(fd).is_ok_and(|name| name.to_string_lossy().contains("memory-of-this-test")))
        .unwrap();
    for n in 0..500 {
        debug!(log, "line {n}");
    }
    assert!(until(TIMEOUT, || text(&descriptor).contains(": line 499\n---")));
    assert!(fs::metadata(&descriptor).unwrap().len() <= 8192);
}

#[test]
fn pipe_without_a_reader_is_opened_and_keeps_its_lines() {
    let dir = TempDir::new("pipe").unwrap();
    let path = dir.join("log");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let (sender, opened) = std::sync::mpsc::channel();
    let name = path.clone();
    thread::spawn(move || sender.send(tw_log::open_log(&name)));
    let log = opened.recv_timeout(TIMEOUT).expect("opening does not wait").unwrap();
    assert!(!rustix::fs::fcntl_getfl(&log).unwrap().contains(OFlags::NONBLOCK));
    rustix::io::write(&log, b"line\n").unwrap();
    let mut line = [0; 10];
    let reader = File::open(&path).unwrap();
    assert_eq!(rustix::io::read(&reader, &mut line).unwrap(), 5);

    // A pipe with a reader is opened for writing only, so that the end of the reader is noticed.
    let with_reader = tw_log::open_log(&path).unwrap();
    assert!(rustix::io::read(&with_reader, &mut line).is_err());
}
