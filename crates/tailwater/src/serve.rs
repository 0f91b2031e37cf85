//! `tailwater serve`: a directory on the web with one command, and without a configuration file.
//!
//! The configuration is a text like any other, made here and loaded as files are. It is meant for a developer's machine:
//! it listens on the loopback interface unless told otherwise, and files whose names begin with a dot stay private.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tw_log::{SinkConfig, Sinks};
use tw_net::Addr;

use crate::cli::{Absent, Coding, ServeOptions};
use crate::conf::{Source, path};
use crate::console::{Console, Fault};
use crate::master::{self, Mode};

/// Where to listen if nothing is said, and how many ports from there on are tried.
const DEFAULT_PORT: u16 = 8080;
const PORTS_TRIED: u16 = 20;
/// Bytes of `USER:PASSWORD` that are read from standard input.
const AUTH_MAX: u64 = 4096;

/// What messages call the configuration.
const NAME: &str = "the built-in configuration";
/// The log of requests.
const STDOUT: &str = "/dev/stdout";
const MEDIA_TYPES: &str = include_str!("../conf/mime.types");

/// Media types of text: they are sent with their charset, and compressed if that is asked for.
const TEXT: &str = "text/css text/csv text/javascript text/markdown text/plain text/xml text/mathml text/vtt \
    text/vnd.wap.wml application/javascript application/rss+xml application/atom+xml application/xhtml+xml";
/// What is worth compressing besides.
const COMPRESSIBLE: &str = "application/json application/manifest+json application/geo+json application/wasm \
    image/svg+xml image/bmp image/x-icon font/ttf font/otf application/vnd.ms-fontobject";
/// The page that answers for everything with `--spa`.
const INDEX: &str = "index.html";

