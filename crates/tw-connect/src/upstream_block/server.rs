//! One `server` of a group as it is written: in an `upstream` block, and in its `state` file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Node, Span, Word, units};
use tw_net::Addr;
use tw_upstream::{AdminState, PeerParams, Server, ServerAddress};

/// Port of a server whose ports are those of a DNS service.
const SERVICE_PORT: u16 = 0;

/// Parses the address of a server; it listens on `usual` if `text` has no port. A name is asked for later.
///
/// # Errors
/// No such address, in nginx's words.
pub fn place(text: &str, usual: Option<u16>) -> Result<ServerAddress, String> {
    if is_unix(text) {
        let addr = tw_net::parse_server(text, 0).map_err(|error| error.to_string())?;
        return Ok(ServerAddress::Fixed(vec![addr]));
    }
    if text.contains(['/', '?']) {
        return Err("invalid host".to_owned());
    }
    // The first colon ends the host: an IPv6 address stands in brackets.
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or("invalid host")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(digits) => Some(port(digits).ok_or("invalid port")?),
        None if rest.is_empty() => usual,
        None => return Err("invalid host".to_owned()),
    };
    if host.is_empty() {
        return Err("no host".to_owned());
    }
    let address = match text.starts_with('[') {
        true => Some(host.parse::<Ipv6Addr>().map_err(|_| "invalid IPv6 address")?.into()),
        false => host.parse::<Ipv4Addr>().ok().map(IpAddr::from),
    };
    if address.is_none() && tw_dns::Name::parse(host.as_bytes()).is_none() {
        return Err("invalid host".to_owned());
    }
    let port = port.ok_or("no port")?;
    Ok(match address {
        Some(address) => ServerAddress::Fixed(vec![Addr::Inet(SocketAddr::new(address, port))]),
        None => ServerAddress::Named { host: host.into(), service: None, port, follows: false },
    })
}

/// Hint about an address that is refused, if it is clear what is meant. `schemes` are those that may stand in front of it: the plain one
/// first, then that of TLS. `usual` is the port of an address without one.
pub fn hint(text: &str, schemes: &[&str], usual: Option<u16>) -> Option<String> {
    const SECURED: [&str; 4] = ["https", "grpcs", "suwsgi", "wss"];
    if let Some((scheme, rest)) = text.split_once("://") {
        let address = without_path(rest);
        let needs_port = match place(address, usual) {
            Ok(_) => "",
            Err(error) if error == "no port" => " and needs a port",
            Err(_) => return None,
        };
        let own = schemes.get(usize::from(SECURED.contains(&scheme))).or(schemes.first());
        let rule = match own {
            None => format!("An address has no scheme here{needs_port}"),
            Some(_) => format!("The scheme here is {}, or none", schemes.join(" or ")),
        };
        return Some(format!("did you mean \"{}{address}\"? {rule}", own.unwrap_or(&"")));
    }
    if text.starts_with('/') {
        return Some(format!("did you mean \"unix:{text}\"?"));
    }
    if let Some(hint) = in_brackets(text) {
        return Some(hint);
    }
    let address = without_path(text);
    match place(address, usual) {
        Ok(_) if address.len() < text.len() => {
            Some(format!("did you mean \"{address}\"? An address has no path here"))
        }
        Err(error) if error == "no port" => Some(format!("a port is needed: {address}:9000, for example")),
        _ => None,
    }
}

/// Hint for an IPv6 address without brackets.
fn in_brackets(text: &str) -> Option<String> {
    let is_ipv6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    match text.rsplit_once(':') {
        Some((address, digits)) if is_ipv6(address) && port(digits).is_some() => {
            Some(format!("did you mean \"[{address}]:{digits}\"?"))
        }
        _ if is_ipv6(text) => Some(format!("did you mean \"[{text}]\"?")),
        _ => None,
    }
}

/// The part of a URL behind its scheme that names the server.
fn without_path(text: &str) -> &str {
    match is_unix(text) {
        true => text,
        false => text.split(['/', '?']).next().unwrap_or_default(),
    }
}

