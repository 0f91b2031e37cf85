//! Further checks of tokens: `auth_jwt_require_claim` and its relatives, lists of revoked tokens, keys in PEM, and the phase.

use std::fs;

use serde_json::{Value, json};
use tw_testkit::jwt::{TokenKey, key_set};
use tw_testkit::{Server, origin, wait};

use super::auth_jwt::{challenge, with_token};
use crate::support::{get, page, request, server, start, start_server};

/// Seconds since 1970.
fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A server of one secret key whose locations have these directives.
fn protected(key: &TokenKey, conf: &str) -> Server {
    let conf = format!("auth_jwt site; auth_jwt_key_file keys.json; {conf}");
    start_server(server().file("conf/keys.json", key_set([key])), &conf)
}

#[test]
fn claims_are_compared_with_expected_values() {
    let key = TokenKey::symmetric("", "s");
    let server = protected(
        &key,
        "auth_jwt_leeway 60s; set $pattern '\"@example[.]com\"'; set $bad_pattern '\"(\"'; set $limit 100; \
         location /text { auth_jwt_require_claim sub eq a; try_files /none =204; \
           location /text/in { auth_jwt_require_claim iss ne b; try_files /none =204; } } \
         location /number { auth_jwt_require_claim n gt json=1; auth_jwt_require_claim n lt $limit; try_files /none =204; } \
         location /list { auth_jwt_require_claim roles any 'json=[\"admin\",\"editor\"]'; \
           auth_jwt_require_claim sub !in 'json={\"b\":1}'; try_files /none =204; } \
         location /path { auth_jwt_require_claim .groups[0].\"the.name\" eq x; try_files /none =204; } \
         location /header { auth_jwt_require_header alg in json=[\"HS256\"]; auth_jwt_require_header typ eq at+jwt; \
           try_files /none =204; } \
         location /pattern { auth_jwt_require_claim sub match '\\Aa+\\z'; auth_jwt_require_claim mail match $pattern; \
           auth_jwt_require_claim mail !match $arg_p; try_files /none =204; } \
         location /bad-pattern { auth_jwt_require_claim mail match $bad_pattern; try_files /none =204; } \
         location /variable { auth_jwt_require_claim sub eq $arg_v; try_files /none =204; } \
         location /claims { auth_jwt_require_claim sub eq json=\"$jwt_claim_iss\"; try_files /none =204; } \
         location /mixed { auth_jwt_require_claim sub eq user-$arg_v; try_files /none =204; } \
         location /time { auth_jwt_validate_exp off; auth_jwt_require_claim exp gt $jwt_nowtime; \
           auth_jwt_require_claim iat le $jwt_nowtime; try_files /none =204; } \
         location /get { try_files /none =204; limit_except GET { auth_jwt_require_claim sub eq a; } }",
    );
    let status = |target: &str, claims: &Value| {
        with_token(&server, target, &key.sign_with("HS256", &json!({ "typ": "at+jwt" }), claims.to_string()))
            .status
    };
    for (target, claims, expected) in [
        ("/text", json!({ "sub": "a" }), 204),
        ("/text", json!({ "sub": "b" }), 401),
        ("/text", json!({}), 401),
        // Requirements of the enclosing location apply, too.
        ("/text/in", json!({ "sub": "a", "iss": "a" }), 204),
        ("/text/in", json!({ "sub": "a", "iss": "b" }), 401),
        ("/text/in", json!({ "sub": "b", "iss": "a" }), 401),
        ("/text/in", json!({ "sub": "a" }), 401),
        ("/number", json!({ "n": 2 }), 204),
        ("/number", json!({ "n": 1 }), 401),
        ("/number", json!({ "n": 100 }), 401),
        ("/number", json!({ "n": "2" }), 401),
        ("/list", json!({ "roles": ["user", "admin"], "sub": "a" }), 204),
        ("/list", json!({ "roles": "editor", "sub": "a" }), 204),
        ("/list", json!({ "roles": ["user"], "sub": "a" }), 401),
        ("/list", json!({ "roles": ["admin"], "sub": "b" }), 401),
        ("/path", json!({ "groups": [{ "the.name": "x" }] }), 204),
        ("/path", json!({ "groups": [{ "the.name": "y" }] }), 401),
        ("/path", json!({ "groups": [] }), 401),
        ("/header", json!({}), 204),
        ("/pattern?p=\"z\"", json!({ "sub": "aa", "mail": "a@example.com" }), 204),
        ("/pattern?p=\"a@\"", json!({ "sub": "aa", "mail": "a@example.com" }), 401),
        ("/pattern?p=\"z\"", json!({ "sub": "aab", "mail": "a@example.com" }), 401),
        ("/pattern?p=\"z\"", json!({ "sub": "aa", "mail": "a@example-com" }), 401),
        ("/pattern?p=x", json!({ "sub": "aa", "mail": "a@example.com" }), 401),
        ("/pattern", json!({ "sub": "aa", "mail": "a@example.com" }), 401),
        ("/bad-pattern", json!({ "mail": "a" }), 401),
        ("/variable?v=\"a\"", json!({ "sub": "a" }), 204),
        ("/variable?v=a", json!({ "sub": "a" }), 401),
        ("/variable?v=[1]", json!({ "sub": [1] }), 204),
        ("/variable", json!({ "sub": "" }), 401),
        ("/claims", json!({ "sub": "a", "iss": "a" }), 204),
        ("/claims", json!({ "sub": "a", "iss": "b" }), 401),
        ("/mixed?v=1", json!({ "sub": "user-1" }), 204),
        ("/mixed?v=1", json!({ "sub": "user-2" }), 401),
        ("/time", json!({ "exp": now() - 10, "iat": now() }), 204),
        ("/time", json!({ "exp": now() - 600, "iat": now() }), 401),
        ("/time", json!({ "exp": now() + 600, "iat": now() + 600 }), 401),
        ("/get", json!({}), 204),
    ] {
        assert_eq!(status(target, &claims), expected, "{target} {claims}");
    }
    let token = format!("Authorization: Bearer {}", key.sign("HS256", &json!({})));
    assert_eq!(request(&server, "OPTIONS /get", &[&token]).status, 401);
    assert_eq!(with_token(&server, "/header", &key.sign("HS384", &json!({}))).status, 401);
    let unmet = with_token(&server, "/text", &key.sign("HS256", &json!({})));
    assert_eq!(challenge(&unmet), (401, Some("Bearer realm=\"site\", error=\"invalid_token\"")));
    let long = format!("/variable?v=\"{}\"", "a".repeat(4096));
    assert_eq!(status(&long, &json!({ "sub": "a" })), 401);
    let long = format!("/pattern?p=\"{}\"", "a".repeat(1100));
    assert_eq!(status(&long, &json!({ "sub": "a", "mail": "a@example.com" })), 401);
    for line in [
        "\"auth_jwt_require_claim sub eq\" is not met: it has another value, client: ",
        "\"auth_jwt_require_claim sub eq\" is not met: it is missing",
        "\"auth_jwt_require_claim n gt\" is not met: the operator does not compare values of these types",
        "\"auth_jwt_require_claim sub eq\" is not met: the expected value is no JSON",
        "\"auth_jwt_require_claim sub eq\" is not met: the expected value is empty",
        "\"auth_jwt_require_claim sub eq\" is not met: the expected value has more than 4096 bytes",
        "\"auth_jwt_require_claim mail !match\" is not met: the expected value has more than 1024 bytes",
        "\"auth_jwt_require_claim mail match\" is not met: the regular expression is invalid: ",
        "\"auth_jwt_require_header alg in\" is not met: it has another value",
    ] {
        server.wait_error_log(line).unwrap();
    }
}

