//! `auth_oidc`: sessions after the login, at a scripted OpenID provider on loopback: renewals, logouts, and the store.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tw_testkit::{Response, Server, wait};

use super::oidc_provider::{Provider, arg, cookie, get_with, merge, session};
use crate::support::metrics::metric;
use crate::support::reload::reload_until;
use crate::support::{page, request};

const APP: &str = "server { listen 127.0.0.1:{port}; server_name localhost; root html; auth_oidc idp; \
      add_header X-User '$oidc_claim_sub $oidc_access_token $oidc_userinfo' always; try_files /none =204; \
      location = /version { auth_oidc off; return 200 1; } location = /metrics { auth_oidc off; metrics; } \
      location /api/ { auth_oidc off; api write=on; } }";
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

fn user(response: &Response) -> &str {
    assert_eq!(response.status, 204, "{}", response.text());
    response.field("X-User").unwrap().trim_end()
}

/// Waits until tokens with a life of a second have ended.
fn wait_for_end() {
    let began = Instant::now();
    assert!(wait::until(wait::TIMEOUT, || began.elapsed() > Duration::from_millis(1100)));
}

fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// Posts a form.
fn post(server: &Server, target: &str, form: &str) -> Response {
    let mut client = server.connect().unwrap();
    client
        .send(format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            form.len()
        ))
        .unwrap();
    client.read_response().unwrap()
}

/// Logout token with other claims than usual.
fn logout_token(provider: &Provider, jti: &str, change: &Value) -> String {
    let mut claims = json!({
        "iss": provider.issuer(), "aud": "client", "iat": now(), "exp": now() + 120, "jti": jti,
        "events": { EVENT: {} },
    });
    merge(&mut claims, change);
    provider.keys.0.sign_with("RS256", &json!({ "typ": "logout+jwt" }), claims.to_string())
}

#[test]
fn tokens_that_end_soon_are_renewed_while_requests_pass() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 10 }));
    let server = provider.serve_on_loops("", APP);
    let session = session(&provider, &server, "/");
    provider.change(|script| {
        script.tokens = json!({ "expires_in": 3600 });
        script.claims["groups"] = json!(["c"]);
    });
    let guard = provider.gate.lock().unwrap();
    // Each request passes with the old token, also the one that begins the renewal.
    let is_asked = || {
        assert_eq!(user(&get_with(&server, "/", &session)), "alice access");
        provider.asked("/token").len() == 2
    };
    assert!(wait::until(wait::TIMEOUT * 2, is_asked), "{}", server.error_log());
    drop(guard);
    let is_renewed = || user(&get_with(&server, "/", &session)) == "alice access-1";
    assert!(wait::until(wait::TIMEOUT, is_renewed), "{}", server.error_log());
    let asked = provider.asked("/token");
    let [_, (head, form)] = asked.as_slice() else { panic!("{asked:?}") };
    assert!(head.contains("\r\nAuthorization: Basic Y2xpZW50OnMlMjZjcmV0\r\n"), "{head}");
    assert_eq!(form, "grant_type=refresh_token&refresh_token=refresh-0");
    assert_eq!(metric(&server, "oidc_renewals_total{provider=\"idp\",result=\"renewed\"}"), 1);
}

#[test]
fn one_renewal_serves_all_requests_of_a_session() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let server = provider.serve_on_loops("userinfo on;", APP);
    let session = session(&provider, &server, "/");
    wait_for_end();
    provider.change(|script| script.userinfo = json!({ "sub": "alice", "name": "Alicia" }));
    let guard = provider.gate.lock().unwrap();
    let mut clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = server.connect().unwrap();
            client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {session}\r\n\r\n")).unwrap();
            client
        })
        .collect();
    assert!(wait::until(wait::TIMEOUT, || provider.asked("/token").len() == 2), "{}", server.error_log());
    // The one that has begun it may be among those that leave.
    clients.drain(..10);
    provider.change(|script| script.tokens = json!({ "expires_in": 3600 }));
    drop(guard);
    for client in &mut clients {
        let response = client.read_response().unwrap();
        assert_eq!(user(&response), "alice access-1 {\"name\":\"Alicia\",\"sub\":\"alice\"}");
    }
    assert_eq!(provider.asked("/token").len(), 2);
}

