//! Mechanisms of authentication (SASL, RFC 4422): challenges and responses, without I/O.
//!
//! nginx accepts PLAIN and LOGIN whether they are configured or not, and so does this; the others have to be configured.

use std::borrow::Cow;

use tw_http::base64::{self, Alphabet};

use super::auth_method::AuthMethod;
use super::facts::DialogueFacts;
use super::login::Login;
use crate::secret::Secret;

/// Meaning of the next line of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expected {
    /// A command.
    #[default]
    Command,
    /// `PASS` of POP3.
    Pass,
    /// Response to PLAIN.
    Plain,
    /// User name of LOGIN.
    LoginUser,
    /// Password of LOGIN.
    LoginPassword,
    /// Response to CRAM-MD5.
    CramMd5,
    /// User name of EXTERNAL.
    External,
    /// Token.
    Token(AuthMethod),
}

/// Result of a line of the client.
#[derive(Debug, PartialEq, Eq)]
pub enum SaslStep {
    /// A challenge in base64, and the response to it.
    Challenge(Vec<u8>, Expected),
    /// The login is complete.
    Done,
    /// The client made a mistake; the text is for the log.
    Invalid(Option<Cow<'static, str>>),
}

/// Challenge for a user name and a password, in base64.
const USERNAME: &[u8] = b"VXNlcm5hbWU6";
const PASSWORD: &[u8] = b"UGFzc3dvcmQ6";
/// Length of a response of CRAM-MD5: an MD5 in hexadecimal.
const CRAM_MD5_LEN: usize = 32;

/// Begins an authentication with the arguments of the command.
pub fn begin(args: &[&[u8]], login: &mut Login, facts: &DialogueFacts<'_>) -> SaslStep {
    let Some((name, rest)) = args.split_first() else { return SaslStep::Invalid(None) };
    let named = |method: &AuthMethod| {
        method.mechanism().is_some_and(|mechanism| name.eq_ignore_ascii_case(mechanism.as_bytes()))
    };
    let Some(method) = AuthMethod::ALL.into_iter().find(named) else { return SaslStep::Invalid(None) };
    let initial = match rest {
        [] => None,
        [initial] => Some(*initial),
        _ => return SaslStep::Invalid(None),
    };
    let is_always_on = matches!(method, AuthMethod::Plain | AuthMethod::Login);
    if !is_always_on && !facts.methods.has(method) {
        return SaslStep::Invalid(None);
    }
    let (challenge, expected) = match method {
        AuthMethod::Plain => (Vec::new(), Expected::Plain),
        AuthMethod::Login => (USERNAME.to_vec(), Expected::LoginUser),
        AuthMethod::CramMd5 if initial.is_some() => return SaslStep::Invalid(None),
        AuthMethod::CramMd5 => (base64::encode(login.salt.as_bytes()), Expected::CramMd5),
        AuthMethod::External => (USERNAME.to_vec(), Expected::External),
        AuthMethod::Xoauth2 | AuthMethod::Oauthbearer => (Vec::new(), Expected::Token(method)),
        AuthMethod::Apop | AuthMethod::None => return SaslStep::Invalid(None),
    };
    match initial {
        None => SaslStep::Challenge(challenge, expected),
        Some(initial) => respond(expected, initial, login),
    }
}

/// Takes in the response of a client to a challenge.
pub fn respond(expected: Expected, response: &[u8], login: &mut Login) -> SaslStep {
    // RFC 4954 and RFC 9051 write an empty initial response as a sign.
    let response: &[u8] = if response == b"=" { b"" } else { response };
    let mut decoded = Secret::with_capacity(response.len());
    if decode(response, &mut decoded).is_err() {
        return invalid(format!("client sent invalid base64 encoding in AUTH {} command", name(expected)));
    }
    let text = decoded.bytes();
    let taken = match expected {
        Expected::Plain => take_plain(text, login),
        Expected::LoginUser => {
            login.user = Secret::copy(text);
            return match is_clean(text) {
                true => SaslStep::Challenge(PASSWORD.to_vec(), Expected::LoginPassword),
                false => invalid("client sent invalid login in AUTH LOGIN command"),
            };
        }
        Expected::LoginPassword => {
            login.method = AuthMethod::Plain;
            login.password = Some(Secret::copy(text));
            Ok(())
        }
        Expected::CramMd5 => take_cram_md5(text, login),
        Expected::External => {
            login.method = AuthMethod::External;
            login.user = Secret::copy(text);
            login.password = None;
            Ok(())
        }
        Expected::Token(method) => take_token(method, text, login),
        Expected::Command | Expected::Pass => return SaslStep::Invalid(None),
    };
    match taken {
        Ok(()) if is_valid(login) => SaslStep::Done,
        Ok(()) => invalid(format!("client sent invalid login in AUTH {} command", name(expected))),
        Err(what) => invalid(format!("client sent invalid {what} in AUTH {} command", name(expected))),
    }
}

/// Returns true if a login can be passed on: no part of it ends a line or a text.
// DIFF(nginx): bytes that end a line would begin another command of the upstream server.
pub fn is_valid(login: &Login) -> bool {
    is_clean(login.user.bytes()) && login.password.as_ref().is_none_or(|password| is_clean(password.bytes()))
}

fn is_clean(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'\0' | b'\r' | b'\n'))
}

