//! Signed requests to an authority (RFC 7515, flattened; RFC 8555, section 6.2).

use aws_lc_rs::hmac;
use serde_json::{Value, json};
use tw_http::base64::encode_url as base64url;

use crate::account::AccountKey;
use crate::config::ExternalAccount;
use crate::error::Error;

/// Signer of a request: a key that the authority does not know yet, or an account.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By<'a> {
    Key,
    Account(&'a str),
}

/// A request: `payload` is `None` where only something is to be read (section 6.3, POST-as-GET).
pub(crate) fn signed(
    key: &AccountKey,
    by: By<'_>,
    nonce: &str,
    url: &str,
    payload: Option<&Value>,
) -> Result<Vec<u8>, Error> {
    let mut head = json!({ "alg": key.algorithm(), "nonce": nonce, "url": url });
    match by {
        By::Key => set(&mut head, "jwk", key.jwk().clone()),
        By::Account(account) => set(&mut head, "kid", account.into()),
    }
    let payload = payload.map(Value::to_string).unwrap_or_default();
    let whole = flattened(&head, &payload, |message| key.sign(message))?;
    Ok(whole.to_string().into_bytes())
}

/// Makes the binding of an account to an external one (section 7.3.4).
pub(crate) fn bound(key: &AccountKey, external: &ExternalAccount, url: &str) -> Result<Value, Error> {
    let head = json!({ "alg": "HS256", "kid": external.id, "url": url });
    let mac = hmac::Key::new(hmac::HMAC_SHA256, &external.key);
    flattened(&head, &key.jwk().to_string(), |message| Ok(hmac::sign(&mac, message).as_ref().to_vec()))
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(members) = object {
        members.insert(name.to_owned(), value);
    }
}

fn flattened(
    head: &Value,
    payload: &str,
    sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, Error>,
) -> Result<Value, Error> {
    let head = base64url(head.to_string().as_bytes());
    let payload = base64url(payload.as_bytes());
    let signature = sign(format!("{head}.{payload}").as_bytes())?;
    Ok(json!({ "protected": head, "payload": payload, "signature": base64url(&signature) }))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
    use tw_http::base64::{Alphabet, decode};

    use super::*;
    use crate::key_type::KeyType;

    fn bytes(text: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        decode(text.as_str().unwrap().as_bytes(), Alphabet::Url, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_request_can_be_verified() {
        let (key, _) = AccountKey::generate(KeyType::EcdsaP256).unwrap();
        let point = [vec![4], bytes(&key.jwk()["x"]), bytes(&key.jwk()["y"])].concat();
        for (by, payload) in [(By::Key, Some(json!({ "a": 1 }))), (By::Account("https://ca.example/1"), None)]
        {
            let request = signed(&key, by, "abc", "https://ca.example/new", payload.as_ref()).unwrap();
            let request: Value = serde_json::from_slice(&request).unwrap();
            let message = format!(
                "{}.{}",
                request["protected"].as_str().unwrap(),
                request["payload"].as_str().unwrap()
            );
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point)
                .verify(message.as_bytes(), &bytes(&request["signature"]))
                .unwrap();
            let head: Value = serde_json::from_slice(&bytes(&request["protected"])).unwrap();
            assert_eq!((&head["nonce"], &head["url"]), (&json!("abc"), &json!("https://ca.example/new")));
            assert_eq!(head.get("jwk").is_some(), matches!(by, By::Key));
            assert_eq!(head.get("kid").is_some(), matches!(by, By::Account(_)));
            assert_eq!(bytes(&request["payload"]).is_empty(), payload.is_none());
        }
    }

    #[test]
    fn base64_for_urls() {
        assert_eq!(base64url(&[0xfb, 0xff, 0xfe]), "-__-");
        assert_eq!(base64url(b"f"), "Zg");
    }
}