#[test]
fn renewal_goes_on_without_the_client_that_began_it() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let server = provider.serve_on_loops("", APP);
    let session = session(&provider, &server, "/");
    wait_for_end();
    let guard = provider.gate.lock().unwrap();
    let mut client = server.connect().unwrap();
    client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {session}\r\n\r\n")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || provider.asked("/token").len() == 2), "{}", server.error_log());
    drop(client);
    provider.change(|script| script.tokens = json!({ "expires_in": 3600 }));
    drop(guard);
    // A second use of the first refresh token would end the session.
    assert_eq!(user(&get_with(&server, "/", &session)), "alice access-1");
    assert_eq!(provider.asked("/token").len(), 2);
}

#[test]
fn rotated_and_kept_refresh_tokens_are_used_for_the_next_renewal() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let server = provider.serve_on_loops("", APP);
    let session = session(&provider, &server, "/");
    for access in ["access-1", "access-2"] {
        wait_for_end();
        assert_eq!(user(&get_with(&server, "/", &session)), format!("alice {access}"));
    }
    // A response without ID token and refresh token leaves both as they are.
    provider.change(|script| {
        script.tokens = json!({ "expires_in": 1, "refresh_token": null, "id_token": null });
    });
    wait_for_end();
    assert_eq!(user(&get_with(&server, "/", &session)), "alice access-3");
    let used: Vec<_> = provider.asked("/token").into_iter().skip(1).map(|(_, form)| form).collect();
    let expected = ["refresh-0", "refresh-1", "refresh-2"]
        .map(|token| format!("grant_type=refresh_token&refresh_token={token}"));
    assert_eq!(used, expected);
    // The provider knows that token no more: the user logs in again.
    wait_for_end();
    assert_eq!(get_with(&server, "/", &session).status, 302);
    assert_eq!(provider.asked("/token").last().unwrap().1, expected[2]);
    server.wait_error_log("session ended: ").unwrap();
}

#[test]
fn renewals_that_fail_end_only_sessions_that_the_provider_ends() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let server = provider.serve_on_loops("", APP);
    let kept = session(&provider, &server, "/");
    wait_for_end();
    provider.change(|script| script.status = 503);
    assert_eq!(user(&get_with(&server, "/", &kept)), "alice access");
    server.wait_error_log("tokens are not renewed: ").unwrap();
    // The provider is not asked again for each request.
    let asked = provider.asked("/token").len();
    assert_eq!(user(&get_with(&server, "/", &kept)), "alice access");
    assert_eq!(provider.asked("/token").len(), asked);
    provider.change(|script| script.status = 200);
    // Renewed tokens of another subject, for another audience, of another issuer, and with a forged signature.
    for change in
        [json!({ "sub": "bob" }), json!({ "aud": "other" }), json!({ "iss": "https://other" }), json!({})]
    {
        provider.change(|script| (script.renewals, script.is_forged) = (0, false));
        let session = session(&provider, &server, "/");
        wait_for_end();
        let before = provider.script.lock().unwrap().clone();
        provider.change(|script| {
            script.is_forged = change == json!({});
            merge(&mut script.claims, &change);
        });
        let refused = get_with(&server, "/", &session);
        assert_eq!((refused.status, refused.field("X-User").map(str::trim)), (302, Some("")), "{change}");
        *provider.script.lock().unwrap() = before;
    }
    assert_eq!(metric(&server, "oidc_renewals_total{provider=\"idp\",result=\"failed\"}"), 1);
    assert_eq!(metric(&server, "oidc_renewals_total{provider=\"idp\",result=\"refused\"}"), 4);
}

