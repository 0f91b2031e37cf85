//! `tailwater proxy`: a reverse proxy with one command, and without a configuration file.
//!
//! The configuration is a text like any other, made here and loaded as files are. It is meant for a developer's
//! machine: responses and bodies are not buffered, nothing is kept on disk without a `--cache`, and each error of a
//! server is one line on standard error.

mod cache;

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use tw_acme::BUNDLES;
use tw_base::Errno;
use tw_log::Level;
use tw_net::Addr;

use self::cache::Cache;
use crate::cli::{OriginCertificates, ProxyOptions, SentHost};
use crate::commands::authority::Authority;
use crate::commands::session::{self, NAME, STDERR, STDOUT};
use crate::commands::tls::Listening;
use crate::configuration::conf::Source;
use crate::configuration::memory_file::MemoryFile;
use crate::output::console::{Console, Fault};
use crate::server::Server;

/// Longest wait for the connection that checks a server.
const LOOK: Duration = Duration::from_millis(500);
/// Default of the longest silence of a server.
const TIMEOUT: &str = "60s";
const URLS: &str =
    "for example: http://localhost:3000, https://app.example, 192.0.2.7:3000, 3000, unix:/run/app.sock";
/// Certificates between that of a server and that of a trusted authority.
const VERIFY_DEPTH: u32 = 5;

