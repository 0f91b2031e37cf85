//! The command line: options as records, from which help, manual page and completions are made, and the words of one call.

use std::net::IpAddr;
use std::path::PathBuf;

use tw_base::command_line::{listed, usage, wrapped};

use crate::cluster::client::Access;
use crate::cluster::object::{ObjectName, is_name};
use crate::site::settings::{FleetOptions, SiteOptions};
use crate::status::Published;

mod records;

/// Longest name of a node of a fleet.
const NODE_NAME_MAX: usize = 64;

pub use records::{ABOUT, OPTIONS};

/// Command of a call.
#[derive(Debug)]
pub enum Command {
    /// Serve.
    Serve(Box<Options>),
    /// Say how it is used.
    Help,
    /// Say which version it is.
    Version,
}

/// Words of a call.
#[derive(Debug)]
pub struct Options {
    /// Settings of configurations.
    pub site: SiteOptions,
    /// Access to the API server.
    pub access: Access,
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Addresses for the status.
    pub published: Option<Published>,
    /// Name of the Lease.
    pub election: String,
    /// Program of the server.
    pub binary: PathBuf,
    /// Socket of a server that runs already.
    pub control: Option<PathBuf>,
}

/// The help text.
pub fn help() -> String {
    let begin = concat!("tailwater-ingress version: tailwater-ingress/", env!("CARGO_PKG_VERSION"), "\n");
    format!(
        "{begin}{}\n{}\nOptions:\n{}",
        usage("Usage: tailwater-ingress", OPTIONS),
        wrapped(ABOUT, "", ""),
        listed(OPTIONS, &[])
    )
}

/// Reads the words after the program's name.
///
/// # Errors
/// The reason why they are refused.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut words = words.into_iter();
    let mut options = Options {
        site: SiteOptions::default(),
        access: Access::default(),
        namespace: None,
        published: None,
        election: "tailwater-ingress-leader".to_owned(),
        binary: PathBuf::from("tailwater"),
        control: None,
    };
    let mut engine = None;
    let mut credentials = None;
    let mut node = None;
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (word.clone(), None),
        };
        let is_flag = inline.is_none();
        let mut value = || {
            inline
                .clone()
                .or_else(|| words.next())
                .ok_or_else(|| format!("option \"{name}\" requires a value"))
        };
        let site = &mut options.site;
        match &*name {
            "--controller-class" => site.controller = value()?,
            "--gateway-controller" => site.gateway_controller = value()?,
            "--ingress-class" => site.class = value()?,
            "--watch-ingress-without-class" if is_flag => site.without_class = true,
            "--watch-namespace" => {
                let namespace = value()?;
                options.namespace = Some(namespace).filter(|name| !name.is_empty());
                if options.namespace.as_deref().is_some_and(|name| !is_name(name)) {
                    return Err(format!("invalid value of option \"{name}\""));
                }
            }
            "--configmap" => site.config_map = Some(reference(&name, &value()?)?),
            "--tcp-services-configmap" => site.tcp_services = Some(reference(&name, &value()?)?),
            "--udp-services-configmap" => site.udp_services = Some(reference(&name, &value()?)?),
            "--default-backend-service" => site.default_backend = Some(reference(&name, &value()?)?),
            "--default-ssl-certificate" => site.default_secret = Some(reference(&name, &value()?)?),
            "--publish-service" => options.published = Some(Published::Service(reference(&name, &value()?)?)),
            "--publish-status-address" => {
                let addresses = value()?.split(',').map(|address| address.trim().to_owned()).collect();
                options.published = Some(Published::Addresses(addresses));
            }
            "--election-id" => options.election = value()?,
            "--allow-snippets" if is_flag => site.allow_snippets = true,
            "--allow-cross-namespace" if is_flag => site.allow_cross_namespace = true,
            "--http-port" => site.http = listening(&name, value()?)?,
            "--https-port" => site.https = listening(&name, value()?)?,
            "--status-port" => site.status = listening(&name, value()?)?,
            "--fleet-engine" => engine = Some(engine_servers(&value()?)?),
            "--fleet-credentials" => credentials = Some(plain_path(&name, &value()?)?),
            "--fleet-node" => node = Some(value()?),
            "--modsecurity-rules" => site.firewall.settings = Some(plain_path(&name, &value()?)?),
            "--owasp-core-rules" => site.firewall.core_rules = Some(plain_path(&name, &value()?)?),
            "--resolver" => site.resolvers = resolvers(&value()?)?,
            "--apiserver" => options.access.url = Some(value()?),
            "--token-file" => options.access.token = Some(value()?.into()),
            "--ca" => options.access.authorities = Some(value()?.into()),
            "--tailwater" => options.binary = value()?.into(),
            "--control" => options.control = Some(value()?.into()),
            "--dir" => site.dir = plain_path(&name, &value()?)?.into(),
            "-v" | "--version" if is_flag => return Ok(Command::Version),
            "-h" | "-?" | "--help" if is_flag => return Ok(Command::Help),
            _ => return Err(format!("invalid option: \"{word}\"")),
        }
    }
    options.site.fleet = fleet(engine, credentials, node)?;
    if !is_name(&options.election) {
        return Err("invalid value of option \"--election-id\"".to_owned());
    }
    Ok(Command::Serve(Box::new(options)))
}

