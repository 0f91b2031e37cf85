//! Lists of revoked tokens: `auth_jwt_revocation_list_sub`, `auth_jwt_revocation_list_kid`.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use tw_conf::{ConfError, Node};
use tw_log::Text;
use tw_module_support::cached_files::{CachedFiles, CachedFormat, NamedFile, RawNamedFile};
use tw_request::request::Request;
use tw_request::vars::names_in;

use super::key_source::{KeyFailure, file_failure};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a list of revoked tokens.
    ///
    /// Bytes of a list: some 300,000 identifiers of users, which a pool parses in 50 ms.
    pub(super) const LIST_SIZE_MAX: u64 = 16 << 20, bytes, "the list cannot be used: 500";
    /// Bytes of lists of revoked tokens kept in memory by a configuration.
    pub(super) const KEPT_SIZE_MAX: u64 = 64 << 20, bytes, "the list used longest ago is read again when it is needed";
}

/// Lists, parsed.
pub(super) type RevocationFiles = CachedFiles<RevocationList>;

pub(super) static REVOCATION_LISTS: CachedFormat<RevocationList> =
    CachedFormat { size_max: LIST_SIZE_MAX, kept_size_max: KEPT_SIZE_MAX, parse: RevocationList::parse };

/// Names of the members of an object in JSON.
#[derive(Debug)]
pub(super) struct RevocationList(HashSet<Box<str>>);

impl RevocationList {
    fn parse(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// Returns `true` if `name` is in the list.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

impl<'de> Deserialize<'de> for RevocationList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = RevocationList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<RevocationList, A::Error> {
                let mut names = HashSet::new();
                while let Some((name, IgnoredAny)) = members.next_entry::<Box<str>, IgnoredAny>()? {
                    names.insert(name);
                }
                Ok(RevocationList(names))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Reads the name of a list. A variable cannot choose it: until the token is verified, a claim is what the client wrote.
pub(super) fn read(node: &Node, prefix: &[u8]) -> Result<RawNamedFile, ConfError> {
    let word = node.arg(0)?;
    match names_in(&word.bytes).next() {
        Some(_) => Err(node.error("does not take variables").at(word.span)),
        None => Ok(RawNamedFile::new(word, prefix)),
    }
}

/// The list of a file, if it need not be waited for.
pub(super) fn list_now(
    r: &Request,
    files: &RevocationFiles,
    file: &NamedFile,
) -> Option<Arc<RevocationList>> {
    files.content_now(r.disk()?, &file.path(r))
}

/// The list of a file, waiting for the disk.
pub(super) async fn list(
    r: &mut Request,
    files: &RevocationFiles,
    file: &NamedFile,
) -> Result<Arc<RevocationList>, KeyFailure> {
    let path = file.path(r);
    let Some(disk) = r.disk().cloned() else { return Err(KeyFailure::Unusable("no disk".to_owned())) };
    let shown = Text(path.to_bytes()).to_string();
    let list = files.content(&disk, &mut r.costs.account, &path).await;
    list.map_err(|error| file_failure(error, path, &format!("revocation list \"{shown}\""), LIST_SIZE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_object_are_revoked() {
        let list =
            RevocationList::parse(br#"{ "a": 1, "b": { "why": ["x"] }, "c\u0064": null, "a": 2 }"#).unwrap();
        for (name, expected) in [("a", true), ("b", true), ("cd", true), ("why", false), ("", false)] {
            assert_eq!(list.has(name), expected, "{name}");
        }
        assert!(!RevocationList::parse(b"{}").unwrap().has("a"));
        for text in ["", "[]", "[\"a\"]", "{\"a\": 1", "{\"a\": 1} x", "null"] {
            assert!(RevocationList::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
