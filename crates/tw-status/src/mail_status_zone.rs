//! Zones of `mail`: names of their metrics, and counters of logins and of failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_core::metrics::{Metric, MetricKind};
use tw_mail::Mail;
use tw_mail::counters::MailCounters;
use tw_mail::plan::Plan;
use tw_mail::session_status::{LoginResult, SessionStatus};

use crate::session_zone::{SessionZone, ZoneMetricNames, ZoneProtocol, metrics, zones};

const LOGINS: Metric = Metric {
    name: "mail_zone_logins_total",
    kind: MetricKind::Counter,
    labels: &["zone", "result"],
    doc: "Logins in a zone by result: accepted by a mail server, refused by the auth server or the mail server, or failed.",
    read: |scrape, out| {
        for zone in zones::<Mail>(scrape) {
            for (result, count) in zone.logins() {
                out.value(&[&zone.name, result.word()], count);
            }
        }
    },
};

const FAILURES: Metric = Metric {
    name: "mail_zone_failures_total",
    kind: MetricKind::Counter,
    labels: &["zone", "cause"],
    doc: "Sessions of a zone that failed, by cause: left (the client left before its login), timeout, invalid (commands), handshake \
          (TLS or PROXY protocol), refused, denied, limited, internal, auth_server and mail_server.",
    read: |scrape, out| {
        for zone in zones::<Mail>(scrape) {
            for (status, count) in zone.failures() {
                out.value(&[&zone.name, status.cause()], count);
            }
        }
    },
};

/// Counters of one loop.
#[derive(Default)]
pub struct LoginCounters {
    /// Logins, by [`LoginResult::ALL`].
    logins: [AtomicU64; LoginResult::ALL.len()],
    /// Sessions that failed, by [`SessionStatus::FAILURES`].
    failures: [AtomicU64; SessionStatus::FAILURES.len()],
}

impl ZoneProtocol for Mail {
    const SINCE: &'static str = "Tailwater 0.2";
    const ZONE_METRICS: &'static [Metric] = &{
        let [connections, active, sessions, discarded, received, sent, seconds] =
            metrics::<Self>(&ZoneMetricNames {
                connections: "mail_zone_connections_total",
                active: "mail_zone_active",
                sessions: "mail_zone_sessions_total",
                discarded: "mail_zone_discarded_total",
                received: "mail_zone_received_bytes_total",
                sent: "mail_zone_sent_bytes_total",
                seconds: "mail_zone_session_seconds",
            });
        [connections, active, sessions, discarded, received, sent, seconds, LOGINS, FAILURES]
    };

    type Details = LoginCounters;

    fn count_sessions(plan: &mut Plan, zone: Arc<SessionZone<Self>>) {
        plan.set_counters(zone);
    }
}

impl MailCounters for SessionZone<Mail> {
    fn login(&self, index: usize, result: LoginResult) {
        let [accepted, refused, failed] = &self.details_of_loop(index).logins;
        let counter = match result {
            LoginResult::Accepted => accepted,
            LoginResult::Refused => refused,
            LoginResult::Failed => failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    fn failed(&self, index: usize, status: SessionStatus) {
        let details = self.details_of_loop(index);
        if let Some(index) = status.failure_index() {
            details.failures[index].fetch_add(1, Relaxed);
        }
    }
}

impl SessionZone<Mail> {
    /// Logins by their results.
    pub(crate) fn logins(&self) -> impl Iterator<Item = (LoginResult, u64)> {
        let count = |index: usize| self.total_of(|details: &LoginCounters| &details.logins[index]);
        LoginResult::ALL.into_iter().enumerate().map(move |(index, result)| (result, count(index)))
    }

    /// Sessions that failed, by their ends.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (SessionStatus, u64)> {
        let count = |index: usize| self.total_of(|details: &LoginCounters| &details.failures[index]);
        SessionStatus::FAILURES.into_iter().enumerate().map(move |(index, status)| (status, count(index)))
    }
}
