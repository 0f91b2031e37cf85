//! Objects of the Gateway API, as far as the controller uses them. A rule with something that is not known says so in `unsupported`; it is
//! never served as if the unknown part were not there.

mod route;

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{Metadata, Object, ObjectName, is_name, list, text, texts};

pub use route::{
    FieldChanges, Filter, GrpcRoute, HttpRoute, NewPath, Parent, PathMatch, Route, RouteBackend, RouteMatch,
    RouteRule, TcpRoute, TlsRoute, UdpRoute, ValueMatch,
};

/// Group of the API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// Class of Gateway objects.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GatewayClass {
    /// Name.
    pub metadata: Metadata,
    /// Version of the specification.
    pub generation: i64,
    /// Controller that serves it.
    pub controller: String,
    /// The status that it has.
    pub status: Value,
}

impl Object for GatewayClass {
    fn read(json: &Value) -> Option<Self> {
        Some(Self {
            metadata: Metadata::read(json)?,
            generation: generation(json),
            controller: text(&json["spec"]["controllerName"]),
            status: json["status"].clone(),
        })
    }
}

/// Ports, hosts and certificates to which routes are attached.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gateway {
    /// Name.
    pub metadata: Metadata,
    /// Version of the specification.
    pub generation: i64,
    /// Class.
    pub class: String,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// The status that it has.
    pub status: Value,
}

/// One port and host of a [`Gateway`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Listener {
    /// Name, unique in its Gateway.
    pub name: String,
    /// Port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    /// Host; empty for all. Protocols without names of hosts have none.
    pub hostname: String,
    /// TLS is not decrypted.
    pub passthrough: bool,
    /// Certificates.
    pub certificates: Vec<Reference>,
    /// Certificates of clients are to be checked.
    pub wants_client_certificates: bool,
    /// Namespaces of routes.
    pub namespaces: Namespaces,
    /// Kinds of routes that are allowed, with their group; none means those of the protocol.
    pub kinds: Vec<(String, String)>,
}

/// Namespaces whose routes a listener allows.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Namespaces {
    /// Namespace of the Gateway.
    #[default]
    Same,
    /// All.
    All,
    /// Namespaces with these labels: name, operator, values.
    Selector(Vec<(String, String, Vec<String>)>),
    /// None, because it is not known what is meant.
    Unknown,
}

/// Reference to an object, maybe of another namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reference {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace and name.
    pub name: ObjectName,
}

impl Reference {
    fn read(json: &Value, kind: &str, own: &str) -> Self {
        let or = |field: &str, default: &str| json[field].as_str().unwrap_or(default).to_owned();
        Self {
            group: or("group", ""),
            kind: or("kind", kind),
            name: ObjectName::new(or("namespace", own), text(&json["name"])),
        }
    }
}

impl Object for Gateway {
    fn read(json: &Value) -> Option<Self> {
        let metadata = Metadata::read(json)?;
        let own = &metadata.name.namespace;
        let frontend = &json["spec"]["tls"]["frontend"];
        let listeners = list(&json["spec"]["listeners"]).map(|listener| {
            let routes = &listener["allowedRoutes"];
            let tls = &listener["tls"];
            let certificates = list(&tls["certificateRefs"]);
            let has_hosts = !matches!(listener["protocol"].as_str(), Some("TCP" | "UDP"));
            Listener {
                name: text(&listener["name"]),
                port: port(&listener["port"]).unwrap_or(0),
                protocol: text(&listener["protocol"]),
                hostname: if has_hosts { text(&listener["hostname"]) } else { String::new() },
                passthrough: tls["mode"] == "Passthrough",
                certificates: certificates
                    .map(|reference| Reference::read(reference, "Secret", own))
                    .collect(),
                wants_client_certificates: !tls["frontendValidation"].is_null()
                    || has_client_validation(frontend, port(&listener["port"])),
                namespaces: Namespaces::read(&routes["namespaces"]),
                kinds: list(&routes["kinds"])
                    .map(|kind| (kind["group"].as_str().unwrap_or(GROUP).to_owned(), text(&kind["kind"])))
                    .collect(),
            }
        });
        Some(Self {
            generation: generation(json),
            class: text(&json["spec"]["gatewayClassName"]),
            listeners: listeners.collect(),
            status: json["status"].clone(),
            metadata,
        })
    }
}

/// Returns true if a Gateway's `tls.frontend` has rules for the certificates of clients of this port.
fn has_client_validation(frontend: &Value, number: Option<u16>) -> bool {
    let of_port = list(&frontend["perPort"]).find(|entry| port(&entry["port"]) == number);
    let tls = of_port.map_or(&frontend["default"], |entry| &entry["tls"]);
    !tls["validation"].is_null()
}

