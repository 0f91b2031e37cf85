//! Tokens of each algorithm, those of the RFCs, and tokens that are broken on purpose.

use std::time::Duration;

use serde_json::{Value, json};
use tw_core::vars::Value as Presence;
use tw_rt::clock::UnixTime;
use tw_testkit::Random;
use tw_testkit::jwt::{TokenKey, base64url, from_base64url, key_set};

use super::keys::KEYS_TRIED_MAX;
use super::{
    ClaimPath, KeySet, SignatureCheck, Token, TokenError, TokenKind, UnverifiedToken, VerifiedToken,
    append_member,
};

fn keys(text: impl AsRef<[u8]>) -> KeySet {
    KeySet::parse(text.as_ref()).unwrap()
}

fn checked(text: &str, kind: TokenKind, keys: &KeySet) -> Result<VerifiedToken, TokenError> {
    Token::parse(text.as_bytes(), kind, SignatureCheck::On)?.verify([keys].into_iter())
}

/// Error of a signed token; `Ok` with its claims.
fn verified(text: &str, keys: &KeySet) -> Result<Value, TokenError> {
    checked(text, TokenKind::Signed, keys).map(|token| token.claims().clone().into())
}

/// One key of each type.
fn all_keys() -> Vec<(TokenKey, &'static [&'static str])> {
    vec![
        (TokenKey::symmetric("hmac", "secret"), &["HS256", "HS384", "HS512"]),
        (TokenKey::rsa("rsa"), &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (TokenKey::ecdsa("p256", "P-256"), &["ES256"]),
        (TokenKey::ecdsa("p384", "P-384"), &["ES384"]),
        (TokenKey::ecdsa("p521", "P-521"), &["ES512"]),
        (TokenKey::ed25519("ed"), &["EdDSA", "Ed25519"]),
    ]
}

#[test]
fn every_signature_algorithm_verifies_by_its_key_only() {
    let all = all_keys();
    let claims = json!({ "sub": "a", "n": 1 });
    for (key, algorithms) in &all {
        let own = keys(key_set([key]));
        let others = keys(key_set(all.iter().map(|(key, _)| key).filter(|other| other.jwk() != key.jwk())));
        for algorithm in *algorithms {
            let token = key.sign(algorithm, &claims);
            assert_eq!(verified(&token, &own), Ok(claims.clone()), "{algorithm}");
            assert_eq!(verified(&token, &others), Err(TokenError::NoKey(None)), "{algorithm}");
            // Invalid: another payload, another header, and a signature that is truncated, extended, or empty.
            let parts: Vec<&str> = token.split('.').collect();
            let other = base64url(r#"{"sub":"b","n":1}"#);
            let mut short = from_base64url(parts[2]);
            short.pop();
            let long = [short.as_slice(), &[0, 0]].concat();
            for changed in [
                [parts[0], &other, parts[2]].join("."),
                [parts[0], parts[1], &base64url(&short)].join("."),
                [parts[0], parts[1], &base64url(&long)].join("."),
                [parts[0], parts[1], ""].join("."),
            ] {
                assert_eq!(
                    verified(&changed, &own),
                    Err(TokenError::WrongSignature),
                    "{algorithm} {changed}"
                );
            }
        }
        // A key named by no one, and the algorithm of another type.
        for algorithm in ["HS256", "RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"] {
            if !algorithms.contains(&algorithm) {
                let token = key.sign_with(algorithm, &json!({}), claims.to_string());
                assert_eq!(verified(&token, &own), Err(TokenError::NoKey(None)), "{algorithm}");
            }
        }
    }
}

/// The oldest attack: the public key of RSA as the secret of an HMAC, and no signature at all.
#[test]
fn public_key_is_no_secret_and_none_is_no_algorithm() {
    let rsa = TokenKey::rsa("k");
    let own = keys(key_set([&rsa]));
    for secret in [rsa.jwk().to_string().into_bytes(), from_base64url(rsa.jwk()["n"].as_str().unwrap())] {
        let forged = TokenKey::symmetric("k", secret).sign("HS256", &json!({ "sub": "admin" }));
        assert_eq!(verified(&forged, &own), Err(TokenError::NoKey(None)));
    }
    let payload = base64url("{}");
    for (header, expected) in [
        (json!({ "alg": "none" }), TokenError::Unsecured),
        (json!({ "alg": "NONE" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "nOnE" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "ES256K" }), TokenError::Unsupported("alg")),
        (json!({ "alg": null }), TokenError::Malformed("header")),
        (json!({ "alg": ["RS256"] }), TokenError::Malformed("header")),
        (json!({}), TokenError::Malformed("header")),
        (json!({ "alg": "RS256", "crit": ["b64"], "b64": false }), TokenError::Unsupported("crit")),
    ] {
        let header = base64url(header.to_string());
        for signature in ["", "AA"] {
            let token = format!("{header}.{payload}.{signature}");
            assert_eq!(verified(&token, &own), Err(expected.clone()), "{token}");
        }
    }
}

/// RFC 7515 appendix A.1, RFC 8037 appendix A.4, RFC 7516 appendix A.3. The payloads of the last two are no claims.
#[test]
fn tokens_of_the_rfcs() {
    let own = keys(
        r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
    );
    let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
                 cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let claims = json!({ "iss": "joe", "exp": 1_300_819_380, "http://example.com/is_root": true });
    assert_eq!(verified(token, &own), Ok(claims));
    let own = keys(r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#);
    let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcN\
                 R4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    assert_eq!(verified(token, &own), Err(TokenError::Malformed("payload")));
    let own = keys(r#"{"kty":"oct","k":"GawgguFyGrWKav7AX4VKUg"}"#);
    let token = "eyJhbGciOiJBMTI4S1ciLCJlbmMiOiJBMTI4Q0JDLUhTMjU2In0.6KB707dM9YTIgHtLvtgWQ8mKwboJW3of9locizkDTHzBC2IlrT1oOQ.\
                 AxY8DCtDaGlsbGljb3RoZQ.KDlTtXchhZTGufMYmOYGS4HffxPSUrfmqCHXaI9wOGY.U0m_YmjN04DJvceFICbCVQ";
    assert_eq!(checked(token, TokenKind::Encrypted, &own).unwrap_err(), TokenError::Malformed("payload"));
}

#[test]
fn every_encryption_algorithm_decrypts() {
    let rsa = TokenKey::rsa("rsa");
    let claims = json!({ "sub": "a" });
    let contents = ["A128GCM", "A192GCM", "A256GCM", "A128CBC-HS256", "A192CBC-HS384", "A256CBC-HS512"];
    let key = |size| TokenKey::symmetric("k", vec![7; size]);
    let managements =
        [("A128KW", 16), ("A256KW", 32), ("A128GCMKW", 16), ("A192GCMKW", 24), ("A256GCMKW", 32)];
    let sizes = [16, 24, 32, 32, 48, 64];
    let mut tokens = Vec::new();
    for (content, size) in contents.iter().zip(sizes) {
        tokens.push((
            key(size).encrypt("dir", content, &json!({}), claims.to_string()),
            keys(key_set([&key(size)])),
        ));
        for (algorithm, size) in managements {
            let token = key(size).encrypt(algorithm, content, &json!({}), claims.to_string());
            tokens.push((token, keys(key_set([&key(size)]))));
        }
        for algorithm in ["RSA-OAEP", "RSA-OAEP-256", "RSA-OAEP-384", "RSA-OAEP-512"] {
            let token = rsa.encrypt(algorithm, content, &json!({}), claims.to_string());
            tokens.push((token, keys(rsa.private_jwk().to_string())));
        }
    }
    let other = keys(key_set(&[16, 24, 32, 48, 64].map(|size| TokenKey::symmetric("k", vec![8; size]))));
    for (token, own) in &tokens {
        let verified_token = checked(token, TokenKind::Encrypted, own).unwrap();
        assert_eq!(Value::from(verified_token.claims().clone()), claims, "{token}");
        assert_eq!(verified_token.payload(), Some(claims.to_string().as_bytes()));
        assert!(checked(token, TokenKind::Encrypted, &other).is_err());
        // Every part of the token is authenticated.
        let parts: Vec<&str> = token.split('.').collect();
        for (at, part) in parts.iter().enumerate() {
            let mut bytes = from_base64url(part);
            let Some(last) = bytes.last_mut() else { continue };
            *last ^= 1;
            let mut changed = parts.clone();
            let text = base64url(bytes);
            changed[at] = &text;
            assert!(checked(&changed.join("."), TokenKind::Encrypted, own).is_err(), "{at} {token}");
        }
    }
}

#[test]
fn unsupported_encryption_is_refused_with_a_reason() {
    let key = TokenKey::symmetric("", vec![1; 32]);
    let own = keys(key_set([&key]));
    for (header, expected) in [
        (json!({ "alg": "A192KW" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "RSA1_5" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "ECDH-ES" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "PBES2-HS256+A128KW" }), TokenError::Unsupported("alg")),
        (json!({ "alg": "none" }), TokenError::Unsupported("alg")),
        (json!({ "enc": "A128CBC" }), TokenError::Unsupported("enc")),
        (json!({ "zip": "DEF" }), TokenError::Unsupported("zip")),
        (json!({ "crit": [] }), TokenError::Unsupported("crit")),
    ] {
        let token = key.encrypt("dir", "A256GCM", &header, "{}");
        assert_eq!(checked(&token, TokenKind::Encrypted, &own).unwrap_err(), expected, "{header}");
    }
    // A key of the content that is not as long as its cipher needs.
    let token = key.encrypt("A256KW", "A256GCM", &json!({ "enc": "A128GCM" }), "{}");
    assert_eq!(checked(&token, TokenKind::Encrypted, &own).unwrap_err(), TokenError::Undecryptable);
    let signed = key.sign("HS256", &json!({}));
    assert_eq!(checked(&signed, TokenKind::Encrypted, &own).unwrap_err(), TokenError::Malformed("form"));
    let encrypted = key.encrypt("dir", "A256GCM", &json!({}), "{}");
    assert_eq!(checked(&encrypted, TokenKind::Signed, &own).unwrap_err(), TokenError::Malformed("form"));
}

#[test]
fn nested_token_is_decrypted_and_verified() {
    let outer = TokenKey::symmetric("o", vec![1; 32]);
    let inner = TokenKey::ed25519("i");
    let own = keys(key_set([&outer, &inner]));
    let signed = inner.sign("EdDSA", &json!({ "sub": "a" }));
    let nested = |content: &str| outer.encrypt("dir", "A256GCM", &json!({ "cty": "JWT" }), content);
    let verified_token = checked(&nested(&signed), TokenKind::Nested, &own).unwrap();
    assert_eq!(
        (&verified_token.claims()["sub"], verified_token.payload()),
        (&json!("a"), Some(signed.as_bytes()))
    );
    let forged = TokenKey::ed25519("i").sign("EdDSA", &json!({ "sub": "b" }));
    assert_eq!(checked(&nested(&forged), TokenKind::Nested, &own).unwrap_err(), TokenError::WrongSignature);
    // Invalid: unsigned claims, and three nested tokens.
    assert_eq!(checked(&nested("{}"), TokenKind::Nested, &own).unwrap_err(), TokenError::Malformed("form"));
    let deeper = nested(&nested(&signed));
    assert_eq!(checked(&deeper, TokenKind::Nested, &own).unwrap_err(), TokenError::Malformed("form"));
}

#[test]
fn key_is_chosen_by_identifier_use_and_algorithm() {
    let one = TokenKey::symmetric("1", "one");
    let other = TokenKey::symmetric("2", "other");
    let token = one.sign("HS256", &json!({}));
    let with = |name: &str, value: Value| {
        let mut jwk = one.jwk();
        jwk[name] = value;
        keys(json!({ "keys": [other.jwk(), jwk] }).to_string())
    };
    for (name, value, expected) in [
        ("kid", json!("1"), Ok(())),
        ("kid", json!(null), Ok(())),
        ("kid", json!("3"), Err(TokenError::NoKey(None))),
        ("use", json!("sig"), Ok(())),
        ("use", json!("enc"), Err(TokenError::NoKey(None))),
        ("alg", json!("HS256"), Ok(())),
        ("alg", json!("HS384"), Err(TokenError::NoKey(None))),
        ("key_ops", json!(["sign", "verify"]), Ok(())),
        ("key_ops", json!(["sign"]), Err(TokenError::NoKey(None))),
        ("key_ops", json!([]), Err(TokenError::NoKey(None))),
    ] {
        let result = verified(&token, &with(name, value.clone())).map(drop);
        assert_eq!(result, expected, "{name} {value}");
    }
    let unnamed = TokenKey::symmetric("", "one").sign("HS256", &json!({}));
    assert_eq!(verified(&unnamed, &with("use", json!("sig"))), Ok(json!({})));
    // No more than KEYS_TRIED_MAX keys are tried.
    let many: Vec<_> =
        (0..KEYS_TRIED_MAX).map(|at| TokenKey::symmetric(&at.to_string(), format!("{at}"))).collect();
    let last = keys(key_set(many.iter().chain([&one])));
    assert_eq!(verified(&unnamed, &last), Err(TokenError::WrongSignature));
    assert_eq!(verified(&unnamed, &keys(key_set(many.iter().skip(1).chain([&one])))), Ok(json!({})));
}

#[test]
fn unusable_keys_are_left_out_with_a_reason() {
    let point = TokenKey::ecdsa("", "P-256").jwk();
    let set = |name: &str, value: &str| {
        let mut jwk = point.clone();
        jwk[name] = value.into();
        jwk.to_string()
    };
    let rsa = TokenKey::rsa("").private_jwk();
    let rsa_with = |name: &str, value: &str| {
        let mut jwk = rsa.clone();
        jwk[name] = value.into();
        jwk.to_string()
    };
    for (text, expected) in [
        (String::new(), "EOF while parsing"),
        ("[]".to_owned(), "it has no list of \"keys\""),
        ("{}".to_owned(), "it has no list of \"keys\""),
        (r#"{"keys":{}}"#.to_owned(), "it has no list of \"keys\""),
        (r#"{"keys":[]}"#.to_owned(), "it has no keys"),
        (r#"{"keys":[1]}"#.to_owned(), "key 1 cannot be used: it has no \"kty\""),
        (r#"{"kty":"oct"}"#.to_owned(), "it has no \"k\""),
        (r#"{"kty":"oct","k":""}"#.to_owned(), "\"k\" is empty"),
        (r#"{"kty":"oct","k":"a+b="}"#.to_owned(), "\"k\" is not base64url"),
        (r#"{"kty":"AKP"}"#.to_owned(), "unknown type \"AKP\""),
        (r#"{"kty":"OKP","crv":"Ed448","x":"AA"}"#.to_owned(), "unsupported curve \"Ed448\""),
        (r#"{"kty":"OKP","crv":"Ed25519","x":"AA"}"#.to_owned(), "its point is not on the curve"),
        (set("crv", "secp256k1"), "unsupported curve \"secp256k1\""),
        (set("crv", "P-384"), "the coordinates of this curve have 48 bytes"),
        (set("x", &base64url([1; 32])), "its point is not on the curve"),
        (set("x", &base64url([1; 31])), "the coordinates of this curve have 32 bytes"),
        (rsa_with("n", &base64url([255; 128])), "RSA with 1024 bits"),
        (rsa_with("n", &base64url([255; 2048])), "RSA with 16384 bits"),
        (rsa_with("n", ""), "\"n\" is 0"),
        (rsa_with("e", "AQ"), "RSA with an invalid \"e\""),
        (rsa_with("e", "Ag"), "RSA with an invalid \"e\""),
        (rsa_with("e", &base64url([1; 6])), "RSA with an invalid \"e\""),
        (rsa_with("d", "AQ"), "its parts do not belong together"),
        (rsa_with("p", &base64url([3; 128])), "its parts do not belong together"),
        (json!({ "keys": vec![json!({}); 129] }).to_string(), "it has 129 keys, more than 128"),
        (format!("{}1{}", "[".repeat(200), "]".repeat(200)), "recursion limit exceeded"),
    ] {
        let why = KeySet::parse(text.as_bytes()).unwrap_err();
        assert!(why.contains(expected), "{text}: {why}");
    }
    // Zeros in front of a number, as some write them.
    let n = from_base64url(rsa["n"].as_str().unwrap());
    keys(rsa_with("n", &base64url([&[0][..], &n].concat())));
    // Usable keys stay, and the reason why others are not is reported when no key fits.
    let good = TokenKey::symmetric("", "s");
    let mixed = keys(json!({ "keys": [{ "kty": "OKP", "crv": "Ed448" }, good.jwk()] }).to_string());
    assert!(verified(&good.sign("HS256", &json!({})), &mixed).is_ok());
    let error = verified(&TokenKey::ed25519("").sign("EdDSA", &json!({})), &mixed).unwrap_err();
    assert!(error.to_string().contains("key 1 cannot be used: unsupported curve \"Ed448\""), "{error}");
}

#[test]
fn times_are_checked_with_leeway() {
    let key = TokenKey::symmetric("", "s");
    let own = keys(key_set([&key]));
    for (claims, leeway, expected) in [
        (json!({}), 0, Ok(())),
        (json!({ "exp": 101 }), 0, Ok(())),
        (json!({ "exp": 100 }), 0, Err(TokenError::Expired)),
        (json!({ "exp": 100.5 }), 0, Ok(())),
        (json!({ "exp": 95 }), 5, Err(TokenError::Expired)),
        (json!({ "exp": 95 }), 6, Ok(())),
        (json!({ "exp": -1 }), 0, Err(TokenError::Expired)),
        (json!({ "exp": 1e300 }), 0, Ok(())),
        (json!({ "exp": "200" }), 0, Err(TokenError::InvalidTime("exp"))),
        (json!({ "exp": null }), 0, Err(TokenError::InvalidTime("exp"))),
        (json!({ "exp": true }), 0, Err(TokenError::InvalidTime("exp"))),
        (json!({ "nbf": 100 }), 0, Ok(())),
        (json!({ "nbf": 101 }), 0, Err(TokenError::NotYetValid)),
        (json!({ "nbf": 101 }), 1, Ok(())),
        (json!({ "nbf": [] }), 0, Err(TokenError::InvalidTime("nbf"))),
    ] {
        let token = checked(&key.sign("HS256", &claims), TokenKind::Signed, &own).unwrap();
        let now = UnixTime { secs: 100, msec: 0 };
        assert_eq!(token.check_times(now, Duration::from_secs(leeway)), expected, "{claims} {leeway}");
    }
    let huge = key.sign_with("HS256", &json!({}), r#"{"exp":1e999}"#);
    assert_eq!(verified(&huge, &own), Err(TokenError::Malformed("payload")));
}

#[test]
fn malformed_tokens_are_refused() {
    let key = TokenKey::symmetric("", "s");
    let own = keys(key_set([&key]));
    let good = key.sign("HS256", &json!({ "a": 1 }));
    let parts: Vec<&str> = good.split('.').collect();
    let deep = format!("{}1{}", "{\"a\":".repeat(130), "}".repeat(130));
    for (text, expected) in [
        (String::new(), TokenError::Malformed("form")),
        (".".to_owned(), TokenError::Malformed("form")),
        ("..".to_owned(), TokenError::Malformed("header")),
        ("....".to_owned(), TokenError::Malformed("form")),
        (format!("{good}."), TokenError::Malformed("form")),
        (format!("{}.{}", parts[0], parts[1]), TokenError::Malformed("form")),
        (format!("{good}="), TokenError::Malformed("base64url")),
        (format!("{good} "), TokenError::Malformed("base64url")),
        (format!("\u{e9}{good}"), TokenError::Malformed("base64url")),
        (good.replace('.', "\0."), TokenError::Malformed("base64url")),
        (format!("{}.{}.{}", base64url("[]"), parts[1], parts[2]), TokenError::Malformed("header")),
        (
            format!("{}.{}.{}", base64url("{\"alg\":\"HS256\"} x"), parts[1], parts[2]),
            TokenError::Malformed("header"),
        ),
        (
            format!("{}.{}.{}", base64url(b"{\"a\":\"\xff\"}"), parts[1], parts[2]),
            TokenError::Malformed("header"),
        ),
        (format!("{}.{}.{}", base64url(&deep), parts[1], parts[2]), TokenError::Malformed("header")),
        (key.sign_with("HS256", &json!({}), &deep), TokenError::Malformed("payload")),
        (key.sign_with("HS256", &json!({}), "[]"), TokenError::Malformed("payload")),
        (key.sign_with("HS256", &json!({}), "null"), TokenError::Malformed("payload")),
        (key.sign_with("HS256", &json!({}), ""), TokenError::Malformed("payload")),
        ("a".repeat(40_000), TokenError::TooLarge),
    ] {
        assert_eq!(verified(&text, &own), Err(expected), "{text}");
    }
    // The last of the bits that make no byte: another text for the same signature.
    let last = parts[2].as_bytes()[parts[2].len() - 1];
    let other = if last == b'A' { 'B' } else { 'A' };
    let bent = format!("{}{other}", &good[..good.len() - 1]);
    assert_ne!(verified(&bent, &own), verified(&good, &own));
}

/// Nothing panics and nothing is accepted, whatever the bytes are.
#[test]
fn changed_bytes_are_harmless() {
    let hmac = TokenKey::symmetric("k", "s");
    let outer = TokenKey::symmetric("k", vec![5; 32]);
    let own = keys(key_set([&hmac, &outer]));
    let signed = hmac.sign("HS256", &json!({ "sub": "a", "list": [1, "b", null], "o": { "a": 1.5 } }));
    let encrypted = outer.encrypt("A256GCMKW", "A128CBC-HS256", &json!({}), r#"{"sub":"a"}"#);
    let set = key_set([&hmac, &outer, &TokenKey::ecdsa("e", "P-256"), &TokenKey::ed25519("d")]);
    let mut random = Random::new(11);
    let letters = b"AZaz09-_.={}[]\",: \0\xff";
    for (good, kind) in [(&signed, TokenKind::Signed), (&encrypted, TokenKind::Encrypted)] {
        for _ in 0..20_000 {
            let mut text = good.clone().into_bytes();
            for _ in 0..1 + random.below(3) {
                let at = random.below(text.len());
                match random.below(4) {
                    0 => text.truncate(at),
                    1 => text.insert(at, random.one_of(letters)),
                    _ if at < text.len() => text[at] = random.one_of(letters),
                    _ => {}
                }
                if text.is_empty() {
                    break;
                }
            }
            if text == good.as_bytes() {
                continue;
            }
            UnverifiedToken::parse(&text);
            let verified_token = Token::parse(&text, kind, SignatureCheck::On)
                .and_then(|token| token.verify([&own].into_iter()));
            assert!(verified_token.is_err(), "{}", String::from_utf8_lossy(&text));
        }
    }
    for _ in 0..20_000 {
        let mut text = set.clone().into_bytes();
        let at = random.below(text.len());
        text[at] = random.below(256) as u8;
        if let Ok(changed) = KeySet::parse(&text) {
            let _ = verified(&signed, &changed);
        }
    }
}

#[test]
fn claims_become_values_of_variables() {
    let key = TokenKey::symmetric("", "s");
    let claims = json!({
        "sub": "a", "empty": "", "n": 12, "negative": -3, "big": u64::MAX, "half": 0.5, "yes": true, "no": false,
        "null": null, "list": ["a", 1, true, null, ["b", "c"], { "d": 1 }], "none": [],
        "info": { "e-mail": "x@y", "job title": "z", "deep": { "er": [1, 2] } }, "a.b": "dot",
    });
    let text = key.sign("HS256", &claims);
    let token = checked(&text, TokenKind::Signed, &keys(key_set([&key]))).unwrap();
    let unverified = UnverifiedToken::parse(text.as_bytes()).unwrap();
    assert_eq!((unverified.claims(), unverified.header()), (token.claims(), token.header()));
    let value = |path: &[&str]| {
        let mut out = Vec::new();
        let path = ClaimPath::new(path.iter().map(|name| Box::from(*name)));
        (path.append(token.claims(), &mut out) == Presence::Found).then(|| String::from_utf8(out).unwrap())
    };
    for (path, expected) in [
        (&["sub"][..], Some("a")),
        (&["empty"], Some("")),
        (&["n"], Some("12")),
        (&["negative"], Some("-3")),
        (&["big"], Some("18446744073709551615")),
        (&["half"], Some("0.5")),
        (&["yes"], Some("true")),
        (&["no"], Some("false")),
        (&["null"], None),
        (&["list"], Some(r#"a,1,true,null,["b","c"],{"d":1}"#)),
        (&["none"], Some("")),
        (&["info"], None),
        (&["info", "e-mail"], Some("x@y")),
        (&["info", "job title"], Some("z")),
        (&["info", "deep", "er"], Some("1,2")),
        (&["info", "deep", "er", "0"], None),
        (&["a.b"], Some("dot")),
        (&["a", "b"], None),
        (&["sub", "x"], None),
        (&["unknown"], None),
        (&[], None),
    ] {
        assert_eq!(value(path).as_deref(), expected, "{path:?}");
    }
    let mut out = Vec::new();
    assert_eq!(append_member(token.header(), b"alg", &mut out), Presence::Found);
    assert_eq!(append_member(token.header(), b"\xff", &mut out), Presence::Missing);
    assert_eq!(out, b"HS256");
}