#[test]
fn page_of_another_site_ends_no_session() {
    let provider = Provider::start();
    let server = provider.serve_on_loops("logout_uri /logout; post_logout_uri /bye;", APP);
    let session = session(&provider, &server, "/");
    let ask = |line: &str, fields: &[&str]| {
        let cookie = format!("Cookie: {session}");
        request(&server, line, &[&[&*cookie], fields].concat())
    };
    for fields in [
        &["Sec-Fetch-Site: cross-site"][..],
        &["Sec-Fetch-Site: same-site"],
        &["Referer: https://evil.example/"],
        &["Referer: http://localhost.evil/"],
        &["Origin: null"],
        &["Origin: http://evil.example"],
        &["Sec-Fetch-Site: cross-site", "Referer: http://localhost/"],
        &[],
    ] {
        for method in ["GET", "POST"] {
            let asked = ask(&format!("{method} /logout"), fields);
            assert_eq!(asked.status, 200, "{fields:?}");
            assert_eq!(asked.field("Set-Cookie"), None);
            assert_eq!(asked.field("Cache-Control"), Some("no-store"));
            let policy = asked.field("Content-Security-Policy").unwrap();
            assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
            assert!(asked.text().contains("<form method=\"post\" action=\"?confirm="), "{}", asked.text());
            assert_eq!(get_with(&server, "/", &session).status, 204, "{fields:?}");
        }
    }
    // The user confirms; neither the token of another session nor a link does.
    let page = ask("GET /logout", &[]).text();
    let target = page.split("action=\"").nth(1).unwrap().split('"').next().unwrap();
    let other = target.replace(&target[target.len() - 4..], "AAAA");
    for line in
        [format!("GET /logout{target}"), format!("POST /logout{other}"), "POST /logout?confirm=".into()]
    {
        assert_eq!(ask(&line, &["Sec-Fetch-Site: cross-site"]).status, 200, "{line}");
    }
    let response = ask(&format!("POST /logout{target}"), &["Origin: null"]);
    assert_eq!(response.status, 302);
    assert!(response.field("Location").unwrap().starts_with(&format!("{}/logout?", provider.issuer())));
    assert_eq!(get_with(&server, "/", &session).status, 302);
    // Without a session, the provider is not asked.
    assert_eq!(ask("GET /logout", &[]).status, 302);
}

#[test]
fn user_ends_a_session_by_pages_of_the_server() {
    let provider = Provider::start();
    let server = provider.serve_on_loops("logout_uri /logout;", APP);
    for fields in [
        "Sec-Fetch-Site: same-origin",
        "Sec-Fetch-Site: none",
        "Referer: http://localhost/page",
        "Referer: http://localhost",
        "Origin: http://localhost",
    ] {
        let session = session(&provider, &server, "/");
        let response = request(&server, "GET /logout", &[&format!("Cookie: {session}"), fields]);
        assert_eq!(response.status, 302, "{fields}");
        assert_eq!(get_with(&server, "/", &session).status, 302, "{fields}");
    }
    assert_eq!(metric(&server, "oidc_logouts_total{provider=\"idp\"}"), 5);
    assert_eq!(metric(&server, "oidc_logins_total{provider=\"idp\"}"), 5);
    assert_eq!(metric(&server, "oidc_sessions{provider=\"idp\"}"), 0);
}

/// Sessions of users and of their sessions at the provider.
fn sessions<const N: usize>(provider: &Provider, server: &Server, of: [(&str, &str); N]) -> [String; N] {
    of.map(|(sub, sid)| {
        provider.change(|script| script.claims = json!({ "sub": sub, "sid": sid }));
        session(provider, server, "/")
    })
}

/// True for each session that has not ended, on any loop.
fn live_sessions<const N: usize>(server: &Server, sessions: &[String; N]) -> [bool; N] {
    std::array::from_fn(|at| {
        let results = [0; 8].map(|_| get_with(server, "/", &sessions[at]).status);
        assert!(results.iter().all(|status| *status == results[0]), "{results:?}");
        results[0] == 204
    })
}

