//! Error log, audit log and variables.

use super::{post, start_firewall, start_firewall_with_directory};
use crate::support::{page, server, start};

#[test]
fn matches_are_logged_as_modsecurity_logs_them() {
    let server = start_firewall(
        "SecRule ARGS:a \"@rx ev(i)l\" \"id:7,phase:1,deny,capture,msg:\\'Attack\\',logdata:\\'%{TX.1} in %{MATCHED_VAR_NAME}\\',severity:CRITICAL,tag:\\'mine\\',ver:\\'v1\\'\"
         SecRule ARGS:b \"@rx x\" \"id:8,phase:1,pass,msg:\\'Odd\\'\"",
        "location / { }",
    );
    assert_eq!(page(&server, "/?b=x").0, 200);
    assert_eq!(page(&server, "/?a=evil").0, 403);
    for part in [
        "ModSecurity: Access denied with code 403 (phase 1). Matched \"Operator `Rx' with parameter `ev(i)l' against variable `ARGS:a' (Value: `evil' )",
        "[id \"7\"]",
        "[msg \"Attack\"] [data \"i in ARGS:a\"] [severity \"2\"] [ver \"v1\"]",
        "[tag \"mine\"] [hostname \"localhost\"] [uri \"/\"]",
        "ModSecurity: Warning. Matched \"Operator `Rx' with parameter `x' against variable `ARGS:b'",
    ] {
        server.wait_error_log(part).unwrap();
    }
}

#[test]
fn detection_logs_and_decides_nothing() {
    let server = start(
        server().file("html/index.html", "page"),
        "log_format l '$request_uri $status $modsecurity_verdict $modsecurity_rule $modsecurity_matches $modsecurity_score';
         access_log logs/access.log l;
         server {
           listen 127.0.0.1:{port}; root html; modsecurity on; modsecurity_use_error_log off;
           modsecurity_rules '
             SecRule ARGS \"@contains a\" \"id:1,phase:1,pass,setvar:tx.anomaly_score=+5\"
             SecRule ARGS \"@contains b\" \"id:2,phase:1,deny\"
             SecRuleEngine DetectionOnly';
           location /on { modsecurity_rules 'SecRuleEngine On'; try_files /index.html =404; }
         }",
    );
    assert_eq!(page(&server, "/?x=0").0, 200);
    assert_eq!(page(&server, "/?x=ab").0, 200);
    assert_eq!(page(&server, "/on?x=ab").0, 403);
    let lines = server.access_log(3).unwrap();
    assert_eq!(
        lines,
        ["/?x=0 200 passed - - -", "/?x=ab 200 detected - 1,2 5", "/on?x=ab 403 blocked 2 1,2 5"]
    );
}

#[test]
fn audit_log_has_records_of_relevant_requests() {
    let server = start_firewall(
        "SecAuditEngine RelevantOnly
         SecAuditLogRelevantStatus \"^(?:5|4(?!04))\"
         SecAuditLogParts ABCFHZ
         SecAuditLogFormat JSON
         SecAuditLog logs/audit.log
         SecRule ARGS \"@contains evil\" \"id:1,phase:2,deny,msg:Attack\"
         SecRule ARGS \"@contains quiet\" \"id:2,phase:2,pass,noauditlog\"",
        "location / { } modsecurity_transaction_id \"t-$arg_id\";",
    );
    for target in ["/", "/none", "/?a=quiet"] {
        page(&server, target);
    }
    post(&server, "/?id=5", "application/x-www-form-urlencoded", "a=evil");
    let lines = server.log("logs/audit.log", 1).unwrap();
    let [text] = &*lines else { panic!("{lines:?}") };
    for part in [
        "\"unique_id\":\"t-5\"",
        "\"body\":\"a=evil\"",
        "\"ruleId\":\"1\"",
        "\"http_code\":403",
        "\"secrules_engine\":\"Enabled\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn audit_log_has_the_format_of_modsecurity() {
    let server = start_firewall(
        "SecAuditEngine RelevantOnly
         SecAuditLogParts ABFHZ
         SecAuditLog logs/audit.log
         SecRule ARGS \"@contains evil\" \"id:1,phase:1,deny,msg:Attack\"",
        "location / { } modsecurity_transaction_id t1;",
    );
    page(&server, "/?a=evil");
    let text = server.log("logs/audit.log", 12).unwrap().join("\n");
    for part in [
        "---A--\n[",
        "] t1 127.0.0.1 ",
        "---B--\nGET /?a=evil HTTP/1.1\nHost: localhost",
        "HTTP/1.1 403",
        "[id \"1\"]",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn concurrent_audit_log_has_a_file_for_each_record() {
    let server = start_firewall_with_directory(
        "SecAuditEngine RelevantOnly
         SecAuditLogParts ABHZ
         SecAuditLogType Concurrent
         SecAuditLogStorageDir audit/records
         SecAuditLog logs/index.log
         SecRule ARGS \"@contains evil\" \"id:1,phase:1,deny,msg:Attack\"",
        "location / { } modsecurity_transaction_id \"t-$arg_id\";",
    );
    for id in ["1", "../2"] {
        assert_eq!(page(&server, &format!("/?a=evil&id={id}")).0, 403);
    }
    page(&server, "/");
    let lines = server.log("logs/index.log", 2).unwrap();
    assert_eq!(lines.len(), 2);
    for (line, name) in lines.iter().zip(["-t-1", "-t-.._2"]) {
        let file = line.split(' ').find(|word| word.contains("audit/records/")).unwrap();
        assert!(file.ends_with(name), "{line}");
        let name = file.rsplit_once("audit/records").unwrap().1;
        // The line may be written before the file.
        let record = server.log(&format!("audit/records{name}"), 7).unwrap().join("\n");
        assert!(record.contains("[id \"1\"]"), "{record}");
    }
}
