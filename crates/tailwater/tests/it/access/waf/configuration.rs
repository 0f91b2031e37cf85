//! Rules in files, and rules that cannot be enforced.

use crate::support::{page, refusal, server, start};

#[test]
fn rules_of_files_are_included_and_inherited() {
    let server = start(
        server()
            .file("html/index.html", "page")
            .file("rules/a.conf", "SecRuleEngine On\nInclude sub/*.conf\n")
            .file("rules/sub/1.conf", "SecRule ARGS \"@pmFromFile words.data\" \\\n  \"id:1,phase:1,deny\"\n")
            .file("rules/sub/words.data", "# words\nevil\nbad word\n")
            .file("rules/b.conf", "SecRule ARGS \"@contains more\" \"id:2,phase:1,deny\"\n"),
        "modsecurity_rules_file {prefix}/rules/*.conf;
         server {
           listen 127.0.0.1:{port}; root html; modsecurity on;
           location / { }
           location /more { modsecurity_rules 'SecRule ARGS \"@contains third\" \"id:3,phase:1,deny\"'; try_files /index.html =404; }
         }",
    );
    for (target, status) in [
        ("/?a=Bad%20Word", 403),
        ("/?a=good", 200),
        ("/?a=more", 403),
        ("/?a=third", 200),
        ("/more?a=third", 403),
        ("/more?a=evil", 403),
    ] {
        assert_eq!(page(&server, target).0, status, "{target}");
    }
}

#[test]
fn rules_that_cannot_be_enforced_are_refused() {
    for (rules, message) in [
        (
            "SecRule ARGS \"@rx a(?=b)\" \"id:1\"",
            "look-around assertions are not supported in modsecurity_rules:1",
        ),
        (
            "\nSecRule NOTHING \"@rx a\" \"id:1\"",
            "variable \"NOTHING\" is not supported in modsecurity_rules:2",
        ),
        ("SecRule ARGS \"@rbl a.example\" \"id:1\"", "operator \"@rbl\" is not supported"),
        ("SecRule ARGS \"@rx a\" \"id:1,exec:/bin/sh\"", "action \"exec\": not supported"),
        ("SecRule ARGS \"@rx a\" \"id:1,t:nothing\"", "unknown transformation \"nothing\""),
        ("SecRule ARGS \"@rx a\" \"phase:1\"", "the rule has no id"),
        ("SecRule ARGS \"@rx a\" \"id:1\"\nSecRule ARGS \"@rx b\" \"id:1\"", "rule id 1 is already used"),
        ("SecRule ARGS \"@rx a\" \"id:1,skipAfter:END\"", "there is no marker \"END\""),
        ("SecRule ARGS \"@rx a\" \"id:1,chain\"", "a chain has no last rule"),
        ("SecRule ARGS \"@pmFromFile none.data\" \"id:1\"", "\"none.data\""),
        ("SecNothing On", "unknown directive"),
        ("SecRuleEngine Maybe", "invalid value \"Maybe\""),
        (
            "SecAuditLog a\nSecAuditLogType Concurrent",
            "\"SecAuditLogType Concurrent\" needs \"SecAuditLogStorageDir\"",
        ),
        ("SecAuditLogFormat XML", "audit log format \"XML\" is not supported"),
        ("SecUnicodeMapFile none.mapping 20127", "\"none.mapping\""),
    ] {
        let refused = refusal(&format!("modsecurity on; modsecurity_rules '{rules}';"));
        assert!(refused.contains(message), "{rules}: {refused}");
    }
    let refused = refusal("modsecurity_rules_remote key https://rules.example/;");
    assert!(refused.contains("rules of other servers are not supported"), "{refused}");
}
