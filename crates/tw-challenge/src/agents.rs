//! Programs that sign their requests, as Web Bot Auth uses HTTP Message Signatures (RFC 9421): Ed25519 keys of a JWK Set, found by their
//! thumbprints (RFC 7638).
//!
//! A signature counts if it has the tag `web-bot-auth`, covers the host of the request, and holds now. Its key is looked up before
//! anything is verified, so only a client that names a known key costs a verification (some 50 µs).

use std::collections::HashMap;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tw_http::base64::{self, Alphabet};

use super::structured_field::{Member, Parameters, inner_list, members};

/// Tag of signatures that count.
const TAG: &str = "web-bot-auth";
/// Difference of clocks that is allowed, in seconds.
const CLOCK_SKEW: u64 = 60;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Components of a request that the signature of an agent covers (challenge_agent_keys).
    const COMPONENTS_MAX: usize = 16, count, "the signature does not count";
    /// Time that the signature of an agent holds (challenge_agent_keys).
    const SIGNATURE_SECONDS_MAX: u64 = 86_400, secs, "the signature does not count";
}

/// Known keys by their thumbprints in base64.
#[derive(Debug)]
pub(super) struct AgentKeys(HashMap<String, Box<[u8]>>);

/// Reason why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentError {
    /// Unreadable, or over too little of the request.
    Malformed,
    /// By an unknown key.
    UnknownKey,
    /// No longer valid, or not yet.
    Expired,
    /// Not by that key, or of another request.
    Signature,
}

/// Parts of a request that a signature may cover.
pub(super) trait SignedMessage {
    /// Appends the value of a derived component, such as `@authority`; `None` if there is no such component.
    fn derived(&self, name: &str, out: &mut Vec<u8>) -> Option<()>;

    /// Values of all fields of a name, in lower case.
    fn field_values(&self, name: &str) -> Vec<&[u8]>;
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Key {
    kty: String,
    crv: String,
    x: String,
}

impl AgentKeys {
    /// Reads a JWK Set. Keys that are not Ed25519 are left out.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let set: KeySet = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let mut keys = HashMap::new();
        for key in set.keys {
            let Ok(Key { kty, crv, x }) = serde_json::from_value(key) else { continue };
            if kty != "OKP" || crv != "Ed25519" {
                continue;
            }
            let mut bytes = Vec::new();
            let decoded = base64::decode(x.as_bytes(), Alphabet::Url, &mut bytes);
            if decoded.is_err() || bytes.len() != 32 {
                return Err(format!("\"{x}\" is no public key of Ed25519"));
            }
            keys.insert(thumbprint(&x), bytes.into());
        }
        if keys.is_empty() { Err("it has no Ed25519 key".to_owned()) } else { Ok(Self(keys)) }
    }

    /// Checks the signature of a message at `now`, in seconds since 1970. `None` if it has none with the tag.
    pub(super) fn check(&self, message: &impl SignedMessage, now: u64) -> Option<Result<(), AgentError>> {
        let inputs = joined(message.field_values("signature-input"));
        let inputs = std::str::from_utf8(&inputs).ok()?;
        let input = members(inputs).map_while(Result::ok).find(|member| {
            inner_list(member.value)
                .is_some_and(|(_, parameters)| parameters.text("tag").as_deref() == Some(TAG))
        })?;
        Some(self.check_input(message, &input, now))
    }

    fn check_input(
        &self,
        message: &impl SignedMessage,
        input: &Member<'_>,
        now: u64,
    ) -> Result<(), AgentError> {
        let (items, parameters) = inner_list(input.value).ok_or(AgentError::Malformed)?;
        let key_id = parameters.text("keyid").ok_or(AgentError::Malformed)?;
        let key = self.0.get(&key_id).ok_or(AgentError::UnknownKey)?;
        check_times(&parameters, now)?;
        let mut base = Vec::new();
        let covers_host = append_components(message, &items, &mut base)?;
        if !covers_host || parameters.text("alg").is_some_and(|alg| alg != "ed25519") {
            return Err(AgentError::Malformed);
        }
        base.extend_from_slice(b"\"@signature-params\": ");
        base.extend_from_slice(input.value.as_bytes());
        let signatures = joined(message.field_values("signature"));
        let signatures = std::str::from_utf8(&signatures).map_err(|_| AgentError::Malformed)?;
        let signature = members(signatures).map_while(Result::ok).find(|member| member.key == input.key);
        let signature = signature.and_then(|member| member.bytes()).ok_or(AgentError::Malformed)?;
        let verified = UnparsedPublicKey::new(&ED25519, key).verify(&base, &signature);
        verified.map_err(|_| AgentError::Signature)
    }
}

/// Checks that a signature holds at `now`.
fn check_times(parameters: &Parameters<'_>, now: u64) -> Result<(), AgentError> {
    let created = parameters.number("created");
    let expires = parameters.number("expires");
    let (Some(created), Some(expires)) = (created, expires) else { return Err(AgentError::Malformed) };
    let holds_too_long = expires.saturating_sub(created) > SIGNATURE_SECONDS_MAX;
    if created > now + CLOCK_SKEW || expires <= now || holds_too_long {
        return Err(AgentError::Expired);
    }
    Ok(())
}

