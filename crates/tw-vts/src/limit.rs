//! Limits of the traffic that was counted.

use tw_conf::ConfError;
use tw_log::{Level, Text};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

use super::directives::RawTrafficLimit;
use super::node::{Average, now_ms};
use super::stat::Stat;
use super::traffic_zone::{NodeName, TrafficZone, name_of};

/// Limit of one counter.
pub(super) struct TrafficLimit {
    /// `None`: the server of the request.
    key: Option<LimitKey>,
    stat: Stat,
    most: u64,
    pub(super) status: u16,
}

/// Node that a limit names.
struct LimitKey {
    name: Template,
    is_filter: bool,
}

/// Limits of one block.
pub(super) fn resolve(
    raw: Vec<RawTrafficLimit>,
    is_checked: bool,
    cx: &mut Resolve<'_>,
) -> Result<Vec<TrafficLimit>, ConfError> {
    let mut limits = Vec::with_capacity(raw.len());
    for (at, limit) in raw.iter().enumerate() {
        let key = |limit: &RawTrafficLimit| limit.key.as_ref().map(|word| word.bytes.clone());
        let is_same = |other: &RawTrafficLimit| key(other) == key(limit) && other.stat == limit.stat;
        if is_checked && raw[..at].iter().any(is_same) {
            continue;
        }
        let key = match &limit.key {
            None => None,
            Some(word) => {
                let (group, name) = word.bytes.split_at(3);
                let name = cx.template_text(name, Some(word.span))?;
                Some(LimitKey { name, is_filter: group == b"FG@" })
            }
        };
        limits.push(TrafficLimit { key, stat: limit.stat, most: limit.most, status: limit.status });
    }
    Ok(limits)
}

impl TrafficLimit {
    /// Returns true, and writes a line into the error log, if the counter has exceeded the limit. `server` is the node of the request,
    /// and `key` is scratch.
    pub(super) fn is_exceeded(
        &self,
        r: &Request,
        server: &NodeName<'_>,
        average: Average,
        zone: &TrafficZone,
        key: &mut Vec<u8>,
    ) -> bool {
        key.clear();
        match &self.key {
            None => server.write_key(key),
            Some(LimitKey { name, is_filter }) => {
                let mut text = Vec::new();
                name.eval(r, &mut text);
                name_of(&text, *is_filter).write_key(key);
            }
        }
        let used = zone.with(key, |node| self.stat.of(node, average, now_ms())).unwrap_or(0);
        let is_exceeded = used > self.most;
        if is_exceeded {
            let name = Text(key);
            let most = self.most;
            r.log(Level::Error, format_args!("limiting traffic of \"{name}\": {used} is more than {most}"));
        }
        is_exceeded
    }
}
