//! Records of the log, as JSON: other versions of this program and people read them.
//!
//! ```text
//! {"version":1,"id":"…","node":"a","time":1700000000000,"purge":{"cache":"site","mode":"soft","prefix":"www.example.com/"}}
//! {"version":1,"id":"…","node":"a","time":1700000000000,"lost":true}
//! ```
//! Texts that are not UTF-8 are written as `base64:…`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tw_http::base64::{self, Alphabet};

/// Largest record, bytes. A field section that names tags is smaller.
pub(crate) const RECORD_SIZE_MAX: usize = 512 << 10;

/// Version of the records that is written, and the newest that is understood.
const VERSION: u32 = 1;

/// Beginning of a text in base64.
const BASE64: &str = "base64:";

/// Purge for all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetPurge {
    /// Name of the cache.
    pub cache: Vec<u8>,
    /// Responses that are purged.
    pub scope: FleetPurgeScope,
    /// Effect on them.
    pub mode: FleetPurgeMode,
}

/// Responses of a purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetPurgeScope {
    /// The response with this key, and its variants.
    Key(Vec<u8>),
    /// All whose keys begin like this.
    Prefix(Vec<u8>),
    /// All with one of these tags.
    Tags(Vec<Vec<u8>>),
}

/// Effect of a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FleetPurgeMode {
    /// Responses are not used again.
    Hard,
    /// Responses are stale.
    Soft,
}

/// Record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetRecord {
    /// Number of its own.
    pub id: String,
    /// Node that has written it.
    pub node: String,
    /// Time at which it was written, in milliseconds since 1970.
    pub time_ms: u64,
    /// Content.
    pub kind: RecordKind,
}

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordKind {
    /// A purge.
    Purge(FleetPurge),
    /// Records of the log were lost: everything that was stored before is stale.
    Lost,
}

/// Reason why a record is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordError {
    /// A newer version of this program has written it.
    Newer,
    /// Content that is none of a fleet.
    Foreign,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newer => "a newer version has written it",
            Self::Foreign => "it is none of a fleet",
        })
    }
}

impl std::error::Error for RecordError {}

