//! A server for a terminal, `tailwater serve` and `tailwater proxy`: its address, its output, its end.
//!
//! It is for a developer's machine: it listens on the loopback interface unless told otherwise, needs no file, and ends
//! with Ctrl-C, which lets requests finish.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tw_log::{Sink, SinkConfig, Sinks};
use tw_net::Addr;

use crate::configuration::conf::Source;
use crate::output::console::Fault;
use crate::server::Server;

/// Default port, and number of ports from there on that are tried.
pub(crate) const DEFAULT_PORT: u16 = 8080;
const PORTS_TRIED: u16 = 20;

/// Name of the configuration in messages.
pub(crate) const NAME: &str = "the built-in configuration";
/// The log of requests.
pub(crate) const STDOUT: &str = "/dev/stdout";
/// Destination of error messages.
pub(crate) const STDERR: &str = "/dev/stderr";

/// Serves until it receives a signal to stop. `logs` are those of [`STDOUT`] and [`STDERR`] that the configuration
/// has. `greeting` makes the first output from the addresses of the server and those of the machine.
pub(crate) fn run(
    server: &dyn Server,
    source: Source,
    logs: &[&str],
    greeting: impl FnOnce(&[Addr], &[IpAddr]) -> String,
) -> ExitCode {
    let sinks = Sinks::new();
    let stdout = io::stdout();
    let stderr = io::stderr();
    let file = |name: &str| if name == STDERR { stderr.as_fd() } else { stdout.as_fd() };
    // The adopted files live as long as their logs.
    let _open: Vec<_> = logs.iter().map(|name| adopt(&sinks, name, file(name))).collect();
    // The addresses are read before the sandbox starts, which allows no sockets, not even for this.
    let own = own_addresses();
    let mut greeting = Some(greeting);
    server.serve(source, sinks, &mut |addresses| {
        let Some(greeting) = greeting.take() else { return };
        print(&greeting(addresses, &own));
        if io::stdout().is_terminal() {
            print("Press Ctrl-C to stop.\n");
        }
    })
}

/// Logs of this name go to what is open: it may be a socket, which has no name to be opened by.
fn adopt(sinks: &Sinks, name: &str, open: BorrowedFd<'_>) -> Option<Sink> {
    sinks.adopt(Path::new(name), open.try_clone_to_owned().ok()?, SinkConfig::default()).ok()
}

/// URLs, one `line` for each address, and the clients that can reach them.
pub(crate) fn greeting(
    addresses: &[Addr],
    own: &[IpAddr],
    line: impl Fn(&str) -> String,
    who: &str,
) -> String {
    let mut text = String::new();
    let mut is_open = false;
    // Writing into a String does not fail.
    for address in addresses {
        let _ = writeln!(text, "{}", line(&url(address)));
        let Addr::Inet(address) = address else { continue };
        is_open |= !address.ip().is_loopback();
        if address.ip().is_unspecified() {
            let reached = own.iter().filter(|ip| ip.is_ipv4() == address.is_ipv4());
            for ip in reached {
                let there = url(&SocketAddr::new(*ip, address.port()).into());
                let _ = writeln!(text, "    from other machines at {there}");
            }
        }
    }
    if is_open {
        let _ = writeln!(text, "{who}");
    }
    text
}

/// The directives outside of blocks.
pub(crate) fn main_directives() -> String {
    let guard = if can_guard() { "enforce" } else { "off" };
    format!(
        "daemon off;
worker_processes auto;
master_process off;
worker_shutdown_timeout 10s;
loop_guard {guard};"
    )
}

/// Tells a terminal why the first Ctrl-C has not ended us yet.
pub fn print_draining() {
    if io::stdout().is_terminal() {
        print("\nFinishing requests. Press Ctrl-C again to stop at once.\n");
    }
}

/// Writes to standard output. A failure does not stop the server.
pub(crate) fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// The addresses by which other machines most likely reach this one: those it would have as their client.
fn own_addresses() -> Vec<IpAddr> {
    // Addresses reserved for documentation: connecting a datagram socket sends nothing.
    const FAR: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let own = |(any, far): (&str, &str)| -> io::Result<IpAddr> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(far)?;
        Ok(socket.local_addr()?.ip())
    };
    FAR.into_iter().filter_map(|family| own(family).ok()).filter(|ip| !ip.is_loopback()).collect()
}

