//! `auth_jwt`: tokens, their keys from files and subrequests, claims as variables, and `auth_jwt_require`.

use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::json;
use tw_testkit::jwt::{TokenKey, key_set};
use tw_testkit::{Response, Server, origin, wait};

use crate::support::{get, page, refusal, request, server, start, start_server};

/// Answer to a request with a bearer token.
pub(super) fn with_token(server: &Server, target: &str, token: &str) -> Response {
    request(server, &format!("GET {target}"), &[&format!("Authorization: Bearer {token}")])
}

/// Status and challenge of an answer.
pub(super) fn challenge(response: &Response) -> (u16, Option<&str>) {
    (response.status, response.field("WWW-Authenticate"))
}

#[test]
fn tokens_grant_access_and_their_claims_are_variables() {
    let key = TokenKey::rsa("main");
    let server = start_server(
        server().file("conf/keys.json", key_set([&key])),
        "location / { auth_jwt 'closed site'; auth_jwt_key_file keys.json; \
           add_header X-Claims '$jwt_claim_sub|$jwt_claim_groups|$jwt_claim_none|$jwt_header_alg|$jwt_payload'; \
           return 200 $jwt_claim_sub; \
           location /in/off { auth_jwt off; return 200 '<$jwt_claim_sub>'; } \
           location /in/cookie { auth_jwt site token=$cookie_token; root html; try_files /none =204; } \
           location /in/realm { auth_jwt $arg_realm; try_files /none =204; } \
           location /in/only-read { auth_jwt off token=$arg_token; return 200 '<$jwt_claim_sub>'; } } \
         location /page { auth_jwt site; auth_jwt_key_file keys.json; try_files /none =204; }",
    );
    let token = key.sign("RS256", &json!({ "sub": "a", "groups": ["x", "y"] }));
    let response = with_token(&server, "/page", &token);
    assert_eq!(response.status, 204);
    let forged = TokenKey::rsa("main").sign("RS256", &json!({ "sub": "b" }));
    let invalid = Some("Bearer realm=\"site\", error=\"invalid_token\"");
    assert_eq!(challenge(&get(&server, "/page")), (401, Some("Bearer realm=\"site\"")));
    for text in [forged.as_str(), "x", "a.b.c", "..", &token[..token.len() - 1], &format!("{token} x")] {
        assert_eq!(challenge(&with_token(&server, "/page", text)), (401, invalid), "{text}");
    }
    for field in
        ["Authorization: Basic YTpi", "Authorization: Bearer", "Authorization: Bearer  ", "Authorization:"]
    {
        let refused = request(&server, "GET /page", &[field]);
        assert_eq!(challenge(&refused), (401, Some("Bearer realm=\"site\"")), "{field}");
    }
    let field = format!("authorization: bEARER   {token}");
    assert_eq!(request(&server, "GET /page", &[&field]).status, 204);
    assert_eq!(with_token(&server, "/in/off", &token).text(), "<>");
    assert_eq!(with_token(&server, "/in/cookie", &token).status, 401);
    let cookie = format!("Cookie: token={token}");
    assert_eq!(request(&server, "GET /in/cookie", &[&cookie]).status, 204);
    assert_eq!(get(&server, "/in/realm?realm=off").status, 204);
    assert_eq!(challenge(&get(&server, "/in/realm?realm=r")), (401, Some("Bearer realm=\"r\"")));
    assert_eq!(page(&server, &format!("/in/only-read?token={forged}")), (200, "<b>".to_owned()));
    assert_eq!(page(&server, "/in/only-read?token=x"), (200, "<>".to_owned()));
    for line in [
        "no token was provided for JWT authentication, client: ",
        "JWT validation failed: its signature is wrong, client: ",
        "JWT validation failed: its form is malformed, client: ",
    ] {
        server.wait_error_log(line).unwrap();
    }
}