#[test]
fn logout_token_ends_the_sessions_it_names() {
    let provider = Provider::start();
    let server = provider.serve_on_loops("backchannel_logout_uri /backchannel;", APP);
    let all = sessions(&provider, &server, [("alice", "1"), ("alice", "2"), ("alice", "3"), ("bob", "4")]);
    assert_eq!(live_sessions(&server, &all), [true; 4]);
    let send = |token: &str| post(&server, "/backchannel", &format!("a=b&logout_token={token}"));
    let token = logout_token(&provider, "a", &json!({ "sid": "2" }));
    let done = send(&token);
    assert_eq!((done.status, done.field("Cache-Control")), (200, Some("no-store")), "{}", server.error_log());
    assert_eq!(live_sessions(&server, &all), [true, false, true, true]);
    // Tokens that are none.
    let forged = {
        let claims = json!({
            "iss": provider.issuer(), "aud": "client", "iat": now(), "exp": now() + 120, "jti": "f", "sub": "alice",
            "events": { EVENT: {} },
        });
        provider.keys.1.sign_with("RS256", &json!({}), claims.to_string())
    };
    let with = |jti: &str, change: Value| {
        let mut claims = json!({ "sub": "alice" });
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        logout_token(&provider, jti, &claims)
    };
    for (token, why) in [
        (token, "its \"jti\" was used before"),
        (forged, "its signature is wrong"),
        (String::new(), "is malformed"),
        ("a.b.c".to_owned(), "is malformed"),
        (with("1", json!({ "iss": "https://other" })), "it is of another issuer"),
        (with("2", json!({ "aud": "other" })), "it is for another client"),
        (with("3", json!({ "iat": now() - 3600 })), "its \"iat\" is not now"),
        (with("4", json!({ "exp": now() - 3600 })), "it has expired"),
        (with("5", json!({ "events": {} })), "it is no logout token"),
        (with("6", json!({ "nonce": "n" })), "it has a \"nonce\""),
        (with("7", json!({ "sub": null })), "it has neither \"sid\" nor \"sub\""),
        (with("8", json!({ "jti": null })), "it has no \"jti\""),
    ] {
        let refused = send(&token);
        assert_eq!((refused.status, refused.field("Cache-Control")), (400, Some("no-store")), "{why}");
        server.wait_error_log(why).unwrap();
    }
    assert_eq!(live_sessions(&server, &all), [true, false, true, true]);
    // Another method, a body that is too large, and no body.
    assert_eq!(request(&server, "GET /backchannel", &[]).status, 405);
    assert_eq!(post(&server, "/backchannel", &"x".repeat(50_000)).status, 413);
    assert_eq!(post(&server, "/backchannel", "").status, 400);
    // A logout token that names the session of another user ends nothing.
    assert_eq!(send(&with("9", json!({ "sid": "4" }))).status, 200);
    assert_eq!(live_sessions(&server, &all), [true, false, true, true]);
    assert_eq!(send(&with("10", json!({ "aud": ["other", "client"] }))).status, 200);
    assert_eq!(live_sessions(&server, &all), [false, false, false, true]);
    assert_eq!(metric(&server, "oidc_logouts_total{provider=\"idp\"}"), 3);
}

#[test]
fn logout_ends_a_session_that_is_being_renewed() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let server = provider.serve_on_loops("backchannel_logout_uri /backchannel;", APP);
    let [session] = sessions(&provider, &server, [("alice", "1")]);
    wait_for_end();
    let guard = provider.gate.lock().unwrap();
    let mut client = server.connect().unwrap();
    client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {session}\r\n\r\n")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || provider.asked("/token").len() == 2), "{}", server.error_log());
    let token = logout_token(&provider, "a", &json!({ "sub": "alice" }));
    assert_eq!(post(&server, "/backchannel", &format!("logout_token={token}")).status, 200);
    drop(guard);
    assert_eq!(client.read_response().unwrap().status, 302);
    assert_eq!(get_with(&server, "/", &session).status, 302);
}

#[test]
fn page_of_the_provider_ends_the_session_it_names() {
    let provider = Provider::start();
    let server = provider.serve_on_loops("frontchannel_logout_uri /front;", APP);
    let all = sessions(&provider, &server, [("alice", "a/1"), ("alice", "2")]);
    let issuer = provider.issuer().replace(':', "%3A").replace('/', "%2F");
    for args in [
        "".to_owned(),
        format!("?iss={issuer}"),
        format!("?iss={issuer}&sid="),
        "?sid=a%2F1".to_owned(),
        "?iss=https%3A%2F%2Fother&sid=a%2F1".to_owned(),
        format!("?iss={issuer}&sid=%ff"),
    ] {
        // The cookie alone proves nothing: any site can have a frame.
        assert_eq!(get_with(&server, &format!("/front{args}"), &all[0]).status, 400, "{args}");
    }
    assert_eq!(page(&server, &format!("/front?iss={issuer}&sid=none")).0, 200);
    assert_eq!(live_sessions(&server, &all), [true; 2]);
    let ended =
        request(&server, &format!("GET /front?iss={issuer}&sid=a%2F1"), &["Sec-Fetch-Site: cross-site"]);
    assert_eq!((ended.status, ended.field("Cache-Control")), (200, Some("no-store")));
    // The page of the logout is shown in a frame.
    assert_eq!((ended.field("X-Frame-Options"), ended.field("Content-Security-Policy")), (None, None));
    assert_eq!(live_sessions(&server, &all), [false, true]);
}

