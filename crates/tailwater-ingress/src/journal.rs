//! Log lines on standard error, and Events of Ingress objects. A problem is reported once for each version of its object.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cluster::client::ApiClient;
use crate::cluster::object::Metadata;

/// Events that wait for the API server; further ones are only logged.
const WAITING_MAX: usize = 256;
/// Problems that are remembered; then all are forgotten, and reported once more.
const SEEN_MAX: usize = 65_536;

/// Log lines and Events.
#[derive(Debug)]
pub struct Journal {
    events: SyncSender<(String, Value)>,
    reported_entries: Mutex<HashSet<(String, String, String)>>,
}

impl Journal {
    /// Creates it. Events come out of the receiver, each with the path of its request.
    pub fn new() -> (Arc<Self>, Receiver<(String, Value)>) {
        let (events, receiver) = sync_channel(WAITING_MAX);
        (Arc::new(Self { events, reported_entries: Mutex::default() }), receiver)
    }

    /// Writes a line. Control characters, which names and messages may have, do not reach the log.
    pub fn line(&self, text: &str) {
        let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        // A failure to write to standard error cannot be reported.
        let _ = writeln!(io::stderr(), "{} tailwater-ingress: {clean}", timestamp(SystemTime::now()));
    }

    /// Reports a problem of an object, if it is new.
    pub fn problem(&self, kind: &str, metadata: &Metadata, reason: &str, text: &str) {
        let key = (
            metadata.uid.clone(),
            format!("{kind} {}", metadata.name),
            format!("{} {text}", metadata.version),
        );
        let mut seen_values = self.reported_entries.lock().unwrap_or_else(PoisonError::into_inner);
        if seen_values.len() >= SEEN_MAX {
            seen_values.clear();
        }
        if !seen_values.insert(key) {
            return;
        }
        drop(seen_values);
        self.line(&format!("{kind} {}: {text}", metadata.name));
        let name = &metadata.name;
        if name.namespace.is_empty() || metadata.uid.is_empty() {
            return;
        }
        let now = timestamp(SystemTime::now());
        let message: String = text.chars().take(1000).collect();
        let group = match kind {
            "Ingress" => "networking.k8s.io/v1",
            "ConfigMap" => "v1",
            _ => "gateway.networking.k8s.io/v1",
        };
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": format!("{}.", name.name), "namespace": name.namespace},
            "involvedObject": {
                "apiVersion": group, "kind": kind, "namespace": name.namespace, "name": name.name,
                "uid": metadata.uid, "resourceVersion": metadata.version,
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": "tailwater-ingress"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        // The log has it; a full queue loses only the Event.
        let _ = self.events.try_send((format!("/api/v1/namespaces/{}/events", name.namespace), event));
    }
}

/// Sends Events until the journal is gone.
pub fn send_events(client: &ApiClient, journal: &Journal, events: &Receiver<(String, Value)>) {
    while let Ok((path, event)) = events.recv() {
        if let Err(error) = client.request("POST", &path, Some(("application/json", &event))) {
            journal.line(&format!("an Event was not accepted: {error}"));
        }
    }
}

/// Time as the API server has it, in whole seconds of UTC.
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let days = seconds / 86_400;
    let second = seconds % 86_400;
    // Days from the first of March of the year 0, in eras of 400 years.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::object::ObjectName;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn problems_are_reported_once_for_each_version() {
        let (journal, events) = Journal::new();
        let mut metadata = Metadata {
            name: ObjectName::new("n", "a"),
            uid: "u".to_owned(),
            version: "1".to_owned(),
            ..Metadata::default()
        };
        journal.problem("Ingress", &metadata, "Invalid", "odd");
        journal.problem("Ingress", &metadata, "Invalid", "odd");
        metadata.version = "2".to_owned();
        journal.problem("Ingress", &metadata, "Invalid", "odd");
        assert_eq!(events.try_iter().count(), 2);
    }
}