#[test]
fn claims_reach_upstreams_only_once_they_are_verified() {
    let key = TokenKey::ed25519("");
    let server = start(
        server().file("conf/keys.json", key.jwk().to_string()),
        "auth_jwt_claim_set $email info e-mail; auth_jwt_claim_set $job info 'job title'; \
         auth_jwt_header_set $kind typ; map $jwt_claim_sub $mapped { default $jwt_claim_sub; } \
         server { listen 127.0.0.1:{port}; \
           location / { auth_jwt site; auth_jwt_key_file keys.json; proxy_pass http://127.0.0.1:{port1}; \
             proxy_set_header X-Claims '$email|$job|$kind|$jwt_claim_sub|$mapped'; } \
           location /any { satisfy any; allow all; auth_jwt site; auth_jwt_key_file keys.json; \
             proxy_pass http://127.0.0.1:{port1}; proxy_set_header X-Claims '$email|$jwt_claim_sub|$mapped'; } \
           location /any-last { satisfy any; deny all; auth_jwt site; auth_jwt_key_file keys.json; \
             auth_request /yes; proxy_pass http://127.0.0.1:{port1}; proxy_set_header X-Claims '$jwt_claim_sub|$mapped'; } \
           location /yes { return 204; } \
           location /any-user { satisfy any; auth_jwt site; auth_jwt_key_file $jwt_claim_keys.json; \
             auth_request /user; try_files /none =204; } \
           location = /user { proxy_pass http://127.0.0.1:{port1}/user; auth_jwt site; proxy_set_header X-Claims $jwt_claim_sub; } \
           location /early { limit_req zone=subs; auth_jwt site; auth_jwt_key_file keys.json; \
             proxy_pass http://127.0.0.1:{port1}; proxy_set_header X-Claims $mapped; } } \
         limit_req_zone $mapped zone=subs:1m rate=1r/m; \
         server { listen 127.0.0.1:{port1}; location = /user { if ($http_x_claims = '') { return 403; } return 204; } \
           location / { return 200 $http_x_claims; } }",
    );
    let claims = json!({ "sub": "a", "info": { "e-mail": "a@b", "job title": "c d" } });
    let token = key.sign_with("EdDSA", &json!({ "typ": "JWT" }), claims.to_string());
    assert_eq!(with_token(&server, "/", &token).text(), "a@b|c d|JWT|a|a");
    // With "satisfy any", another module let these requests pass, so the token was not checked.
    let forged = TokenKey::ed25519("").sign("EdDSA", &claims);
    for token in [&token, &forged] {
        assert_eq!(with_token(&server, "/any", token).text(), "||");
        assert_eq!(with_token(&server, "/any-last", token).text(), "|");
    }
    // With "satisfy any", an unverified claim grants nothing, though it may select the keys.
    let named = json!({ "sub": "a", "keys": "keys" });
    assert_eq!(with_token(&server, "/any-user", &key.sign("EdDSA", &named)).status, 204);
    assert_eq!(with_token(&server, "/any-user", &TokenKey::ed25519("").sign("EdDSA", &named)).status, 401);
    // Limits come before, and know the claim as the client wrote it.
    assert_eq!(with_token(&server, "/early", &token).text(), "a");
    assert_eq!(with_token(&server, "/early", &token).status, 503);
    let other = key.sign("EdDSA", &json!({ "sub": "b" }));
    assert_eq!(with_token(&server, "/early", &other).text(), "b");
}

#[test]
fn changed_file_of_keys_is_read_again() {
    let (old, new) = (TokenKey::ecdsa("1", "P-256"), TokenKey::ecdsa("2", "P-384"));
    let server = start_server(
        server()
            .file("conf/keys.json", key_set([&old]))
            .file("conf/bad.json", "{")
            .file("conf/sub/k.json", key_set([&new])),
        "auth_jwt site; auth_jwt_key_file keys.json; location / { try_files /none =204; } \
         location /none { auth_jwt_key_file none.json; } location /bad { auth_jwt_key_file bad.json; } \
         location /both { auth_jwt_key_file keys.json; auth_jwt_key_file sub/k.json; try_files /none =204; } \
         location /named { auth_jwt_key_file sub/$arg_k.json; try_files /none =204; } \
         location /keyless { auth_jwt_key_file ''; }",
    );
    let (first, second) = (old.sign("ES256", &json!({})), new.sign("ES384", &json!({})));
    let statuses = |target: &str| [&first, &second].map(|token| with_token(&server, target, token).status);
    assert_eq!(statuses("/"), [204, 401]);
    assert_eq!(statuses("/both"), [204, 204]);
    assert_eq!(statuses("/named?k=k"), [401, 204]);
    // A key file name made of client input stays below the directory that the configuration names.
    for target in ["/named?k=../keys", "/named?k=x/../k", "/none", "/bad"] {
        assert_eq!(statuses(target), [500, 500], "{target}");
    }
    let fresh = server.prefix().join("conf/fresh.json");
    fs::write(&fresh, key_set([&new])).unwrap();
    fs::rename(&fresh, server.prefix().join("conf/keys.json")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || statuses("/") == [401, 204]));
    server.wait_error_log("none.json\" failed (2: No such file or directory)").unwrap();
    server.wait_error_log("conf/bad.json\": EOF while parsing").unwrap();
}