/// A server behind this one.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: Scheme,
    /// As it is shown.
    url: String,
    /// Name in the `Host` of a request.
    host: String,
    /// Name in its certificate: the host without its port.
    name: String,
    /// Addresses: all of a name, or only the one that accepts connections, if one does.
    addresses: Vec<Addr>,
}

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn word(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of a URL that names none.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Passes requests on until it is told to stop.
pub fn proxy(server: &dyn Server, options: &ProxyOptions) -> ExitCode {
    let console = Console::new();
    let prepared = prepare(options, &console);
    match prepared {
        // The directory of the cache is locked as long as it is held.
        Ok(Prepared { origins, cache, text, listening, _trusted }) => {
            // No file there is read or written, but relative names need a directory to begin in.
            let source = Source::text(b"/".to_vec(), NAME, text);
            session::run(server, source, &[STDOUT, STDERR], |addresses, own| {
                let kept = cache.as_ref().map(Cache::greeting).unwrap_or_default();
                let line = |url: &str| format!("Passing {url} on to {}", all(&origins));
                let secured = listening.greeting(addresses, line);
                secured.unwrap_or_else(|| greeting(&origins, addresses, own)) + &kept
            })
        }
        Err(fault) => {
            console.fault(&fault);
            ExitCode::FAILURE
        }
    }
}

/// Servers, cache, and the configuration for them.
struct Prepared {
    origins: Vec<Origin>,
    cache: Option<Cache>,
    text: Vec<u8>,
    listening: Listening,
    /// Certificates of the authorities that `https` servers are checked with.
    _trusted: Option<MemoryFile>,
}

fn prepare(options: &ProxyOptions, console: &Console) -> Result<Prepared, Fault> {
    let mut origins = options.urls.iter().map(|url| Origin::parse(url)).collect::<Result<Vec<_>, _>>()?;
    let address: Vec<_> =
        origins.iter().flat_map(|origin| &origin.addresses).filter_map(Addr::inet).collect();
    let listening = Listening::of(options.listen.as_deref(), &options.tls, &address)?;
    let cache = Cache::open(options)?;
    for origin in &mut origins {
        if let Err(error) = origin.check() {
            let message = format!("{} does not answer yet: {}", origin.url, Reason(&error));
            console.fault(&Fault { level: Level::Warn, message, hint: None });
        }
    }
    let is_verified =
        scheme(&origins)? == Scheme::Https && options.certificates == OriginCertificates::Verified;
    let trusted = is_verified.then(trusted).transpose()?;
    let text = configuration(&origins, cache.as_ref(), &listening, trusted.as_ref(), options)?;
    Ok(Prepared { origins, cache, text, listening, _trusted: trusted })
}

/// The protocol of all of them.
fn scheme(origins: &[Origin]) -> Result<Scheme, Fault> {
    let first = origins.first().map_or(Scheme::Http, |origin| origin.scheme);
    match origins.iter().find(|origin| origin.scheme != first) {
        Some(other) => {
            let message = format!("{} and {} are two protocols", origins[0].url, other.url);
            Err(Fault::emerg(message).hint("start one proxy for each"))
        }
        None => Ok(first),
    }
}

/// Certificates of the authorities that the system trusts, and of the local one of the user.
fn trusted() -> Result<MemoryFile, Fault> {
    let mut text = BUNDLES.iter().find_map(|bundle| fs::read(bundle).ok()).unwrap_or_default();
    if let Some(authority) = Authority::existing()? {
        text.push(b'\n');
        text.extend(authority.certificate().into_bytes());
    }
    if text.is_empty() {
        return Err(Fault::emerg(format!(
            "no certificates of authorities are found ({})",
            BUNDLES.join(", ")
        ))
        .hint("install ca-certificates, or take any certificate: --insecure"));
    }
    MemoryFile::new("authorities", &text)
}

fn greeting(origins: &[Origin], addresses: &[Addr], own: &[IpAddr]) -> String {
    let line = |url: &str| format!("Passing {url} on to {}", all(origins));
    session::greeting(addresses, own, line, "Everyone who can reach this machine can send requests to them.")
}

/// List of the servers, for a message.
fn all(origins: &[Origin]) -> String {
    let urls: Vec<_> = origins.iter().map(|origin| &*origin.url).collect();
    match urls.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

impl Origin {
    /// Reads a URL, and asks for the addresses of its host, which may wait.
    fn parse(url: &[u8]) -> Result<Self, Fault> {
        let text = String::from_utf8_lossy(url);
        let fault = |what: &str| Fault::emerg(format!("{what} in \"{text}\"")).hint(URLS);
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::Http, &*text),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
            Some(_) => return Err(fault("unknown scheme")),
        };
        if let Some(path) = rest.strip_prefix("unix:") {
            return Self::unix(scheme, path).ok_or_else(|| fault("invalid path of a socket"));
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if !matches!(tail, "" | "/") {
            let message =
                format!("\"{text}\" has a path: requests are passed on with the paths they come with");
            return Err(
                Fault::emerg(message).hint("leave it out; proxy_pass of a configuration can change paths")
            );
        }
        if authority.contains('@') {
            return Err(fault("a user's name"));
        }
        if !text.contains("://")
            && authority.bytes().all(|byte| byte.is_ascii_digit())
            && !authority.is_empty()
        {
            let port =
                authority.parse().ok().filter(|port| *port > 0).ok_or_else(|| fault("invalid port"))?;
            return Self::named(scheme, "localhost", "localhost", port, &text);
        }
        let (name, port) = match authority.rsplit_once(':') {
            // Otherwise the colon is part of an IPv6 address.
            Some((name, port)) if !port.ends_with(']') => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port > 0);
                (name, port.ok_or_else(|| fault("invalid port"))?)
            }
            _ => (authority, scheme.port()),
        };
        let is_bracketed = name.starts_with('[') && name.ends_with(']');
        let host = if is_bracketed { &name[1..name.len() - 1] } else { name };
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_valid = if is_bracketed {
            host.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            host.bytes().all(is_letter)
        };
        match (host, is_valid) {
            ("", _) => Err(fault("no host")),
            (_, false) => Err(fault("invalid host")),
            (_, true) => Self::named(scheme, name, host, port, &text),
        }
    }

    /// A server at a port; `name` is the host as URLs have it, `host` as the system has it.
    fn named(scheme: Scheme, name: &str, host: &str, port: u16, text: &str) -> Result<Self, Fault> {
        let socket_address = (host, port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
        let mut addresses = Vec::new();
        // A name in /etc/hosts may give the same address twice.
        for address in socket_address.into_iter().map(Addr::Inet) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(Fault::emerg(format!("no address of host \"{host}\" in \"{text}\" was found")));
        }
        let name_sent = if port == scheme.port() { name.to_owned() } else { format!("{name}:{port}") };
        let url = format!("{}://{name_sent}", scheme.word());
        Ok(Self { scheme, url, host: name_sent, name: host.to_owned(), addresses })
    }

    /// A server at a socket of this machine.
    fn unix(scheme: Scheme, path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path).trim_end_matches(':');
        // In URLs, a colon separates the socket from the path of the request.
        if path.contains(":/") || session::quoted(path.as_bytes()).is_none() {
            return None;
        }
        let address = tw_net::parse_server(&format!("unix:{path}"), scheme.port()).ok()?;
        let url = match scheme {
            Scheme::Http => format!("unix:{path}"),
            Scheme::Https => format!("https://unix:{path}"),
        };
        let host = || "localhost".to_owned();
        Some(Self { scheme, url, host: host(), name: host(), addresses: vec![address] })
    }

    /// Checks that the server accepts connections, and at which address: a name may have one for each version of the protocol,
    /// and the server only one.
    fn check(&mut self) -> io::Result<()> {
        let mut first = None;
        for address in &self.addresses {
            let tried = match address {
                Addr::Inet(address) => TcpStream::connect_timeout(address, LOOK).map(drop),
                Addr::Unix(path) => {
                    path.as_deref().map_or(Ok(()), |path| UnixStream::connect(path).map(drop))
                }
            };
            match tried {
                Ok(()) => {
                    self.addresses = vec![address.clone()];
                    return Ok(());
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Why there is no connection, without a number.
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::TimedOut => f.write_str("no connection in time"),
            _ => Errno::from(self.0).words().fmt(f),
        }
    }
}

/// Value of `--timeout`.
fn timeout(options: &ProxyOptions) -> Result<String, Fault> {
    let timeout = String::from_utf8_lossy(options.timeout.as_deref().unwrap_or(TIMEOUT.as_bytes()));
    let is_time = tw_conf::units::msec(timeout.as_bytes()).is_some_and(|time| !time.is_zero());
    if !is_time || !timeout.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Fault::emerg(format!("invalid time in \"--timeout {timeout}\""))
            .hint("for example: --timeout 5s, --timeout 500ms, --timeout 10m"));
    }
    Ok(timeout.into_owned())
}