/// Serves until it is told to stop.
pub(crate) fn serve(options: &ServeOptions) -> ExitCode {
    let prepared = directory(options).and_then(|directory| {
        let address = address(options)?;
        let users = options.auth.as_deref().map(users).transpose()?;
        let text = configuration(&directory, &address, options, users.as_ref())?;
        Ok((directory, text, users))
    });
    let (directory, text, _users) = match prepared {
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
    // Before the sandbox: it opens no connections, not even such.
    let own = own_addresses();
    let source = Source::text(directory.as_os_str().as_bytes().to_vec(), NAME, text);
    match master::start(source, Mode::Session, sinks) {
        Some(master) => {
            say(&greeting(&directory, master.addresses(), &own, options));
            if io::stdout().is_terminal() {
                say("Press Ctrl-C to stop.\n");
            }
            master.run();
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// What is printed first: where it can be seen, and by whom.
fn greeting<'a>(
    directory: &Path,
    addresses: impl Iterator<Item = &'a Addr>,
    own: &[IpAddr],
    options: &ServeOptions,
) -> String {
    let mut text = String::new();
    let mut is_open = false;
    // Writing into a String does not fail.
    for address in addresses {
        let _ = writeln!(text, "Serving {} at {}", directory.display(), url(address));
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
        text.push_str(match options.auth {
            None => "Everybody who reaches this machine can read it.\n",
            Some(_) => "Everybody who reaches this machine and has the password can read it; http does not hide either.\n",
        });
    }
    text
}

/// The addresses by which other machines most likely reach this one: those it would have as their client.
fn own_addresses() -> Vec<IpAddr> {
    // Of documentation: nothing is sent when a datagram socket is connected.
    const FAR: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let own = |(any, far): (&str, &str)| -> io::Result<IpAddr> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(far)?;
        Ok(socket.local_addr()?.ip())
    };
    FAR.into_iter().filter_map(|family| own(family).ok()).filter(|ip| !ip.is_loopback()).collect()
}

/// A password file that is in memory and has no name, so that nobody can read it who cannot read the process.
struct Users(OwnedFd);

impl Users {
    /// How the process itself opens it.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// `USER:PASSWORD`; `-` reads it from standard input, because a command line can be read by everybody on the machine.
fn users(given: &[u8]) -> Result<Users, Fault> {
    let mut line = given.to_vec();
    if given == b"-" {
        line.clear();
        let read = io::stdin().lock().take(AUTH_MAX).read_until(b'\n', &mut line);
        read.map_err(|error| Fault::call("read()", "standard input", &error))?;
        let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
        line.truncate(end);
    }
    let refused = || {
        Fault::emerg("\"--auth\" takes USER:PASSWORD")
            .hint("for example --auth me:secret; - reads it from standard input")
    };
    let colon = line.iter().position(|byte| *byte == b':').ok_or_else(refused)?;
    let (user, password) = (&line[..colon], &line[colon + 1..]);
    if password.is_empty() {
        return Err(refused());
    }
    let text = tw_modules::password_line(user, password).ok_or_else(refused)?;
    let make = || -> io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create("users", rustix::fs::MemfdFlags::CLOEXEC)?;
        File::from(fd.try_clone()?).write_all(&text)?;
        Ok(fd)
    };
    make().map(Users).map_err(|error| Fault::call("memfd_create()", "users", &error))
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
fn configuration(
    directory: &Path,
    listen: &str,
    options: &ServeOptions,
    users: Option<&Users>,
) -> Result<Vec<u8>, Fault> {
    let root = quoted(directory.as_os_str().as_bytes()).ok_or_else(|| {
        let message = format!("cannot serve \"{}\": its name contains a dollar sign", directory.display());
        Fault::emerg(message).hint("go there and serve a directory in it, or use a link to it")
    })?;
    let missing = match options.absent {
        Absent::Error => "autoindex on;",
        Absent::Index if !directory.join(INDEX).is_file() => {
            let message = format!("\"--spa\" needs {INDEX} in {}", directory.display());
            return Err(
                Fault::emerg(message).hint("it is the page that answers for paths that are not there")
            );
        }
        Absent::Index => "location / { try_files $uri $uri/index.html /index.html; }",
    };
    let coding = match options.coding {
        Coding::Plain => String::new(),
        Coding::Compressed => ["gzip", "brotli", "zstd"]
            .map(|name| format!("{name} on; {name}_types {TEXT} {COMPRESSIBLE};\n    "))
            .concat(),
    };
    let auth =
        users.map(|users| format!("auth_basic \"this directory\"; auth_basic_user_file {};", users.path()));
    let auth = auth.unwrap_or_default();
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
    charset utf-8;
    charset_types {TEXT};
    access_log {STDOUT};
    log_not_found off;
    autoindex_format page;
    autoindex_exact_size off;
    autoindex_localtime on;
    gzip_vary on;
    {coding}{auth}
    server {{
        listen {listen};
        # The whole world may be asked for, but not .git, .env and their like.
        location ~ /\\. {{ return 404; }}
        {missing}
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
        let users = users(b"me:secret").unwrap();
        for (coding, users) in [(Coding::Plain, None), (Coding::Compressed, Some(&users))] {
            let options = ServeOptions { coding, ..ServeOptions::default() };
            let text = configuration(Path::new("/a \"b\" \\c; {d}"), "127.0.0.1:1", &options, users).unwrap();
            let source = Source::text(b"/".to_vec(), NAME, text);
            let loaded = source.load(&tw_core::kept::Kept::default(), &Console::new()).unwrap();
            assert_eq!(loaded.config.listens.len(), 1);
        }
        let options = ServeOptions { absent: Absent::Index, ..ServeOptions::default() };
        let refused = configuration(Path::new("/no/such"), "127.0.0.1:1", &options, None).unwrap_err();
        assert_eq!(refused.message, "\"--spa\" needs index.html in /no/such");
    }

    #[test]
    fn who_can_see_it_is_said() {
        let own = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        let said = |address: &str, auth: Option<&str>| {
            let auth = auth.map(|auth| auth.as_bytes().to_vec());
            let options = ServeOptions { auth, ..ServeOptions::default() };
            let address: SocketAddr = address.parse().unwrap();
            greeting(Path::new("/d"), [address.into()].iter(), &own, &options)
        };
        let open = "Everybody who reaches this machine can read it.\n";
        assert_eq!(said("127.0.0.1:1", None), "Serving /d at http://127.0.0.1:1/\n");
        assert_eq!(
            said("0.0.0.0:1", None),
            format!(
                "Serving /d at http://127.0.0.1:1/\n    from other machines at http://192.0.2.7:1/\n{open}"
            )
        );
        assert_eq!(
            said("[::]:1", None),
            format!(
                "Serving /d at http://[::1]:1/\n    from other machines at http://[2001:db8::7]:1/\n{open}"
            )
        );
        assert_eq!(said("192.0.2.7:1", None), format!("Serving /d at http://192.0.2.7:1/\n{open}"));
        assert!(said("192.0.2.7:1", Some("a:b")).contains("and has the password"));
    }

    #[test]
    fn users_have_names_and_passwords() {
        for bad in ["", "me", "me:", ":secret", "#me:secret"] {
            assert!(users(bad.as_bytes()).is_err(), "{bad}");
        }
        let users = users(b"me:sec:ret").unwrap();
        let text = fs::read_to_string(users.path()).unwrap();
        assert!(text.starts_with("me:$6$") && !text.contains("sec"), "{text}");
    }
}
