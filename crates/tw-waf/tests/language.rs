//! The language: which rules match which requests.

use std::sync::Arc;

use tw_waf::{
    Connection, Files, Memo, Phase, PhaseProgress, RuleSet, Source, Store, Transaction, VerdictAction,
};

struct NoFiles;

impl Files for NoFiles {
    fn read(&mut self, _: &str, _: &str) -> Result<Vec<u8>, String> {
        Err("no file".to_owned())
    }

    fn expand(&mut self, _: &str, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

fn compile(rules: &str) -> Arc<RuleSet> {
    let text = format!("SecRuleEngine On\nSecRequestBodyAccess On\n{rules}");
    let source = Source { file: Arc::from("test"), line: 1, text: Arc::from(text.as_bytes()) };
    Arc::new(RuleSet::compile(&[source], &mut NoFiles).unwrap_or_else(|error| panic!("{error}: {rules}")))
}

/// Runs a request with a target, fields and a body. Returns its transaction.
fn run(
    rules: &Arc<RuleSet>,
    memo: &mut Memo,
    target: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Transaction {
    let mut transaction = Transaction::new(rules.clone(), Arc::new(Store::default()));
    transaction.set_connection(&Connection {
        client: "192.0.2.1",
        client_port: 4000,
        server: "192.0.2.2",
        server_port: 80,
        server_name: b"example.com",
        user: b"",
        unique_id: b"id",
        time: 1_800_000_000,
        utc_offset: 0,
    });
    transaction.set_request_line(b"GET", target.as_bytes(), b"HTTP/1.1");
    for (name, value) in fields {
        transaction.add_request_header(name.as_bytes(), value.as_bytes());
    }
    transaction.end_request_headers();
    if transaction.run(Phase::RequestHeaders, memo).is_none() {
        transaction.set_request_body(body.as_bytes(), body.len() as u64);
        transaction.run(Phase::RequestBody, memo);
    }
    transaction.run(Phase::Logging, memo);
    transaction
}

fn ids(transaction: &Transaction) -> Vec<u64> {
    transaction.messages().iter().map(|message| message.id).collect()
}

#[test]
fn rules_match_the_values_that_they_select() {
    let cases: &[(&str, &str, &[u64])] = &[
        ("SecRule ARGS:a \"@streq 1\" \"id:1,pass\"", "/?a=1&b=2", &[1]),
        ("SecRule ARGS:a \"@streq 1\" \"id:1,pass\"", "/?b=1", &[]),
        ("SecRule ARGS:/^a/ \"@streq 1\" \"id:1,pass\"", "/?ab=1", &[1]),
        ("SecRule ARGS|!ARGS:b \"@streq 1\" \"id:1,pass\"", "/?b=1", &[]),
        ("SecRule &ARGS \"@eq 2\" \"id:1,pass\"", "/?a=1&a=2", &[1]),
        ("SecRule &ARGS:c \"@eq 0\" \"id:1,pass\"", "/?a=1", &[1]),
        ("SecRule ARGS \"!@rx ^[0-9]$\" \"id:1,pass\"", "/?a=1&b=x", &[1]),
        ("SecRule ARGS \"!@rx ^[0-9]$\" \"id:1,pass\"", "/?a=1", &[]),
        ("SecRule ARGS \"@rx ^$\" \"id:1,pass\"", "/?a=", &[1]),
        ("SecRule ARGS_NAMES \"@streq a\" \"id:1,pass\"", "/?a", &[1]),
        ("SecRule REQUEST_FILENAME \"@endsWith /b c\" \"id:1,pass\"", "/a/b%20c?x", &[1]),
        ("SecRule REQUEST_BASENAME \"@streq b\" \"id:1,pass\"", "/a/b", &[1]),
        ("SecRule QUERY_STRING \"@streq a=%20\" \"id:1,pass\"", "/?a=%20", &[1]),
        ("SecRule REMOTE_ADDR \"@ipMatch 192.0.2.0/24\" \"id:1,pass\"", "/", &[1]),
        ("SecRule TIME_YEAR \"@eq 2027\" \"id:1,pass\"", "/", &[1]),
        ("SecRule ARGS \"@rx (?i)A\" \"id:1,pass,t:none,t:base64Decode\"", "/?a=YQ==", &[1]),
        (
            "SecRule ARGS \"@streq a b\" \"id:1,pass,multiMatch,t:urlDecode,t:lowercase\"",
            "/?a=a%252520b",
            &[],
        ),
        ("SecRule ARGS \"@contains %\" \"id:1,pass,multiMatch,t:urlDecode\"", "/?a=%2520", &[1]),
    ];
    for (rules, target, expected) in cases {
        let set = compile(rules);
        let mut memo = Memo::default();
        // The second request finds its values remembered.
        for _ in 0..2 {
            assert_eq!(ids(&run(&set, &mut memo, target, &[], "")), *expected, "{rules} {target}");
        }
    }
}

#[test]
fn chains_and_values_of_tx_decide() {
    let set = compile(
        "SecAction \"id:1,phase:1,pass,nolog,setvar:tx.limit=4,setvar:'tx.list=|a| |b|'\"
         SecRule ARGS:x \"@rx ^(.)(.)$\" \"id:2,phase:1,pass,capture,nolog,setvar:tx.pair=%{TX.2}%{TX.1},setvar:tx.sum=+3\"
         SecRule TX:pair \"@streq ba\" \"id:3,phase:1,pass,chain,msg:'%{MATCHED_VAR_NAME}=%{MATCHED_VAR}'\"
           SecRule ARGS:y \"@within %{tx.list}\" \"setvar:tx.sum=+2,setvar:!tx.pair\"
         SecRule TX:sum \"@gt %{tx.limit}\" \"id:4,phase:1,deny,status:418\"
         SecRule TX:pair \"@streq ba\" \"id:5,phase:5,pass\"",
    );
    let mut memo = Memo::default();
    let denied = run(&set, &mut memo, "/?x=ab&y=|a|", &[], "");
    assert_eq!(ids(&denied), [3, 4]);
    assert_eq!(denied.messages()[0].message, b"ARGS:y=|a|");
    assert_eq!(denied.verdict().map(|verdict| verdict.action.clone()), Some(VerdictAction::Deny(418)));
    assert_eq!(denied.tx_number("sum"), Some(5));
    let passed = run(&set, &mut memo, "/?x=ab&y=c", &[], "");
    assert_eq!(ids(&passed), [5]);
}

#[test]
fn skips_and_controls_change_the_course() {
    let set = compile(
        "SecRule ARGS:skip \"@eq 1\" \"id:1,phase:1,pass,nolog,skipAfter:END\"
         SecRule ARGS:skip \"@eq 2\" \"id:2,phase:1,pass,nolog,skip:1\"
         SecRule ARGS:skip \"@eq 3\" \"id:3,phase:1,pass,nolog,ctl:ruleRemoveById=10-11\"
         SecRule ARGS:skip \"@eq 4\" \"id:4,phase:1,pass,nolog,ctl:ruleRemoveTargetByTag=mine;ARGS:v\"
         SecRule ARGS:skip \"@eq 5\" \"id:5,phase:1,pass,nolog,ctl:ruleEngine=Off\"
         SecRule ARGS:v \"@eq 9\" \"id:10,phase:1,pass,tag:mine\"
         SecMarker END
         SecRule ARGS \"@eq 9\" \"id:11,phase:2,pass\"",
    );
    let mut memo = Memo::default();
    for (skip, expected) in [(0, &[10, 11][..]), (1, &[11]), (3, &[]), (4, &[11]), (5, &[])] {
        let results = ids(&run(&set, &mut memo, &format!("/?skip={skip}&v=9"), &[], ""));
        assert_eq!(results, expected, "{skip}");
    }
}

#[test]
fn bodies_are_parsed_as_rules_choose() {
    let set = compile(
        "SecRule REQUEST_HEADERS:Content-Type \"@contains json\" \"id:1,phase:1,pass,nolog,ctl:requestBodyProcessor=JSON\"
         SecRule ARGS:json.a.array_1 \"@streq x\" \"id:2,phase:2,pass\"
         SecRule REQBODY_ERROR \"@eq 1\" \"id:3,phase:2,deny,status:400\"
         SecRule REQUEST_BODY \"@contains raw\" \"id:4,phase:2,pass\"",
    );
    let json = [("Content-Type", "application/json")];
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let mut memo = Memo::default();
    assert_eq!(ids(&run(&set, &mut memo, "/", &json, r#"{"a": [1, "x"]}"#)), [2]);
    assert_eq!(ids(&run(&set, &mut memo, "/", &json, "{")), [3]);
    assert_eq!(ids(&run(&set, &mut memo, "/", &form, "a=raw")), [4]);
    // A body that no parser reads is one value, so that no media type hides it from rules.
    assert_eq!(ids(&run(&set, &mut memo, "/", &[], "raw")), [4]);
    assert_eq!(ids(&run(&set, &mut memo, "/", &json, "[\"raw\"]")), Vec::<u64>::new());
}

#[test]
fn detection_decides_nothing() {
    let set = compile("SecRuleEngine DetectionOnly\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,deny\"");
    let transaction = run(&set, &mut Memo::default(), "/?a=1", &[], "");
    assert_eq!(ids(&transaction), [1]);
    assert_eq!(transaction.verdict(), None);
}

/// Rules with every kind of condition: filtered, negated, chained, counted, with values of `TX`, with effects.
const MIXED: &str =
    "SecRule ARGS \"@rx (?i)evil\" \"id:1,phase:2,pass,setvar:tx.score=+5,t:urlDecodeUni,t:lowercase\"
     SecRule ARGS_NAMES \"!@rx ^[a-z]+$\" \"id:2,phase:2,pass\"
     SecRule ARGS:a \"@contains x\" \"id:3,phase:2,pass,chain,capture\"
       SecRule ARGS:b \"@rx ^(y)(.*)$\" \"capture,setvar:tx.rest=%{TX.2}\"
     SecRule &ARGS \"@gt 2\" \"id:4,phase:2,pass\"
     SecRule TX:score \"@ge 10\" \"id:5,phase:2,pass,skipAfter:END\"
     SecRule REQUEST_URI|REQUEST_HEADERS \"@pm evil bad\" \"id:6,phase:2,pass\"
     SecMarker END
     SecRule TX:rest \"@streq z\" \"id:7,phase:2,deny\"
     SecRule QUERY_STRING \"@validateByteRange 32-126\" \"id:8,phase:2,pass,multiMatch,t:none,t:urlDecode\"";

const TARGETS: [&str; 6] = [
    "/?a=x&b=yz",
    "/?a=evil&c=EVIL&d=%65vil",
    "/bad?a=x&b=yy&C1=2",
    "/?q=%00&a=x",
    "/",
    "/?long=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaevil",
];

fn started(rules: &Arc<RuleSet>, target: &str) -> Transaction {
    let mut transaction = Transaction::new(rules.clone(), Arc::new(Store::default()));
    transaction.set_request_line(b"GET", target.as_bytes(), b"HTTP/1.1");
    transaction.end_request_headers();
    transaction
}

#[test]
fn interrupted_phase_finds_what_one_in_a_row_finds() {
    let set = compile(MIXED);
    for target in TARGETS {
        let mut whole = started(&set, target);
        let verdict = whole.run(Phase::RequestBody, &mut Memo::default());
        let mut parts = started(&set, target);
        let mut memo = Memo::default();
        let mut count = 0;
        let ended = loop {
            match parts.run_within(Phase::RequestBody, &mut memo, &mut || true) {
                PhaseProgress::Done(verdict) => break verdict,
                PhaseProgress::Interrupted => count += 1,
            }
            // A step that is too long for a loop is left to a thread with time.
            if count > 50 {
                break parts.run(Phase::RequestBody, &mut Memo::default());
            }
        };
        assert!(count > 0, "{target}");
        assert_eq!((ids(&parts), ended), (ids(&whole), verdict), "{target}");
    }
}

#[test]
fn trace_shows_all_and_changes_nothing() {
    let set = compile(MIXED);
    for target in TARGETS {
        let mut plain = started(&set, target);
        let verdict = plain.run(Phase::RequestBody, &mut Memo::default());
        let mut traced = started(&set, target);
        traced.start_trace();
        assert_eq!(traced.run(Phase::RequestBody, &mut Memo::default()), verdict, "{target}");
        assert_eq!(ids(&traced), ids(&plain), "{target}");
        assert!(
            traced
                .trace()
                .contains("(Rule: 1) Executing operator \"Rx\" with param \"(?i)evil\" against ARGS.")
        );
    }
    let mut traced = started(&set, TARGETS[0]);
    traced.start_trace();
    traced.run(Phase::RequestBody, &mut Memo::default());
    for line in [
        " Target value: \"x\" (Variable: ARGS:a)",
        "Saving variable: TX:rest with value: z",
        " Running action deny",
    ] {
        assert!(traced.trace().contains(line), "{line} in {}", traced.trace());
    }
}

#[test]
fn rules_are_changed_wherever_their_directives_stand() {
    for (rules, target, expected) in [
        ("SecRuleRemoveById 1\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,pass\"", "/?a=1", &[][..]),
        (
            "SecRule ARGS \"@eq 1\" \"id:1,phase:1,pass\"\nSecRuleRemoveById 1\nSecRule ARGS \"@eq 2\" \"id:1,phase:1,pass\"",
            "/?a=2",
            &[1],
        ),
        ("SecRuleRemoveByTag mine\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,pass,tag:mine\"", "/?a=1", &[]),
        ("SecRuleUpdateTargetById 1 !ARGS:a\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,pass\"", "/?a=1", &[]),
        (
            "SecRuleUpdateActionById 1 nolog,noauditlog\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,pass\"",
            "/?a=1",
            &[],
        ),
        (
            "SecRule ARGS \"@eq 1\" \"id:1,phase:1,pass,chain\"\nSecRule ARGS:b \"@eq 2\" \"status:418\"\nSecRuleUpdateActionById 1:1 t:length",
            "/?a=1&b=22",
            &[1],
        ),
    ] {
        let set = compile(rules);
        assert_eq!(ids(&run(&set, &mut Memo::default(), target, &[], "")), expected, "{rules}");
    }
}

#[test]
fn variables_have_the_values_of_the_request() {
    let body = "a=1";
    let fields = [
        ("Host", "Example.org:8080"),
        ("Authorization", "Basic QWxhZGRpbjpvcGVu"),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    for (target, expected) in [
        ("SERVER_NAME", "Example.org"),
        ("REMOTE_USER", "Aladdin"),
        ("AUTH_TYPE", "Basic"),
        ("PATH_INFO", "/x y"),
        ("REQUEST_BODY", "a=1"),
        ("REQUEST_BODY_LENGTH", "3"),
        ("MODSEC_BUILD", "030014000"),
        ("FULL_REQUEST_LENGTH", "114"),
        ("RULE:id", "1"),
        ("RULE:msg", "text 1"),
        ("ENV:name", "value"),
        ("SESSIONID", "s1"),
    ] {
        let set = compile(&format!(
            "SecAction \"id:9,phase:1,pass,nolog,setenv:name=value,setsid:s1\"
             SecRule {target} \"@streq {expected}\" \"id:1,phase:2,pass,msg:'text %{{ARGS.a}}'\""
        ));
        let transaction = run(&set, &mut Memo::default(), "/x%20y", &fields, body);
        assert_eq!(ids(&transaction), [1], "{target}");
    }
}

#[test]
fn odd_rules_are_refused_with_their_place() {
    for (rules, message) in [
        ("SecRule ARGS @rx", "no id"),
        ("SecRule ARGS", "two or three arguments"),
        ("SecRule ARGS|NOTHING \"@rx a\" \"id:1\"", "\"NOTHING\" is not supported"),
        ("SecRule ARGS \"@nothing a\" \"id:1\"", "unknown operator"),
        ("SecRule ARGS \"@rx (\" \"id:1\"", "unclosed group"),
        ("SecRule ARGS \"@rx a++\" \"id:1\"", "possessive"),
        ("SecRule ARGS \"@pm\" \"id:1\"", "no phrases"),
        ("SecRule ARGS \"@ipMatch 10.0.0.0/33\" \"id:1\"", "invalid address"),
        ("SecRule ARGS \"@validateByteRange 1-300\" \"id:1\"", "invalid range of bytes"),
        ("SecRule ARGS \"@rx a\" \"id:0\"", "no id"),
        ("SecRule ARGS \"@rx a\" \"id:x\"", "invalid number"),
        ("SecRule ARGS \"@rx a\" \"id:1,phase:6\"", "invalid phase"),
        ("SecRule ARGS \"@rx a\" \"id:1,phase:logging,status:20\"", "invalid status"),
        ("SecRule ARGS \"@rx a\" \"id:1,severity:9\"", "invalid severity"),
        ("SecRule ARGS \"@rx a\" \"id:1,setvar:nothing.a=1\"", "unknown collection"),
        ("SecRule ARGS \"@rx a\" \"id:1,expirevar:tx.a=1\"", "can expire"),
        ("SecRule ARGS \"@rx a\" \"id:1,ctl:nothing=1\"", "is not supported"),
        ("SecRule ARGS \"@rx a\" \"id:1,ctl:requestBodyProcessor=YAML\"", "unknown processor"),
        ("SecRule ARGS \"@rx a\" \"id:1,msg:'%{NOTHING}'\"", "\"NOTHING\" is not supported"),
        ("SecRule ARGS \"@rx a\" \"id:1,msg:'open\"", "unterminated"),
        ("SecRule XML:/a/b \"@rx a\" \"id:1\"", "of XML only"),
        ("SecRule ARGS \"@rx a\" \"id:1,skipAfter:END\"\nSecMarker OTHER", "no marker"),
        ("SecRuleUpdateActionById 1:1 pass\nSecRule ARGS \"@rx a\" \"id:1\"", "the chain is shorter"),
        ("SecDefaultAction \"phase:1,log\"", "no disruptive action"),
        ("SecDefaultAction \"phase:1,deny,id:1\"", "are defaults"),
        ("SecRequestBodyLimit many", "invalid number"),
        ("SecArgumentSeparator ab", "one character"),
        ("SecAuditLogRelevantStatus (", "SecAuditLogRelevantStatus"),
    ] {
        let text: Arc<[u8]> = Arc::from(format!("\n{rules}").as_bytes());
        let source = Source { file: Arc::from("odd.conf"), line: 1, text };
        let error = RuleSet::compile(&[source], &mut NoFiles).map(drop).unwrap_err();
        assert!(error.to_string().contains(message), "{rules}: {error}");
        assert!(error.place.line >= 2 && &*error.place.file == "odd.conf", "{rules}: {error}");
    }
}
