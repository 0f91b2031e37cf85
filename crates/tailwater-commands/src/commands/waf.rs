//! `tailwater waf test`: requests of a file under the rules of the firewall, without a server.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::process::ExitCode;

use tw_app::explain::{Explanation, RequestToExplain};

use crate::cli::WafTestOptions;
use crate::commands::explain::{host_and_port, publish};
use crate::commands::session::print;
use crate::configuration::bytes_path::path;
use crate::configuration::conf::{Source, Tested};
use crate::output::console::Console;

/// Checks all requests of the file.
pub fn test(options: &WafTestOptions) -> ExitCode {
    let console = Console::new();
    match tested(options, &console) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            console.plain(format_args!("{why}"));
            ExitCode::FAILURE
        }
    }
}

fn tested(options: &WafTestOptions, console: &Console) -> Result<String, String> {
    let bytes = read(&options.file).map_err(|error| {
        let name = String::from_utf8_lossy(&options.file);
        format!("cannot read \"{name}\" ({})", tw_base::Errno::from(&error))
    })?;
    let requests = requests(&bytes, options)?;
    let Tested::Accepted(loaded) = Source::new(&options.main).test(console) else {
        return Err("the configuration has errors".to_owned());
    };
    let generation = publish(loaded.config)?;
    let titles: Vec<String> = requests.iter().map(title).collect();
    let explained = generation.explain_all(requests);
    let explained = explained.map_err(|error| format!("starting a loop failed ({error})"))?;
    let mut out = String::new();
    let mut counts = Counts::default();
    for (title, explanation) in titles.iter().zip(explained) {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{title}");
        match explanation {
            Ok(explanation) => counts.add(&explanation, &mut out),
            Err(why) => {
                counts.refused += 1;
                // Writing into a string cannot fail.
                let _ = writeln!(out, "  not checked: {why}");
            }
        }
    }
    let Counts { passed, detected, blocked, unchecked, refused } = counts;
    // Writing into a string cannot fail.
    let _ = writeln!(
        out,
        "{passed} passed, {detected} detected, {blocked} blocked, {unchecked} without rules, {refused} refused before them"
    );
    Ok(out)
}

fn read(name: &[u8]) -> io::Result<Vec<u8>> {
    if name != b"-" {
        return fs::read(path(name));
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Requests with each result.
#[derive(Default)]
struct Counts {
    passed: u64,
    detected: u64,
    blocked: u64,
    /// Requests for which no rule is configured.
    unchecked: u64,
    /// Requests that the server itself refuses.
    refused: u64,
}

impl Counts {
    /// Adds to `out` what the firewall says about a request: the line that is about it, and those that belong to it.
    fn add(&mut self, explanation: &Explanation, out: &mut String) {
        let mut lines = explanation.lines.iter().skip_while(|line| line.about != "firewall");
        let Some(summary) = lines.next() else {
            self.unchecked += 1;
            out.push_str("  no rules\n");
            return;
        };
        let counter = match summary.text.split([' ', ',']).next() {
            Some("blocked") => &mut self.blocked,
            Some("detected") => &mut self.detected,
            _ => &mut self.passed,
        };
        *counter += 1;
        let others = lines.take_while(|line| line.about.is_empty());
        for line in std::iter::once(summary).chain(others) {
            // Writing into a string cannot fail.
            let _ = writeln!(out, "  {}", line.text);
        }
    }
}

fn title(request: &RequestToExplain) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{} {}{}", text(&request.method), text(&request.host), text(&request.target))
}

/// Requests of a file.
fn requests(bytes: &[u8], options: &WafTestOptions) -> Result<Vec<RequestToExplain>, String> {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Some(line) = request_line(first.trim_ascii_end()) {
        return Ok(vec![of_message(bytes, line, options)?]);
    }
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let requests: Option<Vec<_>> = lines.map(|line| of_log_line(line, options)).collect();
    let requests =
        requests.ok_or("the file has neither a request nor lines of an access log in the combined format")?;
    if requests.is_empty() { Err("the file is empty".to_owned()) } else { Ok(requests) }
}

/// First words of a request.
struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
}

