//! Ports beside those of the options: of Gateway listeners, and of services over TCP and UDP.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use super::settings::SiteOptions;

/// Port that is listened on as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtraPort {
    /// Number.
    pub number: u16,
    /// UDP; TCP otherwise.
    pub is_datagram: bool,
}

impl fmt::Display for ExtraPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.is_datagram { "UDP" } else { "TCP" };
        write!(f, "{protocol} port {}", self.number)
    }
}

impl ExtraPort {
    /// TCP port.
    pub fn tcp(number: u16) -> Self {
        Self { number, is_datagram: false }
    }

    /// UDP port.
    pub fn udp(number: u16) -> Self {
        Self { number, is_datagram: true }
    }

    /// Addresses to listen on: those of the option for HTTP with another port.
    pub fn addresses(self, options: &SiteOptions) -> Vec<SocketAddr> {
        if let Ok(address) = options.http.parse::<SocketAddr>() {
            return vec![SocketAddr::new(address.ip(), self.number)];
        }
        let mut addresses = vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), self.number)];
        if options.ipv6 {
            addresses.push(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), self.number));
        }
        addresses
    }

    /// Tries to listen on the port, and stops at once.
    ///
    /// # Errors
    /// The reason why the server could not listen, either. An address that this process listens on is in use, too.
    pub fn probe(self, options: &SiteOptions) -> io::Result<()> {
        // A socket for IPv6 occupies the port for IPv4, too, so each is closed before the next one is opened.
        for address in self.addresses(options) {
            if self.is_datagram { drop(UdpSocket::bind(address)?) } else { drop(TcpListener::bind(address)?) }
        }
        Ok(())
    }

    /// Lines `listen`.
    pub(super) fn listen(self, options: &SiteOptions, parameters: &str) -> Vec<String> {
        let udp = if self.is_datagram { " udp" } else { "" };
        let addresses = self.addresses(options).into_iter();
        addresses
            .map(|address| match (address, address.ip().is_unspecified()) {
                (SocketAddr::V4(_), true) => format!("listen {}{udp}{parameters};", self.number),
                _ => format!("listen {address}{udp}{parameters};"),
            })
            .collect()
    }
}

/// Addresses that a message of the server names because it cannot listen on them.
pub fn refused(message: &str) -> Vec<SocketAddr> {
    let mut socket_address = Vec::new();
    for part in message.split("bind() to ").skip(1) {
        let address = part.split(' ').next().and_then(|word| word.parse::<SocketAddr>().ok());
        socket_address.extend(address.filter(|_| part.contains(" failed")));
    }
    socket_address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_http() {
        let mut options = SiteOptions { ipv6: true, ..SiteOptions::default() };
        assert_eq!(ExtraPort::udp(53).listen(&options, ""), ["listen 53 udp;", "listen [::]:53 udp;"]);
        options.http = "127.0.0.1:80".to_owned();
        assert_eq!(ExtraPort::tcp(9000).listen(&options, " ssl"), ["listen 127.0.0.1:9000 ssl;"]);
        options.http = "[::1]:80".to_owned();
        assert_eq!(ExtraPort::tcp(9000).listen(&options, ""), ["listen [::1]:9000;"]);
    }

    #[test]
    fn ports_in_use_are_noticed() {
        let options = SiteOptions { http: "127.0.0.1:80".to_owned(), ..SiteOptions::default() };
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = ExtraPort::tcp(taken.local_addr().unwrap().port());
        assert_eq!(port.probe(&options).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(taken);
        port.probe(&options).unwrap();
    }

    #[test]
    fn messages_name_addresses() {
        let message = "bind() to 0.0.0.0:9000 failed (98: Address already in use); another process listens there\n\
            bind() to [::]:9000 failed (98: Address already in use)\nbind() to unix:/a failed (2: No such file or directory)";
        let expected: Vec<SocketAddr> = vec!["0.0.0.0:9000".parse().unwrap(), "[::]:9000".parse().unwrap()];
        assert_eq!(refused(message), expected);
        assert!(refused("try again to bind() after 500ms").is_empty());
    }
}
