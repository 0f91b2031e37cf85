//! Invariants for the firewall. The input is a text of rules, and behind the first zero byte a target, a media type and a body with zero bytes
//! between them. Rules compile or name their place. Rules find the same whether values are remembered or not, whether their phase
//! is interrupted or not, and with the filter or without it.

use std::sync::{Arc, OnceLock};

use tw_waf::{
    Connection, Files, Memo, Phase, PhaseProgress, RecordTime, RuleSet, Source, Store, Transaction,
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

/// Transformations, each of which a rule of its own has.
const TRANSFORMATIONS: &str = "base64Decode base64DecodeExt base64Encode cmdLine compressWhitespace cssDecode escapeSeqDecode hexDecode \
    hexEncode htmlEntityDecode jsDecode length lowercase md5 normalizePath normalizePathWin parityEven7bit parityOdd7bit parityZero7bit \
    removeComments removeCommentsChar removeNulls removeWhitespace replaceComments replaceNulls sha1 sqlHexDecode trim trimLeft \
    trimRight uppercase urlDecode urlDecodeUni urlEncode utf8toUnicode";

const RULES: &str = "SecRuleEngine DetectionOnly\nSecRequestBodyAccess On\n\
    SecRule REQUEST_HEADERS:Content-Type \"@contains json\" \"id:1,phase:1,pass,ctl:requestBodyProcessor=JSON\"\n\
    SecRule REQUEST_HEADERS:Content-Type \"@contains xml\" \"id:2,phase:1,pass,ctl:requestBodyProcessor=XML\"\n\
    SecRule ARGS|ARGS_NAMES|XML:/* \"@detectSQLi\" \"id:3,phase:2,pass,capture,logdata:'%{TX.0}'\"\n\
    SecRule ARGS|FILES|XML://@* \"@detectXSS\" \"id:4,phase:2,pass\"\n\
    SecRule ARGS \"@validateUtf8Encoding\" \"id:5,phase:2,pass\"\n\
    SecRule ARGS \"@validateUrlEncoding\" \"id:6,phase:2,pass\"\n\
    SecRule MULTIPART_PART_HEADERS \"@rx ^([^:]+):(.*)$\" \"id:7,phase:2,pass,capture,setvar:tx.h_%{TX.1}=%{TX.2}\"\n\
    SecRule TX:/^h_/ \"@rx (?i)form\" \"id:8,phase:2,pass\"\n\
    SecRule ARGS \"@rx (?i)[a-z]+=(?:sel|uni)\" \"id:9,phase:2,pass,multiMatch,t:urlDecodeUni,t:lowercase\"\n";

fn compile(text: &[u8]) -> Result<RuleSet, tw_waf::RuleError> {
    RuleSet::compile(&[Source { file: Arc::from("rules"), line: 1, text: text.into() }], &mut NoFiles)
}

fn known() -> &'static Arc<RuleSet> {
    static RULE_SET: OnceLock<Arc<RuleSet>> = OnceLock::new();
    RULE_SET.get_or_init(|| {
        let each = (100..).zip(TRANSFORMATIONS.split_whitespace());
        let each = each.map(|(id, name)| {
            format!("SecRule ARGS|REQUEST_URI \"@rx a.?b|[0-9]{{3}}\" \"id:{id},phase:2,pass,t:{name}\"\n")
        });
        let text = RULES.to_owned() + &each.collect::<String>();
        Arc::new(compile(text.as_bytes()).expect("the rules of this file are valid"))
    })
}

/// Course of a request under rules.
#[derive(Clone, Copy)]
enum Course {
    /// Every phase in a row.
    Whole,
    /// Every phase is interrupted after each step, and ended by a thread with time.
    Interrupted,
    /// Every rule compares every value, and has lines about it.
    Traced,
}

fn run_phase(transaction: &mut Transaction, phase: Phase, memo: &mut Memo, course: Course) {
    if matches!(course, Course::Interrupted) {
        for _ in 0..100 {
            if matches!(transaction.run_within(phase, memo, &mut || true), PhaseProgress::Done(_)) {
                return;
            }
        }
    }
    transaction.run(phase, memo);
}

/// Ids that match.
fn run(rules: &Arc<RuleSet>, memo: &mut Memo, input: &[u8], course: Course) -> Vec<u64> {
    let mut parts = input.splitn(3, |byte| *byte == 0);
    let mut transaction = Transaction::new(rules.clone(), Arc::new(Store::default()));
    if matches!(course, Course::Traced) {
        transaction.start_trace();
    }
    transaction.set_connection(&Connection {
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
    transaction.set_request_line(b"POST", parts.next().unwrap_or_default(), b"HTTP/1.1");
    transaction.add_request_header(b"Content-Type", parts.next().unwrap_or_default());
    transaction.end_request_headers();
    run_phase(&mut transaction, Phase::RequestHeaders, memo, course);
    let body = parts.next().unwrap_or_default();
    transaction.set_request_body(body, body.len() as u64);
    run_phase(&mut transaction, Phase::RequestBody, memo, course);
    run_phase(&mut transaction, Phase::Logging, memo, course);
    let time = RecordTime { local: "now", iso8601: "now" };
    assert!(transaction.audit_record(time).ends_with(b"\n"));
    for message in transaction.messages() {
        assert!(!transaction.log_line(message).to_string().contains('\n'));
    }
    transaction.messages().iter().map(|message| message.id).collect()
}

pub(crate) fn check(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (rules, input) = data.split_at(at);
    let input = input.get(1..).unwrap_or_default();
    match compile(rules) {
        Ok(rules) => {
            let rules = Arc::new(rules);
            let courses = [Course::Whole, Course::Interrupted, Course::Traced];
            let [whole, interrupted, traced] =
                courses.map(|course| run(&rules, &mut Memo::default(), input, course));
            assert_eq!(whole, interrupted);
            assert_eq!(whole, traced);
        }
        Err(error) => assert!(error.place.line >= 1 || error.place.file.is_empty(), "{error}"),
    }
    let mut memo = Memo::default();
    let first = run(known(), &mut memo, input, Course::Whole);
    assert_eq!(first, run(known(), &mut memo, input, Course::Whole));
    assert_eq!(first, run(known(), &mut memo, input, Course::Interrupted));
    assert_eq!(first, run(known(), &mut Memo::default(), input, Course::Traced));
}
