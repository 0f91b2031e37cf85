//! Announcements: small messages by which nodes tell each other what is true for some seconds. Nothing is stored, and a lost one is
//! followed by the next.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::is_name;
use crate::shared_rate::RATE_NAME_SIZE_MAX;

/// Version of the format.
const VERSION: u32 = 1;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Announcement of a node of a fleet: demand of keys, and health of upstream servers.
    pub(crate) const ANNOUNCEMENT_SIZE_MAX: usize = 64 << 10, bytes, "it is not read";
    /// Rates that the nodes of a fleet share.
    pub(crate) const RATES_MAX: usize = 32, count, "keys of further ones have equal shares on all nodes";
    /// Keys whose demand a node announces, of all rates together.
    pub(crate) const KEYS_MAX: usize = 1024, count,
        "keys that are asked less have the smallest share, if other nodes announce them, or an equal one";
    /// Groups of upstream servers whose health the nodes of a fleet share.
    pub(crate) const GROUPS_MAX: usize = 64, count, "the health of further ones is not announced";
    /// Peers of upstream groups whose health a node announces.
    pub(crate) const PEERS_MAX: usize = 256, count, "the health of further ones is not announced";
    /// Name of a group, or address of a peer, in an announcement of a fleet.
    pub(crate) const PEER_TEXT_SIZE_MAX: usize = 128, bytes, "it is not announced";
}

/// Announcement of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    version: u32,
    /// Name of the node.
    pub(crate) node: String,
    /// Word of the process.
    pub(crate) process: String,
    /// Number of the announcement, by which the process knows its own when they come back.
    #[serde(default)]
    pub(crate) number: u64,
    /// True if the process leaves, and says no more.
    #[serde(default)]
    pub(crate) is_leaving: bool,
    /// Demand of keys by rate, in thousandths of a request per second.
    #[serde(default)]
    pub(crate) rates: BTreeMap<String, Vec<(u64, u64)>>,
    /// Addresses that the node itself has found to be up or down, by group.
    #[serde(default)]
    pub(crate) peers: BTreeMap<String, Vec<(String, bool)>>,
}

impl Announcement {
    pub(crate) fn new(node: &str, process: &str) -> Self {
        Self { version: VERSION, node: node.to_owned(), process: process.to_owned(), ..Self::default() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what another node says; `None` if it is none or exceeds a limit.
    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        if text.len() > ANNOUNCEMENT_SIZE_MAX {
            return None;
        }
        let read: Self = serde_json::from_slice(text).ok()?;
        let is_word = |text: &str, size_max| text.len() <= size_max && !text.contains(char::is_control);
        let keys: usize = read.rates.values().map(Vec::len).sum();
        let peers: usize = read.peers.values().map(Vec::len).sum();
        let is_valid = read.version == VERSION
            && is_name(&read.node)
            && is_word(&read.process, 64)
            && read.rates.len() <= RATES_MAX
            && read.rates.keys().all(|name| is_word(name, RATE_NAME_SIZE_MAX))
            && keys <= KEYS_MAX
            && read.peers.len() <= GROUPS_MAX
            && peers <= PEERS_MAX
            && read.peers.keys().all(|name| is_word(name, PEER_TEXT_SIZE_MAX))
            && read.peers.values().flatten().all(|(address, _)| is_word(address, PEER_TEXT_SIZE_MAX));
        is_valid.then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Announcement {
        let mut full = Announcement::new(&"n".repeat(64), &"p".repeat(32));
        for nth in 0..RATES_MAX {
            let keys = vec![(u64::MAX, u64::MAX); KEYS_MAX / RATES_MAX];
            full.rates.insert(format!("{nth}"), keys);
        }
        full
    }

    #[test]
    fn announcements_are_read_back() {
        let mut some = Announcement::new("n1", "word");
        some.number = 7;
        some.rates.insert("api".to_owned(), vec![(u64::MAX, 5), (1, 0)]);
        some.peers.insert("http/b".to_owned(), vec![("127.0.0.1:80".to_owned(), false)]);
        assert_eq!(Announcement::decode(&some.encode()), Some(some));
        assert_eq!(Announcement::decode(&full().encode()), Some(full()), "all keys fit");
        let later = br#"{"version":1,"node":"a","process":"b","more":{"x":[1]}}"#;
        assert_eq!(Announcement::decode(later), Some(Announcement::new("a", "b")));
    }

    #[test]
    fn hostile_announcements_are_not_read() {
        let mut texts: Vec<Vec<u8>> = [
            &b""[..],
            b"[]",
            b"{}",
            br#"{"version":2,"node":"a","process":"b"}"#,
            br#"{"version":1,"node":"a b","process":"b"}"#,
            br#"{"version":1,"node":"","process":"b"}"#,
            br#"{"version":1,"node":"a","process":"\u001b[2J"}"#,
            br#"{"version":1,"node":"a","process":"b","rates":{"z":[[1,-1]]}}"#,
            br#"{"version":1,"node":"a","process":"b","rates":{"z":[[1,1e99]]}}"#,
            br#"{"version":1,"node":"a","process":"b","peers":{"g":[["x\u0000",true]]}}"#,
        ]
        .map(<[u8]>::to_vec)
        .into();
        let mut many = full();
        many.rates.insert("more".to_owned(), Vec::new());
        texts.push(many.encode());
        let mut many = full();
        many.rates.values_mut().next().unwrap().push((1, 1));
        texts.push(many.encode());
        let mut many = Announcement::new("a", "b");
        many.peers.insert("g".to_owned(), vec![(String::new(), true); PEERS_MAX + 1]);
        texts.push(many.encode());
        let mut long = Announcement::new("a", "b");
        long.rates.insert("z".repeat(RATE_NAME_SIZE_MAX + 1), Vec::new());
        texts.push(long.encode());
        texts.push(vec![b' '; ANNOUNCEMENT_SIZE_MAX + 1]);
        texts.push(vec![b'['; 60_000]);
        for text in texts {
            assert_eq!(Announcement::decode(&text), None, "{}", String::from_utf8_lossy(&text));
        }
    }
}
