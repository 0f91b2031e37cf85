//! Configuration that this node follows, for its summary: the program that follows reports it in the store of configurations.
//!
//! Only the report of this node is read, not the versions, which are large.

use std::rc::Rc;
use std::time::Duration;

use crate::agent::SUMMARY_INTERVAL;
use crate::configuration::{ConfigurationReport, ReportState};
use crate::engine::Engine;
use crate::node::{Node, Role};
use crate::status::NodeConfiguration;
use crate::store::{CONFIGURATION, Store};

/// Pause after the engine did not answer, or has refused: whoever uses the fleet for purges alone may have no right to this store.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Time without a new report after which the program that follows is gone. It reports every second.
const SILENCE: Duration = Duration::from_secs(15);

/// Reports of the node, as they are read.
#[derive(Default)]
struct ReportWatch {
    /// Time of the last report, and when it was read first. Only this clock counts.
    last: Option<(u64, Duration)>,
}

impl ReportWatch {
    /// Configuration of a report that was read at a time; `None` if the node follows none.
    fn note(&mut self, report: Option<&ConfigurationReport>, now: Duration) -> Option<NodeConfiguration> {
        let report = report?;
        let since = match self.last {
            Some((time, since)) if time == report.time => since,
            _ => now,
        };
        self.last = Some((report.time, since));
        let state = match report.state {
            _ if now.saturating_sub(since) >= SILENCE => "silent",
            ReportState::Waiting => "waiting",
            ReportState::Serving => "serving",
            ReportState::Refused => "refused",
        };
        Some(NodeConfiguration { number: report.number, previous: report.previous, state: state.to_owned() })
    }
}

impl<E: Engine + 'static> Node<E> {
    /// Reads the report of this node again and again.
    pub(crate) async fn follow_own_configuration(self: Rc<Self>) {
        let name = self.fleet.settings().node.to_string();
        let key = format!("report.{name}");
        let mut watch = ReportWatch::default();
        loop {
            let mut pause = SUMMARY_INTERVAL;
            if self.session.borrow().is_some() && self.role.get() == Role::Active {
                let get = async { self.opened_store(&CONFIGURATION).await?.get(&key).await };
                match self.host.timeout(SUMMARY_INTERVAL, get).await {
                    Some(Ok(entry)) => {
                        let value = entry.and_then(|entry| entry.value);
                        let report = value.and_then(|value| ConfigurationReport::decode(&name, &value));
                        let configuration = watch.note(report.as_ref(), self.host.now());
                        self.fleet.status.lock().configuration = configuration;
                    }
                    // The fleet reports why there is no connection. Without access to the store this node follows
                    // nothing.
                    Some(Err(_)) | None => pause = AFTER_FAILURE,
                }
            }
            self.host.sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_measured_by_the_own_clock() {
        let mut watch = ReportWatch::default();
        let at = Duration::from_secs;
        assert_eq!(watch.note(None, at(0)), None);
        let mut report = ConfigurationReport {
            number: 3,
            previous: 2,
            state: ReportState::Serving,
            time: 1_000_000,
            ..ConfigurationReport::default()
        };
        let words = |watch: &mut ReportWatch, report: &ConfigurationReport, now| {
            watch.note(Some(report), at(now)).unwrap().describe()
        };
        assert_eq!(words(&mut watch, &report, 5), "3");
        assert_eq!(words(&mut watch, &report, 19), "3");
        assert_eq!(words(&mut watch, &report, 20), "3 silent");
        // The clock of the program went back; it reports nevertheless.
        report.time = 1;
        report.state = ReportState::Refused;
        assert_eq!(words(&mut watch, &report, 21), "3 refused");
    }
}
