//! `auth_oidc`: logins at a scripted OpenID provider on loopback.

use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::jwt::code_challenge;
use tw_testkit::tls::Authority;
use tw_testkit::wait;

use super::oidc_provider::{Provider, Script, arg, begin, cookie, get_with, log_in};
use crate::support::{get, refusal_of, request};

const APP: &str = "server { listen 127.0.0.1:{port}; root html; location / { return 200 open; } \
    location /app { auth_oidc idp; add_header X-User '$oidc_claim_sub|$oidc_claim_groups|$oidc_access_token|$oidc_userinfo'; \
      try_files /none =204; } \
    location /off { auth_oidc off; try_files /none =204; } }";

#[test]
fn login_creates_a_session_and_returns() {
    let provider = Provider::start();
    let server = provider.serve("scope profile email; extra_auth_args prompt=login; userinfo on;", APP);
    assert_eq!(get(&server, "/").text(), "open");
    assert_eq!(get(&server, "/off").status, 204);
    let (url, browser) = begin(&server, "/app/page?x=1&y=%20");
    assert!(
        url.starts_with(&format!("{}/authorize?response_type=code&client_id=client&", provider.issuer())),
        "{url}"
    );
    assert_eq!(arg(&url, "scope"), Some("openid%20profile%20email"));
    assert_eq!(arg(&url, "prompt"), Some("login"));
    assert_eq!(arg(&url, "code_challenge_method"), Some("S256"));
    let here = "http%3A%2F%2Flocalhost%2Foidc_callback";
    assert_eq!(arg(&url, "redirect_uri"), Some(here));
    let state = arg(&url, "state").unwrap();
    let nonce = arg(&url, "nonce").unwrap();
    provider.change(|script| script.claims = json!({ "nonce": nonce }));
    let back = get_with(&server, &format!("/oidc_callback?state={state}&code=c%2Bd"), &browser);
    assert_eq!(back.status, 302, "{}", server.error_log());
    assert_eq!(back.field("Location"), Some("http://localhost/app/page?x=1&y=%20"));
    let set = back.field("Set-Cookie").unwrap();
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
    let session = cookie(&back, "NGX_OIDC_SESSION").unwrap();
    let page = get_with(&server, "/app", &session);
    assert_eq!(page.status, 204);
    assert_eq!(page.field("X-User"), Some("alice|a,b|access|{\"name\":\"Alice\",\"sub\":\"alice\"}"));
    // The exchange of the code.
    let exchanges = provider.asked("/token");
    let [(head, body)] = exchanges.as_slice() else { panic!("{exchanges:?}") };
    // "client:s%26cret"
    assert!(head.contains("\r\nAuthorization: Basic Y2xpZW50OnMlMjZjcmV0\r\n"), "{head}");
    let form = format!("?{body}");
    assert_eq!(arg(&form, "code"), Some("c%2Bd"));
    assert_eq!(arg(&form, "redirect_uri"), Some(here));
    let challenge = code_challenge(arg(&form, "code_verifier").unwrap());
    assert_eq!(arg(&url, "code_challenge"), Some(&*challenge));
    assert!(provider.asked("/userinfo")[0].0.contains("\r\nAuthorization: Bearer access\r\n"));
    // Sessions that do not exist, and a second login that asks for neither metadata nor keys again.
    for wrong in
        ["NGX_OIDC_SESSION=x", &browser, &session.replace("SESSION", "OTHER"), &format!("{session}x")]
    {
        assert_eq!(get_with(&server, "/app", wrong).status, 302, "{wrong}");
    }
    assert_eq!(log_in(&provider, &server, "/app").status, 302);
    assert_eq!(provider.asked("/.well-known/openid-configuration").len(), 1);
    assert_eq!(provider.asked("/keys").len(), 1);
}