impl Gateway {
    /// Name among the owners of lines.
    pub fn owner(&self) -> ObjectName {
        let name = &self.metadata.name;
        ObjectName::new(&*name.namespace, format!("Gateway/{}", name.name))
    }
}

impl Namespaces {
    fn read(json: &Value) -> Self {
        match json["from"].as_str() {
            None | Some("Same") => Self::Same,
            Some("All") => Self::All,
            Some("Selector") => {
                let selector = &json["selector"];
                let labels = texts(&selector["matchLabels"]);
                let mut tests: Vec<_> =
                    labels.into_iter().map(|(name, value)| (name, "In".to_owned(), vec![value])).collect();
                tests.extend(list(&selector["matchExpressions"]).map(|test| {
                    (text(&test["key"]), text(&test["operator"]), list(&test["values"]).map(text).collect())
                }));
                Self::Selector(tests)
            }
            Some(_) => Self::Unknown,
        }
    }

    /// Returns true if a namespace with these labels is one of them.
    pub fn allow(&self, own: &str, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        match self {
            Self::Same => own == namespace,
            Self::All => true,
            Self::Unknown => false,
            Self::Selector(tests) => labels.is_some_and(|labels| {
                tests.iter().all(|(name, operator, values)| {
                    let value = labels.get(name);
                    match &**operator {
                        "In" => value.is_some_and(|value| values.contains(value)),
                        "NotIn" => value.is_none_or(|value| !values.contains(value)),
                        "Exists" => value.is_some(),
                        "DoesNotExist" => value.is_none(),
                        _ => false,
                    }
                })
            }),
        }
    }
}

/// Namespace with its labels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Namespace {
    /// Name.
    pub metadata: Metadata,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl Object for Namespace {
    fn read(json: &Value) -> Option<Self> {
        Some(Self { metadata: Metadata::read(json)?, labels: texts(&json["metadata"]["labels"]) })
    }
}

/// Permission to refer to objects of its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReferenceGrant {
    /// Name.
    pub metadata: Metadata,
    /// Group, kind and namespace of objects that may refer.
    pub from: Vec<(String, String, String)>,
    /// Group, kind and, if only one is meant, name of objects that may be referred to.
    pub to: Vec<(String, String, Option<String>)>,
}

impl Object for ReferenceGrant {
    fn read(json: &Value) -> Option<Self> {
        let spec = &json["spec"];
        let from = list(&spec["from"])
            .map(|from| (text(&from["group"]), text(&from["kind"]), text(&from["namespace"])));
        let to = list(&spec["to"])
            .map(|to| (text(&to["group"]), text(&to["kind"]), to["name"].as_str().map(str::to_owned)));
        Some(Self { metadata: Metadata::read(json)?, from: from.collect(), to: to.collect() })
    }
}

fn generation(json: &Value) -> i64 {
    json["metadata"]["generation"].as_i64().unwrap_or(0)
}

fn port(json: &Value) -> Option<u16> {
    json.as_u64().and_then(|number| u16::try_from(number).ok())
}

/// Returns true for the name of a host in a listener or a route, maybe with `*.` at its beginning.
pub fn is_hostname(text: &str) -> bool {
    let rest = text.strip_prefix("*.").unwrap_or(text);
    is_name(rest) && !rest.contains("..")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_are_selected_by_labels() {
        let selected = Namespaces::read(&json!({"from": "Selector", "selector": {
            "matchLabels": {"a": "1"},
            "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}],
        }}));
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert!(selected.allow("x", "y", Some(&labels(&[("a", "1")]))));
        assert!(!selected.allow("x", "y", Some(&labels(&[("a", "1"), ("b", "")]))));
        assert!(!selected.allow("x", "x", None));
        assert!(!Namespaces::read(&json!({"from": "Odd"})).allow("x", "x", None));
        assert!(Namespaces::read(&json!(null)).allow("x", "x", None));
    }

    #[test]
    fn client_validation_of_a_port_replaces_the_default() {
        let rules = json!({"validation": {"caCertificateRefs": [{"name": "ca"}]}});
        for (frontend, of_443, of_8443) in [
            (json!(null), false, false),
            (json!({"default": rules}), true, true),
            (json!({"default": rules, "perPort": [{"port": 8443, "tls": {}}]}), true, false),
            (json!({"default": {}, "perPort": [{"port": 8443, "tls": rules}]}), false, true),
        ] {
            assert_eq!(has_client_validation(&frontend, Some(443)), of_443, "{frontend}");
            assert_eq!(has_client_validation(&frontend, Some(8443)), of_8443, "{frontend}");
        }
    }
}
