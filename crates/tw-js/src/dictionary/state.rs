//! State of a dictionary as JSON, in the form of njs: `{"key":{"value":"text","expire":1700000000000}}`.

use std::collections::BTreeMap;

use serde_json::Value;
use tw_script::DictionaryType;

use super::SharedDictionary;
use super::table::{Entry, Stored, Table};

/// Entries that are copied at once while the table is locked.
const PART: usize = 256;

impl SharedDictionary {
    /// Text of the file. The table is locked for some entries at a time, so a change in between may be in it or not.
    pub(super) fn text(&self, now_ms: u64) -> Vec<u8> {
        let mut text = b"{".to_vec();
        let mut last = None::<Box<[u8]>>;
        loop {
            let part = self.table.lock().part(last.as_deref(), PART);
            for (key, entry) in &part {
                if entry.expires_ms.is_none_or(|at| at > now_ms) {
                    write_member(key, entry, &mut text);
                }
            }
            match part.into_iter().next_back() {
                Some((key, _)) => last = Some(key),
                None => break,
            }
        }
        text.push(b'}');
        text
    }

    /// Takes over the entries of a file; an empty one has none. Entries without a time begin to live now, and those whose time is over are
    /// left out.
    ///
    /// # Errors
    /// The text has another form, or the entries do not fit.
    pub(super) fn fill(&self, text: &[u8], now_ms: u64) -> Result<(), String> {
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        let members: BTreeMap<String, Value> =
            serde_json::from_slice(&without_last_commas(text)).map_err(|error| error.to_string())?;
        let mut table = self.table.lock();
        for (key, member) in members {
            let value = self.stored(&key, &member)?;
            let written = member.get("expire").and_then(Value::as_f64).filter(|at| *at > 0.0);
            let expires_ms = match (self.settings.timeout_ms, written) {
                (None, _) => None,
                (Some(_), Some(at)) => Some(at as u64),
                (Some(timeout), None) => Some(now_ms.saturating_add(timeout)),
            };
            if expires_ms.is_some_and(|at| at <= now_ms)
                || self.settings.timeout_ms.is_some() && written.is_none()
            {
                self.mark_changed();
            }
            if expires_ms.is_none_or(|at| at > now_ms) {
                let entry = Entry { value, expires_ms };
                let full = |_| format!("key \"{key}\" does not fit into the zone");
                table.insert(key.as_bytes(), entry, &self.settings).map_err(full)?;
            }
        }
        Ok(())
    }

    fn stored(&self, key: &str, member: &Value) -> Result<Stored, String> {
        match (member.get("value"), self.settings.kind) {
            (Some(Value::String(text)), DictionaryType::String) => Ok(Stored::String(text.as_bytes().into())),
            (Some(Value::Number(number)), DictionaryType::Number) => {
                Ok(Stored::Number(number.as_f64().unwrap_or(f64::NAN)))
            }
            (Some(_), DictionaryType::String) => Err(format!("expected string value for key \"{key}\"")),
            (Some(_), DictionaryType::Number) => Err(format!("expected number value for key \"{key}\"")),
            (None, _) => Err(format!("missing value for key \"{key}\"")),
        }
    }
}

/// Appends a member with an entry. A number that JSON does not have, such as infinity, is left out.
fn write_member(key: &[u8], entry: &Entry, out: &mut Vec<u8>) {
    if matches!(entry.value, Stored::Number(number) if !number.is_finite()) {
        return;
    }
    if out.len() > 1 {
        out.push(b',');
    }
    write_text(key, out);
    out.extend_from_slice(b":{\"value\":");
    match &entry.value {
        Stored::String(text) => write_text(text, out),
        Stored::Number(number) => out.extend_from_slice(number.to_string().as_bytes()),
    }
    if let Some(at) = entry.expires_ms {
        out.extend_from_slice(format!(",\"expire\":{at}").as_bytes());
    }
    out.push(b'}');
}

