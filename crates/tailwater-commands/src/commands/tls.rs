//! `--tls` of `tailwater serve` and `tailwater proxy`: automatic certificates, as lines of a configuration.
//!
//! Names of the internet get theirs from a public authority (ACME); those of this machine and of private networks from
//! the local [`authority`](crate::commands::authority) of the user, at each start, for this process alone.

use std::env;
use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tw_acme::{Identifier, Url, is_local, local_domains};
use tw_net::Addr;

use crate::cli::{TermsOfService, TlsOptions};
use crate::commands::authority::Authority;
use crate::commands::session::{self, DEFAULT_PORT};
use crate::configuration::bytes_path::path;
use crate::configuration::memory_file::MemoryFile;
use crate::output::console::Fault;

/// Default directory of the authority.
const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Port of browsers and authorities.
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;
/// Port for a local certificate if none is given.
const LOCAL_PORT: u16 = 8443;
/// The note about a certificate of a public authority.
const ORDERED: &str =
    "A certificate is requested automatically. Until it arrives, clients do not trust the temporary one.\n";

/// Address to listen on, and its names; plain HTTP without names.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The first name that there is to be a certificate for.
    name: Option<String>,
    /// Text that is printed below the address.
    note: String,
    /// The local certificate and its key, which exist as long as they are held.
    _certificate: Option<[MemoryFile; 2]>,
    /// Lines of `http`.
    pub(crate) http: Vec<u8>,
    /// Lines of the server.
    pub(crate) server: String,
}

impl Listening {
    /// Makes the `listen` lines for the requested address; never one of `not_these`.
    pub(crate) fn of(
        requested: Option<&[u8]>,
        tls: &TlsOptions,
        not_these: &[SocketAddr],
    ) -> Result<Self, Fault> {
        let [first, ..] = &tls.names[..] else {
            if tls.directory.is_some() || tls.trusted.is_some() || tls.terms == TermsOfService::Accepted {
                let fault = Fault::emerg(
                    "\"--accept-terms\", \"--acme-directory\" and \"--acme-ca\" belong to \"--tls\"",
                );
                return Err(fault.hint("name the host: --tls example.com"));
            }
            let server = format!("listen {};", session::address(requested, DEFAULT_PORT, not_these)?);
            return Ok(Self {
                name: None,
                note: String::new(),
                _certificate: None,
                http: Vec::new(),
                server,
            });
        };
        let names = names(&tls.names)?;
        if tls.directory.is_none() && is_all_local(&names)? {
            return Self::local(requested, tls, names, not_these);
        }
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let uri =
            String::from_utf8_lossy(tls.directory.as_deref().unwrap_or(DIRECTORY.as_bytes())).into_owned();
        let authority = Url::parse(&uri)
            .map_err(|why| Fault::emerg(format!("invalid URL in \"--acme-directory {uri}\": {why}")))?;
        if tls.terms == TermsOfService::NotAccepted {
            let message = format!(
                "\"--tls\" orders certificates from {}, which has terms of service",
                authority.host()
            );
            return Err(Fault::emerg(message).hint("if you accept them: --accept-terms"));
        }
        let state = state(&authority)?;
        let quoted = |bytes: &[u8], what: &str| {
            let message = || Fault::emerg(format!("a dollar sign cannot stand in {what}"));
            session::quoted(bytes).ok_or_else(message)
        };
        let mut http = b"    acme_issuer tls {\n        challenge tls-alpn-01;\n        accept_terms_of_service;\n        uri ".to_vec();
        http.extend(quoted(uri.as_bytes(), "\"--acme-directory\"")?);
        http.extend(b";\n        state_path ");
        http.extend(quoted(state.as_os_str().as_bytes(), "the name of the state directory")?);
        if let Some(file) = &tls.trusted {
            let full = path(file).canonicalize();
            let full = full.map_err(|error| Fault::call("open()", &String::from_utf8_lossy(file), &error))?;
            http.extend(b";\n        ssl_trusted_certificate ");
            http.extend(quoted(full.as_os_str().as_bytes(), "\"--acme-ca\"")?);
        }
        http.extend(b";\n    }\n");
        let listens = match requested {
            Some(_) => vec![session::address(requested, DEFAULT_PORT, not_these)?],
            None => everywhere(HTTPS_PORT)?,
        };
        let mut server: String =
            listens.iter().map(|listen| format!("listen {listen} ssl;\n        ")).collect();
        server += &http3(&listens);
        server += &format!(
            "server_name {};\n        acme_certificate tls;\n        ssl_certificate $acme_certificate;\n        ssl_certificate_key $acme_certificate_key;",
            names.join(" ")
        );
        // Plain HTTP is redirected there, unless another process has that port.
        if requested.is_none()
            && let Ok(listens) = everywhere(HTTP_PORT)
        {
            let listens: String = listens.iter().map(|listen| format!("listen {listen}; ")).collect();
            http.extend(
                format!("    server {{ {listens}return 301 https://$host$request_uri; }}\n").into_bytes(),
            );
        }
        let first = String::from_utf8_lossy(first).trim_start_matches('.').to_owned();
        Ok(Self { name: Some(first), note: ORDERED.to_owned(), _certificate: None, http, server })
    }

