//! Name servers, for those who ask for names while requests are served.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Node, Setting};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::reach::Reach;
use tw_disk::{Account, JobClass, JobSource, Pool};
use tw_dns::{Families, NameService, Resolver, Settings, Stats, SystemFiles, SystemResolver};
use tw_rt::clock;

/// Port of a name server.
const DNS_PORT: u16 = 53;

/// Longest wait of a name for the files of the system to be looked at: a disk that does not answer must not keep names.
const REFRESH_WAIT: Duration = Duration::from_millis(200);

/// Name resolution at a block.
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

/// `resolver` and `resolver_timeout` as written.
#[derive(Default)]
pub struct RawResolving {
    resolver: Setting<Settings>,
    timeout: Setting<Duration>,
}

impl RawResolving {
    /// Reads `resolver`.
    ///
    /// # Errors
    /// Error of an argument, or a second directive.
    pub fn read(&mut self, node: &Node) -> Result<(), ConfError> {
        self.resolver.set_with(node, parse)
    }

    /// Reads `resolver_timeout`.
    ///
    /// # Errors
    /// Error of the argument, or a second directive.
    pub fn read_timeout(&mut self, node: &Node) -> Result<(), ConfError> {
        self.timeout.set_msec(node)
    }
}

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
    // Zero means the TTL of the answer.
    Ok(Settings { valid: valid.filter(|span| !span.is_zero()), families, ..Settings::new(servers) })
}

impl Resolving {
    /// Resolves the directives against the enclosing block.
    pub fn resolve<P: Protocol>(raw: RawResolving, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Self {
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
    /// Chooses the resolver of a name: the system's for one that the configuration says, unless it is followed. Sees to it that the
    /// system's files are read again, by `pool`, if they have changed.
    /// The second value is what is left of `resolver_timeout`.
    pub async fn service(&self, is_run_time: bool, pool: &Pool) -> (NameService, Duration) {
        let began = clock::now();
        let service = match is_run_time {
            true => self.resolver.clone(),
            false => NameService::System(self.system.clone()),
        };
        if let Some(refresh) = service.system().and_then(SystemResolver::begin_refresh) {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            // The entries read before stay in use if reading the files fails or takes long.
            let _ = tw_rt::time::timeout(
                REFRESH_WAIT.min(self.timeout),
                pool.run(&mut account, move || refresh.run()),
            )
            .await;
        }
        (service, self.timeout.saturating_sub(clock::now().saturating_duration_since(began)))
    }

    /// Returns true if a `resolver` says which servers are asked for names that are known only while requests are served.
    pub fn is_said(&self) -> bool {
        self.resolver.system().is_none()
    }
}

/// A resolver with these settings: what one of the configuration before has learnt, this one knows.
fn resolver<P: Protocol>(settings: Settings, cx: &mut Resolve<'_, P>) -> Arc<Resolver> {
    let name = format!("{settings:?}");
    let kept =
        cx.keep(name.as_bytes(), |_| true, || Shared(Resolver::new(settings, Arc::new(Stats::default()))));
    kept.0.clone()
}

/// A resolver that outlives configurations.
struct Shared(Arc<Resolver>);

// DIFF(nginx): names are asked for without `resolver`, too, and a configuration is loaded without waiting for any.
/// The system's resolver. A configuration may wait for its files, and sees what is in them now.
fn of_system<P: Protocol>(cx: &mut Resolve<'_, P>) -> Arc<SystemResolver> {
    let kept = cx.keep(b"system", |_| true, || System(SystemResolver::new(SystemFiles::default())));
    kept.0.refresh();
    kept.0.clone()
}

/// The system's resolver, which outlives configurations.
struct System(Arc<SystemResolver>);

/// Files that it reads, for the sandbox.
pub fn reach(reach: &mut Reach) {
    reach.resolves_as_system(|| SystemFiles::default().paths());
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