/// Returns true if `text` is the path of a socket.
pub(super) fn is_unix(text: &str) -> bool {
    text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"))
}

fn port(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port != 0)
}

/// The address with `usual` as its port if it has none.
pub fn with_port(text: &str, usual: u16) -> String {
    let is_bare = match text.starts_with('[') {
        true => text.ends_with(']'),
        false => !text.contains(':'),
    };
    if is_bare { format!("{text}:{usual}") } else { text.into() }
}

/// Host and port of an address, if it has both and is no path of a socket.
pub fn host_and_port(text: &str) -> Option<(&str, &str)> {
    text.rsplit_once(':').filter(|_| !is_unix(text))
}

/// A server that is named while sessions are served: an address, or a name that is followed. It listens on `usual` if `text`
/// has no port.
///
/// # Errors
/// Message in nginx's words.
pub fn named(text: &str, service: Option<&str>, usual: Option<u16>) -> Result<Server, String> {
    // The text is not by the author of the configuration, so a name has to be a host name, and a path must not have
    // control characters.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut place = place(text, usual.or(service.map(|_| SERVICE_PORT)))?;
    match &mut place {
        ServerAddress::Named { host, .. } if !host.bytes().all(is_plain) => {
            return Err("invalid host".to_owned());
        }
        ServerAddress::Named { follows, .. } => *follows = true,
        ServerAddress::Fixed(_) if text.contains(char::is_control) => {
            return Err("invalid address".to_owned());
        }
        ServerAddress::Fixed(_) => {}
    }
    if let Some(service) = service {
        if !service.bytes().all(is_plain) {
            return Err("invalid service".to_owned());
        }
        set_service(&mut place, text, service)?;
    }
    Ok(Server { name: text.into(), address: place, params: PeerParams::default() })
}

fn set_service(place: &mut ServerAddress, text: &str, name: &str) -> Result<(), String> {
    match place {
        ServerAddress::Named { service, .. } if !name.is_empty() && !text.contains(':') => {
            *service = Some(name.into());
            Ok(())
        }
        _ => Err(format!("service upstream \"{text}\" may not have port")),
    }
}

