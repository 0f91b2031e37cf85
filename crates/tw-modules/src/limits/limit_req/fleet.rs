//! Rates that the nodes of a fleet share: `limit_req_zone … fleet=name`.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_connect::fleet::announcing_fleet;
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_core::module::Protocol;
use tw_fleet::{RATE_NAME_SIZE_MAX, SharedRate, SharedRateState};
use tw_log::Text;

use super::bucket::Rate;

const ZONE: &[&str] = &["zone"];

/// State of a rate.
pub(super) const SHARED: Metric = Metric {
    name: "limit_req_fleet_shared",
    kind: MetricKind::Gauge,
    labels: ZONE,
    doc: "State of a rate that the nodes of a fleet share: 1 while the share of this node follows the demand, 0 while it is an equal one \
          because nothing is heard.",
    read: |scrape, out| states(scrape, out, |state| state.is_shared.into()),
};

/// Nodes that share a rate.
pub(super) const NODES: Metric = Metric {
    name: "limit_req_fleet_nodes",
    kind: MetricKind::Gauge,
    labels: ZONE,
    doc: "Nodes of a fleet that share a rate, with this one and those that are away.",
    read: |scrape, out| states(scrape, out, |state| state.nodes.into()),
};

/// Nodes that say nothing.
pub(super) const AWAY: Metric = Metric {
    name: "limit_req_fleet_nodes_away",
    kind: MetricKind::Gauge,
    labels: ZONE,
    doc: "Nodes of a fleet that share a rate and say nothing; equal shares are kept for them.",
    read: |scrape, out| states(scrape, out, |state| state.away.into()),
};

/// Keys with shares of their own.
pub(super) const KEYS: Metric = Metric {
    name: "limit_req_fleet_keys",
    kind: MetricKind::Gauge,
    labels: ZONE,
    doc: "Keys for which the share of this node follows the demand.",
    read: |scrape, out| states(scrape, out, |state| state.keys.into()),
};

/// A sample of every zone with a shared rate.
fn states(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: impl Fn(&SharedRateState) -> u64) {
    for rate in scrape.shared_objects::<SharedRate>() {
        out.value(&[rate.name()], of(&rate.state()));
    }
}

/// The rate of a zone, shared by the fleet that `word` names; it goes on from the configuration before.
///
/// # Errors
/// There is no such fleet, its engine has no announcements, or the name of the zone is too long.
pub(super) fn share<P: Protocol>(
    zone: &[u8],
    rate: Rate,
    word: &Word,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<SharedRate>, ConfError> {
    let fleet = announcing_fleet(word, "rates", cx)?;
    let name = String::from_utf8_lossy(zone).into_owned();
    if name.len() > RATE_NAME_SIZE_MAX || name.contains(char::is_control) {
        let message = format!("the name of zone \"{}\" is not one that nodes can share", Text(zone));
        return Err(ConfError::new(message)
            .at(word.span)
            .hint(format!("at most {RATE_NAME_SIZE_MAX} bytes without control characters")));
    }
    let fits = |shared_rate: &SharedRate| {
        Arc::ptr_eq(shared_rate.fleet(), &fleet) && shared_rate.rate() == rate.thousandths()
    };
    Ok(cx.keep(zone, fits, || SharedRate::new(&name, fleet.clone(), rate.thousandths())))
}
