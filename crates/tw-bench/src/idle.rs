//! `cargo xtask bench idle`: cost of an idle server, and its time to the first response.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::{Client, TempDir, wait};

use super::Outcome;
use super::contestant::{Binaries, Binary, Contestant, find_program, hot_files, root_directive};
use super::exec::{Pages, RunPlacement, raise_open_files};
use super::options::Options;
use super::report::{Report, Table, median, number};
use super::usage::{self, Memory};

const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Connections opened and closed before the first measurement of memory: pools and scratch buffers exist afterwards.
const WARM_COUNT: usize = 100;
/// Descriptors for this process and the server in addition to the connections.
const SPARE_FILES: u64 = 200;
/// Time for a server to put its last connections to rest.
const REST: Duration = Duration::from_millis(500);
const START_COUNT: usize = 10;

/// Costs of one server.
struct Score {
    name: &'static str,
    /// Growth of memory for each connection, in bytes.
    dirty_each: f64,
    resident_each: f64,
    /// Resident with all connections open, in bytes.
    resident: u64,
    first_byte: Duration,
    /// Size without symbols, in bytes.
    binary: u64,
}

/// Measures, prints, writes `idle.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["connections"], &[])?;
    let quick = options.flag("quick");
    let connections = options.number("connections", if quick { 1_000 } else { 10_000 })?;
    let files_max = raise_open_files()?;
    if connections as u64 + SPARE_FILES > files_max {
        return Err(format!("only {files_max} open files are allowed: give fewer --connections").into());
    }
    let binaries = Binaries::find(&options)?;
    let mut report = Report::new("idle", &binaries);
    let results = binaries
        .named()
        .into_iter()
        .map(|(name, binary)| measure(name, binary, connections))
        .collect::<Outcome<Vec<_>>>()?;
    publish(&mut report, connections, &results);
    report.finish(&options)
}

fn measure(name: &'static str, binary: &Binary, connections: usize) -> Outcome<Score> {
    let server = root_directive(&hot_files(&[("1k", 1 << 10)])?);
    let running = Contestant::server(name, binary, "access_log off;", &server)
        .start(&RunPlacement { pages: Pages::Small, ..RunPlacement::default() })?;
    let open = |count: usize| -> Outcome<Vec<Client>> {
        (0..count)
            .map(|_| {
                let mut client = Client::connect(running.addr())?;
                client.send(REQUEST)?;
                client.read_response()?;
                Ok(client)
            })
            .collect()
    };
    drop(open(WARM_COUNT)?);
    wait::pause(REST);
    let before = usage::memory(running.pid())?;
    let clients = open(connections)?;
    wait::pause(REST);
    let after = usage::memory(running.pid())?;
    drop(clients);
    drop(running);

    let each = |of: fn(&Memory) -> u64| (of(&after) as f64 - of(&before) as f64) / connections as f64;
    let starts: Vec<Duration> =
        (0..START_COUNT).map(|_| binary.time_to_first_byte(&server, "/1k")).collect::<Outcome<_>>()?;
    Ok(Score {
        name,
        dirty_each: each(|memory| memory.private_dirty),
        resident_each: each(|memory| memory.resident),
        resident: after.resident,
        first_byte: Duration::from_secs_f64(median(starts.iter().map(Duration::as_secs_f64))),
        binary: stripped_size(binary)?,
    })
}

/// Size of the file without its symbols; as it is where there is no `strip`.
fn stripped_size(binary: &Binary) -> Outcome<u64> {
    let dir = TempDir::new("strip")?;
    let copy = dir.join("stripped");
    if let Some(strip) = find_program("strip") {
        let status = Command::new(strip).arg("-o").arg(&copy).arg(&binary.path).status()?;
        if status.success() {
            return Ok(fs::metadata(copy)?.len());
        }
    }
    Ok(fs::metadata(&binary.path)?.len())
}

fn publish(report: &mut Report, connections: usize, results: &[Score]) {
    let columns = ["B each", "resident B each", "resident MB", "first byte ms", "binary MB"];
    let mut table = Table::new(format!("{connections} idle connections"), &columns);
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    for result in results {
        let cells = vec![
            number(result.dirty_each),
            number(result.resident_each),
            number(result.resident as f64 / 1e6),
            number(ms(result.first_byte)),
            number(result.binary as f64 / 1e6),
        ];
        table.row(result.name, cells);
    }
    let numbers: Vec<Value> = results
        .iter()
        .map(|result| {
            json!({
                "name": result.name,
                "private_dirty_bytes_each": result.dirty_each,
                "resident_bytes_each": result.resident_each,
                "resident_bytes": result.resident,
                "first_byte_us": result.first_byte.as_micros() as u64,
                "binary_bytes": result.binary,
            })
        })
        .collect();
    report.case(&table, Value::Array(numbers));
    if let Some(ours) = results.first() {
        // An idle keep-alive connection costs at most 1.5 KiB of heap.
        report.target("memory of an idle connection", ours.dirty_each);
        report.target("start to first byte", ms(ours.first_byte));
        report.target("stripped binary", ours.binary as f64 / 1e6);
    }
}