/// Returns the argument of `listen` for the address `requested`, or for the first free port from the default one on.
/// Never one of `not_these`: a proxy that passes requests to itself never ends.
pub(crate) fn address(
    requested: Option<&[u8]>,
    default_port: u16,
    not_these: &[SocketAddr],
) -> Result<String, Fault> {
    let Some(requested) = requested else { return free_port(default_port, not_these) };
    let requested = String::from_utf8_lossy(requested);
    let text = match requested.parse::<u16>() {
        // A port alone: for this machine only, unlike in a configuration.
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string(),
        Err(_) => requested.into_owned(),
    };
    let hint = "for example: --listen 8080, --listen 0.0.0.0:8080, --listen [::1]:8080";
    let addresses = tw_net::parse_listen(&text, default_port)
        .map_err(|error| Fault::emerg(format!("{error} in \"--listen {text}\"")).hint(hint))?;
    for address in addresses.iter().filter_map(Addr::inet) {
        if not_these.iter().any(|origin| reaches(address, *origin)) {
            let message = format!("\"--listen {text}\" is where the requests are to go");
            return Err(Fault::emerg(message).hint("listen on another port"));
        }
        if is_taken(address) {
            let message = format!("another process listens on {address}");
            let other = free_port(default_port, not_these)
                .map(|free| format!("this address is free: --listen {free}"));
            return Err(match other {
                Ok(hint) => Fault::emerg(message).hint(hint),
                Err(_) => Fault::emerg(message),
            });
        }
    }
    Ok(with_port(text, default_port))
}

/// `listen` knows another port than we do if none is said.
fn with_port(text: String, default_port: u16) -> String {
    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::from((ip, default_port)).to_string());
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).map(str::parse::<Ipv6Addr>) {
        Some(Ok(ip)) => SocketAddr::from((ip, default_port)).to_string(),
        _ => bare.unwrap_or(text),
    }
}

/// First port from the default one on without a listener.
fn free_port(first: u16, not_these: &[SocketAddr]) -> Result<String, Fault> {
    let last = first + PORTS_TRIED - 1;
    (first..=last)
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|address| !not_these.iter().any(|origin| reaches(*address, *origin)) && !is_taken(*address))
        .map(|address| address.to_string())
        .ok_or_else(|| {
            let message = format!("the ports {first} to {last} are all taken");
            Fault::emerg(message).hint("name another one: --listen 9000")
        })
}

/// Returns `true` if a listener on `address` receives connections to `origin`.
fn reaches(address: SocketAddr, origin: SocketAddr) -> bool {
    let ip = address.ip();
    let to = origin.ip();
    let is_here =
        ip == to || (ip.is_unspecified() && to.is_loopback()) || (to.is_unspecified() && ip.is_loopback());
    address.port() == origin.port() && is_here
}

/// Returns `true` if something listens there. The socket that tries does not: a client that connects to it would lose
/// its connection.
fn is_taken(address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tried = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).and_then(|socket| {
        // Connections that have ended take nothing.
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)
    });
    tried == Err(Errno::ADDRINUSE)
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

/// Returns `true` if the kernel can watch the loops.
fn can_guard() -> bool {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    actions.is_ok_and(|actions| actions.split_whitespace().any(|action| action == "trap"))
}

/// A word of the language. `None` if it would be read as one with variables, which nothing can prevent.
pub(crate) fn quoted(name: &[u8]) -> Option<Vec<u8>> {
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
            assert_eq!(with_port(text.to_owned(), DEFAULT_PORT), expected, "{text}");
        }
    }

    #[test]
    fn listen_address_that_is_the_upstream_is_refused() {
        for (address, origin, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "0.0.0.0:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:1", "192.0.2.1:1", false),
        ] {
            assert_eq!(
                reaches(address.parse().unwrap(), origin.parse().unwrap()),
                expected,
                "{address} {origin}"
            );
        }
        let refused =
            address(Some(b"127.0.0.1:1"), DEFAULT_PORT, &["127.0.0.1:1".parse().unwrap()]).unwrap_err();
        assert_eq!(refused.message, "\"--listen 127.0.0.1:1\" is where the requests are to go");
    }
}