/// Lines of the upstream group.
fn server_lines(origins: &[Origin]) -> String {
    let mut lines = String::new();
    for address in origins.iter().flat_map(|origin| &origin.addresses) {
        let place = match address {
            Addr::Inet(address) => address.to_string(),
            Addr::Unix(_) => {
                let word = session::quoted(address.to_string().as_bytes());
                String::from_utf8(word.unwrap_or_default()).unwrap_or_default()
            }
        };
        lines += &format!("        server {place} fail_timeout=1s;\n");
    }
    lines
}

/// `Host` of requests, and the directive that changes redirects to it.
fn host_and_redirects<'a>(
    origins: &[Origin],
    first: &'a str,
    scheme: Scheme,
    sent: SentHost,
) -> Result<(&'a str, String), Fault> {
    // A certificate is for the name of the origin, so that name is sent.
    match if scheme == Scheme::Https { SentHost::Origin } else { sent } {
        SentHost::Client => Ok(("$asked_host", String::new())),
        SentHost::Origin => {
            if let Some(other) = origins.iter().find(|origin| origin.host != first) {
                let why = if scheme == Scheme::Https { "https" } else { "\"--change-host\"" };
                let message = format!("{why}: {} and {first} are two hosts", other.host);
                return Err(Fault::emerg(message).hint("all servers get one Host: start one proxy for each"));
            }
            Ok((first, format!("proxy_redirect {}://{first}/ /;", scheme.word())))
        }
    }
}

/// Directives of connections over TLS; without `trusted`, certificates are not checked.
fn tls_directives(origins: &[Origin], trusted: Option<&MemoryFile>) -> String {
    let name = origins.first().map_or("localhost", |origin| &*origin.name);
    let verify = trusted.map(|file| {
        format!(
            "proxy_ssl_verify on; proxy_ssl_verify_depth {VERIFY_DEPTH}; proxy_ssl_trusted_certificate {};",
            file.path()
        )
    });
    let verify = verify.unwrap_or_default();
    format!("proxy_ssl_server_name on; proxy_ssl_name {name}; {verify}")
}