#[test]
fn logins_of_one_client_do_not_flood_the_provider() {
    let provider = Provider::start();
    let server = provider.serve("", APP);
    let guard = provider.gate.lock().unwrap();
    let begin = || {
        let (url, browser) = begin(&server, "/app");
        // The code has the nonce for the ID token.
        let code = arg(&url, "nonce").unwrap();
        let state = arg(&url, "state").unwrap();
        let target = format!("/oidc_callback?code={code}&state={state}");
        let mut client = server.connect().unwrap();
        client
            .send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nCookie: {browser}\r\n\r\n"))
            .unwrap();
        client
    };
    // 32 ask the provider, and as many wait.
    let mut clients: Vec<_> = (0..32).map(|_| begin()).collect();
    let are_asked = || provider.asked("/token").len() == 32;
    assert!(wait::until(wait::TIMEOUT, are_asked), "{}", server.error_log());
    clients.extend((0..32).map(|_| begin()));
    let is_refused = || {
        let mut client = begin().timeout(Duration::from_millis(200));
        client
            .read_response()
            .is_ok_and(|response| response.status == 503 && response.field("Retry-After").is_some())
    };
    assert!(wait::until(wait::TIMEOUT, is_refused), "{}", server.error_log());
    assert_eq!(provider.asked("/token").len(), 32);
    drop(guard);
    for mut client in clients {
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 302, "{}", server.error_log());
        assert!(cookie(&response, "NGX_OIDC_SESSION").is_some(), "{}", server.error_log());
    }
}

#[test]
fn state_of_a_login_is_used_once() {
    let provider = Provider::start();
    let server = provider.serve("", APP);
    let (url, browser) = begin(&server, "/app/page?x=1");
    let target =
        format!("/oidc_callback?code={}&state={}", arg(&url, "nonce").unwrap(), arg(&url, "state").unwrap());
    let guard = provider.gate.lock().unwrap();
    // Two callbacks with the same code at the same time.
    let mut clients = [0, 1].map(|_| {
        let mut client = server.connect().unwrap();
        client
            .send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nCookie: {browser}\r\n\r\n"))
            .unwrap();
        client
    });
    server.wait_error_log("response of the OpenID provider: its state was used before").unwrap();
    drop(guard);
    let mut sessions = 0;
    for client in &mut clients {
        let response = client.read_response().unwrap();
        assert_eq!(response.field("Location"), Some("http://localhost/app/page?x=1"));
        sessions += usize::from(cookie(&response, "NGX_OIDC_SESSION").is_some());
    }
    assert_eq!(sessions, 1);
    // A page that is loaded again leads back, and makes no session.
    let again = get_with(&server, &target, &browser);
    assert_eq!((again.status, again.field("Location")), (302, Some("http://localhost/app/page?x=1")));
    assert_eq!(again.field("Set-Cookie"), None);
    assert_eq!(provider.asked("/token").len(), 1);
}