#[derive(Serialize, Deserialize)]
struct RecordJson {
    version: u32,
    id: String,
    node: String,
    time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    purge: Option<PurgeJson>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

#[derive(Serialize, Deserialize)]
struct PurgeJson {
    cache: BytesText,
    mode: FleetPurgeMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<BytesText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<BytesText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<Vec<BytesText>>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

/// Bytes that are a text most of the time.
pub(crate) struct BytesText(pub(crate) Vec<u8>);

impl Serialize for BytesText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with(BASE64) => serializer.serialize_str(text),
            _ => {
                let encoded = base64::encode(&self.0);
                serializer.serialize_str(&format!("{BASE64}{}", String::from_utf8_lossy(&encoded)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for BytesText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Some(encoded) = text.strip_prefix(BASE64) else { return Ok(Self(text.into_bytes())) };
        let mut bytes = Vec::new();
        match base64::decode(encoded.as_bytes(), Alphabet::Standard, &mut bytes) {
            Ok(()) => Ok(Self(bytes)),
            Err(_) => Err(serde::de::Error::custom("invalid base64")),
        }
    }
}

impl FleetRecord {
    /// Text of the record.
    pub fn encode(&self) -> Vec<u8> {
        let text = |bytes: &[u8]| BytesText(bytes.to_vec());
        let purge = match &self.kind {
            RecordKind::Lost => None,
            RecordKind::Purge(FleetPurge { cache, scope, mode }) => {
                let mut purge =
                    PurgeJson { cache: text(cache), mode: *mode, key: None, prefix: None, tags: None };
                match scope {
                    FleetPurgeScope::Key(key) => purge.key = Some(text(key)),
                    FleetPurgeScope::Prefix(prefix) => purge.prefix = Some(text(prefix)),
                    FleetPurgeScope::Tags(tags) => {
                        purge.tags = Some(tags.iter().map(|tag| text(tag)).collect());
                    }
                }
                Some(purge)
            }
        };
        let record_json = RecordJson {
            version: VERSION,
            id: self.id.clone(),
            node: self.node.clone(),
            time: self.time_ms,
            lost: purge.is_none(),
            purge,
        };
        // Texts and numbers only, which cannot fail.
        serde_json::to_vec(&record_json).unwrap_or_default()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn decode(payload: &[u8]) -> Result<Self, RecordError> {
        let version =
            serde_json::from_slice::<VersionOnly>(payload).map_err(|_| RecordError::Foreign)?.version;
        if version > VERSION {
            return Err(RecordError::Newer);
        }
        let record_json = serde_json::from_slice::<RecordJson>(payload).map_err(|_| RecordError::Foreign)?;
        let kind = match record_json.purge {
            None if record_json.lost => RecordKind::Lost,
            None => return Err(RecordError::Foreign),
            Some(PurgeJson { cache, mode, key, prefix, tags }) => {
                let scope = match (key, prefix, tags) {
                    (Some(key), None, None) => FleetPurgeScope::Key(key.0),
                    (None, Some(prefix), None) => FleetPurgeScope::Prefix(prefix.0),
                    (None, None, Some(tags)) => {
                        FleetPurgeScope::Tags(tags.into_iter().map(|tag| tag.0).collect())
                    }
                    _ => return Err(RecordError::Foreign),
                };
                RecordKind::Purge(FleetPurge { cache: cache.0, scope, mode })
            }
        };
        Ok(Self { id: record_json.id, node: record_json.node, time_ms: record_json.time, kind })
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::Random;

    use super::*;

    fn record(kind: RecordKind) -> FleetRecord {
        FleetRecord { id: "1".to_owned(), node: "a".to_owned(), time_ms: 5, kind }
    }

    #[test]
    fn records_are_read_as_written() {
        let purge = |scope, mode| RecordKind::Purge(FleetPurge { cache: b"site".to_vec(), scope, mode });
        for kind in [
            RecordKind::Lost,
            purge(FleetPurgeScope::Key(b"a\"b\n".to_vec()), FleetPurgeMode::Hard),
            purge(FleetPurgeScope::Key(b"\xff\x00".to_vec()), FleetPurgeMode::Soft),
            purge(FleetPurgeScope::Prefix(Vec::new()), FleetPurgeMode::Soft),
            purge(FleetPurgeScope::Prefix(b"base64:eA==".to_vec()), FleetPurgeMode::Hard),
            purge(FleetPurgeScope::Tags(vec![b"a".to_vec(), b"b".to_vec()]), FleetPurgeMode::Hard),
            purge(FleetPurgeScope::Tags(Vec::new()), FleetPurgeMode::Hard),
        ] {
            let fleet_record = record(kind);
            assert_eq!(FleetRecord::decode(&fleet_record.encode()), Ok(fleet_record));
        }
        let text = record(purge(FleetPurgeScope::Prefix(b"/".to_vec()), FleetPurgeMode::Soft)).encode();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            r#"{"version":1,"id":"1","node":"a","time":5,"purge":{"cache":"site","mode":"soft","prefix":"/"}}"#
        );
    }

    #[test]
    fn foreign_and_newer_records_differ() {
        for (text, error) in [
            ("", RecordError::Foreign),
            ("[]", RecordError::Foreign),
            (r#"{"version":2,"anything":1}"#, RecordError::Newer),
            (r#"{"version":1,"id":"1","node":"a","time":5}"#, RecordError::Foreign),
            (
                r#"{"version":1,"id":"1","node":"a","time":5,"purge":{"cache":"c","mode":"hard"}}"#,
                RecordError::Foreign,
            ),
            (
                r#"{"version":1,"id":"1","node":"a","time":5,"purge":{"cache":"c","mode":"hot","key":"a"}}"#,
                RecordError::Foreign,
            ),
            (
                r#"{"version":1,"id":"1","node":"a","time":5,"purge":{"cache":"c","mode":"hard","key":"base64:?"}}"#,
                RecordError::Foreign,
            ),
            (
                r#"{"version":1,"id":"1","node":"a","time":5,"purge":{"cache":"c","mode":"hard","key":"a","prefix":"b"}}"#,
                RecordError::Foreign,
            ),
        ] {
            assert_eq!(FleetRecord::decode(text.as_bytes()), Err(error), "{text}");
        }
        let good = record(RecordKind::Lost).encode();
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut text = good.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(text.len());
                text[at] = random.below(256) as u8;
            }
            // Decoding returns an error or a record, and never panics.
            let _ = FleetRecord::decode(&text);
        }
    }
}
