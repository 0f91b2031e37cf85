//! One case of an operator or a transformation.

use std::path::Path;
use std::sync::Arc;

use tw_waf::{Connection, Memo, Phase, RuleSet, Source, Store, Transaction};

use crate::Outcome;
use crate::case::Disk;
use crate::json::Json;

/// Bytes of a text in which `\xHH` and `\uHHHH` stand for bytes.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = match (byte, after.first()) {
            (b'\\', Some(b'x')) => 2,
            (b'\\', Some(b'u')) => 4,
            _ => 0,
        };
        let code = after.get(1..=digits).and_then(|code| std::str::from_utf8(code).ok());
        match code.filter(|_| digits > 0).and_then(|code| u32::from_str_radix(code, 16).ok()) {
            Some(code) => {
                out.push(code as u8);
                rest = &after[digits + 1..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// Runs a case.
pub(crate) fn run(case: &Json, directory: &str) -> Outcome {
    let name = case.text("name");
    if case.text("resource").starts_with("geo") || name == "geoLookup" {
        return Outcome::LeftOut("needs GeoIP in rules");
    }
    if name == "phpArgsNames" {
        return Outcome::LeftOut("no transformation of ModSecurity 3.0");
    }
    let name = if name == "cmd_line" { "cmdLine".to_owned() } else { name };
    let parameter = case.text("param").replace("test-cases/secrules-language-tests/", "../");
    let is_operator = case.text("type") == "op";
    let quoted = parameter.replace('"', "\\\"");
    let (operator, action) = match is_operator {
        true => (format!("@{name} {quoted}"), "t:none".to_owned()),
        false => ("@unconditionalMatch".to_owned(), format!("t:{name},chain")),
    };
    let mut rules = format!(
        "SecRuleEngine DetectionOnly\nSecRule REQUEST_HEADERS:Value \"{operator}\" \"id:1,phase:1,pass,capture,{action},logdata:'%{{MATCHED_VAR}}'\"\n"
    );
    if !is_operator {
        rules.push_str("SecRule MATCHED_VAR \"@streq %{REQUEST_HEADERS.Expected}\" \"t:none\"\n");
    }
    let root = Path::new(directory);
    let file = format!("{directory}/operators/rules.conf");
    let source = Source { file: file.into(), line: 1, text: Arc::from(rules.as_bytes()) };
    let rules = match RuleSet::compile(&[source], &mut Disk(root)) {
        Ok(rules) => Arc::new(rules),
        Err(error) => return Outcome::Failed(format!("refused: {error}")),
    };
    let mut t = Transaction::new(rules, Arc::new(Store::default()));
    t.set_connection(&Connection {
        client: "127.0.0.1",
        client_port: 1,
        server: "127.0.0.1",
        server_port: 80,
        server_name: b"",
        user: b"",
        unique_id: b"",
        time: 0,
        utc_offset: 0,
    });
    t.set_request_line(b"GET", b"/", b"HTTP/1.1");
    let input = bytes(&case.text("input"));
    t.add_request_header(b"Value", &input);
    let expected_output = bytes(&case.text("output"));
    t.add_request_header(b"Expected", &expected_output);
    t.end_request_headers();
    t.run(Phase::RequestHeaders, &mut Memo::default());
    let message = t.messages().first();
    if is_operator {
        let expected = case.number("ret") == Some(1);
        return if message.is_some() == expected {
            Outcome::Passed
        } else {
            let input = String::from_utf8_lossy(&input);
            Outcome::Failed(format!("@{name} {parameter}: {input:?} should give {expected}"))
        };
    }
    if message.is_some() {
        return Outcome::Passed;
    }
    let [input, expected] = [input, expected_output].map(|text| text.escape_ascii().to_string());
    Outcome::Failed(format!("t:{name} of \"{input}\" is not \"{expected}\""))
}