#[test]
fn host_that_is_no_name_of_the_server_begins_no_login() {
    let provider = Provider::start();
    let server = provider.serve(
        "logout_uri /logout; post_logout_uri /bye;",
        "server { listen 127.0.0.1:{port} default_server; server_name www.example.com ~^[a-z]+\\.regex$; \
           auth_oidc idp; root html; try_files /none =204; }",
    );
    let ask = |line: &str, host: &str| {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).unwrap();
        client.read_response().unwrap()
    };
    let redirect_uri = |response: &tw_testkit::Response| {
        assert_eq!(response.status, 302);
        arg(response.field("Location").unwrap(), "redirect_uri").unwrap().to_owned()
    };
    for host in ["evil", "www.example.com.evil", "127.0.0.1", "a1.regex"] {
        for line in ["/", "/logout", "/oidc_callback"] {
            let response = ask(line, host);
            let expected = if line == "/oidc_callback" { 403 } else { 421 };
            assert_eq!((response.status, response.field("Location")), (expected, None), "{host} {line}");
        }
    }
    server.wait_error_log("the host of the request is no \"server_name\" of the server").unwrap();
    for (line, host, expected) in [
        ("/", "WWW.example.com", "www.example.com"),
        ("/", "www.example.com:8443", "www.example.com%3A8443"),
        ("/", "a.regex", "a.regex"),
        // The name that selects the server counts, not the field beside it.
        ("http://www.example.com/", "evil", "www.example.com"),
        ("/", "www.example.com:x", "www.example.com"),
    ] {
        let response = ask(line, host);
        if response.status == 400 {
            // The parser takes no such host.
            continue;
        }
        let text = redirect_uri(&response);
        assert_eq!(text, format!("http%3A%2F%2F{expected}%2Foidc_callback"), "{line} {host}");
    }
    // A URL in the configuration counts for all hosts.
    let server = provider.serve(
        "redirect_uri https://login.example.com/cb;",
        "server { listen 127.0.0.1:{port}; auth_oidc idp; root html; try_files /none =204; }",
    );
    let response = get(&server, "/a");
    assert_eq!(redirect_uri(&response), "https%3A%2F%2Flogin.example.com%2Fcb");
    assert!(response.field("Set-Cookie").unwrap().contains("; Secure"), "{:?}", response.field("Set-Cookie"));
    let (url, browser) = begin(&server, "/a?b");
    let target = format!("/cb?code={}&state={}", arg(&url, "nonce").unwrap(), arg(&url, "state").unwrap());
    let back = get_with(&server, &target, &browser);
    assert_eq!(back.field("Location"), Some("https://login.example.com/a?b"), "{}", server.error_log());
}

#[test]
fn responses_that_belong_to_no_login_are_refused() {
    let provider = Provider::start();
    let server = provider.serve("", APP);
    let (url, browser) = begin(&server, "/app");
    let (other_url, other_browser) = begin(&server, "/app");
    let (state, other) = (arg(&url, "state").unwrap(), arg(&other_url, "state").unwrap());
    let mut changed = state.to_owned();
    changed.replace_range(20..21, if &state[20..21] == "A" { "B" } else { "A" });
    let issuer = provider.issuer().replace(':', "%3A").replace('/', "%2F");
    for (args, cookie) in [
        (format!("code=c&state={state}"), &*other_browser),
        (format!("code=c&state={other}"), &*browser),
        (format!("code=c&state={state}"), "a=b"),
        (format!("code=c&state={changed}"), &browser),
        (format!("state={state}"), &browser),
        (format!("code=&state={state}"), &browser),
        (format!("code=a%0d%0ab&state={state}"), &browser),
        (format!("code={}&state={state}", "x".repeat(3000)), &browser),
        (format!("error=access_denied&state={state}"), &browser),
        (format!("code=c&iss=https%3A%2F%2Fevil&state={state}"), &browser),
        ("code=c".to_owned(), &browser),
        ("error=access_denied".to_owned(), &browser),
        (String::new(), &browser),
    ] {
        let response = get_with(&server, &format!("/oidc_callback?{args}"), cookie);
        assert_eq!(response.status, 403, "{args}");
        assert_eq!(response.field("Set-Cookie"), None, "{args}");
    }
    assert!(provider.asked("/token").is_empty());
    server.wait_error_log("response of the OpenID provider: error \"access_denied\"").unwrap();
    provider.change(|script| script.claims = json!({ "nonce": arg(&url, "nonce").unwrap() }));
    let good = format!("/oidc_callback?code=c&iss={issuer}&state={state}");
    assert_eq!(get_with(&server, &good, &browser).status, 302);
}

