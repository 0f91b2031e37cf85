//! `${env:NAME}` in the configuration.

use tw_testkit::Signal;

use super::command_line::{prefix, run};
use crate::support::{get, page, refusal_of, server, start};

const CONF: &str = "include ${env:TW_PART:-none}.conf;
    map $uri $mapped { default '${env:TW_TEXT:-}'; }
    server {
      listen 127.0.0.1:{port};
      location /text { return 200 '${env:TW_TEXT} $mapped'; }
      location /default { return 200 '${env:TW_NONE:-a default}|${env:TW_EMPTY}|${env:TW_EMPTY:-empty}'; }
      location /variable { return 200 '${env:TW_VARIABLE}'; }
      location ${env:TW_PATH} { return 200 '$uri'; }
    }";

#[test]
fn arguments_have_values_of_the_environment() {
    // The worker process gets neither the files nor the environment of the master.
    let builder = server()
        .with_master()
        .file("conf/part.conf", "# nothing")
        .env("TW_PART", "part")
        .env("TW_TEXT", "some text")
        .env("TW_EMPTY", "")
        .env("TW_VARIABLE", "is $uri")
        .env("TW_PATH", "/path");
    let server = start(builder, CONF);
    for (target, expected) in [
        ("/text", "some text some text"),
        ("/default", "a default||empty"),
        ("/variable", "is /variable"),
        ("/path/x", "/path/x"),
    ] {
        assert_eq!(page(&server, target).1, expected, "{target}");
    }
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("reconfiguring").unwrap();
    assert_eq!(get(&server, "/text").text(), "some text some text");
}

#[test]
fn missing_variable_is_an_error_at_its_line() {
    let refused =
        refusal_of("http {\n  server { listen 127.0.0.1:{port};\n    return 200 ${env:TW_NONE};\n } }");
    assert!(refused.contains("environment variable \"TW_NONE\" is not set in "), "{refused}");
    assert!(refused.contains("${env:TW_NONE:-default}"), "{refused}");
    // In a value with variables, a malformed expression gives nginx's error for malformed variables.
    let refused = refusal_of("http { server { listen 127.0.0.1:{port}; return 200 '${env:TW-NONE}'; } }");
    assert!(refused.contains("the closing bracket in \"env\" variable is missing"), "{refused}");
}

#[test]
fn dump_shows_expressions_as_they_are_written() {
    let dir =
        prefix("events {} http { server { listen 127.0.0.1:1; return 200 '${env:TW_NONE:-secret}'; } }");
    let (code, dump, _) = run(Some(dir.path()), &["-T"]);
    assert_eq!(code, Some(0));
    assert!(dump.contains("return 200 '${env:TW_NONE:-secret}';"), "{dump}");
}
