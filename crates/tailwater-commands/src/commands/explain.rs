//! `--explain URL`: the routing of a request, or of a session of `stream` or `mail`, without a server.

use std::fmt::Write as _;
use std::fs;
use std::io;

use tw_app::explain::{
    ExplainedProtocol, Explanation, Line, MailProtocol, MailToExplain, RequestToExplain, Scheme,
    SessionToExplain,
};
use tw_app::{Config, Generation};
use tw_core::config_thread::ConfigThread;
use tw_core::pools::Disks;
use tw_disk::Pool;
use tw_sys::heap::purge;

use crate::configuration::bytes_path::path;
use crate::configuration::conf::Loaded;

/// Columns of the subject of a line and of its text.
const ABOUT_COLUMNS: usize = 12;
const TEXT_COLUMNS: usize = 72;

/// Explains a URL, perhaps with a method in front of it; the error says why that cannot be.
pub fn run(loaded: Loaded, url: &[u8]) -> Result<String, String> {
    let shown_url = String::from_utf8_lossy(url);
    let scheme = SCHEMES.iter().find_map(|(scheme, protocol)| Some((url.strip_prefix(*scheme)?, *protocol)));
    let mail = MAIL_SCHEMES.iter().find_map(|scheme| Some((url.strip_prefix(scheme.text)?, scheme)));
    let subject = match (scheme, mail) {
        (Some((rest, protocol)), _) => parse_session(rest, protocol).map(Subject::Session),
        (None, Some((rest, scheme))) => parse_mail(rest, scheme).map(Subject::Mail),
        (None, None) => parse(url).map(Subject::Request),
    };
    let subject = subject.ok_or_else(|| {
        format!("invalid URL \"{shown_url}\" in option \"--explain\" (as http://example.com/a?b, or /a?b)")
    })?;
    let Loaded { tree, config, .. } = loaded;
    let generation = publish(config)?;
    let explanation = match subject {
        Subject::Request(request) => {
            generation.explain(request).map_err(|error| failed("starting a loop", error))??
        }
        Subject::Session(session) => {
            generation.explain_session(&session).map_err(|error| failed("starting a loop", error))??
        }
        Subject::Mail(session) => generation.explain_mail(&session)?,
    };
    Ok(shown(&explanation, |line| line.span.map_or_else(String::new, |span| tree.sources.tail(span))))
}

fn failed(what: &str, error: io::Error) -> String {
    format!("{what} failed ({})", tw_base::Errno::from(&error))
}

/// Generation of a configuration that no server has. The error says why there is none.
pub(crate) fn publish(config: Config) -> Result<Generation, String> {
    // Explaining requests one after the other takes one thread of each pool.
    let pools: Result<Vec<_>, _> =
        config.main.pools.iter().map(|pool| Pool::new(&pool.name, 1, 16)).collect();
    let disks =
        Disks::new(pools.map_err(|errno| failed("starting a thread", errno.into()))?, config.ring).into();
    let config_thread = ConfigThread::start(purge).map_err(|error| failed("starting a thread", error))?;
    Ok(config.publish(1, disks, &config_thread))
}

/// Schemes of sessions.
const SCHEMES: [(&[u8], ExplainedProtocol); 3] = [
    (b"tcp://", ExplainedProtocol::Tcp),
    (b"udp://", ExplainedProtocol::Udp),
    (b"tls://", ExplainedProtocol::Tls),
];

/// Subject of an explanation.
enum Subject {
    Request(RequestToExplain),
    Session(SessionToExplain),
    Mail(MailToExplain),
}

/// Scheme of a session of mail.
struct MailScheme {
    text: &'static [u8],
    protocol: MailProtocol,
    is_tls: bool,
    /// Port of the protocol.
    port: u16,
}

const fn mail_scheme(text: &'static [u8], protocol: MailProtocol, is_tls: bool, port: u16) -> MailScheme {
    MailScheme { text, protocol, is_tls, port }
}

/// Schemes of sessions of mail.
const MAIL_SCHEMES: [MailScheme; 6] = [
    mail_scheme(b"imap://", MailProtocol::Imap, false, 143),
    mail_scheme(b"imaps://", MailProtocol::Imap, true, 993),
    mail_scheme(b"pop3://", MailProtocol::Pop3, false, 110),
    mail_scheme(b"pop3s://", MailProtocol::Pop3, true, 995),
    mail_scheme(b"smtp://", MailProtocol::Smtp, false, 25),
    mail_scheme(b"smtps://", MailProtocol::Smtp, true, 465),
];

/// Reads `host` or `host:port`, what follows a scheme of mail.
fn parse_mail(rest: &[u8], scheme: &MailScheme) -> Option<MailToExplain> {
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    let (host, port) = host_and_port(rest)?;
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#');
    rest.iter().all(is_plain).then_some(MailToExplain {
        host: host.to_ascii_lowercase(),
        port: port.unwrap_or(scheme.port),
        protocol: scheme.protocol,
        is_tls: scheme.is_tls,
    })
}

/// Reads `host:port`, what follows `tcp://`, `udp://` or `tls://`.
fn parse_session(rest: &[u8], protocol: ExplainedProtocol) -> Option<SessionToExplain> {
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    let (host, port) = host_and_port(rest)?;
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'?' | b'#');
    rest.iter().all(is_plain).then_some(SessionToExplain {
        host: host.to_ascii_lowercase(),
        port: port?,
        protocol,
    })
}