    /// With a certificate of the local authority.
    fn local(
        requested: Option<&[u8]>,
        tls: &TlsOptions,
        mut names: Vec<Identifier>,
        not_these: &[SocketAddr],
    ) -> Result<Self, Fault> {
        if tls.trusted.is_some() {
            return Err(Fault::emerg("\"--acme-ca\" belongs to \"--acme-directory\"")
                .hint("names of this machine get their certificate from the local authority"));
        }
        let listen = session::address(requested, LOCAL_PORT, not_these)?;
        let first = names.first().map(host).unwrap_or_default();
        // Clients on this machine use its loopback addresses as well as its name.
        if names.contains(&Identifier::Dns("localhost".into())) {
            for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
                let address = Identifier::Ip(address);
                if !names.contains(&address) {
                    names.push(address);
                }
            }
        }
        let authority = Authority::open()?;
        let issued = authority.issue(&names)?;
        let certificate = MemoryFile::new("certificate", issued.certificate.as_bytes())?;
        let key = MemoryFile::new("certificate key", issued.key.as_bytes())?;
        let server = format!(
            "listen {listen} ssl;\n        {}server_name {};\n        ssl_certificate {};\n        ssl_certificate_key {};",
            http3(std::slice::from_ref(&listen)),
            names.iter().map(host).collect::<Vec<_>>().join(" "),
            certificate.path(),
            key.path(),
        );
        let note = if authority.is_trusted() {
            String::new()
        } else {
            "Browsers warn of the certificate until the local authority is trusted: tailwater trust\n"
                .to_owned()
        };
        Ok(Self { name: Some(first), note, _certificate: Some([certificate, key]), http: Vec::new(), server })
    }

    /// First line of output for `addresses`, with TLS.
    pub(crate) fn greeting(&self, addresses: &[Addr], line: impl Fn(&str) -> String) -> Option<String> {
        let name = self.name.as_ref()?;
        let ports = addresses.iter().filter_map(Addr::inet).map(|address| address.port());
        let port = ports.filter(|port| *port != HTTP_PORT).min().unwrap_or(HTTPS_PORT);
        let url = match port {
            HTTPS_PORT => format!("https://{name}/"),
            port => format!("https://{name}:{port}/"),
        };
        Some(format!("{}\n{}", line(&url), self.note))
    }
}

/// The names, checked.
fn names(words: &[Vec<u8>]) -> Result<Vec<Identifier>, Fault> {
    let mut all = Vec::new();
    for word in words {
        let text = String::from_utf8_lossy(word);
        Identifier::add(&text, &mut all).map_err(|why| {
            Fault::emerg(format!("{why} in \"--tls {text}\"")).hint("for example: --tls example.com")
        })?;
    }
    Ok(all)
}

/// Returns true if the local authority issues for these names; a public one does for others, and none for a mixture.
fn is_all_local(names: &[Identifier]) -> Result<bool, Fault> {
    // A name without a dot is in no domain for which a public authority issues certificates.
    if let Some(bare) = names
        .iter()
        .find(|name| !is_local(name) && matches!(name, Identifier::Dns(text) if !text.contains('.')))
    {
        let message = format!("no authority issues a certificate for \"{bare}\"");
        return Err(Fault::emerg(message)
            .hint(format!("names of private networks are or end with: {}", local_domains())));
    }
    let (local, public): (Vec<_>, Vec<_>) = names.iter().partition(|name| is_local(name));
    match (local.first(), public.first()) {
        (Some(local), Some(public)) => {
            let message = format!("\"{local}\" and \"{public}\" cannot be in one certificate");
            Err(Fault::emerg(message)
                .hint("only the local authority issues for one, only a public one for the other"))
        }
        (local, _) => Ok(local.is_some()),
    }
}

