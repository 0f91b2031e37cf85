//! One `server` of a group as it is written: in an `upstream` block, and in its `state` file.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Node, Span, Word, units};
use tw_net::Addr;
use tw_upstream::{Admin, Params, Place, Server};

/// The port of a server that names none.
const PORT: u16 = 80;

/// Where a server is. A name that is no address is asked for later.
pub(super) fn place(text: &str, port: u16) -> Result<Place, String> {
    if text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:")) {
        let addr = tw_net::parse_server(text, port).map_err(|error| error.to_string())?;
        return Ok(Place::Fixed(vec![addr]));
    }
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return match addr.port() {
            0 => Err("invalid port".to_owned()),
            _ => Ok(Place::Fixed(vec![Addr::Inet(addr)])),
        };
    }
    let host = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = host.parse() {
        return Ok(Place::Fixed(vec![Addr::Inet(SocketAddr::new(ip, port))]));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => {
            let port = digits.parse().ok().filter(|port| *port != 0).ok_or("invalid port")?;
            (host, port)
        }
        None => (text, port),
    };
    if host.is_empty() {
        return Err("no host".to_owned());
    }
    if tw_dns::Name::parse(host.as_bytes()).is_none() {
        return Err("invalid host".to_owned());
    }
    Ok(Place::Named { host: host.into(), service: None, port, follows: false })
}

/// A server that somebody names while requests are served: an address, or a name that is followed.
///
/// # Errors
/// What is wrong with it, in nginx's words.
pub fn named(text: &str, asked: Option<&str>) -> Result<Server, String> {
    // Who asks is not who wrote the configuration: a name is one of a host, and a path has no control characters.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut place = place(text, PORT)?;
    match &mut place {
        Place::Named { host, .. } if !host.bytes().all(is_plain) => return Err("invalid host".to_owned()),
        Place::Named { follows, .. } => *follows = true,
        Place::Fixed(_) if text.contains(char::is_control) => return Err("invalid address".to_owned()),
        Place::Fixed(_) => {}
    }
    if let Some(asked) = asked {
        if !asked.bytes().all(is_plain) {
            return Err("invalid service".to_owned());
        }
        set_service(&mut place, text, asked)?;
    }
    Ok(Server { name: text.into(), place, params: Params::default() })
}

fn set_service(place: &mut Place, text: &str, asked: &str) -> Result<(), String> {
    match place {
        Place::Named { service, .. } if !asked.is_empty() && !text.contains(':') => {
            *service = Some(asked.into());
            Ok(())
        }
        _ => Err(format!("service upstream \"{text}\" may not have port")),
    }
}

/// Reads `server`.
pub(super) fn read(node: &Node) -> Result<Server, ConfError> {
    let address = node.arg(0)?;
    let text = address.lossy();
    let mut place =
        place(&text, PORT).map_err(|error| node.fail(format!("{error} in upstream \"{address}\"")))?;
    let mut params = Params::default();
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
                (b"resolve", Place::Named { follows, .. }) => *follows = true,
                (b"resolve", Place::Fixed(_)) => {}
                (b"backup", _) => params.backup = true,
                (b"down", _) => params.admin = Admin::Down,
                (b"drain", _) => params.admin = Admin::Drain,
                _ => return Err(invalid()),
            }
        }
    }
    Ok(Server { name: text.into(), place, params })
}

/// The directive that reads as this server, with what is not as by default.
pub(super) fn written(server: &Server) -> Node {
    let (usual, params) = (Params::default(), &server.params);
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
    add(params.admin == Admin::Down, "down".to_owned());
    add(params.admin == Admin::Drain, "drain".to_owned());
    if let Place::Named { service, follows, .. } = &server.place {
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
        read(&tree.nodes[0]).unwrap()
    }

    #[test]
    fn what_is_written_reads_as_the_same() {
        for line in [
            "server 10.0.0.1;\n",
            "server 10.0.0.1:8080 weight=5 max_conns=7 max_fails=0 fail_timeout=30s slow_start=60s backup down route=a;\n",
            "server unix:/run/a.sock drain \"route=a b\";\n",
            "server app.test service=http resolve;\n",
            "server app.test:81;\n",
        ] {
            let server = read_line(line);
            let mut out = Vec::new();
            write_nodes(&[written(&server)], &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }

    #[test]
    fn names_are_followed_and_nonsense_is_refused() {
        let follows = |text| match named(text, None).map(|server| server.place) {
            Ok(Place::Named { follows, .. }) => follows,
            other => panic!("{other:?}"),
        };
        assert!(follows("app.test") && follows("app.test:81"));
        assert!(matches!(named("[::1]:80", None).map(|server| server.place), Ok(Place::Fixed(_))));
        for (text, service) in
            [("", None), (":80", None), ("a:0", None), ("[::1]:0", None), ("a b", None), ("a:80", Some("s"))]
        {
            assert!(named(text, service).is_err(), "{text} {service:?}");
        }
        for (text, expected) in [("r1", true), ("", true), ("a b", false), ("a;b", false), ("a\r\nb", false)]
        {
            assert_eq!(route(text).is_some(), expected, "{text}");
        }
    }
}