#[test]
fn sessions_are_in_the_store_and_end_with_their_pairs() {
    let provider = Provider::start();
    let lines = "session_store users; session_timeout 1h;";
    let app = format!("keyval_zone zone=users:64k; {APP}");
    let mut server = provider.serve_on_loops(lines, &app);
    let all = sessions(&provider, &server, [("alice", "1"), ("bob", "2")]);
    let pairs = || -> Value { serde_json::from_str(&page(&server, "/api/9/http/keyvals/users").1).unwrap() };
    let shown = pairs();
    let mut users: Vec<_> = shown.as_object().unwrap().values().map(|pair| pair.as_str().unwrap()).collect();
    users.sort_unstable();
    assert_eq!(
        users,
        [r#"{"provider":"idp","sid":"1","sub":"alice"}"#, r#"{"provider":"idp","sid":"2","sub":"bob"}"#]
    );
    // Neither the cookies nor the tokens are there.
    let text = shown.to_string();
    assert!(all.iter().all(|cookie| !text.contains(cookie.split('=').nth(1).unwrap())), "{text}");
    let bob = shown.as_object().unwrap().iter().find(|(_, pair)| pair.as_str().unwrap().contains("bob"));
    let patch = json!({ bob.unwrap().0: null }).to_string();
    let mut client = server.connect().unwrap();
    client
        .send(format!(
            "PATCH /api/9/http/keyvals/users HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{patch}",
            patch.len()
        ))
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 204);
    assert_eq!(live_sessions(&server, &all), [true, false]);
    // A reload keeps them, and their logouts.
    let conf = provider.conf(
        3,
        &format!("{lines} logout_uri /logout;"),
        &app.replace("return 200 1", "return 200 2"),
    );
    reload_until(&mut server, &conf, "/version", "2");
    assert_eq!(live_sessions(&server, &all), [true, false]);
    let pairs = || -> Value { serde_json::from_str(&page(&server, "/api/9/http/keyvals/users").1).unwrap() };
    assert_eq!(pairs().as_object().unwrap().len(), 1);
    let fields = [&*format!("Cookie: {}", all[0]), "Sec-Fetch-Site: same-origin"];
    assert_eq!(request(&server, "GET /logout", &fields).status, 302);
    assert_eq!(live_sessions(&server, &all), [false, false]);
    assert_eq!(pairs(), json!({}));
    // The table bounds the sessions: those used longest ago end.
    let first = sessions(&provider, &server, [("first", "1")]);
    assert_eq!(live_sessions(&server, &first), [true]);
    provider.change(|script| script.claims = json!({ "sub": "x".repeat(4000) }));
    for _ in 0..30 {
        session(&provider, &server, "/");
    }
    assert_eq!(live_sessions(&server, &first), [false]);
    assert!(metric(&server, "oidc_sessions{provider=\"idp\"}") < 30);
}

#[test]
fn session_survives_a_reload_and_is_renewed_after_it() {
    let provider = Provider::start();
    provider.change(|script| script.tokens = json!({ "expires_in": 1 }));
    let mut server = provider.serve_on_loops("", APP);
    let session = session(&provider, &server, "/");
    let conf = provider.conf(3, "scope email;", &APP.replace("return 200 1", "return 200 2"));
    reload_until(&mut server, &conf, "/version", "2");
    wait_for_end();
    assert_eq!(user(&get_with(&server, "/", &session)), "alice access-1");
    // The login of a browser that the reload has met goes on, too.
    let url = get_with(&server, "/", "a=b").field("Location").unwrap().to_owned();
    assert_eq!(arg(&url, "scope"), Some("openid%20email"));
    assert!(cookie(&get_with(&server, "/", "a=b"), "NGX_OIDC_SESSION_LOGIN").is_some());
}