fn reference(option: &str, text: &str) -> Result<ObjectName, String> {
    let name = text.contains('/').then(|| ObjectName::reference(text, "")).flatten();
    name.ok_or_else(|| format!("option \"{option}\" requires namespace/name"))
}

fn listening(option: &str, text: String) -> Result<String, String> {
    let is_address = text.parse::<u16>().is_ok() || text.parse::<std::net::SocketAddr>().is_ok();
    if is_address { Ok(text) } else { Err(format!("option \"{option}\" requires a port or address:port")) }
}

/// A path that is a word of the configuration.
fn plain_path(option: &str, text: &str) -> Result<String, String> {
    let is_plain = text.starts_with('/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte));
    if is_plain {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(format!("option \"{option}\" requires an absolute path of plain characters"))
    }
}

/// Servers of an engine, as a word of the configuration, which checks the rest.
fn engine_servers(text: &str) -> Result<String, String> {
    let has_scheme = ["nats://", "etcd://"].iter().any(|scheme| text.starts_with(scheme));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.,:[]".contains(&byte));
    if has_scheme && is_plain {
        Ok(text.to_owned())
    } else {
        Err("option \"--fleet-engine\" requires nats://host:port,… or etcd://host:port,…".to_owned())
    }
}

/// The fleet of all replicas. Without a name, a replica has that of its pod.
fn fleet(
    engine: Option<String>,
    credentials: Option<String>,
    node: Option<String>,
) -> Result<Option<FleetOptions>, String> {
    let Some(engine) = engine else {
        let other = credentials.map(|_| "--fleet-credentials").or(node.map(|_| "--fleet-node"));
        return other.map_or(Ok(None), |option| Err(format!("option \"{option}\" requires --fleet-engine")));
    };
    let pod = || std::env::var("HOSTNAME").unwrap_or_default().replace('.', "-");
    let node = node.unwrap_or_else(pod);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if node.is_empty() || node.len() > NODE_NAME_MAX || !node.bytes().all(is_word) {
        return Err(
            "option \"--fleet-node\" requires letters, digits, - and _; without it, HOSTNAME is used"
                .to_owned(),
        );
    }
    Ok(Some(FleetOptions { engine, credentials, node }))
}

fn resolvers(text: &str) -> Result<Vec<IpAddr>, String> {
    let addresses: Result<Vec<IpAddr>, _> = text.split(',').map(|address| address.trim().parse()).collect();
    addresses.map_err(|_| "option \"--resolver\" requires addresses".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Options, String> {
        match parse(words.iter().map(|word| (*word).to_owned()))? {
            Command::Serve(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_are_checked() {
        let options = read(&[
            "--configmap=a/b",
            "--http-port",
            "127.0.0.1:80",
            "--publish-status-address",
            "10.0.0.1, h",
        ])
        .unwrap();
        assert_eq!(options.site.config_map, Some(ObjectName::new("a", "b")));
        assert_eq!(
            options.published,
            Some(Published::Addresses(vec!["10.0.0.1".to_owned(), "h".to_owned()]))
        );
        let options =
            read(&["--fleet-engine=nats://a,b:1", "--fleet-node=x", "--fleet-credentials=/s/c"]).unwrap();
        let fleet = options.site.fleet.unwrap();
        assert_eq!(
            (&*fleet.engine, &*fleet.node, fleet.credentials.as_deref()),
            ("nats://a,b:1", "x", Some("/s/c"))
        );
        for words in [
            &["--configmap", "b"][..],
            &["--http-port", "80; x"],
            &["--dir", "/a b"],
            &["--dir", "a"],
            &["--election-id", "../x"],
            &["x"],
            &["--ca"],
            &["--fleet-engine", "http://nats"],
            &["--fleet-engine", "nats://a;b"],
            &["--fleet-credentials", "/a"],
            &["--fleet-engine", "nats://a", "--fleet-node", "a b"],
            &["--allow-snippets=1"],
        ] {
            assert!(read(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn help_names_every_option() {
        let text = help();
        for option in OPTIONS {
            assert!(text.contains(option.names[0]), "{}", option.names[0]);
        }
    }
}
