//! Routes of the Gateway API as the controller sees them.

use serde_json::Value;

use super::{GROUP, Reference, generation, port};
use crate::cluster::object::{Metadata, Object, ObjectName, list, text};

/// Route of one of the kinds of the API.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Route {
    /// Name.
    pub metadata: Metadata,
    /// Version of the specification.
    pub generation: i64,
    /// Version of the API.
    pub api_version: String,
    /// Kind.
    pub kind: &'static str,
    /// Gateways.
    pub parents: Vec<Parent>,
    /// Hosts; none means those of the listener.
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<RouteRule>,
    /// The status that it has.
    pub status: Value,
}

/// Gateway of a route.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parent {
    /// The reference as it is written, for the status.
    pub reference: Value,
    /// Gateway.
    pub gateway: Reference,
    /// Name of a listener; `None` for all.
    pub section: Option<String>,
    /// Port of listeners; `None` for all.
    pub port: Option<u16>,
}

/// Rule of a route.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouteRule {
    /// Matches, of which one is enough.
    pub matches: Vec<RouteMatch>,
    /// Changes of requests and responses.
    pub filters: Vec<Filter>,
    /// Destinations.
    pub backends: Vec<RouteBackend>,
    /// Time of the whole request, in milliseconds; 0 for no limit.
    pub request_timeout: Option<u64>,
    /// Time without a byte from a backend, in milliseconds; 0 for no limit.
    pub backend_timeout: Option<u64>,
    /// Parts that are not known.
    pub unsupported: Vec<String>,
}

/// Conditions that a request has to meet, all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteMatch {
    /// Path.
    pub path: PathMatch,
    /// Method.
    pub method: Option<String>,
    /// Fields.
    pub headers: Vec<(String, ValueMatch)>,
    /// Arguments of the query.
    pub params: Vec<(String, ValueMatch)>,
}

/// Comparison with a path. The order is that of precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// A regular expression for the whole path.
    Regex(String),
    /// Whole elements between slashes.
    Prefix(String),
}

/// Comparison with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueMatch {
    /// The whole value.
    Exact(String),
    /// A regular expression for the whole value.
    Regex(String),
}

/// Changed fields: the new value of each, those that are added, and those that are removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldChanges {
    /// Replaced.
    pub set: Vec<(String, String)>,
    /// Added.
    pub add: Vec<(String, String)>,
    /// Removed.
    pub remove: Vec<String>,
}

/// New path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewPath {
    /// Instead of the whole path.
    Full(String),
    /// Instead of the prefix that the match has.
    Prefix(String),
}

/// Change of a request or a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Fields of requests.
    Request(FieldChanges),
    /// Fields of responses.
    Response(FieldChanges),
    /// Answer with a redirect.
    Redirect {
        /// Scheme.
        scheme: Option<String>,
        /// Host.
        hostname: Option<String>,
        /// Port.
        port: Option<u16>,
        /// Path.
        path: Option<NewPath>,
        /// Status.
        status: u16,
    },
    /// Another host and path for the backend.
    Rewrite {
        /// Host.
        hostname: Option<String>,
        /// Path.
        path: Option<NewPath>,
    },
    /// Another backend gets a copy.
    Mirror {
        /// The backend.
        backend: RouteBackend,
        /// Ten-thousandths of the requests that are copied.
        share: u64,
    },
}

/// Backend with a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteBackend {
    /// Service.
    pub service: Reference,
    /// Port.
    pub port: Option<u16>,
    /// Part of the requests.
    pub weight: u32,
}

macro_rules! routes {
    ($($name:ident, $kind:literal, $text:literal;)*) => {$(
        #[doc = $text]
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $name(pub Route);

        impl Object for $name {
            fn read(json: &Value) -> Option<Self> {
                Route::read(json, $kind).map(Self)
            }
        }
    )*};
}

routes! {
    HttpRoute, "HTTPRoute", "Route of requests.";
    GrpcRoute, "GRPCRoute", "Route of calls of gRPC.";
    TlsRoute, "TLSRoute", "Route of connections with TLS, by the name of their host.";
    TcpRoute, "TCPRoute", "Route of connections.";
    UdpRoute, "UDPRoute", "Route of datagrams.";
}

