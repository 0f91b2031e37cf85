//! Versions, orders and reports, as JSON.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::signature::{PublicKey, SigningKey, unverified};
use crate::record::BytesText;

/// Length of the name of a file.
const NAME_SIZE_MAX: usize = 255;
/// Length of a message of a report.
const MESSAGE_SIZE_MAX: usize = 2000;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Files of a version of a fleet's configuration.
    const FILES_MAX: usize = 1000, count, "the version is refused";
    /// Files of a version of a fleet's configuration together.
    ///
    /// All of them, bytes: signed, in base64 and JSON they fit into a value of the store.
    const FILES_SIZE_MAX: usize = 256 << 10, bytes, "the version is refused";
}

/// Reason why something is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationError(String);

impl ConfigurationError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigurationError {}

/// Content of each file, by its name relative to the directory of the main file.
pub type FilesOfVersion = BTreeMap<String, Vec<u8>>;

/// Version of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationVersion {
    /// Fleet that it is for.
    pub fleet: String,
    /// Number, which grows.
    pub number: u64,
    /// Name of who has pushed it.
    pub author: String,
    /// Time of that, in milliseconds since 1970.
    pub time_ms: u64,
    /// Name of the main file.
    pub main: String,
    /// Content.
    pub files: FilesOfVersion,
}

#[derive(Serialize, Deserialize)]
struct WrittenVersion {
    fleet: String,
    number: u64,
    author: String,
    time: u64,
    main: String,
    files: BTreeMap<String, BytesText>,
}

/// Order to a node to take over a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationOrder {
    /// Fleet of the node.
    pub fleet: String,
    /// Name of the node.
    pub node: String,
    /// Number of the version.
    pub number: u64,
    /// Digest of its files.
    pub digest: String,
    /// Number of the order: a node obeys none that is not larger than the last one.
    pub serial: u64,
    /// Seconds after the version was taken over in which the node goes back by itself if it is not healthy. 0 is none, as in orders of
    /// earlier versions.
    #[serde(default)]
    pub settle_s: u64,
    /// Percentage of responses with 5xx that is healthy.
    #[serde(default)]
    pub max_errors: u64,
    /// Version that an order back leaves; `None`, as in orders of earlier versions, is whatever is served.
    #[serde(default)]
    pub leaves: Option<u64>,
}

/// State of a node after an order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportState {
    /// There was no order yet.
    #[default]
    Waiting,
    /// The version is served.
    Serving,
    /// The version was refused, and the node serves what it served before.
    Refused,
}

/// Report of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigurationReport {
    /// Name of the node.
    pub node: String,
    /// Number of the last order.
    pub serial: u64,
    /// State after it.
    pub state: ReportState,
    /// Version that is served; 0 for one that was not pushed.
    pub number: u64,
    /// Version that a rollback goes back to; 0 for one that was not pushed, or if there is none.
    pub previous: u64,
    /// Reason of a refusal.
    pub message: String,
    /// Time of the report, in milliseconds since 1970 by the clock of the node.
    pub time: u64,
    /// True if the metrics of the node could be read.
    pub has_metrics: bool,
    /// Responses since the server was started.
    pub responses: u64,
    /// Responses of the class 5xx.
    pub errors: u64,
    /// Turns of event loops that took too long.
    pub stalls: u64,
}

const VERSION: &str = "version";
const ORDER: &str = "order";

fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, ConfigurationError> {
    serde_json::from_slice(document).map_err(|_| ConfigurationError::new("the document is not understood"))
}

/// Returns true for a name that stays in its directory.
fn is_safe_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.len() <= NAME_SIZE_MAX
        && name.split('/').all(is_part)
        && !name.bytes().any(|byte| byte.is_ascii_control())
}

impl ConfigurationVersion {
    /// Checks names, number and size of the files.
    ///
    /// # Errors
    /// Reason why the version cannot be used.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        let size: usize = self.files.iter().map(|(name, text)| name.len() + text.len()).sum();
        if let Some(name) = self.files.keys().find(|name| !is_safe_name(name)) {
            return Err(ConfigurationError::new(format!("the name {name:?} is not allowed")));
        }
        if !self.files.contains_key(&self.main) {
            return Err(ConfigurationError::new("its main file is missing"));
        }
        if self.files.len() > FILES_MAX {
            return Err(ConfigurationError::new(format!("it has more than {FILES_MAX} files")));
        }
        if size > FILES_SIZE_MAX {
            return Err(ConfigurationError::new(format!(
                "its files have {size} bytes, more than {FILES_SIZE_MAX}"
            )));
        }
        Ok(())
    }

    /// Digest of the files: SHA-256, in hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut bytes = Vec::new();
        for part in [self.main.as_bytes()]
            .into_iter()
            .chain(self.files.iter().flat_map(|(name, text)| [name.as_bytes(), text]))
        {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Value of the store.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, ConfigurationError> {
        self.check()?;
        let version = WrittenVersion {
            fleet: self.fleet.clone(),
            number: self.number,
            author: self.author.clone(),
            time: self.time_ms,
            main: self.main.clone(),
            files: self.files.iter().map(|(name, text)| (name.clone(), BytesText(text.clone()))).collect(),
        };
        // Texts and numbers only, which cannot fail.
        Ok(key.sign(VERSION, &serde_json::to_vec(&version).unwrap_or_default()))
    }

    /// Reads a value of the store, signed by this key.
    ///
    /// # Errors
    /// Reason why it cannot be used.
    pub fn verify(key: &PublicKey, value: &[u8]) -> Result<Self, ConfigurationError> {
        Self::of_document(&key.verify(VERSION, value)?)
    }

    /// Reads a value of the store whose signature is not looked at.
    pub fn unverified(value: &[u8]) -> Option<Self> {
        Self::of_document(&unverified(value)?).ok()
    }

    fn of_document(document: &[u8]) -> Result<Self, ConfigurationError> {
        let written_version: WrittenVersion = read(document)?;
        let version = Self {
            fleet: written_version.fleet,
            number: written_version.number,
            author: written_version
                .author
                .chars()
                .filter(|char| !char.is_control())
                .take(NAME_SIZE_MAX)
                .collect(),
            time_ms: written_version.time,
            main: written_version.main,
            files: written_version.files.into_iter().map(|(name, text)| (name, text.0)).collect(),
        };
        version.check()?;
        Ok(version)
    }
}

