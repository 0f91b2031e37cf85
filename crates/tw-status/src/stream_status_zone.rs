//! Zones of `stream`: names of their metrics.

use std::sync::Arc;

use tw_core::metrics::Metric;
use tw_stream::Stream;
use tw_stream::plan::Plan;

use crate::session_zone::{SessionZone, ZoneMetricNames, ZoneProtocol, metrics};

impl ZoneProtocol for Stream {
    const SINCE: &'static str = "1.13.12";
    const ZONE_METRICS: &'static [Metric] = &metrics::<Self>(&ZoneMetricNames {
        connections: "stream_zone_connections_total",
        active: "stream_zone_active",
        sessions: "stream_zone_sessions_total",
        discarded: "stream_zone_discarded_total",
        received: "stream_zone_received_bytes_total",
        sent: "stream_zone_sent_bytes_total",
        seconds: "stream_zone_session_seconds",
    });

    type Details = ();

    fn count_sessions(plan: &mut Plan, zone: Arc<SessionZone<Self>>) {
        plan.set_counters(zone);
    }
}
