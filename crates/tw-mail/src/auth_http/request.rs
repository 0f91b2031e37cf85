//! Request to the auth server, without I/O.

use std::fmt::Write as _;

use crate::dialogue::{AuthMethod, Login, MailProtocol};
use crate::secret::Secret;

/// HTTP version of a request: that of nginx, or one whose connection may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0: the server closes the connection.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// Facts about a client that the auth server is told.
#[derive(Debug, Default)]
pub struct ClientFacts {
    /// Address of the client, as trusted proxies tell it.
    pub address: String,
    /// Name of the client's host, or a word in brackets; only SMTP has one.
    pub host: Vec<u8>,
    /// Attempts of the client to log in, with this one.
    pub attempt: u32,
    /// Address and port of the client, then those of the server, from the PROXY protocol header.
    pub proxy: Option<ProxyFacts>,
    /// Facts about the TLS connection.
    pub tls: Option<TlsFacts>,
}

/// Addresses of a PROXY protocol header.
#[derive(Debug, Default)]
pub struct ProxyFacts {
    /// Address and port of the client.
    pub client: (String, u16),
    /// Address and port that it connected to.
    pub server: (String, u16),
}

/// Facts about a TLS connection. Empty texts are left out.
#[derive(Debug, Default)]
pub struct TlsFacts {
    /// Version.
    pub protocol: String,
    /// Cipher suite.
    pub cipher: String,
    /// Result of the verification of the client's certificate.
    pub verify: String,
    /// Subject of the certificate.
    pub subject: String,
    /// Issuer of the certificate.
    pub issuer: String,
    /// Serial number of the certificate.
    pub serial: String,
    /// Fingerprint of the certificate.
    pub fingerprint: String,
    /// The certificate in PEM.
    pub certificate: String,
}

/// Settings of a request.
pub struct RequestTarget<'a> {
    /// HTTP version.
    pub version: HttpVersion,
    /// Path and arguments.
    pub uri: &'a [u8],
    /// `Host`
    pub host: &'a [u8],
    /// Lines of `auth_http_header`, with their ends.
    pub headers: &'a [u8],
}

/// Bytes of a request besides those of texts whose size is known.
const FIXED_SIZE: usize = 1024;

/// Makes the request for a login.
pub fn write(
    target: &RequestTarget<'_>,
    protocol: MailProtocol,
    login: &Login,
    client: &ClientFacts,
) -> Secret {
    let password = login.password.as_ref().map(Secret::bytes).unwrap_or_default();
    let certificate = client.tls.as_ref().map_or(0, |tls| tls.certificate.len());
    let envelope = &login.envelope;
    let texts = target.uri.len() + target.host.len() + target.headers.len() + client.host.len();
    let commands = envelope.helo.len() + envelope.from.len() + envelope.to.len();
    // Escaped bytes take three.
    let secrets = 3 * (login.user.len() + password.len() + certificate);
    let mut out = Secret::with_capacity(FIXED_SIZE + texts + commands + secrets + tls_size(client));
    let version: &[u8] = match target.version {
        HttpVersion::Http10 => b"1.0",
        HttpVersion::Http11 => b"1.1",
    };
    for part in [b"GET ", target.uri, b" HTTP/", version, b"\r\n"] {
        out.push(part);
    }
    field(&mut out, "Host", target.host);
    field(&mut out, "Auth-Method", login.method.name().as_bytes());
    escaped_field(&mut out, "Auth-User", login.user.bytes());
    escaped_field(&mut out, "Auth-Pass", password);
    if matches!(login.method, AuthMethod::Apop | AuthMethod::CramMd5) && !login.salt.is_empty() {
        field(&mut out, "Auth-Salt", login.salt.as_bytes());
    }
    field(&mut out, "Auth-Protocol", protocol.name().as_bytes());
    field(&mut out, "Auth-Login-Attempt", client.attempt.to_string().as_bytes());
    field(&mut out, "Client-IP", client.address.as_bytes());
    if !client.host.is_empty() {
        field(&mut out, "Client-Host", &client.host);
    }
    if let Some(ProxyFacts { client, server }) = &client.proxy {
        field(&mut out, "Proxy-Protocol-Addr", client.0.as_bytes());
        field(&mut out, "Proxy-Protocol-Port", client.1.to_string().as_bytes());
        field(&mut out, "Proxy-Protocol-Server-Addr", server.0.as_bytes());
        field(&mut out, "Proxy-Protocol-Server-Port", server.1.to_string().as_bytes());
    }
    if login.method == AuthMethod::None {
        field(&mut out, "Auth-SMTP-Helo", &envelope.helo);
        field(&mut out, "Auth-SMTP-From", &envelope.from);
        field(&mut out, "Auth-SMTP-To", &envelope.to);
    }
    if let Some(tls) = &client.tls {
        field(&mut out, "Auth-SSL", b"on");
        for (name, text) in tls.texts() {
            if !text.is_empty() {
                field(&mut out, name, text.as_bytes());
            }
        }
        if !tls.certificate.is_empty() {
            escaped_field(&mut out, "Auth-SSL-Cert", tls.certificate.as_bytes());
        }
    }
    out.push(target.headers);
    out.push(b"\r\n");
    out
}