fn invalid(note: impl Into<Cow<'static, str>>) -> SaslStep {
    SaslStep::Invalid(Some(note.into()))
}

fn name(expected: Expected) -> &'static str {
    match expected {
        Expected::Command | Expected::Pass | Expected::Plain => "PLAIN",
        Expected::LoginUser | Expected::LoginPassword => "LOGIN",
        Expected::CramMd5 => "CRAM-MD5",
        Expected::External => "EXTERNAL",
        Expected::Token(method) => method.mechanism().unwrap_or_default(),
    }
}

/// Decodes into a buffer that has room for all of it.
fn decode(text: &[u8], out: &mut Secret) -> Result<(), base64::Malformed> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let decoded = base64::decode(text, Alphabet::Standard, &mut bytes);
    *out = Secret::new(bytes);
    decoded
}

/// `authorization NUL user NUL password` (RFC 4616). The first part is not used.
fn take_plain(text: &[u8], login: &mut Login) -> Result<(), &'static str> {
    let mut parts = text.splitn(3, |byte| *byte == 0);
    let (_, user, password) = (parts.next(), parts.next().ok_or("login")?, parts.next().ok_or("password")?);
    login.method = AuthMethod::Plain;
    login.user = Secret::copy(user);
    login.password = Some(Secret::copy(password));
    Ok(())
}

/// `user hash`
fn take_cram_md5(text: &[u8], login: &mut Login) -> Result<(), &'static str> {
    let mut parts = text.splitn(2, |byte| *byte == b' ');
    let (user, hash) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if hash.len() != CRAM_MD5_LEN {
        return Err("CRAM-MD5 hash");
    }
    login.method = AuthMethod::CramMd5;
    login.user = Secret::copy(user);
    login.password = Some(Secret::copy(hash));
    Ok(())
}

/// Name and token of a user: `user=… ^A auth=Bearer … ^A ^A`, or the same behind a header of GS2 (RFC 7628, section 3.1).
fn take_token(method: AuthMethod, text: &[u8], login: &mut Login) -> Result<(), &'static str> {
    let mut fields = text.split(|byte| *byte == 1);
    let mut user = None;
    if method == AuthMethod::Oauthbearer {
        // `n,a=user@example.com,`: channel binding, and the identity to act as.
        let header = fields.next().unwrap_or_default();
        let identity = header.split(|byte| *byte == b',').find_map(|part| part.strip_prefix(b"a="));
        user = identity.map(unescape_name);
    }
    let mut token = None;
    for field in fields {
        if let Some(name) = field.strip_prefix(b"user=") {
            user = Some(Secret::copy(name));
        } else if let Some(value) = field.strip_prefix(b"auth=") {
            let (scheme, rest) = value.split_at_checked(7).ok_or("token")?;
            if !scheme.eq_ignore_ascii_case(b"Bearer ") || rest.is_empty() {
                return Err("token");
            }
            token = Some(Secret::copy(rest));
        }
    }
    login.method = method;
    login.user = user.filter(|user| !user.is_empty()).ok_or("login")?;
    login.password = Some(token.ok_or("token")?);
    Ok(())
}