/// Lines that add HTTP/3 on the addresses of TCP whose UDP port is free, and announce it.
fn http3(listens: &[String]) -> String {
    let addresses = listens.iter().filter_map(|listen| listen.parse::<SocketAddr>().ok());
    let free: Vec<_> = addresses.filter(|address| UdpSocket::bind(address).is_ok()).collect();
    let Some(first) = free.first() else { return String::new() };
    let lines: String = free.iter().map(|address| format!("listen {address} quic;\n        ")).collect();
    format!("{lines}add_header Alt-Svc 'h3=\":{}\"; ma=86400' always;\n        ", first.port())
}

/// A name as URLs have it.
fn host(name: &Identifier) -> String {
    match name {
        Identifier::Ip(IpAddr::V6(address)) => format!("[{address}]"),
        other => other.to_string(),
    }
}

/// The directory of keys and certificates of an authority, below the user's state. Made if it is missing.
fn state(authority: &Url) -> Result<PathBuf, Fault> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let base = base.ok_or_else(|| {
        Fault::emerg("there is no directory to keep certificates in").hint("set HOME or XDG_STATE_HOME")
    })?;
    let port = authority.port();
    // Brackets and colons of an address are no trouble in a name.
    let name =
        if port == HTTPS_PORT { authority.host().to_owned() } else { format!("{}:{port}", authority.host()) };
    let directory = base.join("tailwater/acme").join(name);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| Fault::call("mkdir()", &shown(&directory), &error))?;
    Ok(directory)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// All addresses of this machine with this port, of the families that it has.
fn everywhere(port: u16) -> Result<Vec<String>, Fault> {
    let all = |ip: IpAddr| SocketAddr::from((ip, port));
    let mut listens =
        vec![session::address(Some(all(Ipv4Addr::UNSPECIFIED.into()).to_string().as_bytes()), port, &[])?];
    if TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        listens.push(all(Ipv6Addr::UNSPECIFIED.into()).to_string());
    }
    Ok(listens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_options_are_refused() {
        let refused = |names: &[&str], terms, directory: Option<&str>| {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            let directory = directory.map(|uri| uri.as_bytes().to_vec());
            let tls = TlsOptions { names, terms, directory, trusted: None };
            Listening::of(Some(b"127.0.0.1:1"), &tls, &[]).unwrap_err().message
        };
        assert_eq!(
            refused(&["example.com"], TermsOfService::NotAccepted, None),
            "\"--tls\" orders certificates from acme-v02.api.letsencrypt.org, which has terms of service"
        );
        assert_eq!(
            refused(&["a b"], TermsOfService::Accepted, None),
            "invalid server name: invalid character 20 at position 1 in \"--tls a b\""
        );
        assert_eq!(
            refused(&["a.example"], TermsOfService::Accepted, Some("http://ca.example/")),
            "invalid URL in \"--acme-directory http://ca.example/\": it is not https"
        );
        assert!(refused(&[], TermsOfService::Accepted, None).ends_with("belong to \"--tls\""));
        assert_eq!(
            refused(&["localhost", "example.com"], TermsOfService::Accepted, None),
            "\"localhost\" and \"example.com\" cannot be in one certificate"
        );
        assert_eq!(
            refused(&["mybox"], TermsOfService::Accepted, None),
            "no authority issues a certificate for \"mybox\""
        );
        let plain = Listening::of(Some(b"127.0.0.1:1"), &TlsOptions::default(), &[]).unwrap();
        assert_eq!((&*plain.server, plain.greeting(&[], str::to_owned)), ("listen 127.0.0.1:1;", None));
    }

    #[test]
    fn greeting_has_the_name() {
        let listening = Listening::of(Some(b"127.0.0.1:1"), &TlsOptions::default(), &[]).unwrap();
        let listening = Listening { name: Some("example.com".into()), ..listening };
        let said = |addresses: &[&str]| {
            let addresses: Vec<Addr> =
                addresses.iter().map(|text| Addr::Inet(text.parse().unwrap())).collect();
            listening
                .greeting(&addresses, |url| format!("at {url}"))
                .unwrap()
                .lines()
                .next()
                .unwrap()
                .to_owned()
        };
        assert_eq!(said(&["0.0.0.0:443", "[::]:443", "0.0.0.0:80"]), "at https://example.com/");
        assert_eq!(said(&["127.0.0.1:8443"]), "at https://example.com:8443/");
    }
}