impl ConfigurationOrder {
    /// Value of the store.
    pub fn sign(&self, key: &SigningKey) -> Vec<u8> {
        key.sign(ORDER, &serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns true for an order back from a version that is not the one that is served: the node has left it already, and what it serves
    /// may be good.
    pub fn is_done_with(&self, served: u64) -> bool {
        self.number == 0 && self.leaves.is_some_and(|leaves| leaves != served)
    }

    /// Reads a value of the store, signed by this key.
    ///
    /// # Errors
    /// Reason why it is not obeyed.
    pub fn verify(key: &PublicKey, value: &[u8]) -> Result<Self, ConfigurationError> {
        read(&key.verify(ORDER, value)?)
    }
}

impl ConfigurationReport {
    /// Value of the store.
    pub fn encode(&self) -> Vec<u8> {
        let mut report = self.clone();
        let end = report.message.floor_char_boundary(MESSAGE_SIZE_MAX);
        report.message.truncate(end);
        serde_json::to_vec(&report).unwrap_or_default()
    }

    /// Reads a value of the store. Texts are safe to print.
    pub fn decode(node: &str, value: &[u8]) -> Option<Self> {
        let mut report: Self = serde_json::from_slice(value).ok()?;
        node.clone_into(&mut report.node);
        report.message =
            report.message.chars().filter(|char| !char.is_control()).take(MESSAGE_SIZE_MAX).collect();
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> ConfigurationVersion {
        let file = |name: &str, text: &[u8]| (name.to_owned(), text.to_vec());
        ConfigurationVersion {
            fleet: "edge".to_owned(),
            number: 3,
            author: "ops".to_owned(),
            time_ms: 5,
            main: "nginx.conf".to_owned(),
            files: [file("nginx.conf", b"events { }"), file("sites/a.conf", b"\xff")].into(),
        }
    }

    #[test]
    fn only_the_trusted_key_signs() {
        let (private, public) = SigningKey::generate().unwrap();
        let key = SigningKey::read(&private).unwrap();
        let trusted = PublicKey::read(&public).unwrap();
        let value = version().sign(&key).unwrap();
        assert_eq!(ConfigurationVersion::verify(&trusted, &value), Ok(version()));
        let (other, _) = SigningKey::generate().unwrap();
        let forged = version().sign(&SigningKey::read(&other).unwrap()).unwrap();
        let error = ConfigurationVersion::verify(&trusted, &forged).unwrap_err();
        assert_eq!(error.to_string(), "its signature is not that of the trusted key");
        assert_eq!(ConfigurationVersion::unverified(&forged), Some(version()));
        let order = ConfigurationOrder {
            fleet: "edge".to_owned(),
            node: "a".to_owned(),
            number: 3,
            digest: version().digest(),
            serial: 1,
            settle_s: 30,
            max_errors: 5,
            leaves: None,
        };
        assert_eq!(ConfigurationOrder::verify(&trusted, &order.sign(&key)), Ok(order.clone()));
        // A version is no order, and a changed byte is noticed.
        assert!(ConfigurationOrder::verify(&trusted, &value).is_err());
        let text = String::from_utf8(order.sign(&key)).unwrap();
        let damaged = text.replacen("document\":\"e", "document\":\"f", 1);
        assert!(ConfigurationOrder::verify(&trusted, damaged.as_bytes()).is_err());
        assert!(PublicKey::read(&private).is_err() && SigningKey::read(&public).is_err());
    }

    #[test]
    fn order_back_is_from_one_version() {
        let order = |leaves: &str| {
            let text = format!(r#"{{"fleet":"edge","node":"a","number":0,"digest":"","serial":1{leaves}}}"#);
            read::<ConfigurationOrder>(text.as_bytes()).unwrap()
        };
        let back = order(r#","leaves":12"#);
        assert!(!back.is_done_with(12) && back.is_done_with(11) && back.is_done_with(0));
        assert!(!order("").is_done_with(11), "of an earlier version");
        assert!(!ConfigurationOrder { number: 13, ..back }.is_done_with(11));
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", "/etc/passwd", "../a", "a/../../b", "a//b", "./a", "a\nb"] {
            let mut version = version();
            version.files.insert(name.to_owned(), Vec::new());
            assert!(version.check().is_err(), "{name:?}");
        }
        let mut large = version();
        large.files.insert("a".to_owned(), vec![b'x'; FILES_SIZE_MAX]);
        assert!(large.check().is_err());
        assert_ne!(version().digest(), large.digest());
    }

    #[test]
    fn reports_are_safe_to_print() {
        let report =
            ConfigurationReport { message: "a\u{1b}[31m\n".to_owned(), ..ConfigurationReport::default() };
        let configuration_report = ConfigurationReport::decode("n", &report.encode()).unwrap();
        assert_eq!((&*configuration_report.node, &*configuration_report.message), ("n", "a[31m"));
        assert_eq!(ConfigurationReport::decode("n", b"x"), None);
    }
}