#[test]
fn keys_of_a_subrequest_are_kept_as_long_as_configured() {
    let (key, other) = (TokenKey::rsa("k"), TokenKey::symmetric("o", "s"));
    let keys = key_set([&key]);
    let (addr, count) = origin::counting(move |conn, head, _| match head.split(' ').nth(1) {
        Some("/keys") => conn.answer("", &keys),
        Some("/broken") => conn.answer("", "{}"),
        Some("/coded") => conn.answer("Content-Encoding: gzip\r\n", &keys),
        Some("/large") => conn.answer("", " ".repeat((1 << 20) + 1)),
        _ => conn.send("HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n"),
    });
    let server = start_server(
        server(),
        &format!(
            "auth_jwt site; auth_jwt_key_request /jwks/keys; location / {{ try_files /none =204; }} \
             location /cached {{ auth_jwt_key_cache 1h; try_files /none =204; }} \
             location /named {{ auth_jwt_key_request /jwks/$arg_k; auth_jwt_key_cache 1h; try_files /none =204; }} \
             location /jwks/ {{ internal; proxy_pass http://{addr}/; }}"
        ),
    );
    let (token, forged) = (key.sign("PS256", &json!({})), other.sign("HS256", &json!({})));
    let asked = |target: &str| {
        let before = count.load(SeqCst);
        let statuses = [&token, &forged].map(|token| with_token(&server, target, token).status);
        (statuses, count.load(SeqCst) - before)
    };
    assert_eq!(asked("/"), ([204, 401], 2));
    assert_eq!(asked("/cached"), ([204, 401], 0));
    assert_eq!(asked("/named?k=keys"), ([204, 401], 2));
    for name in ["broken", "coded", "large", "none"] {
        assert_eq!(asked(&format!("/named?k={name}")).0, [500, 500], "{name}");
    }
    // A claim does not lead to the keys of a client.
    let before = count.load(SeqCst);
    for name in ["../keys", "x/../keys", ".."] {
        assert_eq!(with_token(&server, &format!("/named?k={name}"), &token).status, 500, "{name}");
    }
    assert_eq!(count.load(SeqCst), before);
    for line in [
        "keys of \"/jwks/../keys\": unsafe URI",
        "keys of \"/jwks/broken\": it has no list of \"keys\"",
        "keys of \"/jwks/coded\": the response has Content-Encoding \"gzip\"",
        "keys of \"/jwks/large\": more than 1048576 bytes",
        "keys of \"/jwks/none\": the response has status 502",
    ] {
        server.wait_error_log(line).unwrap();
    }
    // A request without a well-formed token causes no request for keys.
    let before = count.load(SeqCst);
    assert_eq!(get(&server, "/").status, 401);
    assert_eq!(with_token(&server, "/", "x").status, 401);
    assert_eq!(count.load(SeqCst), before);
}

