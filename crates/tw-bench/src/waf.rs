//! `cargo xtask bench waf`: cost of the web application firewall with the OWASP Core Rule Set, beside nginx with ModSecurity.
//!
//! The rule set is not part of this repository: `--rules DIRECTORY` or `TAILWATER_CRS` names one, with `crs-setup.conf.example`
//! and `rules`. Both servers read the same files. nginx needs its module for ModSecurity (`NGINX_MODSECURITY`).
//! Bodies are sent by one client, one after the other, while another client asks for a small page at a fixed rate.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::contestant::{Binaries, Binary, Contestant, NGINX, OURS, hot_files, root_directive};
use super::loops;
use super::neighbour::{Neighbour, beside_requests, show};
use super::options::Options;
use super::report::{Report, Table, number, span};
use super::static_files::{Case, Plan, Score, cpu_ratio, measure, of, warn_if_busy};
use super::{Outcome, home};

const OURS_BARE: &str = "ours, without rules";
const NGINX_BARE: &str = "nginx, without rules";
/// Module of nginx where Debian has it.
const MODULE: &str = "/usr/share/nginx/modules/ngx_http_modsecurity_module.so";
/// Settings in front of the rule set.
const SETTINGS: &str = r#"SecRuleEngine On
SecRequestBodyAccess On
SecRule REQUEST_HEADERS:Content-Type "^(?:application(?:/soap\+|/)|text/)xml" "id:200000,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=XML"
SecRule REQUEST_HEADERS:Content-Type "^application/(?:[a-z0-9.-]+\+)?json" "id:200001,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=JSON"
SecAuditEngine Off
"#;
/// Fields that a browser sends.
const FIELDS: &str = r#"
wrk.headers["User-Agent"] = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
wrk.headers["Accept"] = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
wrk.headers["Accept-Language"] = "en-US,en;q=0.5"
wrk.headers["Accept-Encoding"] = "gzip, deflate, br, zstd"
wrk.headers["Referer"] = "http://localhost/articles/2026/11/"
wrk.headers["Cookie"] = "session=9f8a1c0e5b7d4e2f; theme=dark; consent=1"
"#;
/// A new query for each request: the thread of the server has not seen its values before.
const NEW_QUERIES: &str = r#"
local n = 0
request = function()
    n = n + 1
    return wrk.format("GET", "/1k?q=word" .. n .. "&page=" .. (n % 1000) .. "&sort=name")
end
"#;
const BODY_SIZE: usize = 128 << 10;
/// Bytes of each of three long fields; a server takes lines of 8 KiB.
const FIELD_SIZE: usize = 7 << 10;
/// Fields of every request beside the measured ones.
const COMMON: &str = "Host: localhost\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\nConnection: close\r\n";

/// Measures, prints, writes `waf.json`.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["rounds", "seconds", "connections", "rules"], &[])?;
    let quick = options.flag("quick");
    let plan = Plan {
        rounds: options.number("rounds", if quick { 2 } else { 5 })?,
        seconds: options.number("seconds", if quick { 1 } else { 2 })?,
        connections: vec![options.number("connections", 8)?],
        server_cpu: options.number("server-cpu", 0)?,
        load_cpu: options.number("load-cpu", 1)?,
    };
    let mut binaries = Binaries::find(&options)?;
    let module = std::env::var("NGINX_MODSECURITY").unwrap_or_else(|_| MODULE.to_owned());
    let has_module = !binaries.nginx.is_absent() && Path::new(&module).is_file();
    if has_module {
        binaries.nginx = binaries.nginx.with_main(&format!("load_module {module};"));
    }
    let rules = rules(&options)?;
    let firewall = format!("modsecurity on; modsecurity_rules_file {};", rules.display());
    let root = root_directive(&hot_files(&[("1k", 1 << 10)])?);
    let server = |name: &str, binary: &Binary, http: &str| {
        let site = format!(
            "client_max_body_size 1m; client_body_buffer_size 256k; {root} {}",
            loops::location(binary)
        );
        Contestant::server(name, binary, &format!("access_log off; {http}"), &site)
    };
    let mut contestants =
        vec![server(OURS_BARE, &binaries.ours, ""), server(OURS, &binaries.ours, &firewall)];
    if has_module && binaries.nginx.knows(&firewall)? {
        contestants.push(server(NGINX_BARE, &binaries.nginx, ""));
        contestants.push(server(NGINX, &binaries.nginx, &firewall));
    }
    let mut report = Report::new("waf", &binaries);
    if options.wants("get") {
        heads(&mut report, &contestants, &plan)?;
    }
    if options.wants("bodies") {
        let with_rules: Vec<&Contestant> =
            contestants.iter().filter(|one| [OURS, NGINX].contains(&one.name.as_str())).collect();
        bodies(&mut report, &with_rules, &plan)?;
    }
    if options.wants("load") {
        load_large_file(&mut report, &binaries.ours)?;
    }
    report.finish(&options)
}

