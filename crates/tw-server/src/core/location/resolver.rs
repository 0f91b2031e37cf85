//! Name servers, for those who ask for names while requests are served.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, Node, Setting, record};
use tw_net::Addr;

use super::ALL;

/// Port of a name server.
const DNS_PORT: u16 = 53;

/// `resolver`: whom to ask for names, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// Name servers, at least one.
    pub servers: Vec<Addr>,
    /// How long an answer holds, whatever it says itself.
    pub valid: Option<Duration>,
    /// Which addresses are asked for.
    pub families: Families,
}

/// Which addresses of a name are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv4 and IPv6.
    Both,
    /// `ipv6=off`
    Ipv4,
    /// `ipv4=off`
    Ipv6,
}

/// How names are asked for at a location.
#[derive(Debug, Clone)]
pub struct Resolving {
    /// `resolver`; without one no names can be asked for.
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub timeout: Duration,
}

/// The same as written.
#[derive(Default)]
pub(super) struct Raw {
    resolver: Setting<Resolver>,
    timeout: Setting<Duration>,
}

/// One record per directive.
pub(super) const DIRECTIVES: &[Directive<super::Raw>] = &[
    record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
        .since("0.6.28")
        .doc("Name servers, for names that are not known before a request needs them.")
        .set(|raw, node, _| raw.resolving.resolver.set_with(node, parse)),
    record::time("resolver_timeout", ALL)
        .default("30s")
        .since("0.6.28")
        .doc("How long a name may take to be found.")
        .set(|raw, node, _| raw.resolving.timeout.set_msec(node)),
];

/// Reads the arguments of `resolver`. Errors are nginx's.
fn parse(node: &Node) -> Result<Resolver, ConfError> {
    let mut servers = Vec::new();
    let (mut valid, mut ipv4, mut ipv6) = (None, true, true);
    for word in &node.args {
        let invalid = || node.fail(format!("invalid parameter: {word}"));
        let switch = |value: &[u8]| match value {
            b"on" => Ok(true),
            b"off" => Ok(false),
            _ => Err(invalid()),
        };
        if let Some(value) = word.param("valid") {
            valid = Some(tw_conf::units::sec(value).ok_or_else(invalid)?);
        } else if let Some(value) = word.param("ipv4") {
            ipv4 = switch(value)?;
        } else if let Some(value) = word.param("ipv6") {
            ipv6 = switch(value)?;
        } else {
            let addr = tw_net::parse_server(&word.lossy(), DNS_PORT);
            servers.push(addr.map_err(|error| node.fail(format!("{error} in resolver \"{word}\"")))?);
        }
    }
    let families = match (ipv4, ipv6) {
        (true, true) => Families::Both,
        (true, false) => Families::Ipv4,
        (false, true) => Families::Ipv6,
        (false, false) => return Err(node.fail("\"ipv4\" and \"ipv6\" cannot both be \"off\"")),
    };
    if servers.is_empty() {
        return Err(node.fail("no name servers defined"));
    }
    // Zero means what the answer says.
    Ok(Resolver { servers, valid: valid.filter(|span| !span.is_zero()), families })
}

impl Resolving {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>) -> Self {
        let resolver = raw.resolver.take().map(Arc::new);
        Self {
            resolver: resolver.or_else(|| outer.and_then(|o| o.resolver.clone())),
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(30)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree};

    use super::*;

    fn parsed(words: &str) -> Result<String, String> {
        let mut tree = Tree::default();
        let text = format!("resolver {words};");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", text.as_bytes()).unwrap();
        let resolver = parse(&tree.nodes[0]).map_err(|error| error.message)?;
        let servers: Vec<_> = resolver.servers.iter().map(ToString::to_string).collect();
        Ok(format!("{} {:?} {:?}", servers.join(","), resolver.valid.map(|v| v.as_secs()), resolver.families))
    }

    #[test]
    fn resolvers() {
        for (words, expected) in [
            ("192.0.2.1", Ok("192.0.2.1:53 None Both")),
            ("192.0.2.1:5353 [::1] valid=5m ipv6=off", Ok("192.0.2.1:5353,[::1]:53 Some(300) Ipv4")),
            ("[::1]:5353 ipv4=off valid=0", Ok("[::1]:5353 None Ipv6")),
            ("192.0.2.1 valid=x", Err("invalid parameter: valid=x")),
            ("192.0.2.1 ipv4=no", Err("invalid parameter: ipv4=no")),
            ("192.0.2.1 ipv4=off ipv6=off", Err("\"ipv4\" and \"ipv6\" cannot both be \"off\"")),
            ("valid=1s", Err("no name servers defined")),
            ("192.0.2.1:0", Err("invalid port in resolver \"192.0.2.1:0\"")),
            ("[::1", Err("invalid host in resolver \"[::1\"")),
        ] {
            assert_eq!(parsed(words), expected.map(str::to_owned).map_err(str::to_owned), "{words}");
        }
    }
}
