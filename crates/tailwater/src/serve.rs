//! `tailwater serve`: a directory on the web with one command, and without a configuration file.
//!
//! The configuration is a text like any other, made here and loaded as files are. It is meant for a developer's machine:
//! it listens on the loopback interface unless told otherwise, and files whose names begin with a dot stay private.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tw_log::{SinkConfig, Sinks};
use tw_net::Addr;

use crate::cli::ServeOptions;
use crate::conf::{Source, path};
use crate::console::{Console, Fault};
use crate::master::{self, Mode};

/// Where to listen if nothing is said, and how many ports from there on are tried.
const DEFAULT_PORT: u16 = 8080;
const PORTS_TRIED: u16 = 20;

/// What messages call the configuration.
const NAME: &str = "the built-in configuration";
/// The log of requests.
const STDOUT: &str = "/dev/stdout";
const MEDIA_TYPES: &str = include_str!("../conf/mime.types");

/// Serves until it is told to stop.
pub(crate) fn serve(options: &ServeOptions) -> ExitCode {
    let prepared = directory(options).and_then(|directory| {
        let text = configuration(&directory, &address(options)?)?;
        Ok((directory, text))
    });
    let (directory, text) = match prepared {
        Ok(prepared) => prepared,
        Err(fault) => {
            Console::new().fault(&fault);
            return ExitCode::FAILURE;
        }
    };
    let sinks = Sinks::new();
    // Standard output may be a socket, which has no name to be opened by. The sink lives as long as its log.
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let _stdout = stdout.and_then(|file| {
        sinks.adopt(Path::new(STDOUT), file, SinkConfig::default()).map_err(io::Error::other)
    });
    let source = Source::text(directory.as_os_str().as_bytes().to_vec(), NAME, text);
    match master::start(source, Mode::Session, sinks) {
        Some(master) => {
            for address in master.addresses() {
                say(&format!("Serving {} at {}\n", directory.display(), url(address)));
            }
            if io::stdout().is_terminal() {
                say("Press Ctrl-C to stop.\n");
            }
            master.run();
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// Tells a terminal why the first Ctrl-C has not ended us yet.
pub(crate) fn say_draining() {
    if io::stdout().is_terminal() {
        say("\nFinishing requests. Press Ctrl-C again to stop at once.\n");
    }
}

/// Writes to standard output. Nobody reading it is no reason not to serve.
fn say(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

fn directory(options: &ServeOptions) -> Result<PathBuf, Fault> {
    let asked = options.directory.as_deref().map_or(Path::new("."), path);
    let refused = |error: &io::Error| Fault::call("open()", &asked.to_string_lossy(), error);
    let full = asked.canonicalize().map_err(|error| refused(&error))?;
    // Listing it now finds out whether we may.
    fs::read_dir(&full).map_err(|error| refused(&error).hint("serve takes the name of a directory"))?;
    Ok(full)
}

/// The argument of `listen`.
fn address(options: &ServeOptions) -> Result<String, Fault> {
    let Some(asked) = &options.listen else { return free_port() };
    let asked = String::from_utf8_lossy(asked);
    let text = match asked.parse::<u16>() {
        // A port alone: for this machine only, unlike in a configuration.
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
        Err(_) => asked.into_owned(),
    };
    let hint = "for example: --listen 8080, --listen 0.0.0.0:8080, --listen [::1]:8080";
    let addresses = tw_net::parse_listen(&text, DEFAULT_PORT)
        .map_err(|error| Fault::emerg(format!("{error} in \"--listen {text}\"")).hint(hint))?;
    for address in addresses.iter().filter_map(Addr::inet) {
        if is_taken(address) {
            let message = format!("another process listens on {address}");
            let other = free_port().map(|free| format!("free is: --listen {free}"));
            return Err(match other {
                Ok(hint) => Fault::emerg(message).hint(hint),
                Err(_) => Fault::emerg(message),
            });
        }
    }
    Ok(with_port(text))
}

/// `listen` knows another port than we do if none is said.
fn with_port(text: String) -> String {
    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::from((ip, DEFAULT_PORT)).to_string());
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).map(str::parse::<Ipv6Addr>) {
        Some(Ok(ip)) => SocketAddr::from((ip, DEFAULT_PORT)).to_string(),
        _ => bare.unwrap_or(text),
    }
}

/// The first port from the default one on that nobody listens on.
fn free_port() -> Result<String, Fault> {
    let last = DEFAULT_PORT + PORTS_TRIED - 1;
    (DEFAULT_PORT..=last)
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|address| !is_taken(*address))
        .map(|address| address.to_string())
        .ok_or_else(|| {
            let message = format!("the ports {DEFAULT_PORT} to {last} are all taken");
            Fault::emerg(message).hint("name another one: --listen 9000")
        })
}

fn is_taken(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn url(address: &Addr) -> String {
    match address {
        Addr::Inet(address) => {
            let ip = match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
                ip => ip,
            };
            format!("http://{}/", SocketAddr::from((ip, address.port())))
        }
        Addr::Unix(_) => address.to_string(),
    }
}

/// The configuration for a directory.
fn configuration(directory: &Path, listen: &str) -> Result<Vec<u8>, Fault> {
    let root = quoted(directory.as_os_str().as_bytes()).ok_or_else(|| {
        let message = format!("cannot serve \"{}\": its name contains a dollar sign", directory.display());
        Fault::emerg(message).hint("go there and serve a directory in it, or use a link to it")
    })?;
    let guard = if can_guard() { "enforce" } else { "off" };
    let before = format!(
        "daemon off;
worker_processes auto;
master_process off;
worker_shutdown_timeout 10s;
loop_guard {guard};
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    {MEDIA_TYPES}
    default_type application/octet-stream;
    access_log {STDOUT};
    log_not_found off;
    autoindex on;
    server {{
        listen {listen};
        # The whole world may be asked for, but not .git, .env and their like.
        location ~ /\\. {{ return 404; }}
        root "
    );
    Ok([before.as_bytes(), &root, b";\n    }\n}\n"].concat())
}

/// Whether the kernel can watch the loops.
fn can_guard() -> bool {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    actions.is_ok_and(|actions| actions.split_whitespace().any(|action| action == "trap"))
}

/// A word of the language. `None` if it would be read as one with variables, which nothing can prevent.
fn quoted(name: &[u8]) -> Option<Vec<u8>> {
    if name.contains(&b'$') {
        return None;
    }
    let mut word = vec![b'"'];
    for byte in name {
        if matches!(byte, b'"' | b'\\') {
            word.push(b'\\');
        }
        word.push(*byte);
    }
    word.push(b'"');
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_words() {
        for (name, expected) in [
            ("/srv", Some("\"/srv\"")),
            ("/a b;{", Some("\"/a b;{\"")),
            ("/\"\\n", Some("\"/\\\"\\\\n\"")),
            ("/$x", None),
        ] {
            let word = quoted(name.as_bytes()).map(|word| String::from_utf8(word).unwrap());
            assert_eq!(word.as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn addresses_get_a_port() {
        for (text, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0", "0.0.0.0:8080"),
            ("[::1]", "[::1]:8080"),
            ("::1", "[::1]:8080"),
            ("[::1]:1", "[::1]:1"),
            ("unix:/s", "unix:/s"),
        ] {
            assert_eq!(with_port(text.to_owned()), expected, "{text}");
        }
    }

    #[test]
    fn the_configuration_is_one() {
        let text = configuration(Path::new("/a \"b\" \\c; {d}"), "127.0.0.1:1").unwrap();
        let source = Source::text(b"/".to_vec(), NAME, text);
        let loaded = source.load(&tw_server::load::Kept::default(), &Console::new()).unwrap();
        assert_eq!(loaded.config.listens.len(), 1);
    }
}