/// File that includes the rule set.
fn rules(options: &Options) -> Outcome<PathBuf> {
    let named = options.text("rules").map(str::to_owned).or_else(|| std::env::var("TAILWATER_CRS").ok());
    let directory = named.ok_or(
        "--rules: the directory of a Core Rule Set is needed, with crs-setup.conf.example and rules",
    )?;
    let directory = fs::canonicalize(directory)?;
    let shown = directory.display();
    let text = format!("{SETTINGS}Include {shown}/crs-setup.conf.example\nInclude {shown}/rules/*.conf\n");
    fs::create_dir_all(home())?;
    let file = home().join("crs.conf");
    fs::write(&file, text)?;
    Ok(file)
}

/// Requests without bodies: the same one again and again, and new ones.
fn heads(report: &mut Report, contestants: &[Contestant], plan: &Plan) -> Outcome {
    for (title, script) in [("same GET", FIELDS.to_owned()), ("new GET", format!("{FIELDS}{NEW_QUERIES}"))] {
        let case = Case {
            title: title.to_owned(),
            path: "/1k?q=words&page=2&sort=name",
            connections: plan.connections.first().copied().unwrap_or(1),
            script,
            looks_at_memory: false,
            contestants: contestants.to_vec(),
        };
        let results = measure(&case, plan)?;
        let mut table = Table::new(title, &["CPU µs/req", "of it the rules", "req/s", "p50", "p99"]);
        for result in &results {
            let bare = if result.name.starts_with(OURS) { OURS_BARE } else { NGINX_BARE };
            let rules = of(&results, bare).map_or(0.0, |bare| result.cpu_us() - bare.cpu_us());
            let cells = vec![
                result.cpu_cell(),
                number(rules),
                number(result.per_second()),
                span(result.p50()),
                span(result.p99()),
            ];
            table.row(&result.name, cells);
        }
        report.case(&table, results.iter().map(Score::json).collect());
        warn_if_busy(report, title, &results);
        let cost =
            of(&results, OURS).zip(of(&results, OURS_BARE)).map(|(with, bare)| with.cpu_us() - bare.cpu_us());
        report.target(format!("{title}: CPU of the rules"), cost.unwrap_or(f64::NAN));
        if of(&results, NGINX).is_some() {
            report.target(format!("{title}: CPU of ours / nginx"), cpu_ratio(&results, OURS, NGINX));
        }
    }
    Ok(())
}

fn bodies(report: &mut Report, contestants: &[&Contestant], plan: &Plan) -> Outcome {
    let text = "The quick brown fox jumps over the lazy dog, and page 17 says so. ";
    let ordinary = format!("comment={}", text.repeat(BODY_SIZE / text.len())).replace(' ', "+");
    let pattern = "((((select(char(0x3c))union/**/<a href=javascript:{{{[[[%2527%252e%252e/";
    let slow = format!("a={}", pattern.repeat(BODY_SIZE / pattern.len()));
    let field = pattern.repeat(FIELD_SIZE / pattern.len());
    let arguments: String =
        (0..90).map(|number| format!("a{number}={}&", pattern.replace(['<', ' '], "%3C"))).collect();
    let fields = format!("Cookie: a={field}\r\nReferer: http://localhost/{field}\r\nX-Text: {field}\r\n");
    for (title, request) in [
        ("ordinary bodies of 128 KiB", with_body(&ordinary)),
        ("slow bodies of 128 KiB", with_body(&slow)),
        ("slow heads of 28 KiB", format!("GET /1k?{arguments} HTTP/1.1\r\n{COMMON}{fields}\r\n")),
    ] {
        let results: Vec<Neighbour> =
            contestants.iter().map(|one| beside_requests(one, &request, 1, plan)).collect::<Outcome<_>>()?;
        show(report, title, "requests", &results);
    }
    Ok(())
}

/// Request with a body.
fn with_body(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /1k HTTP/1.1\r\n{COMMON}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Loads a file of rules of 1 MB.
fn load_large_file(report: &mut Report, ours: &Binary) -> Outcome {
    let mut text = String::from("SecRuleEngine On\n");
    for id in 1.. {
        if text.len() >= 1 << 20 {
            break;
        }
        text.push_str(&format!(
            "SecRule ARGS|REQUEST_COOKIES \"@rx (?i)word{id}[a-z]+(?:one|two{id})\\s*=\" \"id:{id},phase:2,deny,status:403,\
             t:none,t:urlDecodeUni,t:lowercase,msg:'Rule {id}',tag:'generated',severity:CRITICAL\"\n"
        ));
    }
    let count = text.lines().count() - 1;
    let file = home().join("large.conf");
    fs::write(&file, text)?;
    let without = load_time(ours, "")?;
    let with = load_time(ours, &format!("modsecurity on; modsecurity_rules_file {};", file.display()))?;
    let took = with.saturating_sub(without);
    let mut table = Table::new("rules of 1 MB", &["rules", "load"]);
    table.row(OURS, vec![count.to_string(), span(took)]);
    report.case(&table, json!([{ "name": OURS, "rules": count, "seconds": took.as_secs_f64() }]));
    report.target("rules of 1 MB: load", took.as_secs_f64());
    Ok(())
}

/// Time of a test of a configuration.
fn load_time(binary: &Binary, http: &str) -> Outcome<Duration> {
    let begin = Instant::now();
    if !binary.knows(http)? {
        return Err("the configuration with the rules is refused".into());
    }
    Ok(begin.elapsed())
}
