//! Objects of the API server, as far as the controller uses them. Every field that is missing or of another type has its default, so
//! that one odd object never hides the others of a list.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde_json::Value;
use tw_http::base64::{self, Alphabet};

/// Namespace and name of an object; the namespace of one that belongs to the cluster is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectName {
    /// Name in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Reads `name` or `namespace/name`; `namespace` is that of the object with the reference.
    ///
    /// Returns `None` for a text that is no name.
    pub fn reference(text: &str, namespace: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        (is_name(namespace) && is_name(name)).then(|| Self::new(namespace, name))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// Returns true for a name that the API server accepts (RFC 1123 subdomain). Others never reach a configuration or the name of a file.
pub fn is_name(text: &str) -> bool {
    let is_inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let ends = [text.bytes().next(), text.bytes().last()];
    (1..=253).contains(&text.len())
        && text.bytes().all(is_inner)
        && ends.iter().flatten().all(|byte| byte.is_ascii_alphanumeric())
}

/// Object with its name.
pub trait Object: Sized {
    /// Reads it. `None` if it is of no use.
    fn read(json: &Value) -> Option<Self>;
}

/// Facts of every object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Namespace and name.
    pub name: ObjectName,
    /// Identifier of the object; another object of the same name has another one.
    pub uid: String,
    /// Version of the object.
    pub version: String,
    /// Time of creation, as text that sorts by time.
    pub created: String,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    pub(super) fn read(json: &Value) -> Option<Self> {
        let metadata = &json["metadata"];
        let name = ObjectName::new(text(&metadata["namespace"]), text(&metadata["name"]));
        if !is_name(&name.name) || !(name.namespace.is_empty() || is_name(&name.namespace)) {
            return None;
        }
        Some(Self {
            name,
            uid: text(&metadata["uid"]),
            version: text(&metadata["resourceVersion"]),
            created: text(&metadata["creationTimestamp"]),
            annotations: texts(&metadata["annotations"]),
        })
    }
}

/// Ingress of `networking.k8s.io/v1`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ingress {
    /// Name and annotations.
    pub metadata: Metadata,
    /// Class.
    pub class: Option<String>,
    /// Backend of requests that no rule has.
    pub default_backend: Option<Backend>,
    /// Rules.
    pub rules: Vec<Rule>,
    /// Certificates.
    pub tls: Vec<IngressTls>,
    /// Addresses in its status.
    pub addresses: Vec<String>,
}

/// Hosts with a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IngressTls {
    /// Hosts; none means the default certificate.
    pub hosts: Vec<String>,
    /// Name of the secret, in the namespace of the Ingress.
    pub secret: String,
}

/// One path of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Host; empty for all.
    pub host: String,
    /// Path.
    pub path: String,
    /// Comparison.
    pub kind: PathKind,
    /// Backend; `None` if it is not a Service.
    pub backend: Option<Backend>,
}

/// Comparison of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKind {
    /// The whole path.
    Exact,
    /// Whole elements between slashes.
    Prefix,
    /// The beginning of the text, as `location` of nginx has it.
    ImplementationSpecific,
}

/// Port of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Name of the service.
    pub service: String,
    /// Port of it.
    pub port: BackendPort,
}

/// Port of a service, as a rule has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendPort {
    /// Number.
    Number(u16),
    /// Name.
    Name(String),
    /// The first one.
    First,
}

impl Object for Ingress {
    fn read(json: &Value) -> Option<Self> {
        let metadata = Metadata::read(json)?;
        let spec = &json["spec"];
        let mut rules = Vec::new();
        for rule in list(&spec["rules"]) {
            let host = text(&rule["host"]);
            for path in list(&rule["http"]["paths"]) {
                let kind = match path["pathType"].as_str() {
                    Some("Exact") => PathKind::Exact,
                    Some("Prefix") => PathKind::Prefix,
                    _ => PathKind::ImplementationSpecific,
                };
                let written_text = text(&path["path"]);
                let path_text = if written_text.is_empty() { "/".to_owned() } else { written_text };
                rules.push(Rule {
                    host: host.clone(),
                    path: path_text,
                    kind,
                    backend: backend(&path["backend"]),
                });
            }
        }
        let tls = list(&spec["tls"]).map(|tls| IngressTls {
            hosts: list(&tls["hosts"]).map(text).collect(),
            secret: text(&tls["secretName"]),
        });
        let addresses = list(&json["status"]["loadBalancer"]["ingress"])
            .map(|address| [text(&address["ip"]), text(&address["hostname"])].concat());
        Some(Self {
            class: spec["ingressClassName"].as_str().map(str::to_owned),
            default_backend: backend(&spec["defaultBackend"]),
            rules,
            tls: tls.collect(),
            addresses: addresses.collect(),
            metadata,
        })
    }
}

