//! Settings for request bodies.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Args, Directive, Setting, record};

use super::contexts::ALL;
use super::min_rate::MinRate;
use super::temp_path::TempPath;
use crate::protocol::Resolve;

/// Settings for request bodies.
#[derive(Clone)]
pub struct ClientBody {
    /// `client_max_body_size`, bytes; 0 means no limit.
    pub max_size: u64,
    /// `client_body_buffer_size`, bytes kept in memory.
    pub buffer_size: usize,
    /// `client_body_timeout`, between two reads.
    pub timeout: Duration,
    /// `client_body_min_rate`
    pub min_rate: Option<MinRate>,
    /// `client_body_in_file_only`
    pub in_file_only: InFileOnly,
    /// `client_body_temp_path`
    pub temp_path: Arc<TempPath>,
}

/// `client_body_in_file_only`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFileOnly {
    /// Bodies that fit stay in memory.
    Off,
    /// Always a file, kept.
    On,
    /// Always a file, removed after the request.
    Clean,
}

/// Settings for request bodies as written.
#[derive(Default)]
pub(super) struct Raw {
    client_max_body_size: Setting<u64>,
    client_body_buffer_size: Setting<usize>,
    client_body_timeout: Setting<Duration>,
    client_body_min_rate: Setting<Option<MinRate>>,
    client_body_in_file_only: Setting<InFileOnly>,
    client_body_temp_path: Setting<TempPath>,
}

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a request body.
    directive "client_max_body_size", "413";
    /// Bytes of a request body in memory.
    directive "client_body_buffer_size", "the body goes to a temporary file";
    /// Time between two reads of a request body.
    directive "client_body_timeout", "the connection is closed; the access log says 408";
    /// Slowest rate of a request body, on average.
    directive "client_body_min_rate", "the connection is closed; the access log says 408";
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::size("client_max_body_size", ALL)
            .default("1m")
            .doc("Largest request body; 0 means no limit. A larger one gets 413.")
            .set(|raw, node, _| raw.as_mut().client_max_body_size.set_offset(node)),
        record::size("client_body_buffer_size", ALL)
            .default("16k")
            .doc("Bytes of a request body kept in memory; more goes to a temporary file.")
            .set(|raw, node, _| raw.as_mut().client_body_buffer_size.set_size(node)),
        record::time("client_body_timeout", ALL)
            .default("60s")
            .doc("Time between two reads of a request body. Then the connection is closed without a response, and the access log says 408.")
            .set(|raw, node, _| raw.as_mut().client_body_timeout.set_msec(node)),
        record::new("client_body_min_rate", "rate [grace=time] | off", ALL, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.2")
            .doc("Bytes per second at which a client has to send a request body on average, once it has been waited for longer than the grace (10s). Then the connection is closed without a response, and the access log says 408. Only the time in which the server waits for the client counts.")
            .set(|raw, node, _| raw.as_mut().client_body_min_rate.set_with(node, MinRate::read)),
        record::new("client_body_in_file_only", "on | clean | off", ALL, Args::exact(1))
            .default("off")
            .doc("Always writes request bodies to files; clean removes them after the request.")
            .set(|raw, node, _| {
                raw.as_mut().client_body_in_file_only.set_one_of(
                    node,
                    &[("on", InFileOnly::On), ("clean", InFileOnly::Clean), ("off", InFileOnly::Off)],
                )
            }),
        record::new("client_body_temp_path", "path [level1 [level2 [level3]]]", ALL, Args::range(1, 4))
            .default("client_body_temp")
            .doc("Directory of temporary files of request bodies.")
            .set(|raw, node, cx| {
                raw.as_mut().client_body_temp_path.set_with(node, |node| TempPath::parse(node, cx))
            }),
    ];
}

impl ClientBody {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Self {
        let span = raw.client_body_temp_path.span();
        let temp_path = match (raw.client_body_temp_path.take(), outer) {
            (Some(path), _) => cx.block.temp_path(path, span),
            (None, Some(outer)) => outer.temp_path.clone(),
            (None, None) => {
                let path = cx.full_path_c(b"client_body_temp");
                cx.block.temp_path(TempPath { path, levels: [0; 3] }, None)
            }
        };
        Self {
            max_size: raw.client_max_body_size.or(outer.map(|o| o.max_size), 1 << 20),
            buffer_size: raw.client_body_buffer_size.or(outer.map(|o| o.buffer_size), 16 << 10),
            timeout: raw.client_body_timeout.or(outer.map(|o| o.timeout), Duration::from_secs(60)),
            min_rate: raw.client_body_min_rate.or(outer.map(|o| o.min_rate), None),
            in_file_only: raw.client_body_in_file_only.or(outer.map(|o| o.in_file_only), InFileOnly::Off),
            temp_path,
        }
    }
}
