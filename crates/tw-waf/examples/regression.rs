//! Runs regression tests of a rule set, such as the OWASP Core Rule Set's, against the engine alone.
//!
//! ```text
//! regression RULES CASES [-v | -t ID | -b]
//! ```
//! `RULES` is a file of rules, which includes others. `CASES` has one case a line, as JSON: `rule`, `test`, and `stages` with the `input` and
//! `output` of the suite's YAML, headers as a list of pairs. `-b` measures instead: microseconds of each request, one after the other.
//! The server behind the firewall is the suite's: `/reflect` answers with what the body of the request describes.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tw_waf::{Connection, Files, Memo, Phase, RuleSet, Source, Store, Transaction};

/// Files beside the one that names them.
struct Disk;

fn beside(name: &str, from: &str) -> PathBuf {
    Path::new(from).parent().unwrap_or(Path::new("")).join(name)
}

impl Files for Disk {
    fn read(&mut self, name: &str, from: &str) -> Result<Vec<u8>, String> {
        #[allow(clippy::disallowed_methods)]
        std::fs::read(beside(name, from)).map_err(|error| error.to_string())
    }

    fn expand(&mut self, pattern: &str, from: &str) -> Result<Vec<String>, String> {
        let path = beside(pattern, from);
        let Some((before, after)) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('*'))
        else {
            return Ok(vec![path.to_string_lossy().into_owned()]);
        };
        #[allow(clippy::disallowed_methods)]
        let entries = std::fs::read_dir(path.parent().unwrap()).map_err(|error| error.to_string())?;
        let names = entries.map(|entry| entry.unwrap().path());
        let fits = |path: &PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .is_some_and(|name| name.starts_with(before) && name.ends_with(after))
        };
        let mut names: Vec<_> = names.filter(fits).map(|path| path.to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }
}

/// Request of a stage.
struct Request {
    method: Vec<u8>,
    target: Vec<u8>,
    version: Vec<u8>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
}

fn base64(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bits = 0u32;
    let mut count = 0;
    for byte in text.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}

fn parse_raw(raw: &[u8]) -> Option<Request> {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").map(|at| (at, at + 4));
    let (head_end, body_begin) = end
        .or_else(|| raw.windows(2).position(|two| two == b"\n\n").map(|at| (at, at + 2)))
        .unwrap_or((raw.len(), raw.len()));
    let head = &raw[..head_end];
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next()?;
    let mut parts = first.split(|byte| *byte == b' ').filter(|part| !part.is_empty());
    let method = parts.next()?.to_vec();
    let target = parts.next().unwrap_or_default().to_vec();
    let version = parts.next().unwrap_or_default().to_vec();
    let mut headers = Vec::new();
    for line in lines {
        if let Some(at) = line.iter().position(|byte| *byte == b':') {
            headers.push((line[..at].to_vec(), line[at + 1..].trim_ascii().to_vec()));
        }
    }
    Some(Request { method, target, version, headers, body: raw[body_begin..].to_vec() })
}

fn request(input: &Value) -> Option<Request> {
    if let Some(encoded) = input["encoded_request"].as_str().filter(|text| !text.is_empty()) {
        return parse_raw(&base64(encoded));
    }
    let text = |name: &str, default: &str| input[name].as_str().unwrap_or(default).as_bytes().to_vec();
    let mut headers: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for pair in input["headers"].as_array().into_iter().flatten() {
        headers.push((pair[0].as_str().unwrap().into(), pair[1].as_str().unwrap().trim().into()));
    }
    let mut body = match &input["data"] {
        Value::String(text) => text.clone().into_bytes(),
        Value::Null => Vec::new(),
        other => other.to_string().into_bytes(),
    };
    if let Some(encoded) = input["encoded_data"].as_str() {
        body = base64(encoded);
    }
    let has = |headers: &[(Vec<u8>, Vec<u8>)], name: &str| {
        headers.iter().any(|(candidate, _)| candidate.eq_ignore_ascii_case(name.as_bytes()))
    };
    let completes = input["autocomplete_headers"].as_bool().unwrap_or(true)
        && !input["stop_magic"].as_bool().unwrap_or(false);
    if completes {
        if !body.is_empty() && !has(&headers, "Content-Type") {
            headers.push((b"Content-Type".to_vec(), b"application/x-www-form-urlencoded".to_vec()));
        }
        if !body.is_empty() && !has(&headers, "Content-Length") {
            headers.push((b"Content-Length".to_vec(), body.len().to_string().into_bytes()));
        }
        if !has(&headers, "Connection") {
            headers.push((b"Connection".to_vec(), b"close".to_vec()));
        }
    }
    let method = text("method", "GET");
    let target = text("uri", "/");
    Some(Request { method, target, version: text("version", "HTTP/1.1"), headers, body })
}