/// Reads `server`; it listens on `usual` if it is written without a port.
///
/// # Errors
/// Error of an argument, in nginx's words.
pub fn read(node: &Node, usual: Option<u16>) -> Result<Server, ConfError> {
    let address = node.arg(0)?;
    let text = address.lossy();
    let is_http = usual.is_some();
    let has_service = node.args.iter().any(|word| word.param("service").is_some());
    let usual = usual.or(has_service.then_some(SERVICE_PORT));
    let mut place = place(&text, usual).map_err(|error| {
        let hint = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) if is_http => Some(format!(
                "did you mean \"{}\"? The scheme stands where the group is used: proxy_pass {scheme}://NAME",
                without_path(rest)
            )),
            _ => hint(&text, &[], usual),
        };
        node.fail(format!("{error} in upstream \"{address}\"")).or_hint(hint)
    })?;
    let mut params = PeerParams::default();
    for word in node.args.iter().skip(1) {
        let invalid = || node.fail(format!("invalid parameter \"{word}\""));
        let number =
            |value: &[u8]| units::number(value).and_then(|n| u32::try_from(n).ok()).ok_or_else(invalid);
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        if let Some(value) = word.param("weight") {
            params.weight = number(value).ok().filter(|weight| *weight > 0).ok_or_else(invalid)?;
        } else if let Some(value) = word.param("max_conns") {
            params.max_conns = number(value)?;
        } else if let Some(value) = word.param("max_fails") {
            params.max_fails = number(value)?;
        } else if let Some(value) = word.param("fail_timeout") {
            params.fail_timeout_ms = millis(units::sec(value).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("slow_start") {
            params.slow_start_ms = millis(units::sec(value).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("route") {
            params.route = Some(value.into());
        } else if let Some(value) = word.param("service") {
            set_service(&mut place, &text, &String::from_utf8_lossy(value))
                .map_err(|error| node.fail(error))?;
        } else {
            match (&*word.bytes, &mut place) {
                (b"resolve", ServerAddress::Named { follows, .. }) => *follows = true,
                (b"resolve", ServerAddress::Fixed(_)) => {}
                (b"backup", _) => params.backup = true,
                (b"down", _) => params.admin = AdminState::Down,
                (b"drain", _) => params.admin = AdminState::Drain,
                _ => return Err(invalid()),
            }
        }
    }
    Ok(Server { name: text.into(), address: place, params })
}

/// The server as it is written, without the name of the directive: `10.0.0.1:81 weight=2 backup`.
pub fn text(server: &Server) -> String {
    let words = server_directive(server).args;
    words.iter().map(|word| word.to_string()).collect::<Vec<_>>().join(" ")
}

/// The directive that reads as this server, with what is not as by default.
pub(crate) fn server_directive(server: &Server) -> Node {
    let (usual, params) = (PeerParams::default(), &server.params);
    let mut words = vec![server.name.as_bytes().to_vec()];
    let mut add = |is_said: bool, word: String| {
        if is_said {
            words.push(word.into_bytes());
        }
    };
    add(params.weight != usual.weight, format!("weight={}", params.weight));
    add(params.max_conns != usual.max_conns, format!("max_conns={}", params.max_conns));
    add(params.max_fails != usual.max_fails, format!("max_fails={}", params.max_fails));
    let seconds = |millis: u64| millis / 1000;
    let fail_timeout = params.fail_timeout_ms;
    add(fail_timeout != usual.fail_timeout_ms, format!("fail_timeout={}s", seconds(fail_timeout)));
    add(
        params.slow_start_ms != usual.slow_start_ms,
        format!("slow_start={}s", seconds(params.slow_start_ms)),
    );
    add(params.backup, "backup".to_owned());
    add(params.admin == AdminState::Down, "down".to_owned());
    add(params.admin == AdminState::Drain, "drain".to_owned());
    if let ServerAddress::Named { service, follows, .. } = &server.address {
        add(service.is_some(), format!("service={}", service.as_deref().unwrap_or_default()));
        add(*follows, "resolve".to_owned());
    }
    if let Some(route) = &params.route {
        words.push([b"route=", &**route].concat());
    }
    let word = |bytes: Vec<u8>| Word { bytes: bytes.into(), span: Span::default(), quoted: false };
    Node {
        name: word(b"server".to_vec()),
        args: words.into_iter().map(word).collect(),
        block: None,
        span: Span::default(),
        end: Span::default(),
    }
}

/// The route of a server, if it is one that a cookie and a log line can hold.
pub fn route(text: &str) -> Option<Arc<[u8]>> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b';' | b',' | b'"' | b'\\');
    text.bytes().all(is_plain).then(|| text.as_bytes().into())
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree, write_nodes};

    use super::*;

    fn read_line(text: &str) -> Server {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        read(&tree.nodes[0], Some(80)).unwrap()
    }

    #[test]
    fn written_server_reads_as_the_same() {
        for line in [
            "server 10.0.0.1;\n",
            "server 10.0.0.1:8080 weight=5 max_conns=7 max_fails=0 fail_timeout=30s slow_start=60s backup down route=a;\n",
            "server unix:/run/a.sock drain \"route=a b\";\n",
            "server app.test service=http resolve;\n",
            "server app.test:81;\n",
        ] {
            let server = read_line(line);
            let mut out = Vec::new();
            write_nodes(&[server_directive(&server)], &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }

    #[test]
    fn refused_addresses_have_hints() {
        let (grpc, none): (&[&str], &[&str]) = (&["grpc://", "grpcs://"], &[]);
        for (text, schemes, usual, expected) in [
            (
                "http://127.0.0.1:9000/x",
                none,
                None,
                "did you mean \"127.0.0.1:9000\"? An address has no scheme here",
            ),
            ("tcp://a", none, None, "did you mean \"a\"? An address has no scheme here and needs a port"),
            (
                "https://a:1",
                grpc,
                None,
                "did you mean \"grpcs://a:1\"? The scheme here is grpc:// or grpcs://, or none",
            ),
            ("/run/php.sock", none, None, "did you mean \"unix:/run/php.sock\"?"),
            ("127.0.0.1:9000/", none, None, "did you mean \"127.0.0.1:9000\"? An address has no path here"),
            ("localhost", none, None, "a port is needed: localhost:9000, for example"),
            ("::1", none, None, "did you mean \"[::1]\"?"),
            ("fe80::1:80", none, Some(80), "did you mean \"[fe80::1]:80\"?"),
        ] {
            assert_eq!(hint(text, schemes, usual).unwrap_or_default(), expected, "{text}");
        }
        for text in ["a:80x", "http://", "http://a:b", ""] {
            assert_eq!(hint(text, none, None), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_read_as_nginx_reads_them() {
        let read = |text, usual| match place(text, usual) {
            Ok(ServerAddress::Fixed(addrs)) => addrs[0].to_string(),
            Ok(ServerAddress::Named { host, port, .. }) => format!("{host} {port}"),
            Err(error) => error,
        };
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:80"),
            ("192.0.2.1:81", "192.0.2.1:81"),
            ("[::1]", "[::1]:80"),
            ("[::1]:81", "[::1]:81"),
            ("app.test", "app.test 80"),
            ("app.test:81", "app.test 81"),
            ("1.2.3.4.5:81", "1.2.3.4.5 81"),
            ("unix:/a:b", "unix:/a:b"),
            ("unix:", "no path in the unix domain socket"),
            ("::1", "invalid port"),
            ("::1:80", "invalid port"),
            ("a:80:80", "invalid port"),
            ("a:", "invalid port"),
            ("a:0", "invalid port"),
            ("a:+1", "invalid port"),
            ("a:80x", "invalid port"),
            ("a:65536", "invalid port"),
            ("[::1]:", "invalid port"),
            ("[::1]:0", "invalid port"),
            ("[::1", "invalid host"),
            ("[::1]80", "invalid host"),
            ("a/b:80", "invalid host"),
            ("[x]:80", "invalid IPv6 address"),
            ("[]:80", "no host"),
            (":80", "no host"),
            ("", "no host"),
        ] {
            assert_eq!(read(text, Some(80)), expected, "{text}");
        }
        for (text, expected) in [
            ("a", "no port"),
            ("192.0.2.1", "no port"),
            ("[::1]", "no port"),
            ("a:81", "a 81"),
            ("a:", "invalid port"),
        ] {
            assert_eq!(read(text, None), expected, "{text}");
        }
        for (text, expected) in [
            ("a", "a:443"),
            ("a:80", "a:80"),
            ("[::1]", "[::1]:443"),
            ("[::1]:80", "[::1]:80"),
            ("unix:/a", "unix:/a"),
        ] {
            assert_eq!(with_port(text, 443), expected);
        }
    }

    #[test]
    fn names_are_followed_and_nonsense_is_refused() {
        let follows = |text| match named(text, None, Some(80)).map(|server| server.address) {
            Ok(ServerAddress::Named { follows, .. }) => follows,
            other => panic!("{other:?}"),
        };
        assert!(follows("app.test") && follows("app.test:81"));
        assert!(matches!(
            named("[::1]:80", None, Some(80)).map(|server| server.address),
            Ok(ServerAddress::Fixed(_))
        ));
        for (text, service) in
            [("", None), (":80", None), ("a:0", None), ("[::1]:0", None), ("a b", None), ("a:80", Some("s"))]
        {
            assert!(named(text, service, Some(80)).is_err(), "{text} {service:?}");
        }
        for (text, expected) in [("r1", true), ("", true), ("a b", false), ("a;b", false), ("a\r\nb", false)]
        {
            assert_eq!(route(text).is_some(), expected, "{text}");
        }
    }
}
