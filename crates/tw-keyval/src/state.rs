//! Pairs as JSON: the text of a `state` file, and what the API shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pairs::{ChangeError, Pair, PairChange, Pairs};

/// Value in a file: a text, or one with the time at which it is gone.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenPair {
    Text(String),
    Expiring { value: String, expires: u64 },
}

/// Reason why the text of a file cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StateError {
    /// No JSON of this form.
    Malformed(String),
    /// Key that the table does not take.
    Refused(String, ChangeError),
}

/// Appends a member with a pair to the text of a file. Expiry times stand in it.
pub(super) fn write_member(key: &[u8], pair: &Pair, out: &mut Vec<u8>) {
    let value = String::from_utf8_lossy(&pair.value).into_owned();
    let written_pair = match pair.expires {
        None => WrittenPair::Text(value),
        Some(expires) => WrittenPair::Expiring { value, expires },
    };
    write_text(key, out);
    out.push(b':');
    // Such a value always can be written.
    let _ = serde_json::to_writer(out, &written_pair);
}

/// Appends a text as a string of JSON.
pub(super) fn write_text(text: &[u8], out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text));
}

/// Adds the pairs of the text of a file; an empty one has none. Those that have expired at `now` are left out.
pub(super) fn read(text: &[u8], pairs: &mut Pairs, now: u64) -> Result<(), StateError> {
    if text.trim_ascii().is_empty() {
        return Ok(());
    }
    let written_values: BTreeMap<String, WrittenPair> =
        serde_json::from_slice(text).map_err(|error| StateError::Malformed(error.to_string()))?;
    for (key, pair) in written_values {
        let pair = match pair {
            WrittenPair::Text(value) => Pair { value: value.into_bytes().into(), expires: None },
            WrittenPair::Expiring { expires, .. } if expires <= now => continue,
            WrittenPair::Expiring { value, expires } => {
                Pair { value: value.into_bytes().into(), expires: Some(expires) }
            }
        };
        let added = pairs.change(&[(key.as_bytes().into(), PairChange::Add(pair))], now);
        added.map_err(|error| StateError::Refused(key, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pairs::KeyKind;
    use super::*;

    #[test]
    fn written_pairs_are_read() {
        let mut text = b"{".to_vec();
        write_member(b"a\"b", &Pair { value: b"x\n".as_slice().into(), expires: None }, &mut text);
        text.push(b',');
        write_member(b"", &Pair { value: b"y".as_slice().into(), expires: Some(7) }, &mut text);
        text.push(b'}');
        assert_eq!(text, br#"{"a\"b":"x\n","":{"value":"y","expires":7}}"#);
        for (now, count) in [(6, 2), (7, 1)] {
            let mut pairs = Pairs::new(KeyKind::Text, 1 << 20);
            read(&text, &mut pairs, now).unwrap();
            assert_eq!(pairs.len(), count, "{now}");
            assert_eq!(&*pairs.get(b"a\"b", now).unwrap().value, b"x\n");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["[]", "{\"a\":1}", "{\"a\":{\"value\":\"x\"}}", "{", "x", "{\"a\":\"b\"}x"] {
            let read = read(text.as_bytes(), &mut Pairs::new(KeyKind::Text, 1 << 20), 0);
            assert!(matches!(read, Err(StateError::Malformed(_))), "{text}");
        }
        assert_eq!(read(b" \n", &mut Pairs::new(KeyKind::Text, 1 << 20), 0), Ok(()));
        let refused = read(b"{\"x\":\"y\"}", &mut Pairs::new(KeyKind::Network, 1 << 20), 0);
        assert_eq!(refused, Err(StateError::Refused("x".to_owned(), ChangeError::InvalidKey)));
    }
}