fn backend(json: &Value) -> Option<Backend> {
    let service = &json["service"];
    let name = service["name"].as_str().filter(|name| is_name(name))?;
    let port = &service["port"];
    let port = match (port["number"].as_u64(), port["name"].as_str()) {
        (Some(number), _) => BackendPort::Number(u16::try_from(number).ok()?),
        (None, Some(name)) => BackendPort::Name(name.to_owned()),
        (None, None) => return None,
    };
    Some(Backend { service: name.to_owned(), port })
}

/// Class of Ingress objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IngressClass {
    /// Name and annotations.
    pub metadata: Metadata,
    /// Controller that serves it.
    pub controller: String,
}

impl IngressClass {
    /// Returns true for the class of Ingress objects that name none.
    pub fn is_default(&self) -> bool {
        self.metadata
            .annotations
            .get("ingressclass.kubernetes.io/is-default-class")
            .is_some_and(|v| v == "true")
    }
}

impl Object for IngressClass {
    fn read(json: &Value) -> Option<Self> {
        Some(Self { metadata: Metadata::read(json)?, controller: text(&json["spec"]["controller"]) })
    }
}

/// Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Name and annotations.
    pub metadata: Metadata,
    /// Name in DNS of a service outside of the cluster.
    pub external_name: Option<String>,
    /// Address in the cluster.
    pub cluster_ip: Option<IpAddr>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// Addresses of its load balancer.
    pub addresses: Vec<String>,
}

/// Port of a [`Service`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePort {
    /// Name; may be empty if it is the only one.
    pub name: String,
    /// Number.
    pub number: u16,
    /// UDP; TCP otherwise.
    pub is_datagram: bool,
    /// HTTP/2 without TLS (`appProtocol`).
    pub is_h2c: bool,
}

impl Object for Service {
    fn read(json: &Value) -> Option<Self> {
        let spec = &json["spec"];
        let is_external = spec["type"] == "ExternalName";
        let ports = list(&spec["ports"]).filter_map(|port| {
            Some(ServicePort {
                name: text(&port["name"]),
                number: u16::try_from(port["port"].as_u64()?).ok()?,
                is_datagram: port["protocol"] == "UDP",
                is_h2c: port["appProtocol"] == "kubernetes.io/h2c",
            })
        });
        let mut addresses: Vec<_> = list(&json["status"]["loadBalancer"]["ingress"])
            .map(|address| [text(&address["ip"]), text(&address["hostname"])].concat())
            .collect();
        addresses.extend(list(&spec["externalIPs"]).map(text));
        let cluster_ip = spec["clusterIP"].as_str().and_then(|address| address.parse().ok());
        if addresses.is_empty() && spec["type"] == "ClusterIP" {
            addresses.extend(cluster_ip.map(|address: IpAddr| address.to_string()));
        }
        Some(Self {
            metadata: Metadata::read(json)?,
            external_name: is_external.then(|| text(&spec["externalName"])),
            cluster_ip,
            ports: ports.collect(),
            addresses: addresses.into_iter().filter(|address| !address.is_empty()).collect(),
        })
    }
}

/// Some of the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointSlice {
    /// Name.
    pub metadata: Metadata,
    /// Name of the service.
    pub service: String,
    /// Name and number of each port.
    pub ports: Vec<ServicePort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// Addresses with their conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// New requests may be sent to it.
    pub ready: bool,
    /// The endpoint answers requests, also while it ends.
    pub serving: bool,
    /// The endpoint ends.
    pub terminating: bool,
}

