//! Table of the README: the most important claims with their numbers, and the most frequent work, where nginx is level or better.

use std::time::Duration;

use serde_json::Value;

use super::results::contestant;
use crate::report::{number, span};

/// A claim: its row, and the numbers of one server for it.
type Claim = (&'static str, fn(&Value, &str) -> Option<String>);

const CLAIMS: [Claim; 6] = [
    ("Requests for a hot 32 KiB file while a disk is saturated", |results, name| {
        let server = contestant(results, "disk", "32 KiB files*", name)?;
        let hot = &server["hot_under_load"];
        Some(format!("{}/s, p99 {}", rate(&hot["requests_per_second"])?, time(&hot["p99_us"])?))
    }),
    ("Time to the first byte in memory while others open cold files, p99", |results, name| {
        time(&contestant(results, "open", "time to the first byte*", name)?["hot_p99_us"])
    }),
    ("Full TLS handshakes per second and core, ECDSA P-256", |results, name| {
        let server = contestant(results, "tls", "ECDSA P-256, full*", name)?;
        Some(number(1e6 / server["cpu_us_per_connection"].as_f64()?))
    }),
    ("Proxied requests of 1 KiB, 64 connections", |results, name| proxied(results, "1 KiB, 64*", name)),
    ("Proxied requests of 32 KiB, 64 connections", |results, name| proxied(results, "32 KiB, 64*", name)),
    ("Failed requests during reloads at full load", |results, name| {
        let server = contestant(results, "reload", "* reloads", name)?;
        Some(format!("{} of {}", rate(&server["failed"])?, rate(&server["answered"])?))
    }),
];

/// The names of nginx in these parts, the better one first.
const NGINX: [&str; 2] = ["nginx, aio threads", "nginx"];

/// Requests per second through a proxy.
fn proxied(results: &Value, case: &str, name: &str) -> Option<String> {
    let server = contestant(results, "proxy", case, name)?;
    Some(format!("{}/s", rate(&server["requests_per_second"])?))
}

fn rate(value: &Value) -> Option<String> {
    match value.as_f64()? {
        count if count < 100.0 => Some(format!("{count:.0}")),
        count => Some(number(count)),
    }
}

fn time(us: &Value) -> Option<String> {
    Some(span(Duration::from_micros(us.as_u64()?)))
}

/// The table.
pub(super) fn claims(results: &Value) -> String {
    let mut out = "| | Tailwater | nginx |\n|---|---|---|\n".to_owned();
    for (row, numbers) in CLAIMS {
        let nginx = NGINX.iter().find_map(|name| {
            let numbers = numbers(results, name)?;
            Some(if name.contains("aio") { format!("{numbers} (`aio threads`)") } else { numbers })
        });
        if let (Some(ours), Some(nginx)) = (numbers(results, "ours"), nginx) {
            out += &format!("| {row} | {ours} | {nginx} |\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_have_the_numbers_of_both() {
        let server = |name: &str, failed: u64| json!({ "name": name, "failed": failed, "answered": 712_572 });
        let results = json!({ "parts": [{ "measurement": "reload", "cases": [
            { "case": "30 reloads", "contestants": [server("ours", 0), server("nginx", 4_912)] },
        ] }] });
        let expected = "| | Tailwater | nginx |\n|---|---|---|\n\
            | Failed requests during reloads at full load | 0 of 712,572 | 4,912 of 712,572 |\n";
        assert_eq!(claims(&results), expected);
    }
}