/// A name in which `=2C` stands for a comma and `=3D` for the sign itself (RFC 5801, section 4).
fn unescape_name(name: &[u8]) -> Secret {
    let mut text = Secret::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, behind)) = rest.split_first() {
        let (byte, behind) = match rest {
            [b'=', b'2', b'C' | b'c', behind @ ..] => (&b',', behind),
            [b'=', b'3', b'D' | b'd', behind @ ..] => (&b'=', behind),
            _ => (byte, behind),
        };
        text.push(&[*byte]);
        rest = behind;
    }
    text
}

/// Challenge that ends an authentication with a token that was refused (RFC 7628, section 3.2.2), in base64.
pub fn token_refusal(method: AuthMethod) -> Vec<u8> {
    let text: &[u8] = match method {
        AuthMethod::Oauthbearer => br#"{"status":"invalid_token"}"#,
        _ => br#"{"status":"400","schemes":"bearer"}"#,
    };
    base64::encode(text)
}

/// Response to a mechanism with a token, for the upstream server, in base64.
pub fn token_response(method: AuthMethod, user: &Secret, token: &Secret) -> Secret {
    let mut text = Secret::with_capacity(user.len() * 3 + token.len() + 64);
    match method {
        AuthMethod::Oauthbearer => {
            text.push(b"n,a=");
            for byte in user.bytes() {
                match byte {
                    b',' => text.push(b"=2C"),
                    b'=' => text.push(b"=3D"),
                    byte => text.push(&[*byte]),
                }
            }
            text.push(b",\x01");
        }
        _ => {
            text.push(b"user=");
            text.push(user.bytes());
            text.push(b"\x01");
        }
    }
    text.push(b"auth=Bearer ");
    text.push(token.bytes());
    text.push(b"\x01\x01");
    Secret::new(base64::encode(text.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::{AuthMethods, Capabilities, ProtocolTexts, StartTls};

    fn facts<'a>(capabilities: &'a Capabilities, texts: &'a ProtocolTexts) -> DialogueFacts<'a> {
        DialogueFacts {
            capabilities,
            texts,
            methods: AuthMethods::of(&AuthMethod::ALL),
            starttls: StartTls::Off,
            is_tls: false,
            errors_max: 5,
        }
    }

    fn begun(args: &[&str], login: &mut Login) -> SaslStep {
        let args: Vec<_> = args.iter().map(|arg| arg.as_bytes()).collect();
        begin(&args, login, &facts(&Capabilities::default(), &ProtocolTexts::default()))
    }

    fn encoded(text: &str) -> String {
        String::from_utf8(base64::encode(text.as_bytes())).unwrap()
    }

    fn text(secret: &Secret) -> &str {
        std::str::from_utf8(secret.bytes()).unwrap()
    }

    #[test]
    fn plain_with_and_without_initial_response() {
        let mut login = Login::default();
        let response = encoded("\0user\0pass");
        assert_eq!(begun(&["plain", &response], &mut login), SaslStep::Done);
        assert_eq!(text(&login.user), "user");
        assert_eq!(login.password.as_ref().map(text), Some("pass"));
        let mut login = Login::default();
        assert_eq!(begun(&["PLAIN"], &mut login), SaslStep::Challenge(Vec::new(), Expected::Plain));
        assert_eq!(respond(Expected::Plain, response.as_bytes(), &mut login), SaslStep::Done);
        assert_eq!(text(&login.user), "user");
    }

    #[test]
    fn mistakes_name_their_cause() {
        for (args, expected) in [
            (vec!["PLAIN".to_owned(), "*".to_owned()], Some("invalid base64 encoding in AUTH PLAIN")),
            (vec!["PLAIN".into(), encoded("user")], Some("invalid login in AUTH PLAIN")),
            (vec!["PLAIN".into(), encoded("\0user")], Some("invalid password in AUTH PLAIN")),
            (vec!["PLAIN".into(), encoded("\0us\r\ner\0x")], Some("invalid login in AUTH PLAIN")),
            (vec!["PLAIN".into(), encoded("\0user\0x\ny")], Some("invalid login in AUTH PLAIN")),
            (vec!["PLAIN".into(), "a".into(), "b".into()], None),
            (vec!["CRAM-MD5".into(), "a".into()], None),
            (vec!["DIGEST-MD5".into()], None),
            (vec![], None),
            (vec!["XOAUTH2".into(), encoded("user=u\u{1}auth=Basic x\u{1}\u{1}")], Some("invalid token")),
            (vec!["XOAUTH2".into(), encoded("auth=Bearer x\u{1}\u{1}")], Some("invalid login")),
        ] {
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            match (begun(&args, &mut Login::default()), expected) {
                (SaslStep::Invalid(None), None) => {}
                (SaslStep::Invalid(Some(note)), Some(expected)) => assert!(note.contains(expected), "{note}"),
                (step, _) => panic!("{args:?}: {step:?}"),
            }
        }
    }

    #[test]
    fn login_takes_name_and_password() {
        let mut login = Login::default();
        let challenge = |text: &[u8], expected| SaslStep::Challenge(text.to_vec(), expected);
        assert_eq!(begun(&["LOGIN"], &mut login), challenge(USERNAME, Expected::LoginUser));
        let user = encoded("user");
        let next = respond(Expected::LoginUser, user.as_bytes(), &mut login);
        assert_eq!(next, challenge(PASSWORD, Expected::LoginPassword));
        let password = encoded("pass");
        assert_eq!(respond(Expected::LoginPassword, password.as_bytes(), &mut login), SaslStep::Done);
        assert_eq!((text(&login.user), login.password.as_ref().map(text)), ("user", Some("pass")));
        let next = begun(&["LOGIN", &user], &mut login);
        assert_eq!(next, challenge(PASSWORD, Expected::LoginPassword));
    }

    #[test]
    fn cram_md5_needs_a_hash_of_32_digits() {
        let mut login = Login { salt: "<1.2@host>".into(), ..Login::default() };
        let challenge = base64::encode(b"<1.2@host>");
        assert_eq!(begun(&["CRAM-MD5"], &mut login), SaslStep::Challenge(challenge, Expected::CramMd5));
        let hash = "0".repeat(32);
        let response = encoded(&format!("user {hash}"));
        assert_eq!(respond(Expected::CramMd5, response.as_bytes(), &mut login), SaslStep::Done);
        assert_eq!(login.method, AuthMethod::CramMd5);
        assert_eq!((text(&login.user), login.password.as_ref().map(text)), ("user", Some(&*hash)));
        let response = encoded("user 123");
        let step = respond(Expected::CramMd5, response.as_bytes(), &mut login);
        assert_eq!(step, invalid("client sent invalid CRAM-MD5 hash in AUTH CRAM-MD5 command"));
    }

    #[test]
    fn tokens_of_both_mechanisms() {
        for (mechanism, response, method) in [
            ("XOAUTH2", "user=a@b\u{1}auth=Bearer tok.en==\u{1}\u{1}", AuthMethod::Xoauth2),
            (
                "OAUTHBEARER",
                "n,a=a@b,\u{1}host=h\u{1}auth=Bearer tok.en==\u{1}\u{1}",
                AuthMethod::Oauthbearer,
            ),
        ] {
            let mut login = Login::default();
            assert_eq!(begun(&[mechanism, &encoded(response)], &mut login), SaslStep::Done, "{mechanism}");
            assert_eq!(login.method, method);
            assert_eq!((text(&login.user), login.password.as_ref().map(text)), ("a@b", Some("tok.en==")));
            let token = login.password.clone().unwrap();
            let sent = token_response(method, &login.user, &token);
            let mut back = Login::default();
            assert_eq!(respond(Expected::Token(method), sent.bytes(), &mut back), SaslStep::Done);
            assert_eq!(back.user, login.user);
        }
        assert_eq!(text(&unescape_name(b"a=2Cb=3Dc=4D")), "a,b=c=4D");
    }
}
