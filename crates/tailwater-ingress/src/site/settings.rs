//! Settings of configurations, from the command line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::globals::Globals;
use super::ports::ExtraPort;
use crate::cluster::object::ObjectName;

/// Settings of every configuration.
#[derive(Debug, Clone)]
pub struct SiteOptions {
    /// Directory of the configuration and its files.
    pub dir: PathBuf,
    /// Address or port of HTTP.
    pub http: String,
    /// Address or port of HTTPS.
    pub https: String,
    /// Address or port of `/healthz` and `/metrics`.
    pub status: String,
    /// Ports are those of IPv6, too.
    pub ipv6: bool,
    /// User of the worker process, if the master may choose one.
    pub user: Option<String>,
    /// Controller of our classes.
    pub controller: String,
    /// Controller of our classes of Gateway objects.
    pub gateway_controller: String,
    /// Class in the older annotation `kubernetes.io/ingress.class`.
    pub class: String,
    /// Ingress objects without a class are served.
    pub without_class: bool,
    /// Snippets are allowed.
    pub allow_snippets: bool,
    /// Annotations may name objects of other namespaces.
    pub allow_cross_namespace: bool,
    /// Service of requests that nobody serves.
    pub default_backend: Option<ObjectName>,
    /// Certificate of hosts that have none, and its key.
    pub default_certificate: (Vec<u8>, Vec<u8>),
    /// Secret with such a certificate.
    pub default_secret: Option<ObjectName>,
    /// DNS servers.
    pub resolvers: Vec<IpAddr>,
    /// Map with settings of all servers.
    pub config_map: Option<ObjectName>,
    /// Settings of that map.
    pub globals: Globals,
    /// Map with services over TCP.
    pub tcp_services: Option<ObjectName>,
    /// Map with services over UDP.
    pub udp_services: Option<ObjectName>,
    /// Ports that the server cannot listen on, and why.
    pub unavailable: BTreeMap<ExtraPort, String>,
    /// Engine between the replicas of the controller.
    pub fleet: Option<FleetOptions>,
    /// Rules of the firewall.
    pub firewall: FirewallOptions,
}

/// Files with rules of the firewall.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirewallOptions {
    /// Settings, of every location with `enable-modsecurity`.
    pub settings: Option<String>,
    /// Rules of `enable-owasp-core-rules`.
    pub core_rules: Option<String>,
}

/// Engine between the replicas, which share the rates of `global-rate-limit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetOptions {
    /// Servers of NATS or etcd, as the directive `engine` has them.
    pub engine: String,
    /// File with credentials of the engine.
    pub credentials: Option<String>,
    /// Name of this replica.
    pub node: String,
}

impl Default for SiteOptions {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/run/tailwater-ingress"),
            http: "8080".to_owned(),
            https: "8443".to_owned(),
            status: "10254".to_owned(),
            ipv6: false,
            user: None,
            controller: "tailwater.io/ingress-controller".to_owned(),
            gateway_controller: "tailwater.io/gateway-controller".to_owned(),
            class: "tailwater".to_owned(),
            without_class: false,
            allow_snippets: false,
            allow_cross_namespace: false,
            default_backend: None,
            default_certificate: (Vec::new(), Vec::new()),
            default_secret: None,
            resolvers: Vec::new(),
            config_map: None,
            globals: Globals::default(),
            tcp_services: None,
            udp_services: None,
            unavailable: BTreeMap::new(),
            fleet: None,
            firewall: FirewallOptions::default(),
        }
    }
}