impl Object for EndpointSlice {
    fn read(json: &Value) -> Option<Self> {
        let service = text(&json["metadata"]["labels"]["kubernetes.io/service-name"]);
        let ports = list(&json["ports"]).filter_map(|port| {
            Some(ServicePort {
                name: text(&port["name"]),
                number: u16::try_from(port["port"].as_u64()?).ok()?,
                is_datagram: port["protocol"] == "UDP",
                is_h2c: port["appProtocol"] == "kubernetes.io/h2c",
            })
        });
        let endpoints = list(&json["endpoints"]).map(|endpoint| {
            let conditions = &endpoint["conditions"];
            let ready = conditions["ready"].as_bool().unwrap_or(true);
            Endpoint {
                addresses: list(&endpoint["addresses"]).filter_map(|a| a.as_str()?.parse().ok()).collect(),
                ready,
                serving: conditions["serving"].as_bool().unwrap_or(ready),
                terminating: conditions["terminating"].as_bool().unwrap_or(false),
            }
        });
        Some(Self {
            metadata: Metadata::read(json)?,
            service,
            ports: ports.collect(),
            endpoints: endpoints.collect(),
        })
    }
}

/// Secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret {
    /// Name.
    pub metadata: Metadata,
    /// Values by key.
    pub data: BTreeMap<String, Vec<u8>>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of secrets are not shown.
        f.debug_struct("Secret").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl Object for Secret {
    fn read(json: &Value) -> Option<Self> {
        let mut data = BTreeMap::new();
        for (key, value) in json["data"].as_object().into_iter().flatten() {
            let mut bytes = Vec::new();
            let value = value.as_str()?;
            if base64::decode(value.as_bytes(), Alphabet::Standard, &mut bytes).is_ok() {
                data.insert(key.clone(), bytes);
            }
        }
        Some(Self { metadata: Metadata::read(json)?, data })
    }
}

/// Map of texts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigMap {
    /// Name.
    pub metadata: Metadata,
    /// Values by key.
    pub data: BTreeMap<String, String>,
}

impl Object for ConfigMap {
    fn read(json: &Value) -> Option<Self> {
        Some(Self { metadata: Metadata::read(json)?, data: texts(&json["data"]) })
    }
}

pub(super) fn text(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_owned()
}

pub(super) fn texts(json: &Value) -> BTreeMap<String, String> {
    let pairs = json.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

pub(super) fn list(json: &Value) -> impl Iterator<Item = &Value> {
    json.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_of_the_api_server() {
        for (text, expected) in [
            ("a", true),
            ("web-1.b", true),
            ("", false),
            ("-a", false),
            ("a-", false),
            ("../a", false),
            ("A", false),
            ("a;b", false),
            ("a\nb", false),
        ] {
            assert_eq!(is_name(text), expected, "{text:?}");
        }
        assert_eq!(ObjectName::reference("b/c", "a"), Some(ObjectName::new("b", "c")));
        assert_eq!(ObjectName::reference("c", "a"), Some(ObjectName::new("a", "c")));
        assert_eq!(ObjectName::reference("../c", "a"), None);
        assert_eq!(ObjectName::reference("b/c/d", "a"), None);
    }

    #[test]
    fn odd_objects_are_read_as_far_as_they_make_sense() {
        for json in [json!(null), json!([]), json!({"metadata": {"name": "a/b"}}), json!({"metadata": 5})] {
            assert_eq!(Ingress::read(&json), None, "{json}");
        }
        let ingress = Ingress::read(&json!({
            "metadata": {"name": "a", "namespace": "n", "annotations": {"x": 1, "y": "z"}},
            "spec": {"rules": [{"host": "h", "http": {"paths": [
                {"pathType": "Odd", "backend": {"service": {"name": "s", "port": {"number": 70000}}}},
                {"path": "/b", "pathType": "Exact", "backend": {"resource": {}}},
                7,
            ]}}, 1, {"http": 2}], "tls": [{"hosts": 3}]},
        }));
        let ingress = ingress.unwrap();
        assert_eq!(ingress.metadata.annotations.len(), 1);
        assert_eq!(ingress.rules.len(), 3);
        assert!(ingress.rules.iter().all(|rule| rule.backend.is_none()));
    }

    #[test]
    fn secrets_are_decoded_and_not_printed() {
        let secret =
            Secret::read(&json!({"metadata": {"name": "a"}, "data": {"k": "aGVsbG8=", "l": "%"}})).unwrap();
        assert_eq!(secret.data["k"], b"hello");
        assert_eq!(secret.data.len(), 1);
        assert!(!format!("{secret:?}").contains("104"));
    }
}