/// Appends the lines of the covered components (RFC 9421, section 2.5). Returns true if one of them names the host.
fn append_components(
    message: &impl SignedMessage,
    items: &[(String, Parameters<'_>)],
    base: &mut Vec<u8>,
) -> Result<bool, AgentError> {
    if items.len() > COMPONENTS_MAX {
        return Err(AgentError::Malformed);
    }
    let mut covers_host = false;
    for (at, (name, parameters)) in items.iter().enumerate() {
        let is_repeated =
            items[..at].iter().any(|(other, others)| other == name && others.raw() == parameters.raw());
        if is_repeated {
            return Err(AgentError::Malformed);
        }
        covers_host |= matches!(name.as_str(), "@authority" | "@target-uri");
        base.extend_from_slice(format!("\"{name}\"{}: ", parameters.raw()).as_bytes());
        if name.starts_with('@') {
            if !parameters.raw().is_empty() {
                return Err(AgentError::Malformed);
            }
            message.derived(name, base).ok_or(AgentError::Malformed)?;
        } else {
            append_field(message, name, parameters, base)?;
        }
        base.push(b'\n');
    }
    Ok(covers_host)
}

/// Appends the value of a field, or of one member of a dictionary (`key`).
fn append_field(
    message: &impl SignedMessage,
    name: &str,
    parameters: &Parameters<'_>,
    base: &mut Vec<u8>,
) -> Result<(), AgentError> {
    let values = message.field_values(name);
    if values.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(AgentError::Malformed);
    }
    let whole = joined(values);
    let key = parameters.text("key");
    match (parameters.len(), key) {
        (0, _) => base.extend_from_slice(&whole),
        (1, Some(key)) => {
            let whole = std::str::from_utf8(&whole).map_err(|_| AgentError::Malformed)?;
            let member = members(whole).map_while(Result::ok).find(|member| member.key == key);
            base.extend_from_slice(member.ok_or(AgentError::Malformed)?.value.as_bytes());
        }
        _ => return Err(AgentError::Malformed),
    }
    Ok(())
}

/// The values of a field as one (RFC 9421, section 2.1).
fn joined(values: Vec<&[u8]>) -> Vec<u8> {
    let values: Vec<_> = values.into_iter().map(<[u8]>::trim_ascii).collect();
    values.join(&b", "[..])
}

/// Thumbprint of a key in base64 (RFC 7638, RFC 8037 appendix A.3).
fn thumbprint(x: &str) -> String {
    let x = x.trim_end_matches('=');
    let hash = Sha256::digest(format!("{{\"crv\":\"Ed25519\",\"kty\":\"OKP\",\"x\":\"{x}\"}}"));
    let text = String::from_utf8(base64::encode(&hash)).unwrap_or_default();
    text.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    /// Public key of the tests of RFC 9421 (appendix B.1.4) and of RFC 8037 (appendix A).
    const RFC_9421_X: &str = "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs";
    const RFC_8037_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    struct Message<'a> {
        authority: &'a str,
        fields: Vec<(&'a str, String)>,
    }

    impl SignedMessage for Message<'_> {
        fn derived(&self, name: &str, out: &mut Vec<u8>) -> Option<()> {
            let value = match name {
                "@authority" => self.authority,
                "@method" => "POST",
                "@path" => "/foo",
                _ => return None,
            };
            out.extend_from_slice(value.as_bytes());
            Some(())
        }

        fn field_values(&self, name: &str) -> Vec<&[u8]> {
            self.fields
                .iter()
                .filter(|(candidate, _)| *candidate == name)
                .map(|(_, value)| value.as_bytes())
                .collect()
        }
    }

    fn key_set(x: &str) -> String {
        format!(
            r#"{{"keys":[{{"kty":"RSA","n":"AQAB","e":"AQAB"}},{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#
        )
    }

    #[test]
    fn thumbprints_are_those_of_rfc_8037() {
        assert_eq!(thumbprint(RFC_8037_X), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        assert_eq!(thumbprint(RFC_9421_X), "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U");
    }

    #[test]
    fn base_of_a_signature_is_that_of_rfc_9421() {
        // RFC 9421, appendix B.2.6, without the fields that it does not cover.
        let fields = vec![
            ("date", "Tue, 20 Apr 2021 02:07:55 GMT".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("content-length", "18".to_owned()),
        ];
        let message = Message { authority: "example.com", fields };
        let input = "(\"date\" \"@method\" \"@path\" \"@authority\" \"content-type\" \"content-length\")\
                     ;created=1618884473;keyid=\"test-key-ed25519\"";
        let (items, parameters) = inner_list(input).unwrap();
        let mut base = Vec::new();
        assert_eq!(append_components(&message, &items, &mut base), Ok(true));
        base.extend_from_slice(format!("\"@signature-params\": {input}").as_bytes());
        let mut signature = Vec::new();
        let text =
            b"wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==";
        base64::decode(text, Alphabet::Standard, &mut signature).unwrap();
        let keys = AgentKeys::read(key_set(RFC_9421_X).as_bytes()).unwrap();
        let key = &keys.0[&thumbprint(RFC_9421_X)];
        assert!(UnparsedPublicKey::new(&ED25519, key).verify(&base, &signature).is_ok());
        assert_eq!(parameters.text("keyid").as_deref(), Some("test-key-ed25519"));
    }

    #[test]
    fn key_sets() {
        for (text, expected) in [
            ("{}", "missing field `keys` at line 1 column 2"),
            ("{\"keys\":[]}", "it has no Ed25519 key"),
            ("{\"keys\":[{\"kty\":\"RSA\"}]}", "it has no Ed25519 key"),
            (&key_set("AAAA"), "\"AAAA\" is no public key of Ed25519"),
        ] {
            assert_eq!(AgentKeys::read(text.as_bytes()).unwrap_err(), expected);
        }
        assert_eq!(AgentKeys::read(key_set(RFC_8037_X).as_bytes()).unwrap().0.len(), 1);
    }

    const NOW: u64 = 1_735_689_700;

    /// Result for a message signed by a key of the tests. Patterns of the input and of the message are replaced after signing.
    fn result(input: &str, signed_for: &str, authority: &str) -> Option<Result<(), AgentError>> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let x = String::from_utf8(base64::encode(pair.public_key().as_ref())).unwrap();
        let x = x.trim_end_matches('=').replace('+', "-").replace('/', "_");
        let keys = AgentKeys::read(key_set(&x).as_bytes()).unwrap();
        let input = input.replace("KEY", &thumbprint(&x));
        let agent = "bot=\"https://bot.example\"";
        let mut message =
            Message { authority: signed_for, fields: vec![("signature-agent", agent.to_owned())] };
        let mut base = Vec::new();
        if let Some((items, _)) = inner_list(&input) {
            let _ = append_components(&message, &items, &mut base);
        }
        base.extend_from_slice(format!("\"@signature-params\": {input}").as_bytes());
        let signature = String::from_utf8(base64::encode(pair.sign(&base).as_ref())).unwrap();
        message.authority = authority;
        message.fields.push(("signature-input", format!("other=(\"@method\");tag=\"x\", sig1={input}")));
        message.fields.push(("signature", format!("other=:AAAA:, sig1=:{signature}:")));
        keys.check(&message, NOW)
    }

    #[test]
    fn signed_agents_are_known() {
        let parts = ";created=1735689600;keyid=\"KEY\";alg=\"ed25519\";expires=1735693200;nonce=\"gub\";tag=\"web-bot-auth\"";
        let all = format!("(\"@authority\" \"signature-agent\";key=\"bot\"){parts}");
        let host = "a.example";
        assert_eq!(result(&all, host, host), Some(Ok(())));
        for (from, to, expected) in [
            ("\"signature-agent\";key=\"bot\"", "\"signature-agent\"", Some(Ok(()))),
            ("alg=\"ed25519\";", "", Some(Ok(()))),
            ("tag=\"web-bot-auth\"", "tag=\"other\"", None),
            (";tag=\"web-bot-auth\"", "", None),
            ("\"KEY\"", "\"unknown\"", Some(Err(AgentError::UnknownKey))),
            ("keyid=\"KEY\";", "", Some(Err(AgentError::Malformed))),
            ("alg=\"ed25519\"", "alg=\"hmac-sha256\"", Some(Err(AgentError::Malformed))),
            ("\"@authority\"", "\"@method\"", Some(Err(AgentError::Malformed))),
            ("\"@authority\"", "\"@authority\" \"@authority\"", Some(Err(AgentError::Malformed))),
            ("\"@authority\"", "\"@authority\";req", Some(Err(AgentError::Malformed))),
            ("\"@authority\"", "\"@authority\" \"absent\"", Some(Err(AgentError::Malformed))),
            ("\"@authority\"", "\"@authority\" \"@status\"", Some(Err(AgentError::Malformed))),
            (";key=\"bot\"", ";key=\"none\"", Some(Err(AgentError::Malformed))),
            (";key=\"bot\"", ";bs", Some(Err(AgentError::Malformed))),
            ("created=1735689600;", "", Some(Err(AgentError::Malformed))),
            ("expires=1735693200;", "", Some(Err(AgentError::Malformed))),
            ("created=1735689600", "created=1735689761", Some(Err(AgentError::Expired))),
            ("expires=1735693200", "expires=1735689700", Some(Err(AgentError::Expired))),
            ("expires=1735693200", "expires=1835693200", Some(Err(AgentError::Expired))),
        ] {
            assert_eq!(result(&all.replace(from, to), host, host), expected, "{to}");
        }
        assert_eq!(result(&all, host, "b.example"), Some(Err(AgentError::Signature)));
        let many = "\"@authority\" ".repeat(COMPONENTS_MAX + 1);
        assert_eq!(
            result(&format!("({}){parts}", many.trim_end()), host, host),
            Some(Err(AgentError::Malformed))
        );
    }
}
