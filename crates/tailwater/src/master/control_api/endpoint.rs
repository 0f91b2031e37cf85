//! Paths of the control API, and bodies of requests.

use serde::Deserialize;
use tailwater_commands::cli::{Purge, PurgeMode, PurgeScope};
use tw_http::Method;

/// Object that a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A list of names below the path.
    List(&'static [&'static str]),
    /// Version of nginx whose configuration is read.
    Nginx,
    Processes,
    Config,
    Status,
    /// Numbers of the status page.
    Metrics,
    Messages,
    /// Purge of the cache with this name.
    Purge(String),
}

/// Body of a purge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PurgeBody {
    key: Option<String>,
    tag: Option<String>,
    #[serde(default)]
    soft: bool,
}

impl Endpoint {
    /// Object of a path; a slash at its end is ignored. `None` if there is no such path.
    pub(super) fn of(path: &[u8]) -> Option<Self> {
        let path = std::str::from_utf8(path).ok()?.trim_matches('/');
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        Some(match parts[..] {
            [] => Self::List(&["1"]),
            ["1"] => Self::List(&["control", "nginx", "tailwater"]),
            ["1", "nginx"] => Self::Nginx,
            ["1", "control"] => Self::List(&["processes", "config"]),
            ["1", "control", "processes"] => Self::Processes,
            ["1", "control", "config"] => Self::Config,
            ["1", "tailwater"] => Self::List(&["status", "metrics", "messages", "caches"]),
            ["1", "tailwater", "status"] => Self::Status,
            ["1", "tailwater", "metrics"] => Self::Metrics,
            ["1", "tailwater", "messages"] => Self::Messages,
            ["1", "tailwater", "caches", name, "purge"] => Self::Purge(name.to_owned()),
            _ => return None,
        })
    }

    /// Returns true if the object has the method.
    pub(super) fn has(&self, method: Method) -> bool {
        match (self, method) {
            (Self::Purge(_), method) => method == Method::Post,
            (Self::Metrics, method) => method == Method::Get,
            (Self::Config, Method::Patch) | (_, Method::Get | Method::Head) => true,
            _ => false,
        }
    }
}

/// Reads the body of a purge: one of `key`, which may end in `*`, and `tag`.
///
/// # Errors
/// Text about what is wrong.
pub(super) fn purge(cache: &str, body: &[u8]) -> Result<Purge, String> {
    let PurgeBody { key, tag, soft } =
        serde_json::from_slice(body).map_err(|error| format!("invalid body: {error}"))?;
    let named = match (key, tag) {
        (Some(key), None) => PurgeScope::Key(key.into_bytes()),
        (None, Some(tag)) => PurgeScope::Tag(tag.into_bytes()),
        _ => return Err("invalid body: one of \"key\" and \"tag\" is required".to_owned()),
    };
    let mode = if soft { PurgeMode::Soft } else { PurgeMode::Hard };
    Ok(Purge { cache: cache.as_bytes().to_vec(), named, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_endpoints() {
        for (path, expected) in [
            ("/", Some(Endpoint::List(&["1"]))),
            ("/1/control/", Some(Endpoint::List(&["processes", "config"]))),
            ("/1/control/config", Some(Endpoint::Config)),
            ("/1/nginx", Some(Endpoint::Nginx)),
            ("/1/tailwater/metrics", Some(Endpoint::Metrics)),
            ("/1/tailwater/caches/a.b/purge", Some(Endpoint::Purge("a.b".to_owned()))),
            ("/2", None),
            ("/1/control/config/x", None),
            ("/1/tailwater/caches", None),
        ] {
            assert_eq!(Endpoint::of(path.as_bytes()), expected, "{path}");
        }
        assert!(Endpoint::of(b"/1/\xff").is_none());
        assert!(Endpoint::Config.has(Method::Patch) && !Endpoint::Status.has(Method::Patch));
        assert!(Endpoint::Metrics.has(Method::Get) && !Endpoint::Metrics.has(Method::Head));
        assert!(!Endpoint::Purge(String::new()).has(Method::Get) && Endpoint::Messages.has(Method::Head));
    }

    #[test]
    fn purge_names_a_key_or_a_tag() {
        let key = purge("c", br#"{"key":"a*","soft":true}"#).unwrap();
        assert_eq!((key.named, key.mode), (PurgeScope::Key(b"a*".to_vec()), PurgeMode::Soft));
        assert_eq!(purge("c", br#"{"tag":"a"}"#).unwrap().named, PurgeScope::Tag(b"a".to_vec()));
        for body in ["", "{}", "[]", r#"{"key":"a","tag":"b"}"#, r#"{"key":1}"#, r#"{"keys":"a"}"#] {
            assert!(purge("c", body.as_bytes()).is_err(), "{body}");
        }
    }
}