/// The configuration for these servers.
fn configuration(
    origins: &[Origin],
    cache: Option<&Cache>,
    listening: &Listening,
    trusted: Option<&MemoryFile>,
    options: &ProxyOptions,
) -> Result<Vec<u8>, Fault> {
    let timeout = timeout(options)?;
    let servers = server_lines(origins);
    let first = origins.first().map_or("localhost", |origin| &*origin.host);
    let scheme = scheme(origins)?;
    let (host, redirects) = host_and_redirects(origins, first, scheme, options.host)?;
    let secured = match scheme {
        Scheme::Http => String::new(),
        Scheme::Https => tls_directives(origins, trusted),
    };
    let pass = format!("proxy_pass {}://origins;", scheme.word());
    // The same directory may have responses of other servers.
    let url = origins.first().and_then(|origin| session::quoted(origin.url.as_bytes())).unwrap_or_default();
    let url = String::from_utf8_lossy(&url);
    let key = format!("\"{} {host}$request_uri\"", url.trim_matches('"'));
    let (kept, cache_off, kept_log) = match cache {
        Some(_) => (Cache::directives(&key), "proxy_cache off;", "$kept "),
        None => (String::new(), "", ""),
    };
    let place = cache.map(Cache::place).unwrap_or_default();
    let first_part = format!(
        "{}
error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
",
        session::main_directives()
    );
    let Listening { server, .. } = listening;
    let rest = format!(
        "    log_format proxied '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent '
        '${{request_time}}s {kept_log}$upstream_addr';
    log_format trouble 'tailwater: [error] $upstream_faults ($request_method $request_uri was answered $status)';
    access_log {STDOUT} proxied;
    access_log {STDERR} trouble if=$upstream_faults;
    log_not_found off;
    client_max_body_size 0;
    large_client_header_buffers 8 32k;
    # Whoever sends none gets one, because the server needs it.
    map $host$is_request_port$request_port $asked_host {{ default $host$is_request_port$request_port; '' {first}; }}
    # h2c is not for those in between.
    map $http_upgrade $upgrade {{ default $http_upgrade; ~*h2c ''; }}
    map $upgrade $upgrade_connection {{ default upgrade; '' ''; }}
    upstream origins {{
{servers}    }}
    server {{
        {server}
        proxy_set_header Host {host};
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header X-Forwarded-Host $asked_host;
        proxy_set_header Upgrade $upgrade;
        proxy_set_header Connection $upgrade_connection;
        proxy_buffer_size 32k;
        proxy_buffers 8 32k;
        # What is said comes at once, and no disk is asked.
        proxy_buffering off;
        proxy_request_buffering off;
        proxy_max_temp_file_size 0;
        proxy_connect_timeout 5s;
        proxy_send_timeout {timeout};
        proxy_read_timeout {timeout};
        {redirects}
        {secured}
        {kept}
        location / {{
            # A tunnel may be silent for longer than a server that is asked something.
            if ($upgrade) {{ return 418; }}
            error_page 418 = @tunnel;
            {pass}
        }}
        location @tunnel {{
            {cache_off}
            proxy_send_timeout 1h;
            proxy_read_timeout 1h;
            {pass}
        }}
    }}
}}
"
    );
    Ok([first_part.as_bytes(), &place, &listening.http, rest.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::cli::TlsOptions;

    fn plain() -> Listening {
        Listening::of(Some(b"127.0.0.1:3"), &TlsOptions::default(), &[]).unwrap()
    }

    #[test]
    fn urls() {
        let origin = |url: &str| Origin::parse(url.as_bytes()).map_err(|fault| fault.message);
        let fixed = |url: &str, host: &str, address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            let scheme = if url.starts_with("https:") { Scheme::Https } else { Scheme::Http };
            let name = address.ip().to_string();
            Ok(Origin { scheme, url: url.into(), host: host.into(), name, addresses: vec![address.into()] })
        };
        for (url, expected) in [
            ("http://127.0.0.1:3000", fixed("http://127.0.0.1:3000", "127.0.0.1:3000", "127.0.0.1:3000")),
            ("HTTP://127.0.0.1:3000/", fixed("http://127.0.0.1:3000", "127.0.0.1:3000", "127.0.0.1:3000")),
            ("127.0.0.1", fixed("http://127.0.0.1", "127.0.0.1", "127.0.0.1:80")),
            ("127.0.0.1:80", fixed("http://127.0.0.1", "127.0.0.1", "127.0.0.1:80")),
            ("http://[::1]:1", fixed("http://[::1]:1", "[::1]:1", "[::1]:1")),
            ("http://[::1]", fixed("http://[::1]", "[::1]", "[::1]:80")),
            ("https://127.0.0.1", fixed("https://127.0.0.1", "127.0.0.1", "127.0.0.1:443")),
            ("https://127.0.0.1:80/", fixed("https://127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:80")),
            ("https://[::1]:1", fixed("https://[::1]:1", "[::1]:1", "[::1]:1")),
        ] {
            assert_eq!(origin(url), expected, "{url}");
        }
        let unix = Origin::parse(b"http://unix:/run/a b.sock").unwrap();
        assert_eq!((&*unix.url, &*unix.host), ("unix:/run/a b.sock", "localhost"));
        for (url, expected) in [
            ("ftp://a", "unknown scheme in \"ftp://a\""),
            ("http://a/b", "\"http://a/b\" has a path: requests are passed on with the paths they come with"),
            ("http://a?b", "\"http://a?b\" has a path: requests are passed on with the paths they come with"),
            ("http://me@a", "a user's name in \"http://me@a\""),
            ("http://", "no host in \"http://\""),
            ("http://:1", "no host in \"http://:1\""),
            ("", "no host in \"\""),
            ("http://127.0.0.1:0", "invalid port in \"http://127.0.0.1:0\""),
            ("127.0.0.1:", "invalid port in \"127.0.0.1:\""),
            ("127.0.0.1:+1", "invalid port in \"127.0.0.1:+1\""),
            ("127.0.0.1:65536", "invalid port in \"127.0.0.1:65536\""),
            ("70000", "invalid port in \"70000\""),
            ("http://a;b", "invalid host in \"http://a;b\""),
            ("http://[::1", "invalid host in \"http://[::1\""),
            ("http://[x]:1", "invalid host in \"http://[x]:1\""),
            ("::1", "invalid host in \"::1\""),
            ("unix:", "invalid path of a socket in \"unix:\""),
            ("unix:/a:/b", "invalid path of a socket in \"unix:/a:/b\""),
            ("unix:/$a", "invalid path of a socket in \"unix:/$a\""),
        ] {
            assert_eq!(origin(url), Err(expected.to_owned()), "{url}");
        }
    }

    #[test]
    fn generated_configuration_is_valid() {
        let origins =
            ["127.0.0.1:1", "unix:/a \"b\"", "[::1]:2"].map(|url| Origin::parse(url.as_bytes()).unwrap());
        let options = ProxyOptions::default();
        let text = configuration(&origins, None, &plain(), None, &options).unwrap();
        let source = Source::text(b"/".to_vec(), NAME, text);
        let loaded =
            source.load(&tw_core::shared_objects::SharedObjects::default(), &Console::new()).unwrap();
        assert_eq!(loaded.config.listens.len(), 1);

        let dir = tw_testkit::TempDir::new("a \"cache\" \\").unwrap();
        let requested = Some(dir.join("deep/er").as_os_str().as_bytes().to_vec());
        let options = ProxyOptions { cache: requested.clone(), ..ProxyOptions::default() };
        let cache = Cache::open(&options).unwrap();
        let text = configuration(&origins, cache.as_ref(), &plain(), None, &options).unwrap();
        let source = Source::text(b"/".to_vec(), NAME, text);
        source.load(&tw_core::shared_objects::SharedObjects::default(), &Console::new()).unwrap();

        let options = ProxyOptions { host: SentHost::Origin, ..ProxyOptions::default() };
        let refused = configuration(&origins, None, &plain(), None, &options).unwrap_err();
        assert_eq!(refused.message, "\"--change-host\": localhost and 127.0.0.1:1 are two hosts");
        let one = configuration(&origins[..1], None, &plain(), None, &options).unwrap();
        assert!(String::from_utf8(one).unwrap().contains("proxy_set_header Host 127.0.0.1:1;"));
        let secure = ["https://127.0.0.1:1", "https://127.0.0.1:2", "http://127.0.0.1:1"]
            .map(|url| Origin::parse(url.as_bytes()).unwrap());
        let trusted = MemoryFile::new("authorities", b"").unwrap();
        let options = ProxyOptions::default();
        let text = configuration(&secure[..1], None, &plain(), Some(&trusted), &options).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "proxy_pass https://origins;",
            "Host 127.0.0.1:1;",
            "proxy_ssl_name 127.0.0.1;",
            "proxy_ssl_verify on;",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let refused = |origins: &[Origin]| {
            configuration(origins, None, &plain(), Some(&trusted), &options).unwrap_err().message
        };
        assert_eq!(refused(&secure[..2]), "https: 127.0.0.1:2 and 127.0.0.1:1 are two hosts");
        assert_eq!(refused(&secure[1..]), "https://127.0.0.1:2 and http://127.0.0.1:1 are two protocols");
        for bad in ["", "0", "x", "1s;", "1s 2"] {
            let options = ProxyOptions { timeout: Some(bad.into()), ..ProxyOptions::default() };
            let refused = configuration(&origins, None, &plain(), None, &options).unwrap_err();
            assert_eq!(refused.message, format!("invalid time in \"--timeout {bad}\""));
        }
    }

    #[test]
    fn greeting_names_servers() {
        let said = |urls: &[&str], address: &str| {
            let origins: Vec<_> = urls.iter().map(|url| Origin::parse(url.as_bytes()).unwrap()).collect();
            let address: SocketAddr = address.parse().unwrap();
            greeting(&origins, &[address.into()], &["192.0.2.7".parse().unwrap()])
        };
        assert_eq!(
            said(&["127.0.0.1:1"], "127.0.0.1:2"),
            "Passing http://127.0.0.1:2/ on to http://127.0.0.1:1\n"
        );
        assert_eq!(
            said(&["127.0.0.1:1", "unix:/a", "127.0.0.1:3"], "0.0.0.0:2"),
            "Passing http://127.0.0.1:2/ on to http://127.0.0.1:1, unix:/a and http://127.0.0.1:3\n    \
             from other machines at http://192.0.2.7:2/\nEveryone who can reach this machine can send requests to them.\n"
        );
    }
}
