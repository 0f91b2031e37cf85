//! Hosts with their locations: which Ingress has which path.

use std::collections::BTreeMap;

use crate::annotation::policy::Policy;
use crate::cluster::object::{ObjectName, PathKind};
use crate::quote;

/// Paths of the controller itself.
pub(super) const OWN_PATHS: &str = "/_tailwater-ingress";

/// One host.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Certificate and key, with the Ingress that names them.
    pub(super) certificate: Option<(String, String, ObjectName)>,
    /// An Ingress asks for TLS.
    pub(super) has_tls: bool,
    /// TLS is not decrypted.
    pub(super) has_passthrough: bool,
    /// Numbers of the policies that have locations here, the oldest first.
    pub(super) policies: Vec<usize>,
    /// Locations.
    pub(super) locations: BTreeMap<(PathKind, String), Location>,
}

/// One path of a host.
#[derive(Debug, Clone)]
pub(super) struct Location {
    /// Number of the policy.
    pub(super) policy: usize,
    /// Destination.
    pub(super) target: Target,
}

/// Destination of requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// Upstream group.
    Group(String),
    /// Variable with the name of a group, and the groups that it may have.
    Choice(String),
    /// No group, for this reason: 503.
    Unavailable(String),
}

/// A location as the configuration has it.
#[derive(Debug)]
pub(super) struct WrittenLocation {
    /// Words between `location` and `{`.
    pub(super) head: String,
    /// Key of the location.
    pub(super) key: (PathKind, String),
    /// Path is a regular expression, for rewrites.
    pub(super) regex: Option<String>,
}

/// Comparison and path as they are kept: prefixes without a slash at their end.
pub(super) fn key(kind: PathKind, path: &str) -> Result<(PathKind, String), String> {
    if !path.starts_with('/') || path.chars().any(char::is_control) || path.len() > 1024 {
        return Err(format!("path {path:?} is invalid"));
    }
    if path.starts_with(OWN_PATHS) {
        return Err(format!("path \"{path}\" belongs to the controller"));
    }
    Ok(match kind {
        PathKind::Prefix => (kind, path.trim_end_matches('/').to_owned()),
        PathKind::ImplementationSpecific if path == "/" => (PathKind::Prefix, String::new()),
        _ => (kind, path.to_owned()),
    })
}

impl Host {
    /// Locations in the order of the configuration. Regular expressions are tried in their order, so longer paths come first.
    pub(super) fn written_locations(&self, policies: &[Policy]) -> Vec<WrittenLocation> {
        let of = |location: &Location| policies.get(location.policy);
        let is_regex = |key: &(PathKind, String), location: &Location| {
            let policy = of(location);
            key.0 != PathKind::Exact
                && policy.is_some_and(|policy| policy.use_regex || policy.rewrite.is_some())
        };
        let any_regex = self.locations.iter().any(|(key, location)| is_regex(key, location));
        let mut locations: Vec<_> = self.locations.iter().collect();
        if any_regex {
            locations
                .sort_by_key(|((kind, path), _)| (*kind != PathKind::Exact, std::cmp::Reverse(path.len())));
        }
        let mut written = Vec::new();
        for (key, location) in locations {
            let (kind, path) = key;
            let mut add = |begin: &str, text: &str, regex: Option<&str>| {
                if let Some(word) = quote::verbatim(text) {
                    let head = format!("{begin}{word}");
                    written.push(WrittenLocation { head, key: key.clone(), regex: regex.map(str::to_owned) });
                }
            };
            let escaped = quote::regex_escaped(path);
            match kind {
                PathKind::Exact => add("= ", path, Some(&format!("^{escaped}$"))),
                _ if is_regex(key, location) => {
                    let path = if path.is_empty() { "/" } else { path };
                    let pattern = format!("^{path}");
                    add("~* ", &pattern, Some(&pattern));
                }
                _ if path.is_empty() => add("", "/", None),
                PathKind::Prefix if any_regex => add("~ ", &format!("^{escaped}(/|$)"), None),
                PathKind::ImplementationSpecific if any_regex => add("~ ", &format!("^{escaped}"), None),
                PathKind::Prefix => {
                    if !self.locations.contains_key(&(PathKind::Exact, path.clone())) {
                        add("= ", path, None);
                    }
                    add("", &format!("{path}/"), None);
                }
                PathKind::ImplementationSpecific => {
                    // A prefix with the same text matches whole elements and takes precedence.
                    let as_prefix = path.strip_suffix('/').map(|path| (PathKind::Prefix, path.to_owned()));
                    if as_prefix.is_none_or(|key| !self.locations.contains_key(&key)) {
                        add("", path, None);
                    }
                }
            }
        }
        written
    }
}

/// `server_name` of a host. A wildcard stands for exactly one label.
pub(super) fn server_name(host: &str) -> String {
    match (host, host.strip_prefix("*.")) {
        ("", _) => "_".to_owned(),
        (_, Some(rest)) => format!("\"~^[^.]+\\.{}$\"", rest.replace('.', "\\.")),
        (host, None) => host.to_owned(),
    }
}

/// Returns true for a host of a rule.
pub(super) fn is_valid(host: &str) -> bool {
    host.is_empty() || quote::is_host(host.strip_prefix("*.").unwrap_or(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(paths: &[(PathKind, &str, usize)]) -> Vec<String> {
        let mut host = Host::default();
        for (kind, path, policy) in paths {
            let location = Location { policy: *policy, target: Target::Group("g".to_owned()) };
            host.locations.insert(key(*kind, path).unwrap(), location);
        }
        let regex = Policy { use_regex: true, ..Policy::default() };
        host.written_locations(&[Policy::default(), regex])
            .into_iter()
            .map(|written_location| written_location.head)
            .collect()
    }

    #[test]
    fn paths_are_compared_by_their_kind() {
        use PathKind::{Exact, ImplementationSpecific, Prefix};
        for (paths, expected) in [
            (vec![(Prefix, "/", 0)], vec!["\"/\""]),
            (vec![(Prefix, "/a", 0)], vec!["= \"/a\"", "\"/a/\""]),
            (vec![(Prefix, "/a/", 0)], vec!["= \"/a\"", "\"/a/\""]),
            (vec![(Exact, "/a", 0), (Prefix, "/a", 0)], vec!["= \"/a\"", "\"/a/\""]),
            (vec![(ImplementationSpecific, "/a", 0)], vec!["\"/a\""]),
            (vec![(ImplementationSpecific, "/a/", 0), (Prefix, "/a", 0)], vec!["= \"/a\"", "\"/a/\""]),
            (
                vec![
                    (Prefix, "/", 0),
                    (Prefix, "/a.b", 0),
                    (ImplementationSpecific, "/longer/(.*)", 1),
                    (Exact, "/e", 1),
                ],
                vec!["= \"/e\"", "~* \"^/longer/(.*)\"", "~ \"^/a\\\\.b(/|$)\"", "\"/\""],
            ),
        ] {
            assert_eq!(heads(&paths), expected, "{paths:?}");
        }
    }

    #[test]
    fn odd_paths_and_hosts_are_refused() {
        for path in ["", "a", "/a\n", "/_tailwater-ingress/auth/a"] {
            assert!(key(PathKind::Prefix, path).is_err(), "{path:?}");
        }
        for (host, expected) in [
            ("", true),
            ("a.b", true),
            ("*.b", true),
            ("*", false),
            ("a;b", false),
            ("a.*", false),
            ("A.b", false),
        ] {
            assert_eq!(is_valid(host), expected, "{host:?}");
        }
        assert_eq!(server_name("*.a.b"), "\"~^[^.]+\\.a\\.b$\"");
    }
}
