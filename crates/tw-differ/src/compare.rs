//! Comparison of two observations: named rules remove what may differ, and the rest are differences.

use std::collections::BTreeMap;

use crate::response::{Reading, Response};
use crate::server::{Answer, Observation};

/// Something that both servers do and do differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Kind, with the name of a field or variable.
    pub(crate) kind: String,
    /// Index of the exchange; 0 for the configuration itself.
    pub(crate) exchange: usize,
    pub(crate) nginx: String,
    pub(crate) tailwater: String,
}

/// Longest time between the same request to both servers, in seconds.
const CLOCK_MAX: u64 = 5;

/// Rule about responses: what is removed, and why.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    apply: fn(&mut Response),
}

/// Rules in the order in which they apply.
pub(crate) const RULES: &[Rule] = &[
    Rule { name: "server", reason: "each server has a name of its own", apply: without_server },
    Rule { name: "date", reason: "the clock goes on between the two requests", apply: without_times },
    Rule {
        name: "error page",
        reason: "a built-in page has the name of its server, and a padding in its words",
        apply: without_name,
    },
    Rule {
        name: "boundary",
        reason: "a boundary of multipart ranges is a random number",
        apply: without_boundary,
    },
    Rule {
        name: "compression",
        reason: "two compressors make different bytes of one text",
        apply: without_compression,
    },
    Rule {
        name: "field order",
        reason: "RFC 9110, 5.3: only fields of one name have an order",
        apply: sort_fields,
    },
];

fn set(response: &mut Response, wanted_name: &str, value: &str) {
    for (name, old) in &mut response.fields {
        if name == wanted_name {
            value.clone_into(old);
        }
    }
}

fn without_server(response: &mut Response) {
    response.fields.retain(|(name, _)| name != "server");
}

fn without_times(response: &mut Response) {
    set(response, "date", "<date>");
    for (name, value) in &mut response.fields {
        let is_fixed = value.contains(" 1970 ") || value.contains(" 2037 ");
        if name == "expires" && value.ends_with(" GMT") && !is_fixed {
            "<date>".clone_into(value);
        }
    }
}