#[test]
fn nested_names_lead_into_objects() {
    let key = TokenKey::symmetric("", "s");
    let server = start(
        server().file("conf/keys.json", key_set([&key])),
        "auth_jwt_claim_set $access grants.access; auth_jwt_claim_set $two grants access; auth_jwt_allow_nested; \
         server { listen 127.0.0.1:{port}; auth_jwt site; auth_jwt_key_file keys.json; \
           location / { auth_jwt_require_claim grants.access eq allow; \
             auth_jwt_require_claim '\"a.b\".c' eq d; return 200 '$access $two'; } \
           location /arrow { auth_jwt_allow_nested delimiter=->; auth_jwt_require_claim grants->access eq allow; \
             return 200 '<$access> $two'; } \
           location /variables { auth_jwt_allow_nested delimiter=_ quote=|; \
             return 200 '$jwt_claim_grants_access $jwt_header_x_y $jwt_claims'; } }",
    );
    let claims = json!({ "grants": { "access": "allow" }, "a.b": { "c": "d" } });
    let token = key.sign_with("HS256", &json!({ "x": { "y": 1 } }), claims.to_string());
    let text = |target: &str| with_token(&server, target, &token).text();
    // "return" comes before the access phase.
    assert_eq!(text("/"), "allow allow");
    assert_eq!(text("/arrow"), "<> allow");
    assert_eq!(text("/variables"), format!("allow 1 {claims}"));
}