#[test]
fn values_are_required() {
    let key = TokenKey::symmetric("", "s");
    let server = start(
        server().file("conf/keys.json", key_set([&key])),
        "map $jwt_claim_iss $known { good 1; zero 0; } \
         server { listen 127.0.0.1:{port}; auth_jwt site; auth_jwt_key_file keys.json; auth_jwt_leeway 5s; \
           location / { auth_jwt_require $known; try_files /none =204; \
             location /in { try_files /none =204; } } \
           location /two { auth_jwt_require $known $jwt_claim_sub error=403; auth_jwt_require $jwt_claim_aud; \
             try_files /none =204; } \
           location /times { try_files /none =204; } \
           location /get { try_files /none =204; limit_except GET { auth_jwt_require $jwt_claim_sub; } } \
           location /none { auth_jwt site; auth_jwt_key_file keys.json; auth_jwt_require $jwt_claim_x; \
             satisfy any; allow all; try_files /none =204; } }",
    );
    let status = |target: &str, claims: serde_json::Value| {
        with_token(&server, target, &key.sign("HS384", &claims)).status
    };
    for target in ["/", "/in"] {
        for (issuer, expected) in [("good", 204), ("bad", 401), ("zero", 401), ("", 401)] {
            assert_eq!(status(target, json!({ "iss": issuer })), expected, "{target} {issuer}");
        }
    }
    for (claims, expected) in [
        (json!({ "iss": "good", "sub": "a", "aud": "b" }), 204),
        (json!({ "iss": "good", "sub": "a" }), 401),
        (json!({ "iss": "good", "aud": "b" }), 403),
        (json!({ "iss": "good", "sub": 0, "aud": "b" }), 403),
    ] {
        assert_eq!(status("/two", claims.clone()), expected, "{claims}");
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    for (claims, expected) in [
        (json!({ "exp": now + 600 }), 204),
        (json!({ "exp": now - 1 }), 204),
        (json!({ "exp": now - 600 }), 401),
        (json!({ "exp": "x" }), 401),
        (json!({ "nbf": now + 600 }), 401),
        (json!({ "nbf": now }), 204),
    ] {
        assert_eq!(status("/times", claims.clone()), expected, "{claims}");
    }
    let token = format!("Authorization: Bearer {}", key.sign("HS256", &json!({})));
    assert_eq!(request(&server, "GET /get", &[&token]).status, 204);
    assert_eq!(request(&server, "OPTIONS /get", &[&token]).status, 401);
    assert_eq!(status("/none", json!({})), 204);
    let unmet = with_token(&server, "/", &key.sign("HS256", &json!({})));
    assert_eq!(challenge(&unmet), (401, Some("Bearer realm=\"site\", error=\"invalid_token\"")));
}

#[test]
fn encrypted_and_nested_tokens_are_opened() {
    let (rsa, shared, signer) =
        (TokenKey::rsa("r"), TokenKey::symmetric("s", vec![9; 16]), TokenKey::ecdsa("e", "P-521"));
    let keys = json!({ "keys": [rsa.private_jwk(), shared.jwk(), signer.jwk()] }).to_string();
    let server = start_server(
        server().file("conf/keys.json", keys),
        "auth_jwt site; auth_jwt_key_file keys.json; add_header X-Payload $jwt_payload; \
         add_header X-Claim $jwt_claim_sub; location / { try_files /none =204; } \
         location /encrypted { auth_jwt_type encrypted; try_files /none =204; } \
         location /nested { auth_jwt_type nested; try_files /none =204; }",
    );
    let claims = r#"{"sub":"a"}"#;
    let signed = signer.sign_with("ES512", &json!({}), claims);
    let encrypted = [
        rsa.encrypt("RSA-OAEP-256", "A256CBC-HS512", &json!({}), claims),
        shared.encrypt("A128KW", "A128GCM", &json!({}), claims),
    ];
    let nested = [
        rsa.encrypt("RSA-OAEP", "A256GCM", &json!({ "cty": "JWT" }), &signed),
        shared.encrypt("A128GCMKW", "A192CBC-HS384", &json!({ "cty": "JWT" }), &signed),
    ];
    let seen = |target: &str, token: &str| {
        let response = with_token(&server, target, token);
        let field = |name: &str| response.field(name).unwrap_or_default().to_owned();
        (response.status, field("X-Claim"), field("X-Payload"))
    };
    for token in &encrypted {
        assert_eq!(seen("/encrypted", token), (204, "a".to_owned(), claims.to_owned()));
    }
    for token in &nested {
        assert_eq!(seen("/nested", token), (204, "a".to_owned(), signed.clone()));
    }
    assert_eq!(seen("/", &signed).0, 204);
    let refused = [&signed, &encrypted[0], &nested[0]];
    for (target, good) in [("/", 0), ("/encrypted", 1), ("/nested", 2)] {
        for (at, token) in refused.iter().enumerate().filter(|(at, _)| *at != good) {
            assert_eq!(with_token(&server, target, token).status, 401, "{target} {at}");
        }
    }
    let other = TokenKey::rsa("r").encrypt("RSA-OAEP-256", "A128GCM", &json!({}), claims);
    assert_eq!(with_token(&server, "/encrypted", &other).status, 401);
    server.wait_error_log("JWT validation failed: it cannot be decrypted").unwrap();
}

#[test]
fn satisfy_combines_tokens_with_other_modules() {
    let key = TokenKey::symmetric("", "s");
    let server = start_server(
        server().file("conf/keys.json", key_set([&key])).file("conf/users", "a:{PLAIN}b\n"),
        "auth_jwt site token=$arg_t; auth_jwt_key_file keys.json; \
         location /all { deny all; try_files /none =204; } \
         location /any { satisfy any; deny all; auth_basic users; auth_basic_user_file users; try_files /none =204; }",
    );
    let token = key.sign("HS256", &json!({}));
    let status = |target: &str, fields: &[&str]| request(&server, &format!("GET {target}"), fields).status;
    assert_eq!(status(&format!("/all?t={token}"), &[]), 403);
    assert_eq!(status(&format!("/any?t={token}"), &[]), 204);
    assert_eq!(status("/any", &["Authorization: Basic YTpi"]), 204);
    assert_eq!(status("/any?t=x", &["Authorization: Basic YTpi"]), 204);
    let refused = get(&server, "/any?t=x");
    let challenges: Vec<_> = refused.values("WWW-Authenticate").collect();
    assert_eq!(challenges, ["Basic realm=\"users\"", "Bearer realm=\"site\", error=\"invalid_token\""]);
}

#[test]
fn requests_without_keys_are_never_let_in() {
    let key = TokenKey::symmetric("", "s");
    let server = start_server(server(), "auth_jwt site;");
    assert_eq!(get(&server, "/").status, 401);
    assert_eq!(with_token(&server, "/", &key.sign("HS256", &json!({}))).status, 500);
    server
        .wait_error_log("\"auth_jwt\" has neither \"auth_jwt_key_file\" nor \"auth_jwt_key_request\"")
        .unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("auth_jwt;", "invalid number of arguments in \"auth_jwt\" directive"),
        ("auth_jwt a b;", "invalid parameter \"b\""),
        ("auth_jwt a token=b;", "invalid parameter \"token=b\""),
        ("auth_jwt a token=$;", "invalid parameter \"token=$\""),
        (
            "auth_jwt a token=$jwt_claim_sub;",
            "the token cannot be in \"$jwt_claim_sub\", which is read from the token",
        ),
        ("auth_jwt a; auth_jwt b;", "\"auth_jwt\" directive is duplicate"),
        ("auth_jwt_type jws;", "invalid value \"jws\""),
        ("auth_jwt_leeway x;", "invalid value"),
        ("auth_jwt_key_cache -1;", "invalid value"),
        ("auth_jwt_require;", "invalid number of arguments in \"auth_jwt_require\" directive"),
        ("auth_jwt_require error=403;", "invalid number of arguments in \"auth_jwt_require\" directive"),
        ("auth_jwt_require a;", "invalid value \"a\""),
        ("auth_jwt_require $host error=404;", "invalid parameter \"error=404\""),
        ("auth_jwt_require $host error=;", "invalid parameter \"error=\""),
        (
            "location / { limit_except GET { auth_jwt_leeway 1s; } }",
            "\"auth_jwt_leeway\" directive is not allowed here",
        ),
        ("auth_jwt_key_file a b;", "invalid parameter \"b\""),
        ("auth_jwt_key_request /a pem;", "invalid parameter \"pem\""),
        (
            "auth_jwt_require_claim a eq;",
            "invalid number of arguments in \"auth_jwt_require_claim\" directive",
        ),
        ("auth_jwt_require_claim a is b;", "invalid value \"is\""),
        ("auth_jwt_require_claim a !!eq b;", "invalid value \"!!eq\""),
        ("auth_jwt_require_claim '' eq b;", "invalid value \"\": it is empty"),
        ("auth_jwt_require_claim .a[x] eq b;", "invalid value \".a[x]\": an element is a number"),
        ("auth_jwt_require_claim a eq '';", "invalid value \"\""),
        ("auth_jwt_require_claim a eq json=;", "invalid value \"json=\""),
        ("auth_jwt_require_claim a eq json=x;", "invalid JSON in \"json=x\": expected value"),
        ("auth_jwt_require_header a match '(';", "regex compilation failed: "),
        (
            "auth_jwt_require_header a match json=1;",
            "\"json=1\" is no regular expression: it has to be a text",
        ),
        ("auth_jwt_require_header a eq $unknown_name;", "unknown \"unknown_name\" variable"),
        ("auth_jwt_allow_nested separator=.;", "invalid parameter \"separator=.\""),
        ("auth_jwt_allow_nested delimiter=;", "invalid parameter \"delimiter=\""),
        (
            "auth_jwt_allow_nested delimiter=: quote=:;",
            "\"auth_jwt_allow_nested\" directive has the same text as delimiter and as quote",
        ),
        ("auth_jwt_validate_exp no;", "invalid value \"no\""),
        (
            "auth_jwt_validate_sig off; auth_jwt_validate_sig off;",
            "\"auth_jwt_validate_sig\" directive is duplicate",
        ),
        ("auth_jwt_phase content;", "invalid value \"content\""),
        (
            "location / { limit_except GET { auth_jwt_phase access; } }",
            "\"auth_jwt_phase\" directive is not allowed here",
        ),
        (
            "auth_jwt_revocation_list_sub $host.json;",
            "\"auth_jwt_revocation_list_sub\" directive does not take variables",
        ),
        (
            "auth_jwt_revocation_list_kid ${host};",
            "\"auth_jwt_revocation_list_kid\" directive does not take variables",
        ),
        ("auth_jwt_www_authenticate $unknown_name;", "unknown \"unknown_name\" variable"),
        ("auth_jwt_claim_set $a b;", "\"auth_jwt_claim_set\" directive is not allowed here"),
        ("auth_jwt_key_file $unknown_name;", "unknown \"unknown_name\" variable"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