impl TlsFacts {
    fn texts(&self) -> [(&'static str, &str); 7] {
        [
            ("Auth-SSL-Protocol", &self.protocol),
            ("Auth-SSL-Cipher", &self.cipher),
            ("Auth-SSL-Verify", &self.verify),
            ("Auth-SSL-Subject", &self.subject),
            ("Auth-SSL-Issuer", &self.issuer),
            ("Auth-SSL-Serial", &self.serial),
            ("Auth-SSL-Fingerprint", &self.fingerprint),
        ]
    }
}

fn tls_size(client: &ClientFacts) -> usize {
    client.tls.as_ref().map_or(0, |tls| tls.texts().iter().map(|(_, text)| text.len()).sum())
}

fn field(out: &mut Secret, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.push(part);
    }
}

/// Appends a field whose value was typed by a user: blanks, control characters and percent signs are escaped.
fn escaped_field(out: &mut Secret, name: &str, value: &[u8]) {
    out.push(name.as_bytes());
    out.push(b": ");
    escape(out, value, b'%', |byte| matches!(byte, b'%' | b'\0'..=b' '));
    out.push(b"\r\n");
}

/// Appends a text in which some bytes are written as a sign and two hexadecimal digits.
fn escape(out: &mut Secret, text: &[u8], sign: u8, is_escaped: impl Fn(u8) -> bool) {
    for byte in text {
        if is_escaped(*byte) {
            let mut code = String::new();
            // Writing into a String does not fail.
            let _ = write!(code, "{}{byte:02X}", char::from(sign));
            out.push(code.as_bytes());
        } else {
            out.push(&[*byte]);
        }
    }
}

/// A text as XCLIENT of SMTP has it (xtext, RFC 3461 section 4).
pub fn xtext(text: &[u8]) -> Secret {
    let mut out = Secret::with_capacity(3 * text.len());
    escape(&mut out, text, b'+', |byte| matches!(byte, b'+' | b'=' | b'\0'..=b' ' | 0x7f..));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialogue::Envelope;

    const TARGET: RequestTarget<'_> = RequestTarget {
        version: HttpVersion::Http10,
        uri: b"/mail/auth",
        host: b"auth.example",
        headers: b"X-Key: secret\r\n",
    };

    fn text(secret: &Secret) -> String {
        String::from_utf8(secret.bytes().to_vec()).unwrap()
    }

    #[test]
    fn fields_stand_in_the_order_of_nginx() {
        let login = Login {
            user: Secret::copy(b"a user%"),
            password: Some(Secret::copy("pä\ts".as_bytes())),
            salt: "<1.2@h>".into(),
            method: AuthMethod::Apop,
            ..Login::default()
        };
        let client = ClientFacts { address: "192.0.2.1".into(), attempt: 2, ..ClientFacts::default() };
        let request = write(&TARGET, MailProtocol::Pop3, &login, &client);
        assert_eq!(
            text(&request),
            "GET /mail/auth HTTP/1.0\r\nHost: auth.example\r\nAuth-Method: apop\r\nAuth-User: a%20user%25\r\n\
             Auth-Pass: pä%09s\r\nAuth-Salt: <1.2@h>\r\nAuth-Protocol: pop3\r\nAuth-Login-Attempt: 2\r\n\
             Client-IP: 192.0.2.1\r\nX-Key: secret\r\n\r\n"
        );
    }

    #[test]
    fn smtp_without_login_has_its_commands() {
        let envelope = Envelope {
            helo: b"h".to_vec(),
            from: b"MAIL FROM:<a>".to_vec(),
            to: b"RCPT TO:<b>".to_vec(),
            ..Envelope::default()
        };
        let login = Login { method: AuthMethod::None, envelope, ..Login::default() };
        let proxy = ProxyFacts { client: ("192.0.2.1".into(), 123), server: ("192.0.2.2".into(), 25) };
        let tls = TlsFacts { protocol: "TLSv1.3".into(), certificate: "A\nB".into(), ..TlsFacts::default() };
        let client = ClientFacts {
            address: "192.0.2.1".into(),
            host: b"[UNAVAILABLE]".to_vec(),
            attempt: 1,
            proxy: Some(proxy),
            tls: Some(tls),
        };
        let request = text(&write(&TARGET, MailProtocol::Smtp, &login, &client));
        let (_, behind) = request.split_once("Auth-Login-Attempt: 1\r\n").unwrap();
        assert_eq!(
            behind,
            "Client-IP: 192.0.2.1\r\nClient-Host: [UNAVAILABLE]\r\nProxy-Protocol-Addr: 192.0.2.1\r\n\
             Proxy-Protocol-Port: 123\r\nProxy-Protocol-Server-Addr: 192.0.2.2\r\n\
             Proxy-Protocol-Server-Port: 25\r\nAuth-SMTP-Helo: h\r\nAuth-SMTP-From: MAIL FROM:<a>\r\n\
             Auth-SMTP-To: RCPT TO:<b>\r\nAuth-SSL: on\r\nAuth-SSL-Protocol: TLSv1.3\r\n\
             Auth-SSL-Cert: A%0AB\r\nX-Key: secret\r\n\r\n"
        );
    }

    #[test]
    fn xtext_has_no_blanks_and_signs() {
        assert_eq!(text(&xtext(b"a b+c=d\x7f")), "a+20b+2Bc+3Dd+7F");
    }
}