#[test]
fn nested_names_are_required() {
    let key = TokenKey::symmetric("", "s");
    let server = protected(
        &key,
        "location / { auth_jwt_allow_nested; auth_jwt_require_claim grants.access eq allow; \
           auth_jwt_require_claim '\"a.b\".c' eq d; try_files /none =204; \
           location /arrow { auth_jwt_allow_nested delimiter=->; try_files /none =204; } } \
         location /flat { auth_jwt_require_claim grants.access eq allow; try_files /none =204; }",
    );
    let status =
        |target: &str, claims: &Value| with_token(&server, target, &key.sign("HS256", claims)).status;
    let nested = json!({ "grants": { "access": "allow" }, "a.b": { "c": "d" } });
    let flat = json!({ "grants.access": "allow" });
    for (target, claims, expected) in [
        ("/", &nested, 204),
        ("/", &flat, 401),
        ("/arrow", &nested, 401),
        ("/flat", &nested, 401),
        ("/flat", &flat, 204),
    ] {
        assert_eq!(status(target, claims), expected, "{target} {claims}");
    }
}

#[test]
fn checks_of_end_and_signature_can_be_off() {
    let (key, other) = (TokenKey::symmetric("", "s"), TokenKey::symmetric("", "other"));
    let server = protected(
        &key,
        "add_header X-Claim $jwt_claim_sub; location / { try_files /none =204; } \
         location /exp { auth_jwt_validate_exp off; try_files /none =204; } \
         location /sig { auth_jwt_validate_sig off; try_files /none =204; \
           location /sig/claim { auth_jwt_require_claim sub eq a; try_files /none =204; } \
           location /sig/on { auth_jwt_validate_sig on; try_files /none =204; } } \
         location /nested { auth_jwt_type nested; auth_jwt_validate_sig off; try_files /none =204; }",
    );
    let (end, start) = (json!({ "exp": now() - 600 }), json!({ "nbf": now() + 600 }));
    let (ended, early) = (key.sign("HS256", &end), key.sign("HS256", &start));
    let forged = other.sign("HS256", &json!({ "sub": "a" }));
    let unsigned = format!("{}.e30.", tw_testkit::jwt::base64url("{\"alg\":\"none\"}"));
    let critical = other.sign_with("HS256", &json!({ "crit": ["x"], "x": 1 }), "{}");
    for (target, token, expected) in [
        ("/", &ended, 401),
        ("/exp", &ended, 204),
        ("/exp", &early, 401),
        ("/exp", &forged, 401),
        ("/sig", &forged, 204),
        ("/sig", &unsigned, 204),
        ("/sig", &ended, 401),
        ("/sig", &critical, 401),
        ("/sig/claim", &forged, 204),
        ("/sig/claim", &unsigned, 401),
        ("/sig/on", &forged, 401),
        ("/sig/on", &unsigned, 401),
        ("/nested", &forged, 401),
    ] {
        assert_eq!(with_token(&server, target, token).status, expected, "{target} {token}");
    }
    assert_eq!(with_token(&server, "/sig", &forged).field("X-Claim"), Some("a"));
    for token in ["x", "a.b.c", "e30.e30", "e30.W10."] {
        assert_eq!(with_token(&server, "/sig", token).status, 401, "{token}");
    }
    // Without signature validation, a token needs no keys.
    let keyless =
        start_server(self::server(), "auth_jwt site; auth_jwt_validate_sig off; try_files /none =204;");
    assert_eq!(with_token(&keyless, "/", &forged).status, 204);
    assert_eq!(get(&keyless, "/").status, 401);
}