#[test]
fn tokens_that_prove_nothing_are_refused() {
    let provider = Provider::start();
    let server = provider.serve("userinfo on;", APP);
    let refused = |change: &dyn Fn(&mut Script)| {
        let (url, browser) = begin(&server, "/app");
        let before = provider.script.lock().unwrap().clone();
        provider.change(|script| {
            script.claims = json!({ "nonce": arg(&url, "nonce").unwrap() });
            change(script);
        });
        let target = format!("/oidc_callback?code=c&state={}", arg(&url, "state").unwrap());
        let response = get_with(&server, &target, &browser);
        *provider.script.lock().unwrap() = before;
        (response.status, cookie(&response, "NGX_OIDC_SESSION"))
    };
    assert_eq!(refused(&|_| {}).0, 302);
    for (name, value) in [
        ("nonce", json!("other")),
        ("nonce", Value::Null),
        ("aud", json!("other")),
        ("aud", json!(["client", "other"])),
        ("iss", json!("https://other")),
        ("exp", json!(1)),
        ("exp", Value::Null),
        ("sub", Value::Null),
    ] {
        let entry = refused(&|script| script.claims[name] = value.clone());
        assert_eq!(entry, (502, None), "{name} {value}");
    }
    assert_eq!(refused(&|script| script.is_forged = true), (502, None));
    assert_eq!(refused(&|script| script.status = 400), (502, None));
    assert_eq!(refused(&|script| script.userinfo = json!({ "sub": "bob" })), (502, None));
    for line in [
        "OpenID provider: invalid ID token: it is of another login",
        "OpenID provider: invalid ID token: it is for another client",
        "OpenID provider: invalid ID token: it has expired",
        "OpenID provider: invalid ID token: its signature is wrong",
        "the response has status 400, error \"invalid_grant\"",
        "OpenID provider: userinfo is that of another user",
    ] {
        server.wait_error_log(line).unwrap();
    }
}

#[test]
fn logout_ends_the_session_here_and_there() {
    let provider = Provider::start();
    let server = provider.serve(
        "logout_uri /logout; post_logout_uri /bye; logout_token_hint on; cookie_name SID; pkce off; redirect_uri /cb;",
        "server { listen 127.0.0.1:{port}; auth_oidc idp; root html; try_files /none =204; \
           location /token { auth_jwt off token=$oidc_id_token; add_header X-User $jwt_claim_sub; try_files /none =204; } \
           location /admin { auth_require $oidc_claim_admin; try_files /none =204; } } \
         server { listen 127.0.0.1:{port1}; return 200 other; }",
    );
    let response = get(&server, "/");
    let url = response.field("Location").unwrap().to_owned();
    let browser = cookie(&response, "SID_LOGIN").unwrap();
    assert_eq!(arg(&url, "code_challenge"), None);
    provider.change(|script| script.claims = json!({ "nonce": arg(&url, "nonce").unwrap() }));
    let back = get_with(&server, &format!("/cb?code=c&state={}", arg(&url, "state").unwrap()), &browser);
    let session = cookie(&back, "SID").unwrap();
    assert_eq!(get_with(&server, "/", &session).status, 204);
    assert_eq!(get_with(&server, "/token", &session).field("X-User"), Some("alice"));
    assert_eq!(get_with(&server, "/admin", &session).status, 403);
    let left_response =
        request(&server, "GET /logout", &[&format!("Cookie: {session}"), "Sec-Fetch-Site: same-origin"]);
    let location = left_response.field("Location").unwrap();
    assert!(
        location.starts_with(&format!("{}/logout?a=b&client_id=client&", provider.issuer())),
        "{location}"
    );
    assert_eq!(arg(location, "post_logout_redirect_uri"), Some("http%3A%2F%2Flocalhost%2Fbye"));
    assert!(arg(location, "id_token_hint").unwrap().split('.').count() == 3);
    assert_eq!(left_response.field("Set-Cookie"), Some("SID=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"));
    assert_eq!(get_with(&server, "/", &session).status, 302);
    // A server without the provider has these paths for itself.
    for path in ["/cb", "/logout"] {
        let other = tw_testkit::Client::get(server.addr_of(1), path).unwrap();
        assert_eq!((other.status, &*other.text()), (200, "other"), "{path}");
    }
}