/// Appends a text as a string of JSON.
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    // A string can always be written.
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text));
}

/// Text without the commas in front of closing braces, which njs accepts.
fn without_last_commas(text: &[u8]) -> Vec<u8> {
    let mut clean: Vec<u8> = Vec::with_capacity(text.len());
    let mut comma = None;
    let mut in_string = false;
    let mut is_escaped = false;
    for &byte in text {
        if in_string {
            in_string = is_escaped || byte != b'"';
            is_escaped = byte == b'\\' && !is_escaped;
        } else {
            match byte {
                b',' => comma = Some(clean.len()),
                b'}' => _ = comma.take().map(|at| clean.remove(at)),
                byte if byte.is_ascii_whitespace() => {}
                byte => {
                    in_string = byte == b'"';
                    comma = None;
                }
            }
        }
        clean.push(byte);
    }
    clean
}

impl Table {
    /// True if no entry is there.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::DictionarySettings;
    use super::*;

    fn dictionary(kind: DictionaryType, timeout_ms: Option<u64>) -> SharedDictionary {
        SharedDictionary::new(DictionarySettings {
            name: "d".to_owned(),
            size: 65_536,
            kind,
            timeout_ms,
            evicts: false,
            state: None,
        })
    }

    #[test]
    fn texts_are_read_and_written() {
        for (kind, timeout_ms, text, expected) in [
            (DictionaryType::String, None, "", "{}"),
            (DictionaryType::String, None, " { } ", "{}"),
            (
                DictionaryType::String,
                None,
                r#"{"a":{"value":"x\n,}","expire":0,"more":[1]}, "\u0062" : {"value":"\"}"} , }"#,
                r#"{"a":{"value":"x\n,}"},"b":{"value":"\"}"}}"#,
            ),
            (
                DictionaryType::Number,
                None,
                r#"{"n":{"value":-1.5},"m":{"value":7,},}"#,
                r#"{"m":{"value":7},"n":{"value":-1.5}}"#,
            ),
            (
                DictionaryType::Number,
                Some(1000),
                r#"{"late":{"value":1,"expire":99},"kept":{"value":2,"expire":101},"new":{"value":3}}"#,
                r#"{"kept":{"value":2,"expire":101},"new":{"value":3,"expire":1100}}"#,
            ),
        ] {
            let dictionary = dictionary(kind, timeout_ms);
            dictionary.fill(text.as_bytes(), 100).unwrap();
            assert_eq!(String::from_utf8(dictionary.text(100)).unwrap(), expected);
            assert_eq!(dictionary.is_changed(), text.contains("late"), "{text}");
        }
    }

    #[test]
    fn all_parts_of_a_large_table_are_written() {
        let text: Vec<String> = (0..1000).map(|n| format!("\"{n:04}\":{{\"value\":{n}}}")).collect();
        let text = format!("{{{}}}", text.join(","));
        let mut dictionary = dictionary(DictionaryType::Number, None);
        dictionary.settings.size = 1 << 20;
        dictionary.fill(text.as_bytes(), 0).unwrap();
        assert_eq!(String::from_utf8(dictionary.text(0)).unwrap(), text);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, message) in [
            ("[]", "invalid type"),
            ("{", "EOF"),
            ("{\"a\":1}", "missing value"),
            ("{\"a\":{}}", "missing value for key \"a\""),
            ("{\"a\":{\"value\":1}}", "expected string value"),
            ("{\"a\":{\"value\":\"b\"}} x", "trailing"),
        ] {
            let dictionary = dictionary(DictionaryType::String, None);
            let error = dictionary.fill(text.as_bytes(), 0).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
            assert!(dictionary.table.lock().is_empty());
        }
        let large = format!("{{\"a\":{{\"value\":\"{}\"}}}}", "x".repeat(70_000));
        let error = dictionary(DictionaryType::String, None).fill(large.as_bytes(), 0).unwrap_err();
        assert!(error.contains("does not fit"), "{error}");
    }
}
