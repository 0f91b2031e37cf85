//! Name servers, for those who ask for names while requests are served.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, Node, Setting, Word, record};
use tw_core::reach::Reach;
use tw_disk::{Account, JobClass, JobSource, Pool};
use tw_dns::{Families, NameService, Resolver, Settings, Stats, SystemFiles, SystemResolver};
use tw_rt::clock;

use super::ALL;
use crate::load::Resolve;
use crate::vars::Template;

/// Port of a name server.
const DNS_PORT: u16 = 53;

/// Longest wait of a name for the files of the system to be looked at: a disk that does not answer must not keep names.
const REFRESH_WAIT: Duration = Duration::from_millis(200);

/// Name resolution at a location.
#[derive(Debug, Clone)]
pub struct Resolving {
    /// For names that are known only while requests are served, and those that are followed: `resolver`; without one the
    /// system's name servers.
    pub resolver: NameService,
    /// The system's name servers: for names that the configuration says.
    pub system: Arc<SystemResolver>,
    /// `resolver_timeout`
    pub timeout: Duration,
}

/// Settings of name resolution as written.
#[derive(Default)]
pub struct Raw {
    resolver: Setting<Settings>,
    timeout: Setting<Duration>,
}

impl Raw {
    pub(crate) fn read(&mut self, node: &Node) -> Result<(), ConfError> {
        self.resolver.set_with(node, parse)
    }

    pub(crate) fn read_timeout(&mut self, node: &Node) -> Result<(), ConfError> {
        self.timeout.set_msec(node)
    }
}

/// One record per directive.
pub(super) const DIRECTIVES: &[Directive<super::Raw>] = &[
    record::new("resolver", "address … [valid=time] [ipv4=on|off] [ipv6=on|off]", ALL, Args::at_least(1))
        .since("0.6.28")
        .doc("Name servers, for names that are not known before a request needs them.")
        .set(|raw, node, _| raw.resolving.read(node)),
    record::time("resolver_timeout", ALL)
        .default("30s")
        .since("0.6.28")
        .doc("How long a name may take to be found.")
        .set(|raw, node, _| raw.resolving.read_timeout(node)),
];

/// Reads the arguments of `resolver`. Errors are nginx's.
fn parse(node: &Node) -> Result<Settings, ConfError> {
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
            let addr = addr.map_err(|error| node.fail(format!("{error} in resolver \"{word}\"")))?;
            let addr =
                addr.inet().ok_or_else(|| node.fail(format!("invalid host in resolver \"{word}\"")))?;
            servers.push(addr);
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
    Ok(Settings { valid: valid.filter(|span| !span.is_zero()), families, ..Settings::new(servers) })
}

impl Resolving {
    pub(crate) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Self {
        let system = match outer {
            Some(outer) => outer.system.clone(),
            None => of_system(cx),
        };
        let resolver = match (raw.resolver.take(), outer) {
            (Some(settings), _) => NameService::Resolver(resolver(settings, cx)),
            (None, Some(outer)) => outer.resolver.clone(),
            (None, None) => NameService::System(system.clone()),
        };
        Self { resolver, system, timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::from_secs(30)) }
    }
}

impl Resolving {
    /// Chooses the resolver of a name: the system's for a name in the configuration, unless it is followed. Has
    /// `pool` read the system's files again if they have changed. The second value is the rest of `resolver_timeout`.
    pub(crate) async fn service(&self, is_run_time: bool, pool: &Pool) -> (NameService, Duration) {
        let began = clock::now();
        let service = match is_run_time {
            true => self.resolver.clone(),
            false => NameService::System(self.system.clone()),
        };
        if let Some(refresh) = service.system().and_then(SystemResolver::begin_refresh) {
            let mut by = Account::new(JobClass::Hit, JobSource::NONE);
            // What was known before is good enough if this fails or takes long.
            let _ = tokio::time::timeout(
                REFRESH_WAIT.min(self.timeout),
                pool.run(&mut by, move || refresh.run()),
            )
            .await;
        }
        (service, self.timeout.saturating_sub(clock::now().saturating_duration_since(began)))
    }

    /// Returns true if a `resolver` directive names the servers for names that are known only at run time.
    pub(crate) fn is_said(&self) -> bool {
        self.resolver.system().is_none()
    }
}

// DIFF(nginx): such a name is resolved by the system, and that is said; nginx answers 502.
/// Warns, once, of an address with variables where no `resolver` is. `host` is the part of `word` that names a server.
pub fn warn_without(word: &Word, host: &[u8], cx: &mut Resolve<'_>) {
    let block = &mut cx.block;
    let text = String::from_utf8_lossy(host);
    let needs_none = is_address(&text) || block.upstreams.find(&text).is_some();
    if block.has_resolver || needs_none || std::mem::replace(&mut block.is_resolver_missed, true) {
        return;
    }
    let message =
        format!("no resolver is defined for the names in \"{word}\", the system's name servers are asked");
    cx.report(ConfError::warn(message).at(word.span).hint("\"resolver\" says which name servers are asked"));
}

/// Returns true if `text` needs no name server, with a port or without.
fn is_address(text: &str) -> bool {
    let is_unix = text.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case("unix:"));
    let ip = match text.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => text.split(':').next().unwrap_or_default(),
    };
    is_unix || ip.parse::<IpAddr>().is_ok()
}

/// A resolver with these settings: what one of the configuration before has learnt, this one knows.
fn resolver(settings: Settings, cx: &mut Resolve<'_>) -> Arc<Resolver> {
    let name = format!("{settings:?}");
    let kept =
        cx.keep(name.as_bytes(), |_| true, || Shared(Resolver::new(settings, Arc::new(Stats::default()))));
    kept.0.clone()
}

/// A resolver that outlives configurations.
struct Shared(Arc<Resolver>);

// DIFF(nginx): names are asked for without `resolver`, too, and a configuration is loaded without waiting for any.
/// The system's resolver. A configuration may wait for its files, and sees what is in them now.
fn of_system(cx: &mut Resolve<'_>) -> Arc<SystemResolver> {
    let kept = cx.keep(b"system", |_| true, || System(SystemResolver::new(SystemFiles::default())));
    kept.0.refresh();
    kept.0.clone()
}

/// The system's resolver, which outlives configurations.
struct System(Arc<SystemResolver>);

/// Files that it reads, for the sandbox.
pub(crate) fn reach(reach: &mut Reach) {
    for path in SystemFiles::default().paths() {
        reach.reads_file(&Template::text(path.as_os_str().as_encoded_bytes()), None);
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