/// Reads `METHOD target HTTP/…`.
fn request_line(line: &[u8]) -> Option<RequestLine<'_>> {
    let mut words = line.split(|byte| *byte == b' ');
    let method = words.next()?;
    let target = words.next()?;
    let version = words.next()?;
    let is_method =
        !method.is_empty() && method.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-');
    let is_whole = is_method && version.starts_with(b"HTTP/") && words.next().is_none();
    is_whole.then_some(RequestLine { method, target })
}

fn request(line: &RequestLine<'_>, options: &WafTestOptions) -> RequestToExplain {
    let host = options.host.as_deref().and_then(host_and_port);
    let (host, port) = host.unwrap_or((b"", None));
    RequestToExplain {
        method: line.method.to_vec(),
        host: host.to_ascii_lowercase(),
        port,
        scheme: None,
        target: line.target.to_vec(),
        fields: Vec::new(),
        body: Vec::new(),
        is_detailed: options.is_detailed,
    }
}

/// Request as it is sent.
fn of_message(
    bytes: &[u8],
    line: RequestLine<'_>,
    options: &WafTestOptions,
) -> Result<RequestToExplain, String> {
    let mut request = request(&line, options);
    let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    let mut rest = &bytes[begin..];
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        rest = &rest[end + 1..];
        if line.is_empty() {
            request.body = rest.to_vec();
            break;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(format!("a line of the head has no colon: \"{}\"", String::from_utf8_lossy(line)));
        };
        add_field(&mut request, &line[..colon], line[colon + 1..].trim_ascii(), options);
    }
    if !request.body.is_empty() {
        let length = request.body.len().to_string();
        request.fields.push((b"Content-Length".to_vec(), length.into_bytes()));
    }
    Ok(request)
}

fn add_field(request: &mut RequestToExplain, name: &[u8], value: &[u8], options: &WafTestOptions) {
    if name.eq_ignore_ascii_case(b"host") {
        if let Some((host, port)) = host_and_port(value).filter(|_| options.host.is_none()) {
            request.host = host.to_ascii_lowercase();
            request.port = port;
        }
    } else if !name.eq_ignore_ascii_case(b"connection") && !name.eq_ignore_ascii_case(b"content-length") {
        request.fields.push((name.to_vec(), value.to_vec()));
    }
}

/// Request of a line of an access log: request line, `Referer` and `User-Agent` are quoted.
fn of_log_line(line: &[u8], options: &WafTestOptions) -> Option<RequestToExplain> {
    let mut quoted = line.split(|byte| *byte == b'"').skip(1).step_by(2);
    let mut request = request(&request_line(quoted.next()?)?, options);
    for name in ["Referer", "User-Agent"] {
        match quoted.next() {
            Some(value) if value != b"-" => request.fields.push((name.into(), value.to_vec())),
            _ => {}
        }
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_lines_of_logs_are_read() {
        let options = WafTestOptions::default();
        let message = b"POST /a?b HTTP/1.1\r\nHost: A.example:81\r\nX: y\r\nContent-Length: 9\r\n\r\nc=d";
        let [request] = &*requests(message, &options).unwrap() else { panic!("one request") };
        assert_eq!(
            (&*request.method, &*request.host, request.port),
            (&b"POST"[..], &b"a.example"[..], Some(81))
        );
        assert_eq!((&*request.target, &*request.body), (&b"/a?b"[..], &b"c=d"[..]));
        let length = (b"Content-Length".to_vec(), b"3".to_vec());
        assert_eq!(request.fields, [(b"X".to_vec(), b"y".to_vec()), length]);
        let lines =
            b"127.0.0.1 - - [29/Nov/2026:17:00:00 +0000] \"GET /?x=1 HTTP/1.1\" 200 5 \"-\" \"agent\"\n\n";
        let [request] = &*requests(lines, &options).unwrap() else { panic!("one request") };
        assert_eq!((&*request.target, request.fields.len()), (&b"/?x=1"[..], 1));
        for bytes in [&b""[..], b"something else\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"] {
            assert!(requests(bytes, &options).is_err());
        }
    }
}