#[test]
fn nested_token_is_decrypted_without_check_of_its_signature() {
    let (shared, other) = (TokenKey::symmetric("", vec![9; 16]), TokenKey::symmetric("", "other"));
    let server = protected(
        &shared,
        "auth_jwt_type nested; add_header X-Claim $jwt_claim_sub; location / { try_files /none =204; } \
         location /sig { auth_jwt_validate_sig off; try_files /none =204; }",
    );
    let inner = other.sign("HS256", &json!({ "sub": "a" }));
    let token = shared.encrypt("A128KW", "A128GCM", &json!({ "cty": "JWT" }), &inner);
    assert_eq!(with_token(&server, "/", &token).status, 401);
    let accepted = with_token(&server, "/sig", &token);
    assert_eq!((accepted.status, accepted.field("X-Claim")), (204, Some("a")));
    let foreign =
        TokenKey::symmetric("", vec![8; 16]).encrypt("A128KW", "A128GCM", &json!({ "cty": "JWT" }), &inner);
    assert_eq!(with_token(&server, "/sig", &foreign).status, 401);
}

#[test]
fn revoked_tokens_are_refused() {
    let (first, second) = (TokenKey::symmetric("k1", "s"), TokenKey::symmetric("k2", "s"));
    let (nameless, cipher) = (TokenKey::symmetric("", "s"), TokenKey::symmetric("c", vec![9; 16]));
    let server = start_server(
        server()
            .file("conf/keys.json", key_set([&first, &second, &cipher]))
            .file("conf/subs.json", "{\"bad\": {\"why\": \"x\"}, \"7\": 1}")
            .file("conf/more.json", "{\"worse\": null}")
            .file("conf/kids.json", "{\"k2\": null}")
            .file("conf/list.json", "[\"a\"]")
            .file("conf/large.json", format!("{{\"a\":\"{}\"}}", "x".repeat(16 << 20))),
        "auth_jwt site; auth_jwt_key_file keys.json; location / { try_files /none =204; } \
         location /sub { auth_jwt_revocation_list_sub subs.json; try_files /none =204; \
           location /sub/more { auth_jwt_revocation_list_sub more.json; try_files /none =204; } } \
         location /kid { auth_jwt_revocation_list_kid kids.json; try_files /none =204; } \
         location /nested { auth_jwt_type nested; auth_jwt_revocation_list_kid kids.json; try_files /none =204; } \
         location /list { auth_jwt_revocation_list_sub list.json; } \
         location /none { auth_jwt_revocation_list_kid none.json; } \
         location /large { auth_jwt_revocation_list_sub large.json; }",
    );
    let status = |target: &str, token: &str| with_token(&server, target, token).status;
    let of = |sub: Value| first.sign("HS256", &json!({ "sub": sub }));
    for (target, token, expected) in [
        ("/", of(json!("bad")), 204),
        ("/sub", of(json!("good")), 204),
        ("/sub", of(json!("bad")), 401),
        ("/sub", of(json!(7)), 401),
        ("/sub", of(json!("worse")), 204),
        ("/sub", first.sign("HS256", &json!({})), 204),
        ("/sub/more", of(json!("bad")), 401),
        ("/sub/more", of(json!("worse")), 401),
        ("/sub/more", of(json!("good")), 204),
        ("/kid", first.sign("HS256", &json!({})), 204),
        ("/kid", second.sign("HS256", &json!({})), 401),
        ("/kid", nameless.sign("HS256", &json!({})), 401),
        ("/list", of(json!("a")), 500),
        ("/none", of(json!("a")), 500),
        ("/large", of(json!("a")), 500),
    ] {
        assert_eq!(status(target, &token), expected, "{target}");
    }
    // A signed token inside an encrypted one names the key of its signature.
    for (signer, expected) in [(&first, 204), (&second, 401)] {
        let inner = signer.sign("HS256", &json!({}));
        let token = cipher.encrypt("A128KW", "A128GCM", &json!({ "cty": "JWT" }), inner);
        assert_eq!(status("/nested", &token), expected);
    }
    let refused = with_token(&server, "/sub", &of(json!("bad")));
    assert_eq!(challenge(&refused), (401, Some("Bearer realm=\"site\", error=\"invalid_token\"")));
    for line in [
        "JWT validation failed: its \"sub\" is revoked, client: ",
        "JWT validation failed: its \"kid\" is revoked, client: ",
        "JWT validation failed: it has no \"kid\", and keys may be revoked",
        "conf/list.json\": invalid type: sequence, expected an object",
        "none.json\" failed (2: No such file or directory)",
        "conf/large.json\": more than 16777216 bytes",
    ] {
        server.wait_error_log(line).unwrap();
    }
    let fresh = server.prefix().join("conf/fresh.json");
    fs::write(&fresh, "{\"good\": 1}").unwrap();
    fs::rename(&fresh, server.prefix().join("conf/subs.json")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || status("/sub", &of(json!("good"))) == 401));
    assert_eq!(status("/sub", &of(json!("bad"))), 204);
}

