//! Variables of tunnels, and the timeouts that a request may set for its own.

use std::rc::Rc;

use tw_conf::units;
use tw_connect::PassedSession;
use tw_connect::upstream_attempt::put_span;
use tw_core::vars::write::{put_maybe, put_number};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_proxy::UpstreamSettings;
use tw_request::request::Request;
use tw_request::upstream_state::Attempt;
use tw_request::vars::{Value, VarDef};

/// Timeouts that `set` has given to one request.
#[derive(Clone, Default)]
pub(super) struct TimeoutOverrides {
    connect: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
}

pub(super) const ALL: &[VarDef] = &[
    VarDef::one(
        "connect_host",
        |r, out| put_maybe(out, r.head.host().filter(|_| is_connect(r))),
        "Host of a CONNECT request.",
    ),
    VarDef::one(
        "connect_port",
        |r, out| match r.head.host_port().filter(|_| is_connect(r)) {
            Some(port) => put_number(out, port.into()),
            None => Value::Missing,
        },
        "Port of a CONNECT request.",
    ),
    VarDef::one(
        "connect_addr",
        |r, out| put_maybe(out, last_attempt(r).map(|attempt| attempt.to.text().as_bytes())),
        "Address and port that a CONNECT request leads to, once the host was resolved.",
    ),
    VarDef::one(
        "proxy_connect_connect_time",
        |r, out| last_attempt(r).map_or(Value::Missing, |attempt| put_span(out, attempt.connected)),
        "Seconds until the connection of a tunnel was there.",
    ),
    VarDef::one(
        "proxy_connect_connect_timeout",
        |r, out| put_own(r, out, |own| &own.connect),
        "Timeout for proxy_connect_connect_timeout that `set` has given to this request.",
    )
    .assigned_by(|r, value| change(r, |own| own.connect = Some(value))),
    VarDef::one(
        "proxy_connect_data_timeout",
        |r, out| put_own(r, out, |own| &own.data),
        "Timeout for proxy_connect_data_timeout that `set` has given to this request.",
    )
    .assigned_by(|r, value| change(r, |own| own.data = Some(value))),
    VarDef::one(
        "proxy_connect_read_timeout",
        |r, out| put_own(r, out, |own| &own.data),
        "The old name of $proxy_connect_data_timeout.",
    )
    .assigned_by(|r, value| change(r, |own| own.data = Some(value))),
];

impl TimeoutOverrides {
    /// Settings for `r` in place of `settings`, if it has timeouts of its own. One that is no time is logged and ignored.
    pub(super) fn apply(r: &Request, settings: &UpstreamSettings) -> Option<Box<UpstreamSettings>> {
        let own = r.extensions.get::<Self>()?;
        let read = |text: &Option<Vec<u8>>| {
            let text = text.as_deref()?;
            let time = units::msec(text);
            if time.is_none() {
                r.log(Level::Error, format_args!("invalid timeout of a tunnel \"{}\"", Text(text)));
            }
            time
        };
        let mut settings = Box::new(settings.clone());
        let timeouts = &mut settings.timeouts;
        timeouts.connect = read(&own.connect).unwrap_or(timeouts.connect);
        if let Some(time) = read(&own.data) {
            (timeouts.read, timeouts.send) = (time, time);
        }
        Some(settings)
    }
}

fn change(r: &mut Request, set: impl FnOnce(&mut TimeoutOverrides)) {
    let mut own = r.extensions.get::<TimeoutOverrides>().map_or_else(Default::default, |own| (*own).clone());
    set(&mut own);
    r.extensions.put(Rc::new(own));
}

fn put_own(r: &Request, out: &mut Vec<u8>, of: fn(&TimeoutOverrides) -> &Option<Vec<u8>>) -> Value {
    let own = r.extensions.get::<TimeoutOverrides>();
    put_maybe(out, own.as_deref().and_then(|own| of(own).as_deref()))
}

fn is_connect(r: &Request) -> bool {
    r.method() == Method::Connect
}

/// Attempt of a CONNECT request to reach a server, the last one.
fn last_attempt(r: &Request) -> Option<&Attempt> {
    r.attempts().last().filter(|_| is_connect(r))
}
