//! Requests of ordinary people and programs under the OWASP Core Rule Set: paranoia level 1 blocks none of them.
//!
//! The rule set is not part of this repository: `TAILWATER_CRS` names its directory, with `crs-setup.conf.example` and `rules`. The test is
//! left out without it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tw_testkit::Lacks;
use tw_waf::{Connection, Files, Memo, Phase, RuleSet, Source, Store, Transaction};

const REQUESTS: &str = include_str!("data/ordinary_traffic.txt");
const SETTINGS: &str = r#"SecRuleEngine On
SecRequestBodyAccess On
SecRule REQUEST_HEADERS:Content-Type "@rx ^(?:application(?:/soap\+|/)|text/)xml" "id:200000,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=XML"
SecRule REQUEST_HEADERS:Content-Type "@rx ^application/(?:[a-z0-9.-]+\+)?json" "id:200001,phase:1,t:none,t:lowercase,pass,nolog,ctl:requestBodyProcessor=JSON"
SecRule REQBODY_ERROR "!@eq 0" "id:200002,phase:2,t:none,log,deny,status:400"
SecRule MULTIPART_STRICT_ERROR "!@eq 0" "id:200003,phase:2,t:none,log,deny,status:400"
SecRule MULTIPART_UNMATCHED_BOUNDARY "@eq 1" "id:200004,phase:2,t:none,log,deny,status:400"
"#;

/// Files of a directory.
struct Disk(PathBuf);

impl Files for Disk {
    fn read(&mut self, name: &str, from: &str) -> Result<Vec<u8>, String> {
        let beside = Path::new(from).parent().unwrap_or(Path::new("")).join(name);
        let path = if beside.is_file() { beside } else { self.0.join(name) };
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn expand(&mut self, pattern: &str, _: &str) -> Result<Vec<String>, String> {
        let Some(directory) = pattern.strip_suffix("/*.conf") else { return Ok(vec![pattern.to_owned()]) };
        let entries = std::fs::read_dir(self.0.join(directory)).map_err(|error| error.to_string())?;
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut names: Vec<String> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
            .map(|path| path.to_str().unwrap().to_owned())
            .collect();
        names.sort();
        Ok(names)
    }
}

/// Runs a request as it is sent. Returns the lines about its matches if it was blocked.
fn blocked(rules: &Arc<RuleSet>, memo: &mut Memo, request: &str) -> Option<Vec<String>> {
    let (head, body) = request.split_once("\n\n").unwrap();
    let mut lines = head.lines();
    let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
    let [method, target, version] = *words else { panic!("{request}") };
    let mut transaction = Transaction::new(rules.clone(), Arc::new(Store::default()));
    transaction.set_connection(&Connection {
        client: "192.0.2.1",
        client_port: 4000,
        server: "192.0.2.2",
        server_port: 443,
        server_name: b"www.example.com",
        user: b"",
        unique_id: b"id",
        time: 1_800_000_000,
        utc_offset: 0,
    });
    transaction.set_request_line(method.as_bytes(), target.as_bytes(), version.as_bytes());
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        transaction.add_request_header(name.as_bytes(), value.as_bytes());
    }
    transaction.end_request_headers();
    if transaction.run(Phase::RequestHeaders, memo).is_none() {
        transaction.set_request_body(body.as_bytes(), body.len() as u64);
        transaction.run(Phase::RequestBody, memo);
    }
    transaction.verdict()?;
    Some(transaction.messages().iter().map(|message| transaction.log_line(message).to_string()).collect())
}

#[test]
fn core_rule_set_blocks_no_ordinary_request() {
    let Some(directory) = std::env::var_os("TAILWATER_CRS") else {
        tw_testkit::leave_out(Lacks::Run, "no Core Rule Set (TAILWATER_CRS)");
        return;
    };
    let text = format!("{SETTINGS}Include crs-setup.conf.example\nInclude rules/*.conf\n");
    let source = Source { file: Arc::from(""), line: 1, text: Arc::from(text.as_bytes()) };
    let rules = Arc::new(RuleSet::compile(&[source], &mut Disk(directory.into())).unwrap());
    let mut memo = Memo::default();
    let mut count = 0;
    for request in REQUESTS.split("\n%%\n") {
        let lines = blocked(&rules, &mut memo, request);
        assert_eq!(lines, None, "{request}");
        count += 1;
    }
    assert!(count > 50);
    let attack = "GET /?id=1%27%20or%201=1--%20&x=%3Cscript%3Ealert(1)%3C/script%3E HTTP/1.1\nHost: www.example.com\nUser-Agent: a\nAccept: */*\n\n";
    assert!(blocked(&rules, &mut memo, attack).is_some());
}