#[test]
fn keys_in_pem_verify_signatures() {
    let keys = [
        TokenKey::rsa("r"),
        TokenKey::ecdsa("e2", "P-256"),
        TokenKey::ecdsa("e3", "P-384"),
        TokenKey::ecdsa("e5", "P-521"),
        TokenKey::ed25519("d"),
    ];
    let names = ["r", "e2", "e3", "e5", "d"];
    let keyval: Value =
        names.iter().zip(&keys).map(|(name, key)| ((*name).to_owned(), key.public_pem())).collect();
    let text = keyval.to_string();
    let (addr, _) = origin::counting(move |conn, _, _| conn.answer("", &text));
    let secret = TokenKey::symmetric("s", "secret");
    let server = start_server(
        server()
            .file("conf/keys.json", keyval.to_string())
            .file("conf/set.json", key_set([&secret]))
            .file("conf/one.json", json!({ "s": "secret", "r": keys[0].public_pem() }).to_string())
            .file("conf/secret.json", json!({ "s": "secret" }).to_string()),
        &format!(
            "auth_jwt site; location / {{ auth_jwt_key_file keys.json keyval; try_files /none =204; }} \
             location /request {{ auth_jwt_key_request /keys keyval; try_files /none =204; }} \
             location = /keys {{ internal; proxy_pass http://{addr}; }} \
             location /both {{ auth_jwt_key_file keys.json keyval; auth_jwt_key_file set.json jwks; try_files /none =204; }} \
             location /one {{ auth_jwt_key_file one.json keyval; try_files /none =204; }} \
             location /secret {{ auth_jwt_key_file secret.json keyval; }} \
             location /jwks {{ auth_jwt_key_file keys.json; }}"
        ),
    );
    let algorithms = ["RS256", "ES256", "ES384", "ES512", "EdDSA"];
    let tokens: Vec<_> = keys.iter().zip(algorithms).map(|(key, alg)| key.sign(alg, &json!({}))).collect();
    for target in ["/", "/request", "/both"] {
        let statuses: Vec<_> = tokens.iter().map(|token| with_token(&server, target, token).status).collect();
        assert_eq!(statuses, [204; 5], "{target}");
    }
    // The identifier of the key counts, and a public key is no secret.
    assert_eq!(with_token(&server, "/", &TokenKey::rsa("r").sign("RS256", &json!({}))).status, 401);
    let confused = TokenKey::symmetric("r", keys[0].public_pem()).sign("HS256", &json!({}));
    assert_eq!(with_token(&server, "/", &confused).status, 401);
    let by_secret = secret.sign("HS256", &json!({}));
    assert_eq!(with_token(&server, "/both", &by_secret).status, 204);
    assert_eq!(with_token(&server, "/one", &tokens[0]).status, 204);
    assert_eq!(with_token(&server, "/one", &by_secret).status, 401);
    assert_eq!(with_token(&server, "/secret", &by_secret).status, 500);
    assert_eq!(with_token(&server, "/jwks", &tokens[0]).status, 500);
    server.wait_error_log("conf/secret.json\": key 1 cannot be used: it is no PEM").unwrap();
}

