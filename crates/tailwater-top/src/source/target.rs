//! Address of a document: `http://host:port/path`, the same with `https`, `host:port`, a port of this machine, or `unix:/socket:/path`.

use std::fmt;

/// Port of `http` if none is given.
const PORT: u16 = 80;
/// Port of `https` if none is given.
const TLS_PORT: u16 = 443;
/// Host if only a port is given.
const LOOPBACK: &str = "127.0.0.1";
/// Path if none is given.
const PATH: &str = "/status";
/// Path of the numbers in the control API.
const CONTROL_PATH: &str = "/1/tailwater/metrics";

/// Address of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: Server,
    /// Path and query string of the request.
    pub path: String,
    /// `Host` of the request.
    pub host: String,
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// Name or address, and port.
    Tcp(String, u16),
    /// Name or address, and port, with TLS.
    Tls(String, u16),
    /// Path of a Unix socket.
    Unix(String),
}

/// Reason why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetError {
    /// The scheme is none of these.
    Scheme(String),
    /// There is no host, or no path of a socket.
    NoHost,
    /// The port is none.
    Port(String),
    /// A character cannot be sent.
    Character,
    /// The address of a control API has more than a host and a port, or a socket.
    NotControl,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(scheme) => write!(f, "unknown scheme \"{scheme}\": use http://, https:// or unix:"),
            Self::NoHost => f.write_str("no host in the URL"),
            Self::Port(port) => write!(f, "invalid port \"{port}\""),
            Self::Character => f.write_str("invalid character in the URL"),
            Self::NotControl => {
                f.write_str("a control API has an address, without scheme and path: HOST:PORT or unix:/PATH")
            }
        }
    }
}

impl Target {
    /// Reads an address.
    ///
    /// # Errors
    /// The text is no address.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if text.chars().any(|c| c.is_control() || c == ' ' || !c.is_ascii()) {
            return Err(TargetError::Character);
        }
        let (server, host, path) = match text.split_once(':') {
            Some(("unix", rest)) => {
                let (socket, path) = rest.split_once(':').unwrap_or((rest, ""));
                if socket.is_empty() {
                    return Err(TargetError::NoHost);
                }
                (Server::Unix(socket.to_owned()), "localhost".to_owned(), path)
            }
            _ => {
                let (scheme, rest) = split_scheme(text)?;
                let (authority, path) = split_path(rest);
                let (host, port) = split_port(authority, scheme.port())?;
                let sent = if host == LOOPBACK { format!("{host}:{port}") } else { authority.to_owned() };
                let host = host.trim_matches(['[', ']']).to_owned();
                let server = match scheme {
                    Scheme::Http => Server::Tcp(host, port),
                    Scheme::Https => Server::Tls(host, port),
                };
                (server, sent, path)
            }
        };
        Ok(Self { server, path: with_format(path), host })
    }

    /// Reads the address of a control API, as `-l` of the server has it.
    ///
    /// # Errors
    /// The text is no address.
    pub fn control(address: &str) -> Result<Self, TargetError> {
        let rest = address.strip_prefix("unix:");
        let has_more = rest.map_or(address.contains(['/', '?', '#']), |socket| socket.contains(':'));
        if has_more {
            return Err(TargetError::NotControl);
        }
        Ok(Self { path: CONTROL_PATH.to_owned(), ..Self::parse(address)? })
    }
}

/// Scheme of a URL.
#[derive(Clone, Copy)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Http => PORT,
            Self::Https => TLS_PORT,
        }
    }
}

fn split_scheme(text: &str) -> Result<(Scheme, &str), TargetError> {
    match text.split_once("://") {
        None => Ok((Scheme::Http, text)),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => Ok((Scheme::Http, rest)),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => Ok((Scheme::Https, rest)),
        Some((scheme, _)) => Err(TargetError::Scheme(scheme.to_owned())),
    }
}

fn split_path(text: &str) -> (&str, &str) {
    let text = text.split('#').next().unwrap_or_default();
    text.split_at(text.find(['/', '?']).unwrap_or(text.len()))
}

fn split_port(authority: &str, default: u16) -> Result<(&str, u16), TargetError> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| TargetError::Port(text.to_owned()));
    if !authority.is_empty() && authority.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok((LOOPBACK, port(authority)?));
    }
    let end_of_address = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority[end_of_address..].rfind(':') {
        Some(at) => (&authority[..end_of_address + at], port(&authority[end_of_address + at + 1..])?),
        None => (authority, default),
    };
    if host.is_empty() { Err(TargetError::NoHost) } else { Ok((host, port)) }
}

/// The path with what the status page needs to answer in JSON; `metrics` ignores it.
fn with_format(path: &str) -> String {
    let (path, args) = path.split_once('?').unwrap_or((path, ""));
    let path = if path.is_empty() { PATH } else { path };
    match args {
        "" => format!("{path}?format=json"),
        args => format!("{path}?{args}&format=json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
        for (text, server, path, host) in [
            ("http://a.example/status", tcp("a.example", 80), "/status?format=json", "a.example"),
            ("HTTP://a:81", tcp("a", 81), "/status?format=json", "a:81"),
            ("a:81/x?y#z", tcp("a", 81), "/x?y&format=json", "a:81"),
            ("8000/metrics", tcp("127.0.0.1", 8000), "/metrics?format=json", "127.0.0.1:8000"),
            ("https://a.example/s", Server::Tls("a.example".into(), 443), "/s?format=json", "a.example"),
            ("https://[::1]:8443", Server::Tls("::1".into(), 8443), "/status?format=json", "[::1]:8443"),
            ("[::1]:81/", tcp("::1", 81), "/?format=json", "[::1]:81"),
            ("[::1]", tcp("::1", 80), "/status?format=json", "[::1]"),
            ("localhost", tcp("localhost", 80), "/status?format=json", "localhost"),
            ("unix:/run/a.sock", Server::Unix("/run/a.sock".into()), "/status?format=json", "localhost"),
            ("unix:/run/a.sock:/s", Server::Unix("/run/a.sock".into()), "/s?format=json", "localhost"),
        ] {
            let expected = Target { server, path: path.to_owned(), host: host.to_owned() };
            assert_eq!(Target::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn addresses_of_control_apis_have_a_path_of_their_own() {
        for (text, server) in [
            ("unix:/run/c.sock", Server::Unix("/run/c.sock".into())),
            ("8081", Server::Tcp("127.0.0.1".into(), 8081)),
            ("192.0.2.1:8081", Server::Tcp("192.0.2.1".into(), 8081)),
        ] {
            let target = Target::control(text).unwrap();
            assert_eq!((target.server, &*target.path), (server, "/1/tailwater/metrics"), "{text}");
        }
        assert_eq!(Target::control("unix:"), Err(TargetError::NoHost));
        for text in ["https://h/x", "h:81/x", "h?x", "unix:/run/c.sock:/x"] {
            assert_eq!(Target::control(text), Err(TargetError::NotControl), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, expected) in [
            ("ftp://a/", TargetError::Scheme("ftp".into())),
            ("", TargetError::NoHost),
            ("http:///x", TargetError::NoHost),
            ("unix:", TargetError::NoHost),
            (":80", TargetError::NoHost),
            ("a:x", TargetError::Port("x".into())),
            ("a:70000", TargetError::Port("70000".into())),
            ("70000", TargetError::Port("70000".into())),
            ("a/\r\nX: y", TargetError::Character),
        ] {
            assert_eq!(Target::parse(text), Err(expected), "{text}");
        }
    }
}