impl Route {
    fn read(json: &Value, kind: &'static str) -> Option<Self> {
        let metadata = Metadata::read(json)?;
        let own = &metadata.name.namespace;
        let spec = &json["spec"];
        let parents = list(&spec["parentRefs"]).map(|parent| {
            let mut gateway = Reference::read(parent, "Gateway", own);
            gateway.group = parent["group"].as_str().unwrap_or(GROUP).to_owned();
            Parent {
                reference: parent.clone(),
                gateway,
                section: parent["sectionName"].as_str().map(str::to_owned),
                port: port(&parent["port"]),
            }
        });
        let mut rules: Vec<_> = list(&spec["rules"]).map(|rule| RouteRule::read(rule, kind, own)).collect();
        if rules.is_empty() && matches!(kind, "HTTPRoute" | "GRPCRoute") {
            rules.push(RouteRule::read(&Value::Null, kind, own));
        }
        let version = json["apiVersion"].as_str().and_then(|version| version.split_once('/'));
        Some(Self {
            generation: generation(json),
            api_version: version.map_or("v1", |(_, version)| version).to_owned(),
            kind,
            parents: parents.collect(),
            hostnames: list(&spec["hostnames"]).map(text).collect(),
            rules,
            status: json["status"].clone(),
            metadata,
        })
    }

    /// Returns true for a route of connections or datagrams, whose content is not read.
    pub fn is_stream(&self) -> bool {
        matches!(self.kind, "TLSRoute" | "TCPRoute" | "UDPRoute")
    }

    /// Name among the owners of lines. Names of objects have no slash, so it is never that of an Ingress.
    pub fn owner(&self) -> ObjectName {
        let name = &self.metadata.name;
        ObjectName::new(&*name.namespace, format!("{}/{}", self.kind, name.name))
    }
}

impl RouteRule {
    fn read(json: &Value, kind: &str, own: &str) -> Self {
        let mut rule = Self::default();
        for json in list(&json["matches"]) {
            match RouteMatch::read(json, kind) {
                Ok(route_match) => rule.matches.push(route_match),
                Err(error) => rule.unsupported.push(error),
            }
        }
        if rule.matches.is_empty() && rule.unsupported.is_empty() {
            rule.matches.extend(RouteMatch::read(&Value::Null, kind));
        }
        for json in list(&json["filters"]) {
            match Filter::read(json, own) {
                Ok(filter) => rule.filters.push(filter),
                Err(error) => rule.unsupported.push(error),
            }
        }
        for json in list(&json["backendRefs"]) {
            if list(&json["filters"]).next().is_some() {
                rule.unsupported.push("filters of a backend".to_owned());
            }
            rule.backends.push(RouteBackend::read(json, own));
        }
        for part in ["retry", "sessionPersistence"] {
            if !json[part].is_null() {
                rule.unsupported.push(format!("\"{part}\""));
            }
        }
        for (name, place) in
            [("request", &mut rule.request_timeout), ("backendRequest", &mut rule.backend_timeout)]
        {
            if let Some(text) = json["timeouts"][name].as_str() {
                match duration(text) {
                    Some(time) => *place = Some(time),
                    None => rule.unsupported.push(format!("timeout \"{text}\"")),
                }
            }
        }
        // A request may take as long without a byte as it may take at all.
        rule.backend_timeout = rule.backend_timeout.or(rule.request_timeout);
        rule
    }
}