/// Status of a response as a number, or 0.
fn status(response: &Response) -> u16 {
    response.status_line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn without_name(response: &mut Response) {
    let body = String::from_utf8_lossy(&response.body).into_owned();
    let named = body.replace("<center>tailwater</center>", "<center>nginx</center>");
    let padding =
        named.find("<!-- a padding to disable").or_else(|| named.find("<!-- padding, so that browsers"));
    let named = named.get(..padding.unwrap_or(named.len())).unwrap_or_default().to_owned();
    let is_built_in = named.contains("<center>nginx</center>");
    if is_built_in {
        response.body = named.into_bytes();
    }
    // The length of a page that HEAD does not get depends on the name as well.
    if is_built_in || (response.framing == "none" && status(response) >= 300) {
        set(response, "content-length", "<length>");
    }
}

fn without_boundary(response: &mut Response) {
    let boundary =
        response.fields.iter().find_map(|(_, value)| value.split_once("boundary=")).map(|(_, rest)| rest);
    let Some(boundary) = boundary.map(str::to_owned) else { return };
    for (_, value) in &mut response.fields {
        *value = value.replace(&boundary, "<boundary>");
    }
    response.body = String::from_utf8_lossy(&response.body).replace(&boundary, "<boundary>").into_bytes();
    set(response, "content-length", "<length>");
}

fn without_compression(response: &mut Response) {
    if response.fields.iter().any(|(name, value)| name == "content-encoding" && value == "gzip")
        && response.body.starts_with(&[0x1f, 0x8b])
    {
        response.body = b"<gzip>".to_vec();
    }
}

fn sort_fields(response: &mut Response) {
    response.fields.sort_by(|(a, _), (b, _)| a.cmp(b));
}

/// Applies all rules.
fn normalise(reading: &Reading) -> Vec<Response> {
    let mut responses = reading.responses.clone();
    // RFC 9110, 10.1.1: a server that has received the whole body, as always here, may omit the interim response.
    responses.retain(|response| status(response) != 100);
    for response in &mut responses {
        RULES.iter().for_each(|rule| (rule.apply)(response));
    }
    responses
}

/// All differences of two observations, those that explain others first.
pub(crate) fn compare(nginx: &Observation, tailwater: &Observation) -> Vec<Difference> {
    let mut all = Vec::new();
    let accepted = |refusal: &Option<String>| refusal.clone().unwrap_or_else(|| "accepted".to_owned());
    // nginx leaves out the place of some mistakes.
    let message = |refusal: &Option<String>| {
        refusal.as_ref().map(|text| text.split(" in @PREFIX@").next().unwrap_or_default().to_owned())
    };
    if message(&nginx.refusal) != message(&tailwater.refusal) {
        let both = nginx.refusal.is_some() && tailwater.refusal.is_some();
        all.push(Difference {
            kind: if both { "message" } else { "acceptance" }.to_owned(),
            exchange: 0,
            nginx: accepted(&nginx.refusal),
            tailwater: accepted(&tailwater.refusal),
        });
        return all;
    }
    for (exchange, (theirs, ours)) in nginx.answers.iter().zip(&tailwater.answers).enumerate() {
        let mut pairs = Vec::new();
        compare_answers(theirs, ours, &mut pairs);
        let difference = |(kind, nginx, tailwater)| Difference { kind, exchange, nginx, tailwater };
        all.extend(pairs.into_iter().map(difference));
    }
    if !tailwater.alarms.is_empty() {
        let tailwater = tailwater.alarms.join("\n");
        all.push(Difference {
            kind: "alarm".to_owned(),
            exchange: 0,
            nginx: nginx.alarms.join("\n"),
            tailwater,
        });
    }
    all
}

/// Kind and both values of each difference.
type Pairs = Vec<(String, String, String)>;

fn add(pairs: &mut Pairs, kind: &str, nginx: impl Into<String>, tailwater: impl Into<String>) {
    let (nginx, tailwater) = (nginx.into(), tailwater.into());
    if nginx != tailwater {
        pairs.push((kind.to_owned(), nginx, tailwater));
    }
}

fn compare_answers(nginx: &Answer, tailwater: &Answer, pairs: &mut Pairs) {
    let (theirs, ours) = (normalise(&nginx.reading), normalise(&tailwater.reading));
    let statuses = |all: &[Response]| {
        let lines: Vec<&str> = all.iter().map(|response| response.status_line.as_str()).collect();
        lines.join(", ")
    };
    add(pairs, "status", statuses(&theirs), statuses(&ours));
    if pairs.is_empty() {
        for (theirs, ours) in theirs.iter().zip(&ours) {
            compare_responses(theirs, ours, pairs);
        }
    }
    add(pairs, "fate", format!("{:?}", nginx.reading.fate), format!("{:?}", tailwater.reading.fate));
    compare_received(&nginx.received, &tailwater.received, pairs);
    add(pairs, "log lines", nginx.log.len().to_string(), tailwater.log.len().to_string());
    for (theirs, ours) in nginx.log.iter().zip(&tailwater.log) {
        compare_log(theirs, ours, pairs);
    }
}

fn compare_responses(nginx: &Response, tailwater: &Response, pairs: &mut Pairs) {
    let values = |response: &Response| {
        let mut values = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in &response.fields {
            values.entry(name.clone()).or_default().push(value.clone());
        }
        values
    };
    let (theirs, ours) = (values(nginx), values(tailwater));
    for name in theirs.keys().chain(ours.keys().filter(|name| !theirs.contains_key(*name))) {
        let text =
            |values: Option<&Vec<String>>| values.map_or("absent".to_owned(), |values| values.join(" | "));
        let (theirs, ours) = (text(theirs.get(name)), text(ours.get(name)));
        if !is_clock(&theirs, &ours) {
            add(pairs, &format!("field {name}"), theirs, ours);
        }
    }
    add(pairs, "framing", nginx.framing, tailwater.framing);
    let text = |response: &Response| String::from_utf8_lossy(&response.body).into_owned();
    add(pairs, "body", text(nginx), text(tailwater));
}

fn compare_received(nginx: &[String], tailwater: &[String], pairs: &mut Pairs) {
    add(pairs, "requests to the origin", nginx.len().to_string(), tailwater.len().to_string());
    for (theirs, ours) in nginx.iter().zip(tailwater) {
        let parts = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
            let mut lines = head.split("\r\n").map(str::to_owned);
            let first = lines.next().unwrap_or_default();
            let mut fields: Vec<String> = lines.collect();
            fields.sort_by_key(|line| line.split(':').next().map(str::to_ascii_lowercase));
            (first, fields.join("\n"), body.to_owned())
        };
        let (theirs, ours) = (parts(theirs), parts(ours));
        add(pairs, "line to the origin", theirs.0, ours.0);
        add(pairs, "fields to the origin", theirs.1, ours.1);
        add(pairs, "body to the origin", theirs.2, ours.2);
    }
}

/// Returns `true` for two values of `Cache-Control` that count to one moment: the clock goes on between the two requests.
fn is_clock(theirs: &str, ours: &str) -> bool {
    let seconds = |text: &str| text.strip_prefix("max-age=").and_then(|text| text.parse::<u64>().ok());
    seconds(theirs).zip(seconds(ours)).is_some_and(|(theirs, ours)| theirs.abs_diff(ours) <= CLOCK_MAX)
}