#[test]
fn preaccess_phase_checks_subrequests() {
    let key = TokenKey::symmetric("", "s");
    let keys = key_set([&key]);
    let server = start(
        server().file("conf/keys.json", keys.clone()).file("html/page", "page").file("html/inner", "inner"),
        "limit_req_zone $jwt_claim_sub zone=subs:1m rate=1r/m; \
         server { listen 127.0.0.1:{port}; auth_jwt_key_file keys.json; default_type text/html; root html; \
           location = /page { add_after_body /inner; } \
           location = /inner { auth_jwt site; auth_jwt_phase preaccess; } \
           location = /open { add_after_body /access/inner; try_files /page =404; } \
           location = /access/inner { auth_jwt site; try_files /inner =404; } \
           location /any { auth_jwt site; auth_jwt_phase preaccess; satisfy any; allow all; try_files /none =204; } \
           location /both { auth_jwt site; auth_jwt_phase preaccess; add_header X-Claim $jwt_claim_sub; deny all; } \
           location /limit { auth_jwt site; auth_jwt_phase preaccess; limit_req zone=subs; try_files /none =204; } \
           location /upstream { auth_jwt site; auth_jwt_phase preaccess; auth_request /check; \
             proxy_set_header X-Claim $jwt_claim_sub; proxy_pass http://127.0.0.1:{port1}; } \
           location = /check { auth_jwt site; auth_jwt_phase preaccess; auth_jwt_require_claim sub eq a; try_files /none =204; } \
           location /request { auth_jwt site; auth_jwt_phase preaccess; auth_jwt_key_request /keys; try_files /none =204; } \
           location = /keys { auth_jwt off; alias conf/keys.json; } \
           location /loop { auth_jwt site; auth_jwt_phase preaccess; auth_jwt_key_request /loop; } } \
         server { listen 127.0.0.1:{port1}; return 200 $http_x_claim; }",
    );
    let token = key.sign("HS256", &json!({ "sub": "a" }));
    let other = key.sign("HS256", &json!({ "sub": "b" }));
    assert_eq!(with_token(&server, "/page", &token).text(), "pageinner");
    assert!(!page(&server, "/page").1.contains("inner"));
    // The access phase does not check subrequests: whoever may request the page gets its parts too.
    assert_eq!(page(&server, "/open").1, "pageinner");
    assert_eq!(get(&server, "/any").status, 401);
    assert_eq!(with_token(&server, "/any", &token).status, 204);
    assert_eq!(with_token(&server, "/both", &token).status, 403);
    assert_eq!(get(&server, "/both").status, 401);
    assert_eq!([204, 503], [0, 1].map(|_| with_token(&server, "/limit", &token).status));
    assert_eq!(with_token(&server, "/upstream", &token).text(), "a");
    assert_eq!(with_token(&server, "/upstream", &other).status, 401);
    assert_eq!(with_token(&server, "/request", &token).status, 204);
    assert_eq!(with_token(&server, "/loop", &token).status, 500);
    server.wait_error_log("keys of \"/loop\": its location asks for keys itself, client: ").unwrap();
}

#[test]
fn challenge_can_be_replaced() {
    let key = TokenKey::symmetric("", "s");
    let server = protected(
        &key,
        "location / { try_files /none =204; } \
         location /off { auth_jwt_www_authenticate off; try_files /none =204; location /off/on { auth_jwt_www_authenticate on; } } \
         location /text { auth_jwt_www_authenticate 'Bearer scope=\"$arg_s\"'; try_files /none =204; }",
    );
    assert_eq!(challenge(&get(&server, "/")), (401, Some("Bearer realm=\"site\"")));
    assert_eq!(challenge(&get(&server, "/off")), (401, None));
    assert_eq!(challenge(&get(&server, "/off/on")), (401, Some("Bearer realm=\"site\"")));
    assert_eq!(challenge(&get(&server, "/text?s=x")), (401, Some("Bearer scope=\"x\"")));
    assert_eq!(challenge(&with_token(&server, "/text?s=y", "x")), (401, Some("Bearer scope=\"y\"")));
    assert_eq!(with_token(&server, "/off", &key.sign("HS256", &json!({}))).status, 204);
}