impl RouteMatch {
    fn read(json: &Value, kind: &str) -> Result<Self, String> {
        let value = |json: &Value| -> Result<(String, ValueMatch), String> {
            let value = text(&json["value"]);
            let value = match json["type"].as_str() {
                None | Some("Exact") => ValueMatch::Exact(value),
                Some("RegularExpression") => ValueMatch::Regex(value),
                Some(other) => return Err(format!("match type \"{other}\"")),
            };
            Ok((text(&json["name"]), value))
        };
        let mut headers: Vec<(String, ValueMatch)> = Vec::new();
        for header in list(&json["headers"]) {
            let (name, value) = value(header)?;
            // The first one of a name counts.
            if !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
                headers.push((name, value));
            }
        }
        let mut params: Vec<(String, ValueMatch)> = Vec::new();
        for param in list(&json["queryParams"]) {
            let (name, value) = value(param)?;
            if !params.iter().any(|(other, _)| *other == name) {
                params.push((name, value));
            }
        }
        if kind == "GRPCRoute" {
            let path = grpc_path(&json["method"])?;
            return Ok(Self { path, method: None, headers, params: Vec::new() });
        }
        let path = &json["path"];
        let written_text = path["value"].as_str().unwrap_or("/").to_owned();
        let path = match path["type"].as_str() {
            Some("Exact") => PathMatch::Exact(written_text),
            None | Some("PathPrefix") => PathMatch::Prefix(written_text.trim_end_matches('/').to_owned()),
            Some("RegularExpression") => PathMatch::Regex(written_text),
            Some(other) => return Err(format!("path type \"{other}\"")),
        };
        Ok(Self { path, method: json["method"].as_str().map(str::to_owned), headers, params })
    }

    /// Order of precedence: a smaller one is tried first.
    pub fn rank(&self) -> impl Ord + use<> {
        let (kind, length) = match &self.path {
            PathMatch::Exact(path) => (0, path.len()),
            PathMatch::Regex(path) => (1, path.len()),
            PathMatch::Prefix(path) => (2, path.len()),
        };
        use std::cmp::Reverse;
        (
            kind,
            Reverse(length),
            self.method.is_none(),
            Reverse(self.headers.len()),
            Reverse(self.params.len()),
        )
    }

    /// Returns true if the path alone decides.
    pub fn is_plain(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.params.is_empty()
    }
}

/// Path of the calls of a method (`/service/method`).
fn grpc_path(json: &Value) -> Result<PathMatch, String> {
    let service = json["service"].as_str();
    let method = json["method"].as_str();
    let is_regex = match json["type"].as_str() {
        None | Some("Exact") => false,
        Some("RegularExpression") => true,
        Some(other) => return Err(format!("method type \"{other}\"")),
    };
    let escaped =
        |text: &str| if is_regex { format!("(?:{text})") } else { crate::quote::regex_escaped(text) };
    Ok(match (service, method) {
        (None, None) => PathMatch::Prefix(String::new()),
        (Some(service), None) if !is_regex => PathMatch::Prefix(format!("/{service}")),
        (Some(service), Some(method)) if !is_regex => PathMatch::Exact(format!("/{service}/{method}")),
        (service, method) => {
            let any = || "[^/]+".to_owned();
            let service = service.map_or_else(any, escaped);
            let method = method.map_or_else(any, escaped);
            PathMatch::Regex(format!("/{service}/{method}"))
        }
    })
}

impl Filter {
    fn read(json: &Value, own: &str) -> Result<Self, String> {
        let fields = |json: &Value| {
            let pairs = |part: &str| -> Vec<(String, String)> {
                list(&json[part]).map(|field| (text(&field["name"]), text(&field["value"]))).collect()
            };
            FieldChanges {
                set: pairs("set"),
                add: pairs("add"),
                remove: list(&json["remove"]).map(text).collect(),
            }
        };
        let new_path = |json: &Value| match json["type"].as_str() {
            None => Ok(None),
            Some("ReplaceFullPath") => Ok(Some(NewPath::Full(text(&json["replaceFullPath"])))),
            Some("ReplacePrefixMatch") => Ok(Some(NewPath::Prefix(text(&json["replacePrefixMatch"])))),
            Some(other) => Err(format!("path modifier \"{other}\"")),
        };
        let hostname = |json: &Value| json["hostname"].as_str().map(str::to_owned);
        match json["type"].as_str().unwrap_or_default() {
            "RequestHeaderModifier" => Ok(Self::Request(fields(&json["requestHeaderModifier"]))),
            "ResponseHeaderModifier" => Ok(Self::Response(fields(&json["responseHeaderModifier"]))),
            "RequestRedirect" => {
                let json = &json["requestRedirect"];
                Ok(Self::Redirect {
                    scheme: json["scheme"].as_str().map(str::to_owned),
                    hostname: hostname(json),
                    port: port(&json["port"]),
                    path: new_path(&json["path"])?,
                    status: port(&json["statusCode"]).unwrap_or(302),
                })
            }
            "URLRewrite" => {
                let json = &json["urlRewrite"];
                Ok(Self::Rewrite { hostname: hostname(json), path: new_path(&json["path"])? })
            }
            "RequestMirror" => {
                let json = &json["requestMirror"];
                let share = mirror_share(json).ok_or("a mirror of an impossible share")?;
                Ok(Self::Mirror { backend: RouteBackend::read(&json["backendRef"], own), share })
            }
            other => Err(format!("filter \"{other}\"")),
        }
    }
}

