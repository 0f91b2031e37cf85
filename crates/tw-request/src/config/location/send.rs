//! Settings for sending responses.

use std::marker::PhantomData;
use std::time::Duration;

use tw_conf::{Args, ConfError, Directive, Node, Setting, Word, record};

use super::contexts::{ALL, ALL_IF};
use super::min_rate::MinRate;
use crate::protocol::Resolve;
use crate::vars::Template;

/// Sending settings.
#[derive(Clone)]
pub struct Send {
    /// `send_timeout`, between two successful writes.
    pub timeout: Duration,
    /// `send_min_rate`
    pub min_rate: Option<MinRate>,
    /// `limit_rate`: bytes per second; `None` means no limit.
    pub limit_rate: Option<Template>,
    /// `limit_rate_after`, bytes.
    pub limit_rate_after: Option<Template>,
    /// `reset_timedout_connection`
    pub reset_timedout_connection: bool,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `tcp_nopush`
    pub tcp_nopush: bool,
}

/// Sending settings as written.
#[derive(Default)]
pub(super) struct Raw {
    send_timeout: Setting<Duration>,
    send_min_rate: Setting<Option<MinRate>>,
    limit_rate: Setting<Word>,
    limit_rate_after: Setting<Word>,
    reset_timedout_connection: Setting<bool>,
    tcp_nodelay: Setting<bool>,
    tcp_nopush: Setting<bool>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time between two writes of a response.
    directive "send_timeout", "the connection is closed";
    /// Slowest rate of a response, on average.
    directive "send_min_rate", "the response is cut";
    /// Bytes of a response per second.
    directive "limit_rate", "the response waits";
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::time("send_timeout", ALL)
            .default("60s")
            .doc("Time between two successful writes to the client.")
            .set(|raw, node, _| raw.as_mut().send_timeout.set_msec(node)),
        record::new("send_min_rate", "rate [grace=time] | off", ALL, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.2")
            .doc("Bytes per second at which a client has to take a response on average, once it has been waited for longer than the grace (10s); then the connection or the stream is closed. Only the time in which the server waits for the client counts.")
            .set(|raw, node, _| raw.as_mut().send_min_rate.set_with(node, MinRate::read)),
        record::new("limit_rate", "rate", ALL_IF, Args::exact(1))
            .default("0")
            .doc("Bytes per second to one connection; may hold variables. 0 means no limit.")
            .set(|raw, node, _| {
                let word = checked_size(node)?;
                raw.as_mut().limit_rate.set_once(node, word)
            }),
        record::new("limit_rate_after", "size", ALL_IF, Args::exact(1))
            .default("0")
            .since("0.8.0")
            .doc("Bytes sent before limit_rate applies.")
            .set(|raw, node, _| {
                let word = checked_size(node)?;
                raw.as_mut().limit_rate_after.set_once(node, word)
            }),
        record::flag("reset_timedout_connection", ALL)
            .default("off")
            .doc("Resets connections that timed out, which frees their socket buffers at once.")
            .set(|raw, node, _| raw.as_mut().reset_timedout_connection.set_flag(node)),
        record::flag("tcp_nodelay", ALL)
            .default("on")
            .doc("Sets TCP_NODELAY.")
            .set(|raw, node, _| raw.as_mut().tcp_nodelay.set_flag(node)),
        record::flag("tcp_nopush", ALL)
            .default("off")
            .doc("Sets TCP_CORK while a response of several pieces is sent.")
            .set(|raw, node, _| raw.as_mut().tcp_nopush.set_flag(node)),
    ];
}

impl Send {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut rate = |setting: Setting<Word>, outer: Option<&Option<Template>>| match setting.take() {
            Some(word) if &*word.bytes == b"0" => Ok(None),
            Some(word) => cx.template(&word).map(Some),
            None => Ok(outer.cloned().flatten()),
        };
        Ok(Self {
            timeout: raw.send_timeout.or(outer.map(|o| o.timeout), Duration::from_secs(60)),
            min_rate: raw.send_min_rate.or(outer.map(|o| o.min_rate), None),
            limit_rate: rate(raw.limit_rate, outer.map(|o| &o.limit_rate))?,
            limit_rate_after: rate(raw.limit_rate_after, outer.map(|o| &o.limit_rate_after))?,
            reset_timedout_connection: raw
                .reset_timedout_connection
                .or(outer.map(|o| o.reset_timedout_connection), false),
            tcp_nodelay: raw.tcp_nodelay.or(outer.map(|o| o.tcp_nodelay), true),
            tcp_nopush: raw.tcp_nopush.or(outer.map(|o| o.tcp_nopush), false),
        })
    }
}

/// A size that may hold variables: checked now if it does not.
fn checked_size(node: &Node) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    if !word.bytes.contains(&b'$') && word.size().is_none() {
        return Err(node.error("invalid value"));
    }
    Ok(word.clone())
}