/// Host and port of an authority: neither may be empty, and a port not 0.
pub(crate) fn host_and_port(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
    // A colon inside of brackets is part of the address.
    let after = authority.iter().rposition(|byte| *byte == b']').map_or(0, |at| at + 1);
    let colon = authority[after..].iter().position(|byte| *byte == b':').map(|at| after + at);
    let (host, port) = match colon {
        Some(at) => (&authority[..at], Some(std::str::from_utf8(&authority[at + 1..]).ok()?.parse().ok()?)),
        None => (authority, None),
    };
    (!host.is_empty() && port != Some(0)).then_some((host, port))
}

/// Reads `[METHOD ]http[s]://host[:port][/path][?arguments]`; the scheme may be left out, and of a path also the host.
fn parse(url: &[u8]) -> Option<RequestToExplain> {
    let mut words = url.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (method, url) = match (words.next()?, words.next()) {
        (method, Some(url)) => (method, url),
        (url, None) => (&b"GET"[..], url),
    };
    if words.next().is_some() || !is_method(method) {
        return None;
    }
    let (rest, scheme) = match (url.strip_prefix(b"http://"), url.strip_prefix(b"https://")) {
        (Some(rest), _) => (rest, Some(Scheme::Http)),
        (None, Some(rest)) => (rest, Some(Scheme::Https)),
        (None, None) if url.windows(3).any(|part| part == b"://") => return None,
        (None, None) => (url, None),
    };
    let default_port = scheme.unwrap_or(Scheme::Http).default_port();
    let rest = rest.split(|byte| *byte == b'#').next().unwrap_or_default();
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    // A path alone is for the default server.
    let is_path = scheme.is_none() && authority.is_empty() && target.starts_with(b"/");
    let (host, port) = if is_path { (&b""[..], None) } else { host_and_port(authority)? };
    if url.iter().any(u8::is_ascii_control) {
        return None;
    }
    let slash: &[u8] = if target.starts_with(b"/") { b"" } else { b"/" };
    Some(RequestToExplain {
        method: method.into(),
        host: host.to_ascii_lowercase(),
        port: Some(port.unwrap_or(default_port)),
        scheme,
        target: [slash, target].concat(),
        fields: Vec::new(),
        body: Vec::new(),
        is_detailed: false,
    })
}

/// Returns `true` if a word looks like a method; the server decides if it is one.
fn is_method(word: &[u8]) -> bool {
    word.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-'))
}

/// The lines in columns; a line without a word belongs to the one before it.
fn shown(explanation: &Explanation, place: impl Fn(&Line) -> String) -> String {
    let mut out = String::new();
    let mut line = |about: &str, text: &str, place: &str| {
        let start = format!("{about:<ABOUT_COLUMNS$}");
        // Writing into a string cannot fail.
        let _ = match place.trim_start().strip_prefix("in ") {
            Some(place) => writeln!(out, "{start} {text:<TEXT_COLUMNS$} {place}"),
            None => writeln!(out, "{start} {text}"),
        };
    };
    for explained_line in &explanation.lines {
        match &explained_line.file {
            Some(file) => line(explained_line.about, &file_text(file), ""),
            None => line(explained_line.about, &explained_line.text, &place(explained_line)),
        }
    }
    out
}

/// A file name, and what is there as far as this user may see.
fn file_text(name: &[u8]) -> String {
    let shown = tw_log::Text(name);
    match fs::metadata(path(name)) {
        Ok(meta) if meta.is_dir() => format!("{shown} (a directory)"),
        Ok(meta) if meta.is_file() => format!("{shown} ({} bytes)", meta.len()),
        Ok(_) => format!("{shown} (neither a file nor a directory)"),
        Err(error) => format!("{shown} ({})", tw_base::Errno::from(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_a_host_and_a_port() {
        for (rest, expected) in [
            ("A.example:81", Some(("a.example", 81))),
            ("[::1]:82/", Some(("[::1]", 82))),
            ("a.example", None),
            ("a:0", None),
            (":80", None),
            ("a:80/b", None),
            ("a b:80", None),
        ] {
            let protocol = ExplainedProtocol::Udp;
            let expected =
                expected.map(|(host, port)| SessionToExplain { host: host.into(), port, protocol });
            assert_eq!(parse_session(rest.as_bytes(), protocol), expected, "{rest}");
        }
    }

    #[test]
    fn urls() {
        for (url, expected) in [
            ("http://a.example/b?c=d", Some(("GET", "a.example", 80, "/b?c=d"))),
            ("https://a.example", Some(("GET", "a.example", 443, "/"))),
            ("A.example:8080/#top", Some(("GET", "a.example", 8080, "/"))),
            ("POST http://[::1]:81?x", Some(("POST", "[::1]", 81, "/?x"))),
            ("http://[::1]/", Some(("GET", "[::1]", 80, "/"))),
            ("/a", Some(("GET", "", 80, "/a"))),
            ("POST /a?b#c", Some(("POST", "", 80, "/a?b"))),
            ("?a", None),
            ("http:///a", None),
            ("", None),
            ("ftp://a/", None),
            ("http://a:b/", None),
            ("http://a:0/", None),
            ("get http://a/", None),
            ("GET http://a/ x", None),
        ] {
            let request = parse(url.as_bytes());
            let expected = expected.map(|(method, host, port, target)| RequestToExplain {
                method: method.into(),
                host: host.into(),
                port: Some(port),
                scheme: match url.split_once("://") {
                    Some((before, _)) if before.ends_with("https") => Some(Scheme::Https),
                    Some(_) => Some(Scheme::Http),
                    None => None,
                },
                target: target.into(),
                fields: Vec::new(),
                body: Vec::new(),
                is_detailed: false,
            });
            assert_eq!(request, expected, "{url}");
        }
    }
}
