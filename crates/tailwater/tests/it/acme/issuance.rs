//! Automatic certificates (ACME) from an authority that checks like a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustls::ALL_VERSIONS;
use tw_acme::{Identifier, KeyType, file_id};
use tw_testkit::acme::{Ca, Misbehaviour, Script};
use tw_testkit::dns::{DnsServer, kind};
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Server, Signal, TempDir, wait};

use crate::support::metrics::metric_values;
use crate::support::reload::reload;
use crate::support::{refusal_of, request, server, start};

/// `acme_issuer` for this authority, with more in it.
fn issuer(ca: &Ca, more: &str) -> String {
    format!("acme_issuer ca {{ uri {}; ssl_trusted_certificate ca.crt; {more} }}", ca.uri())
}

/// An `http` block with a server that redirects, and one over TLS for these names.
fn http(ca: &Ca, more: &str, names: &str) -> String {
    format!(
        "{} server {{ listen 127.0.0.1:{{port}}; return 301 https://$host$request_uri; }}
         server {{ listen 127.0.0.1:{{port1}} ssl; server_name example.com; acme_certificate ca {names};
                  ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;
                  location / {{ return 200 \"ok $acme_certificate_key\"; }}
                  location = /metrics {{ metrics; }}
                  location /chain {{ return 200 $acme_certificate; }} }}",
        issuer(ca, more)
    )
}

/// Tells an authority the addresses of a server.
fn at(ca: &Ca, server: &Server) {
    ca.change(|script| script.ports = Some((server.addr().port(), server.addr_of(1).port())));
}

fn serve(ca: &Ca, more: &str, names: &str) -> Server {
    let server = start(server().file("conf/ca.crt", &ca.trust), &http(ca, more, names));
    at(ca, &server);
    server
}

/// Returns true if a client that trusts the authority accepts the certificate for a name.
fn is_trusted(ca: &Ca, server: &Server, name: &str) -> bool {
    Client::connect_tls(server.addr_of(1), &ca.authority.client(ALL_VERSIONS), name).is_ok()
}

/// Waits until a dozen clients in a row accept the certificate.
fn wait_trusted(ca: &Ca, server: &Server, name: &str) {
    let all = || (0..12).all(|_| is_trusted(ca, server, name));
    assert!(wait::until(wait::TIMEOUT, all), "{:?}\n{}", ca.said(), server.error_log());
}

/// Certificate that the server presents.
fn leaf(ca: &Ca, server: &Server) -> Vec<u8> {
    let client =
        Client::connect_tls(server.addr_of(1), &ca.authority.client(ALL_VERSIONS), "example.com").unwrap();
    client.session().unwrap().peer_certificates().unwrap()[0].to_vec()
}

fn get(ca: &Ca, server: &Server, target: &str) -> String {
    let mut client =
        Client::connect_tls(server.addr_of(1), &ca.authority.client(ALL_VERSIONS), "example.com").unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: example.com\r\n\r\n")).unwrap();
    client.read_response().unwrap().text()
}

#[test]
fn http_01_issues_a_certificate_that_survives_restart() {
    let ca = Ca::start(Script { has_terms: true, ..Script::default() });
    let more = "contact me@example.com; accept_terms_of_service; state_path state;";
    let builder = server().with_master().file("conf/ca.crt", &ca.trust);
    let mut server = builder.start(&format!("http {{ {} }}", http(&ca, more, ""))).unwrap();
    at(&ca, &server);
    wait_trusted(&ca, &server, "example.com");
    let expected = [
        "account [\"mailto:me@example.com\"]",
        "order example.com",
        "challenge http-01 example.com ok",
        "certificate example.com",
    ];
    assert_eq!(ca.said(), expected);
    let text = get(&ca, &server, "/metrics");
    let labels = "{issuer=\"ca\",certificate=\"example.com\"}";
    let of = |name: &str| metric_values::<f64>(&text, &format!("acme_certificate_{name}{labels}"));
    assert_eq!((of("issued"), of("failures")), (vec![1.0], vec![0.0]), "{text}");
    let end = of("expiry_timestamp_seconds")[0];
    // The certificate is used before the time of the next order is chosen.
    let is_planned = || {
        let text = get(&ca, &server, "/metrics");
        let renewal =
            metric_values::<f64>(&text, &format!("acme_certificate_renewal_timestamp_seconds{labels}"))[0];
        renewal > 1.7e9 && renewal < end
    };
    assert!(wait::until(wait::TIMEOUT, is_planned), "{} {end}", get(&ca, &server, "/metrics"));
    server.wait_error_log("acme: certificate \"example.com\" from issuer \"ca\", good until ").unwrap();
    // Other paths below /.well-known/acme-challenge/ are left to the configuration.
    let moved = request(&server, "GET /.well-known/acme-challenge/other", &[]);
    assert_eq!(moved.status, 301);
    assert_eq!(get(&ca, &server, "/"), "ok ", "a key is no text of a response");
    assert!(get(&ca, &server, "/chain").starts_with("data:-----BEGIN CERTIFICATE-----\n"));

    let state = server.prefix().join("state");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let kept = format!("{}.pem", file_id(&[Identifier::Dns("example.com".into())], KeyType::EcdsaP256));
    // The certificate is used before it is stored.
    assert!(wait::until(wait::TIMEOUT, || state.join(&kept).exists()), "{}", server.error_log());
    assert_eq!(
        [mode(&state), mode(&state.join("account.key")), mode(&state.join(&kept))],
        [0o700, 0o600, 0o600]
    );
    let text = fs::read_to_string(state.join(&kept)).unwrap();
    assert!(
        text.starts_with("-----BEGIN PRIVATE KEY-----\n") && text.matches("BEGIN CERTIFICATE").count() == 2
    );

    // A reload starts a new worker process beside the first one. The new one uses the stored certificate and orders
    // none.
    let conf = format!("sandbox off; http {{ {} }}", http(&ca, more, "").replace("\"ok ", "\"again "));
    reload(&mut server, &conf);
    let is_new = || get(&ca, &server, "/") == "again ";
    assert!(wait::until(wait::TIMEOUT, || (0..12).all(|_| is_new())), "{}", server.error_log());
    assert_eq!(ca.said().len(), expected.len());
}

#[test]
fn tls_alpn_01_issues_a_certificate() {
    let ca = Ca::start(Script { misbehaviour: Misbehaviour::OldNonce, ..Script::default() });
    let names = DnsServer::start(|renewed, out| {
        out.send(match (&*renewed.name, renewed.kind) {
            ("ca.example", kind::A) => renewed.address(60, [127, 0, 0, 1]),
            _ => renewed.answer().bytes(),
        });
    });
    let more = "challenge tls-alpn-01; account_key rsa:2048; state_path off; common_name_in_csr on;";
    let content = http(&ca, more, ".Example.com key=ecdsa:384");
    let content = content.replace("uri https://127.0.0.1:", "uri https://ca.example:");
    let server =
        start(server().file("conf/ca.crt", &ca.trust), &format!("resolver {}; {content}", names.addr()));
    at(&ca, &server);
    wait_trusted(&ca, &server, "www.example.com");
    assert!(is_trusted(&ca, &server, "example.com"));
    assert_eq!(ca.count("refused /new-account: "), 1, "{:?}", ca.said());
    assert_eq!(ca.count("challenge tls-alpn-01 "), 2);
    assert_eq!(ca.count("order www.example.com example.com"), 1);
    assert!(names.count("ca.example", kind::A) > 0);
}

#[test]
fn dns_01_issues_a_certificate() {
    let records = TempDir::new("acme-records").unwrap();
    let script = Script { records: Some(records.path().to_owned()), ..Script::default() };
    let ca = Ca::start(script);
    let there = records.path().display();
    let script =
        format!("case $1 in present) echo \"$3\" >> \"{there}/$2\" ;; cleanup) rm \"{there}/$2\" ;; esac");
    let path = records.write_program("program", &script, 0o755).unwrap();
    // The worker process may run as any user, and has to write there.
    fs::set_permissions(records.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let more = format!("challenge dns-01; dns_command {}; state_path off;", path.display());
    let content = http(&ca, &more, "*.example.com");
    let refused = refusal_of(&format!(
        "http {{ {} }}",
        content.replace("ssl_trusted_certificate ca.crt", "ssl_verify off")
    ));
    assert!(refused.contains("\"challenge dns-01\" starts a program, which no sandbox allows"), "{refused}");
    let server =
        server().file("conf/ca.crt", &ca.trust).start(&format!("sandbox off; http {{ {content} }}")).unwrap();
    at(&ca, &server);
    wait_trusted(&ca, &server, "any.example.com");
    assert_eq!(ca.count("challenge dns-01 *.example.com ok"), 1, "{:?}", ca.said());
    let record = records.join("_acme-challenge.example.com.");
    assert!(wait::until(wait::TIMEOUT, || !record.exists()), "it is removed");
}

#[test]
fn certificates_are_renewed_before_they_expire() {
    let ca = Ca::start(Script { lifetime: Some(Duration::from_secs(12)), ..Script::default() });
    let server = serve(&ca, "state_path state;", "");
    wait_trusted(&ca, &server, "example.com");
    let first = leaf(&ca, &server);
    let is_replaced = || is_trusted(&ca, &server, "example.com") && leaf(&ca, &server) != first;
    // Half of its time has to pass first.
    assert!(wait::until(2 * wait::TIMEOUT, is_replaced), "{:?}\n{}", ca.said(), server.error_log());
    assert!(ca.count("order example.com") >= 2);
    assert_eq!(ca.count("account "), 1, "the account is found again");
}

#[test]
fn renewal_follows_renewal_information() {
    let lifetime = Some(Duration::from_secs(30));
    let ca = Ca::start(Script { lifetime, renew_in: Some(Duration::ZERO), ..Script::default() });
    let server = serve(&ca, "state_path state;", "");
    let replaced = || ca.said().iter().any(|line| line.starts_with("order example.com replaces "));
    // A quarter of the certificate's lifetime has to pass first, whatever the authority says.
    assert!(wait::until(2 * wait::TIMEOUT, replaced), "{:?}\n{}", ca.said(), server.error_log());
    let said = ca.said();
    let renewed = said.iter().find_map(|line| line.strip_prefix("renewal ")).unwrap();
    assert!(said.contains(&format!("order example.com replaces {renewed}")), "{said:?}");
}

#[test]
fn faults_of_the_authority_are_logged_once_and_issue_nothing() {
    let cases = [
        (
            Misbehaviour::OtherKey,
            "the authority has issued what cannot be used: the certificate is not for our key",
        ),
        (
            Misbehaviour::OtherName,
            "the authority has issued what cannot be used: the certificate is not for \"example.com\"",
        ),
        (
            Misbehaviour::Expired,
            "the authority has issued what cannot be used: the certificate is over since ",
        ),
        (Misbehaviour::Huge, "\"127.0.0.1\" has answered with more than 1048576 bytes"),
        (Misbehaviour::Disconnect, "\"127.0.0.1\" cannot be asked: "),
        (Misbehaviour::Page, "the authority makes no sense: "),
        (Misbehaviour::Busy, "the authority has refused: too many orders (rateLimited)"),
        (Misbehaviour::Foreign, "an authorization for \"bank.example\", which was not asked for"),
        (
            Misbehaviour::External("a".into(), vec![1]),
            "the authority does not offer accounts without one that it has by other means",
        ),
    ];
    let servers: Vec<_> = cases
        .into_iter()
        .map(|(misbehaviour, reason)| {
            let ca = Ca::start(Script { misbehaviour, ..Script::default() });
            let server = serve(&ca, "state_path state;", "");
            (ca, server, reason)
        })
        .collect();
    for (ca, server, reason) in &servers {
        server.wait_error_log("next attempt in ").unwrap();
        let log = server.error_log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("acme: ")).collect();
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("acme: no certificate \"example.com\" from issuer \"ca\": "), "{line}");
        assert!(
            line.contains(reason)
                && line.contains("a temporary certificate is used, which clients do not trust"),
            "{line}"
        );
        assert!(!is_trusted(ca, server, "example.com"));
        // The authority asks for a delay of two hours, which is randomized by a tenth.
        assert!(!line.contains("rateLimited") || line.contains("next attempt in 7"), "{line}");
        // A reload retries at once, because the configuration may have changed.
        ca.change(|script| script.misbehaviour = Misbehaviour::None);
        server.signal(Signal::HUP).unwrap();
        wait_trusted(ca, server, "example.com");
    }
}

#[test]
fn silent_authority_delays_no_request() {
    let ca = Ca::start(Script { lifetime: Some(Duration::from_secs(20)), ..Script::default() });
    let server = serve(&ca, "state_path state;", "");
    wait_trusted(&ca, &server, "example.com");
    ca.change(|script| script.misbehaviour = Misbehaviour::Silent);
    // The certificate has to be replaced after half of its lifetime, and then the authority has half a minute.
    let said = "\"127.0.0.1\" has not answered within 30 s; the one that is used is good until ";
    let waited = wait::until(Duration::from_secs(90), || server.error_log().contains(said));
    assert!(waited, "{:?}\n{}", ca.said(), server.error_log());
    assert_eq!(request(&server, "GET /", &[]).status, 301);
}

#[test]
fn external_accounts_terms_and_profiles_are_sent() {
    let key = vec![7; 32];
    // The same in base64 for URLs.
    let text = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
    let external = Misbehaviour::External("kid-1".into(), key);
    let profiles = vec!["short".to_owned()];
    for (script, more, expected) in [
        (
            Script { misbehaviour: external.clone(), ..Script::default() },
            format!("external_account_key kid-1 data:{text};"),
            Ok("order example.com"),
        ),
        (
            Script { misbehaviour: external, ..Script::default() },
            "external_account_key kid-1 data:AAAA;".into(),
            Err("nobody knows this account (externalAccountRequired)"),
        ),
        (
            Script { has_terms: true, ..Script::default() },
            String::new(),
            Err("(\"accept_terms_of_service\"), they are at https://ca.example/terms"),
        ),
        (
            Script { profiles: profiles.clone(), ..Script::default() },
            "profile short;".into(),
            Ok("order example.com profile short"),
        ),
        (
            Script { profiles: profiles.clone(), ..Script::default() },
            "profile long;".into(),
            Ok("order example.com"),
        ),
        (
            Script { profiles, ..Script::default() },
            "profile long require;".into(),
            Err("does not offer the profile \"long\""),
        ),
    ] {
        let ca = Ca::start(script);
        let server = serve(&ca, &format!("state_path off; {more}"), "");
        match expected {
            Ok(order) => {
                wait_trusted(&ca, &server, "example.com");
                assert_eq!(ca.count(order), 1, "{:?}", ca.said());
            }
            Err(why) => {
                let log = server.wait_error_log("next attempt in ").unwrap();
                assert!(log.contains(why), "{log}");
                assert_eq!(ca.count("order "), 0);
            }
        }
    }
}

#[test]
fn unwritable_state_directory_orders_nothing_and_a_full_one_loses_nothing() {
    let ca = Ca::start(Script::default());
    let prepared = || server().file("conf/ca.crt", &ca.trust);
    // A directory is in the place of the lock file.
    let server = start(prepared().file("state/lock/in the way", ""), &http(&ca, "state_path state;", ""));
    at(&ca, &server);
    let log =
        server.wait_error_log("nothing is ordered of issuer \"ca\" without its state directory").unwrap();
    assert!(
        log.contains("acme: open() \"") && log.contains("/state/lock\" failed (21: Is a directory)"),
        "{log}"
    );
    assert_eq!(ca.count("order "), 0);

    // A directory is in the place of the certificate file.
    let kept = file_id(&[Identifier::Dns("example.com".into())], KeyType::EcdsaP256);
    let server = start(
        prepared().file(format!("other/{kept}.pem/in the way"), ""),
        &http(&ca, "state_path other;", ""),
    );
    at(&ca, &server);
    wait_trusted(&ca, &server, "example.com");
    server.wait_error_log("is used and cannot be kept: ").unwrap();
    let log = server.error_log();
    assert!(
        log.contains("the kept certificate \"example.com\" of issuer \"ca\" cannot be used: read() \""),
        "{log}"
    );
}

#[test]
fn malformed_directives_are_refused() {
    const URI: &str = "uri https://ca.example/; ssl_verify off;";
    let of = |issuer: &str, server: &str| {
        format!(
            "http {{ acme_issuer ca {{ {issuer} }} server {{ listen 127.0.0.1:{{port}} ssl; server_name a.example ~b; {server} }} }}"
        )
    };
    let certificate = "ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;";
    for (issuer, server, expected) in [
        ("", "", "acme_issuer: \"uri\" is not set in \"ca\""),
        ("uri http://ca.example/;", "", "invalid uri \"http://ca.example/\": it is not https"),
        (&format!("{URI} {URI}"), "", "\"uri\" directive is duplicate"),
        (&format!("{URI} challenge tls-sni-01;"), "", "unsupported challenge: tls-sni-01"),
        (&format!("{URI} challenge dns-01;"), "", "\"challenge dns-01\" needs a \"dns_command\""),
        (&format!("{URI} dns_command /bin/true;"), "", "\"dns_command\" is for \"challenge dns-01\""),
        (&format!("{URI} account_key ecdsa:1;"), "", "account_key: unsupported curve"),
        (&format!("{URI} account_key none.key;"), "", "cannot load account key \""),
        (&format!("{URI} external_account_key a data:=;"), "", "invalid base64url encoded value"),
        (&format!("{URI} profile a b;"), "", "invalid value \"b\""),
        (&format!("{URI} nonsense on;"), "", "unknown directive \"nonsense\""),
        (&format!("{URI} }} acme_issuer ca {{ {URI}"), "", "\"acme_issuer\" directive is duplicate"),
        (
            &format!("{URI} state_path a; }} acme_issuer other {{ {URI} state_path a;"),
            "",
            "is that of another issuer",
        ),
        (&format!("{URI} }} acme_shared_zone zone=a:1k; map a $b {{"), "", "zone \"zone=a:1k\" is too small"),
        (URI, "acme_certificate other;", "issuer \"other\" is missing"),
        (URI, "acme_certificate ca key=file;", "invalid \"key\" value"),
        (
            URI,
            "acme_certificate ca a..b;",
            "acme_certificate: invalid server name: unexpected character '.' at position 2",
        ),
        (
            URI,
            "acme_certificate ca *.a.example;",
            "\"*.a.example\" takes an issuer with \"challenge dns-01\"",
        ),
        (
            URI,
            "server_name ~c; acme_certificate ca a.example; acme_certificate ca;",
            "\"acme_certificate\" directive is duplicate",
        ),
        (URI, certificate, "no \"acme_certificate\" is defined for \"$acme_certificate\""),
        (
            URI,
            "acme_certificate ca; ssl_certificate $acme_certificate; ssl_certificate_key a;",
            "\"$acme_certificate\" takes the key \"$acme_certificate_key\"",
        ),
    ] {
        let refused = refusal_of(&of(issuer, server));
        assert!(refused.contains(expected), "{issuer} {server}: {refused}");
    }
}

/// `serve` or `proxy` with a certificate.
fn command(ca: &Ca, port: &Port, dir: &TempDir, words: &[&str]) -> Group {
    let trust = dir.write("ca.crt", &ca.trust).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.args(words).arg(format!("--listen=127.0.0.1:{}", port.number()));
    command
        .args(["--tls", "example.com", "--accept-terms", "--acme-directory", &ca.uri(), "--acme-ca"])
        .arg(trust);
    command.env("XDG_STATE_HOME", dir.join("state"));
    let file = |name| fs::File::create(dir.join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    ca.change(|script| script.ports = Some((0, port.number())));
    Group::new(command.process_group(0).spawn().unwrap())
}

#[test]
fn serve_and_proxy_commands_order_certificates() {
    let ca = Ca::start(Script { has_terms: true, ..Script::default() });
    let site = TempDir::new("acme-site").unwrap();
    site.write("page", "a page").unwrap();
    let origin = tw_testkit::origin::counting(|conn, _, _| conn.answer("", "an origin")).0;
    let port = Port::reserve().unwrap();
    let dir = TempDir::new("acme-serve").unwrap();
    let config = ca.authority.client(ALL_VERSIONS);
    let addr = ([127, 0, 0, 1], port.number()).into();
    let id = file_id(&[Identifier::Dns("example.com".into())], KeyType::EcdsaP256);
    let kept = dir.join(format!("state/tailwater/acme/127.0.0.1:{}/{id}.pem", ca.addr.port()));
    for (words, target, text) in [
        (vec!["serve", site.path().to_str().unwrap()], "/page", "a page"),
        (vec!["proxy", &origin.to_string()], "/", "an origin"),
    ] {
        let mut group = command(&ca, &port, &dir, &words);
        let printed = || fs::read_to_string(dir.join("stdout")).unwrap_or_default();
        let mut client = None;
        let is_found = wait::until(wait::TIMEOUT, || {
            client = Client::connect_tls(addr, &config, "example.com").ok();
            client.is_some()
        });
        let err = fs::read_to_string(dir.join("stderr")).unwrap_or_default();
        assert!(is_found, "{} {err} {:?}", printed(), ca.said());
        let mut client = client.unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: example.com\r\n\r\n")).unwrap();
        assert_eq!(client.read_response().unwrap().text(), text);
        // The loops answer before the master has printed where.
        let line = format!(" https://example.com:{}/", port.number());
        assert!(wait::until(wait::TIMEOUT, || printed().contains(&line)), "{}", printed());
        // The certificate is used before it is stored.
        assert!(wait::until(wait::TIMEOUT, || kept.exists()), "{}", kept.display());
        group.signal(Signal::INT).unwrap();
        drop(client);
        assert!(group.wait(wait::TIMEOUT).unwrap().success(), "{err}");
    }
    // The second command found the certificate that the first one stored.
    assert_eq!(ca.count("order "), 1, "{:?}", ca.said());
}