/// Compares each variable of a line.
fn compare_log(nginx: &str, tailwater: &str, pairs: &mut Pairs) {
    let (theirs, ours) = (variables(nginx), variables(tailwater));
    let is_built_in = theirs.get("status").is_some_and(|status| status.as_str() >= "300");
    for (name, value) in &theirs {
        // The lengths of built-in pages and of compressed bodies: see the rules of responses.
        let is_length = matches!(name.as_str(), "body_bytes_sent" | "sent_http_content_length");
        let other = ours.get(name).map_or("absent", String::as_str);
        let lengths_differ_by_name = is_length && (is_built_in || value.len() == other.len() && value != "0");
        let is_random = value.contains("boundary=") && other.contains("boundary=");
        if !lengths_differ_by_name && !is_random && !is_clock(value, other) {
            add(pairs, &format!("variable {name}"), value, other);
        }
    }
}

/// Variables of a log line: `name=[value]`, with a blank between them.
fn variables(line: &str) -> BTreeMap<String, String> {
    let items = line.trim_end_matches(']').split("] ");
    items
        .filter_map(|item| item.split_once("=["))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::Fate;

    fn response(fields: &[(&str, &str)], body: &str) -> Response {
        Response {
            status_line: "HTTP/1.1 200 OK".to_owned(),
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: body.as_bytes().to_vec(),
            framing: "length",
        }
    }

    fn observe(response: Response) -> Observation {
        let reading = Reading { responses: vec![response], fate: Fate::Kept };
        Observation { answers: vec![Answer { reading, ..Answer::default() }], ..Observation::default() }
    }

    fn kinds(nginx: Response, tailwater: Response) -> Vec<String> {
        let all = compare(&observe(nginx), &observe(tailwater));
        all.into_iter().map(|difference| difference.kind).collect()
    }

    #[test]
    fn rules_remove_what_may_differ() {
        let theirs = [("server", "nginx"), ("date", "Mon"), ("content-length", "22"), ("x", "1")];
        let ours = [("x", "1"), ("content-length", "26"), ("date", "Tue"), ("server", "tailwater")];
        let page = |name| format!("<center>{name}</center>");
        assert!(kinds(response(&theirs, &page("nginx")), response(&ours, &page("tailwater"))).is_empty());
        let ranges = |boundary: &str| {
            let content = format!("multipart/byteranges; boundary={boundary}");
            response(&[("content-type", &content)], &format!("--{boundary}--"))
        };
        assert!(kinds(ranges("1"), ranges("2")).is_empty());
        assert!(RULES.iter().all(|rule| !rule.name.is_empty() && !rule.reason.is_empty()));
    }

    #[test]
    fn lifetimes_until_one_moment_are_equal() {
        let age = |text| response(&[("cache-control", text)], "a");
        assert!(kinds(age("max-age=86400"), age("max-age=86399")).is_empty());
        for other in ["max-age=86300", "max-age=x", "no-cache"] {
            assert_eq!(kinds(age("max-age=86400"), age(other)), ["field cache-control"], "{other}");
        }
    }

    #[test]
    fn everything_else_is_a_difference() {
        let base = response(&[("x", "1"), ("x", "2")], "a");
        assert_eq!(kinds(base.clone(), response(&[("x", "2"), ("x", "1")], "a")), ["field x"]);
        assert_eq!(kinds(base.clone(), response(&[], "a")), ["field x"]);
        assert_eq!(kinds(base.clone(), response(&[("x", "1"), ("x", "2")], "b")), ["body"]);
        let other = Response { status_line: "HTTP/1.1 404 Not Found".to_owned(), ..base.clone() };
        assert_eq!(kinds(base, other), ["status"]);
    }

    #[test]
    fn variables_of_the_log_are_compared_by_name() {
        let mut pairs = Vec::new();
        compare_log(
            "uri=[/a b] args=[x] status=[404] body_bytes_sent=[146]",
            "uri=[/c] args=[x] status=[404]",
            &mut pairs,
        );
        assert_eq!(pairs, [("variable uri".to_owned(), "/a b".to_owned(), "/c".to_owned())]);
    }

    #[test]
    fn refused_configurations_are_compared_by_their_message() {
        let refused = |text: &str| Observation { refusal: Some(text.to_owned()), ..Observation::default() };
        let kind = |a, b| compare(&a, &b).first().map(|difference: &Difference| difference.kind.clone());
        assert_eq!(kind(refused("a"), refused("b")).unwrap(), "message");
        assert_eq!(kind(refused("a"), Observation::default()).unwrap(), "acceptance");
        assert_eq!(kind(refused("a"), refused("a")), None);
    }
}