/// Ids of the rules that match, and the response's status.
fn run(
    rules: &Arc<RuleSet>,
    store: &Arc<Store>,
    memo: &mut Memo,
    transaction: &mut Transaction,
    request: &Request,
) -> Vec<(u64, String)> {
    transaction.begin(rules, store);
    transaction.set_connection(&Connection {
        client: "127.0.0.2",
        client_port: 40000,
        server: "127.0.0.1",
        server_port: 80,
        server_name: b"localhost",
        user: b"",
        unique_id: b"0123456789abcdef",
        time: 1_700_000_000,
        utc_offset: 0,
    });
    transaction.set_request_line(&request.method, &request.target, &request.version);
    for (name, value) in &request.headers {
        transaction.add_request_header(name, value);
    }
    transaction.end_request_headers();
    transaction.run(Phase::RequestHeaders, memo);
    transaction.set_request_body(&request.body, request.body.len() as u64);
    transaction.run(Phase::RequestBody, memo);
    respond(transaction, request);
    transaction.run(Phase::ResponseHeaders, memo);
    transaction.run(Phase::ResponseBody, memo);
    transaction.run(Phase::Logging, memo);
    transaction
        .messages()
        .iter()
        .map(|message| (message.id, transaction.log_line(message).to_string()))
        .collect()
}

fn respond(transaction: &mut Transaction, request: &Request) {
    let described = request
        .target
        .starts_with(b"/reflect")
        .then(|| serde_json::from_slice::<Value>(&request.body).ok())
        .flatten();
    let Some(described) = described else {
        transaction.set_response_status(200, "HTTP/1.1");
        transaction.add_response_header(b"Content-Type", b"text/plain");
        return;
    };
    transaction.set_response_status(described["status"].as_u64().unwrap_or(200) as u16, "HTTP/1.1");
    let mut media_type = b"text/plain".to_vec();
    for (name, value) in described["headers"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default().as_bytes();
        if name.eq_ignore_ascii_case("content-type") {
            media_type = value.to_vec();
        }
        transaction.add_response_header(name.as_bytes(), value);
    }
    let body = match (described["encodedBody"].as_str(), described["body"].as_str()) {
        (Some(encoded), _) => base64(encoded),
        (None, body) => body.unwrap_or_default().as_bytes().to_vec(),
    };
    if transaction.reads_response_body(&media_type) {
        transaction.set_response_body(&body, false);
    }
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Reason why a stage fails.
fn check(output: &Value, results: &[(u64, String)]) -> Option<String> {
    let log = &output["log"];
    let has = |id: u64| results.iter().any(|(candidate, _)| *candidate == id);
    if let Some(missing) = ids(&log["expect_ids"]).into_iter().find(|id| !has(*id)) {
        return Some(format!("{missing} is missing"));
    }
    if let Some(present) = ids(&log["no_expect_ids"]).into_iter().find(|id| has(*id)) {
        return Some(format!("{present} is not expected"));
    }
    let matches = |pattern: &Value| {
        let pattern = pattern.as_str()?;
        let regex = fancy_regex::Regex::new(pattern).unwrap();
        Some(results.iter().any(|(_, line)| regex.is_match(line).unwrap()))
    };
    if matches(&log["match_regex"]) == Some(false) {
        return Some("no line matches".to_owned());
    }
    if matches(&log["no_match_regex"]) == Some(true) {
        return Some("a line matches".to_owned());
    }
    None
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let read = |name: &str| Disk.read(name, "").unwrap();
    let file = arguments.get(1).unwrap();
    let begin = Instant::now();
    let source = Source { file: Arc::from(file.as_str()), line: 1, text: read(file).into() };
    let rules = match RuleSet::compile(&[source], &mut Disk) {
        Ok(rules) => Arc::new(rules),
        Err(error) => {
            println!("{error}");
            std::process::exit(1);
        }
    };
    println!("{} rules in {:?}", rules.len(), begin.elapsed());
    let store = Arc::new(Store::default());
    let mut memo = Memo::default();
    let mut transaction = Transaction::new(rules.clone(), store.clone());
    let option = arguments.get(3).map_or("", String::as_str);
    let cases = String::from_utf8(read(arguments.get(2).unwrap())).unwrap();
    let (mut passed, mut failed, mut refused) = (0, 0, 0);
    let mut by_reason: BTreeMap<String, u32> = BTreeMap::new();
    let mut times = Vec::new();
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = format!("{}-{}", case["rule"], case["test"]);
        if option == "-t" && arguments.get(4) != Some(&name) {
            continue;
        }
        // A server refuses these requests before any rule; this is no test of the engine.
        if case["stages"].as_array().unwrap().iter().any(|stage| stage["output"]["status"] == 400) {
            refused += 1;
            continue;
        }
        let mut reason = None;
        for stage in case["stages"].as_array().unwrap() {
            let Some(request) = request(&stage["input"]) else {
                reason = Some("no request".to_owned());
                continue;
            };
            let begin = Instant::now();
            let results = run(&rules, &store, &mut memo, &mut transaction, &request);
            times.push(begin.elapsed());
            if option == "-t" {
                println!("{}", serde_json::to_string_pretty(&stage["input"]).unwrap());
                results.iter().for_each(|(_, line)| println!("{line}"));
            }
            reason = reason.or(check(&stage["output"], &results));
        }
        match reason {
            None => passed += 1,
            Some(reason) => {
                failed += 1;
                if option != "-b" {
                    println!("FAIL {name}: {reason}");
                }
                *by_reason.entry(reason).or_default() += 1;
            }
        }
    }
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("times: p50 {:?}, p90 {:?}, p99 {:?}, longest {:?}", at(50), at(90), at(99), times.last());
    println!("{refused} cases for a server that refuses malformed requests are left out");
    println!(
        "{passed} passed, {failed} failed, {:.2} %",
        100.0 * f64::from(passed) / f64::from(passed + failed)
    );
}
