//! `--explain` and `tailwater waf test`: rules without a server.

use std::process::Command;

use tw_testkit::TempDir;

const CONF: &str = "
    events { }
    http {
        modsecurity_rules '
            SecRuleEngine On
            SecRequestBodyAccess On
            SecRule ARGS \"@contains evil\" \"id:1,phase:2,pass,setvar:tx.anomaly_score=+5,msg:Evil\"
            SecRule REQUEST_HEADERS:User-Agent \"@contains scanner\" \"id:2,phase:1,pass,setvar:tx.anomaly_score=+3\"
            SecRule TX:anomaly_score \"@ge 5\" \"id:3,phase:2,deny,msg:Score\"';
        server {
            listen 127.0.0.1:8099; server_name a.example; modsecurity on;
            location / { return 204; }
            location /free { modsecurity off; return 204; }
        }
    }";

/// Runs the program with words and these files. Returns what it prints.
fn run(words: &[&str], files: &[(&str, &str)]) -> String {
    let dir = TempDir::new("waf-test").unwrap();
    for (name, text) in files {
        dir.write(name, text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = command.current_dir(dir.path()).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn explanation_names_the_rules_and_the_score() {
    let dir = TempDir::new("waf-explain").unwrap();
    let prefix = dir.path().display().to_string();
    dir.write("nginx.conf", CONF).unwrap();
    for (url, parts) in [
        (
            "http://a.example:8099/?a=evil",
            &[
                "firewall",
                "blocked by rule 3 in phase 2, 3 rules, anomaly score 5",
                "rule 1 (modsecurity_rules:4): Evil",
            ][..],
        ),
        ("http://a.example:8099/?a=good", &["firewall", "passed, 3 rules"]),
    ] {
        let words = ["-p", &*prefix, "-c", "nginx.conf", "-q", "-t", "--explain", url];
        let text = run(&words, &[]);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let words =
        ["-p", &*prefix, "-c", "nginx.conf", "-q", "-t", "--explain", "http://a.example:8099/free?a=evil"];
    assert!(!run(&words, &[]).contains("firewall"));
}

#[test]
fn request_of_a_file_is_checked_with_its_body() {
    let request = "POST /x HTTP/1.1\r\nHost: a.example:8099\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\na=evil";
    let files = [("nginx.conf", CONF), ("request.txt", request)];
    let text = run(&["waf", "test", "request.txt", "-p", ".", "-c", "nginx.conf"], &files);
    for part in ["POST a.example/x\n  blocked by rule 3 in phase 2", "0 passed, 0 detected, 1 blocked"] {
        assert!(text.contains(part), "{text}");
    }
    // A request seldom names the port of the server: the name finds the address.
    let without_port = request.replace(":8099", "");
    let files_without = [("nginx.conf", CONF), ("request.txt", &*without_port)];
    let found_text = run(&["waf", "test", "request.txt", "-p", ".", "-c", "nginx.conf"], &files_without);
    assert_eq!(found_text, text);
    let text = run(&["waf", "test", "request.txt", "-p", ".", "-c", "nginx.conf", "--details"], &files);
    for part in [
        "Target value: \"evil\" (Variable: ARGS:a)",
        "Rule returned 1.",
        "with parameter `evil' against variable `ARGS:a'",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn lines_of_an_access_log_are_checked() {
    let line = |target: &str, agent: &str| {
        format!(
            "192.0.2.1 - - [29/Nov/2026:17:00:00 +0000] \"GET {target} HTTP/1.1\" 200 5 \"-\" \"{agent}\"\n"
        )
    };
    let log =
        [line("/", "a"), line("/?q=evil", "a"), line("/", "scanner"), line("/free?q=evil", "a")].concat();
    let files = [("nginx.conf", CONF), ("access.log", &*log)];
    let words = ["waf", "test", "access.log", "-p", ".", "-c", "nginx.conf", "--host", "a.example:8099"];
    let text = run(&words, &files);
    let last = "1 passed, 1 detected, 1 blocked, 1 without rules, 0 refused before them\n";
    assert!(text.ends_with(last), "{text}");
}