#[test]
fn provider_that_cannot_be_used_is_an_error_of_the_gateway() {
    let provider = Provider::start();
    for (metadata, line) in [
        (json!({ "issuer": "https://other" }), "it has another \"issuer\""),
        (json!({ "token_endpoint": null }), "it has no \"token_endpoint\""),
        (json!({ "token_endpoint": "http://localhost/token" }), "invalid URL \"http://localhost/token\""),
        (json!({ "authorization_endpoint": "javascript:alert(1)" }), "it has an invalid URL"),
    ] {
        provider.change(|script| script.metadata = metadata.clone());
        let server = provider.serve("", APP);
        let response = get(&server, "/app");
        assert_eq!((response.status, response.field("Set-Cookie")), (502, None), "{metadata}");
        server.wait_error_log(line).unwrap();
        // The provider is not asked again for each request.
        let asked = provider.asked("/.well-known/openid-configuration").len();
        assert_eq!(get(&server, "/app").status, 502);
        assert_eq!(provider.asked("/.well-known/openid-configuration").len(), asked);
    }
    // The certificate of this provider is not trusted.
    let other = Provider { authority: Authority::new().pem(), ..Provider::start() };
    let server = other.serve("", APP);
    assert_eq!(get(&server, "/app").status, 502);
    assert!(other.asked("/.well-known/openid-configuration").is_empty());
}

#[test]
fn malformed_providers_are_refused() {
    let with = |lines: &str| {
        let block = format!("oidc_provider a {{ ssl_trusted_certificate none.pem; {lines} }}");
        let zones = "keyval_zone zone=ips:1m type=ip; keyval_zone zone=saved:1m state=saved.json;";
        refusal_of(&format!("http {{ {zones} {block} server {{ listen 127.0.0.1:{{port}}; }} }}"))
    };
    for (lines, expected) in [
        ("", "\"oidc_provider\" requires \"issuer\""),
        ("issuer https://a;", "\"oidc_provider\" requires \"client_id\""),
        ("issuer http://a; client_id c;", "invalid URL \"http://a\""),
        ("issuer https://a; client_id 'a b';", "invalid value \"a b\""),
        ("issuer https://a; issuer https://b;", "\"issuer\" directive is duplicate"),
        ("issuer https://a; client_id c; cookie_name 'a b';", "invalid cookie name \"a b\""),
        ("issuer https://a; client_id c; redirect_uri cb;", "invalid path \"cb\""),
        ("issuer https://a; client_id c; redirect_uri https://b;", "invalid URL \"https://b\""),
        ("issuer https://a; client_id c; redirect_uri https:///cb;", "invalid URL \"https:///cb\""),
        ("issuer https://a; client_id c; redirect_uri https://u@b/cb;", "invalid URL \"https://u@b/cb\""),
        ("issuer https://a; client_id c; redirect_uri https://b/cb?d;", "invalid URL \"https://b/cb?d\""),
        ("issuer a b;", "invalid number of arguments in \"issuer\" directive"),
        ("pkce yes;", "invalid value \"yes\""),
        ("issuer https://a; client_id c; session_store a;", "unknown keyval zone \"a\" in \"session_store\""),
        ("issuer https://a; client_id c; session_store ips;", "must have type=string"),
        ("issuer https://a; client_id c; session_store saved;", "must have no state file"),
        (
            "issuer https://a; client_id c; logout_uri /a; frontchannel_logout_uri /a;",
            "two directives of \"oidc_provider\" have the path \"/a\"",
        ),
        (
            "issuer https://a; client_id c; backchannel_logout_uri /oidc_callback;",
            "have the path \"/oidc_callback\"",
        ),
        ("frobnicate 1;", "unknown directive \"frobnicate\" in \"oidc_provider\""),
        ("issuer https://a; client_id c;", "none.pem"),
    ] {
        let said = with(lines);
        assert!(said.contains(expected), "{lines}: {said}");
    }
    let said = refusal_of("http { server { listen 127.0.0.1:{port}; auth_oidc none; } }");
    assert!(said.contains("unknown oidc_provider \"none\""), "{said}");
}
