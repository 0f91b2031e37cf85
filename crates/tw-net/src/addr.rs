//! The address of one end of a connection, as the kernel gives it and as nginx writes it.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::net::{SocketAddrAny, SocketAddrUnix};

/// The address of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// IP address and port.
    Inet(SocketAddr),
    /// Path of a Unix socket; `None` when that end has no name, as clients usually have not.
    Unix(Option<Box<Path>>),
}

impl Addr {
    /// The IP address and port, if it has them.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Addr::Inet(addr) => Some(*addr),
            Addr::Unix(_) => None,
        }
    }

    /// As `$remote_addr` has it: the IP address without port, or `unix:`.
    pub fn client_text(&self) -> Box<str> {
        match self {
            Addr::Inet(addr) => addr.ip().to_string().into(),
            Addr::Unix(_) => "unix:".into(),
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Addr::Inet(addr)
    }
}

/// As the kernel gives it; none of a Unix socket without a name.
impl From<Option<SocketAddrAny>> for Addr {
    fn from(addr: Option<SocketAddrAny>) -> Self {
        let Some(addr) = addr else { return Addr::Unix(None) };
        if let Ok(inet) = SocketAddr::try_from(addr.clone()) {
            return Addr::Inet(inet);
        }
        let unix = SocketAddrUnix::try_from(addr).ok();
        let path = unix.as_ref().and_then(SocketAddrUnix::path);
        Addr::Unix(path.map(|path| Path::new(OsStr::from_bytes(path.to_bytes())).into()))
    }
}

/// As nginx writes addresses: `192.0.2.1:80`, `[2001:db8::1]:80`, `unix:/run/app.sock`, `unix:`.
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Inet(addr) => addr.fmt(f),
            Addr::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Addr::Unix(None) => f.write_str("unix:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn addresses_have_the_form_of_nginx() {
        let inet = |text: &str| Addr::Inet(text.parse().unwrap());
        let cases = [
            (inet("192.0.2.1:80"), "192.0.2.1:80"),
            (inet("[2001:db8::1]:443"), "[2001:db8::1]:443"),
            (Addr::Unix(Some(Path::new("/run/app.sock").into())), "unix:/run/app.sock"),
            (Addr::Unix(None), "unix:"),
        ];
        for (addr, expected) in cases {
            assert_eq!(addr.to_string(), expected);
        }
    }

    #[test]
    fn a_named_unix_peer_has_its_path() {
        let path = std::env::temp_dir().join(format!("tw-net-{}-named.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        let addr = |end: rustix::io::Result<SocketAddrAny>| Addr::from(end.ok());
        assert_eq!(addr(rustix::net::getsockname(&accepted)), Addr::Unix(Some(path.into())));
        assert_eq!(Addr::from(rustix::net::getpeername(&accepted).unwrap()), Addr::Unix(None));
        drop(client);
    }
}