impl RouteBackend {
    fn read(json: &Value, own: &str) -> Self {
        let weight = json["weight"].as_u64().unwrap_or(1);
        Self {
            service: Reference::read(json, "Service", own),
            port: port(&json["port"]),
            weight: u32::try_from(weight).unwrap_or(1_000_000).min(1_000_000),
        }
    }
}

/// Ten-thousandths of the requests that a mirror copies: all of them if it says neither percent nor fraction.
fn mirror_share(json: &Value) -> Option<u64> {
    let fraction = &json["fraction"];
    let (part, whole) = match (json["percent"].is_null(), fraction.is_null()) {
        (true, true) => return Some(10_000),
        (false, true) => (json["percent"].as_u64()?, 100),
        (true, false) if fraction["denominator"].is_null() => (fraction["numerator"].as_u64()?, 100),
        (true, false) => (fraction["numerator"].as_u64()?, fraction["denominator"].as_u64()?),
        (false, false) => return None,
    };
    let is_possible = part <= whole && whole > 0;
    // A share that rounds to nothing is the smallest one that can be written.
    is_possible.then(|| part.checked_mul(10_000))?.map(|parts| (parts / whole).max(u64::from(part > 0)))
}

/// Milliseconds of a duration such as `1h30m` or `500ms`.
fn duration(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits).filter(|digits| digits.len() <= 5)?.parse().ok()?;
        let unit = rest.get(digits..)?;
        let (factor, length) = match unit {
            unit if unit.starts_with("ms") => (1, 2),
            unit if unit.starts_with('s') => (1000, 1),
            unit if unit.starts_with('m') => (60_000, 1),
            unit if unit.starts_with('h') => (3_600_000, 1),
            _ => return None,
        };
        sum += number * factor;
        rest = unit.get(length..)?;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mirrors_copy_a_share() {
        for (json, expected) in [
            (json!({}), Some(10_000)),
            (json!({"percent": 0}), Some(0)),
            (json!({"percent": 20}), Some(2000)),
            (json!({"percent": 101}), None),
            (json!({"percent": -1}), None),
            (json!({"fraction": {"numerator": 7}}), Some(700)),
            (json!({"fraction": {"numerator": 1, "denominator": 3}}), Some(3333)),
            (json!({"fraction": {"numerator": 1, "denominator": 1_000_000}}), Some(1)),
            (json!({"fraction": {"numerator": 0, "denominator": 0}}), None),
            (json!({"fraction": {"numerator": u64::MAX, "denominator": u64::MAX}}), None),
            (json!({"percent": 1, "fraction": {"numerator": 1}}), None),
        ] {
            assert_eq!(mirror_share(&json), expected, "{json}");
        }
    }

    #[test]
    fn durations_are_those_of_the_api() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("1h30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("1d", None),
            ("123456s", None),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn unknown_parts_are_named() {
        let rule = json!({
            "matches": [{"path": {"type": "Glob", "value": "/*"}}],
            "filters": [{"type": "CORS"}, {"type": "RequestMirror", "requestMirror": {"percent": 500}}],
            "backendRefs": [{"name": "a", "filters": [{"type": "CORS"}]}],
            "retry": {}, "timeouts": {"request": "x"},
        });
        let rule = RouteRule::read(&rule, "HTTPRoute", "n");
        assert_eq!(rule.unsupported.len(), 6);
        assert!(rule.matches.is_empty());
    }
}
