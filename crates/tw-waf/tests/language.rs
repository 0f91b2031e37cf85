//! The language: which rules match which requests.

use std::sync::Arc;

use tw_waf::{Connection, Files, Memo, Phase, RuleSet, Source, Store, Transaction, VerdictAction};

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
        let found = ids(&run(&set, &mut memo, &format!("/?skip={skip}&v=9"), &[], ""));
        assert_eq!(found, expected, "{skip}");
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
    assert_eq!(ids(&run(&set, &mut memo, "/", &[], "raw")), Vec::<u64>::new());
}

#[test]
fn detection_decides_nothing() {
    let set = compile("SecRuleEngine DetectionOnly\nSecRule ARGS \"@eq 1\" \"id:1,phase:1,deny\"");
    let transaction = run(&set, &mut Memo::default(), "/?a=1", &[], "");
    assert_eq!(ids(&transaction), [1]);
    assert_eq!(transaction.verdict(), None);
}
