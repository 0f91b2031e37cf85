//! `session_log_zone`, `session_log_format`, `session_log`: one line for all requests of a session (nginx:
//! ngx_http_session_log_module of its commercial edition). Log handler.
//!
//! Sessions are kept in a zone that all loops share. The line is made of the first request, except for `$body_bytes_sent`, and
//! written when the session has had no request for the timeout, or when another one needs its room.

mod format;

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, Span, Word, record, units};
use tw_core::log::SinkRef;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::vars::{Value, write};
use tw_module_support::zone::{self, Zone, ZoneCounters, ZoneParameter, slab_cost};
use tw_request::plan::{LogHandler, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, VarDef};
use tw_server::http::BackgroundTask;

use self::format::{LineParts, SessionFormat};

/// Owner of the names of zones.
const OWNER: &str = "session_log";
/// `timeout` if a zone names none.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time between two looks for sessions that are over.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Sessions that are written before other tasks have their turn.
const SWEEP_BATCH: usize = 64;
/// Bytes that a session takes besides its key and its texts, about.
const OVERHEAD: usize = 128;

/// Names of the variables with the identifier of the session.
const ID: &str = "session_log_id";
const BINARY_ID: &str = "session_log_binary_id";

/// Identifier of a session.
type SessionId = [u8; 16];

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    formats: Vec<(Box<[u8]>, Vec<Word>)>,
    zones: Vec<RawZone>,
    log: Setting<Word>,
}

struct RawZone {
    path: Word,
    zone: ZoneParameter,
    format: Option<Word>,
    timeout: Duration,
    id: Option<Word>,
    md5: Option<Word>,
    span: Span,
}

type Logs = HashMap<Box<[u8]>, Arc<Log>>;

/// Session log of one block.
pub(crate) struct SessionLog {
    logs: Arc<Logs>,
    log: Option<Arc<Log>>,
    /// Slots of the variables.
    slots: [u16; 2],
}

/// A zone, and the log that its sessions are written to.
struct Log {
    sessions: Arc<Sessions>,
    sink: SinkRef,
    format: SessionFormat,
    timeout: Duration,
    id: Option<Template>,
    md5: Option<Template>,
}

/// Sessions of a zone, which outlive configurations.
struct Sessions(Zone<Session>);

impl ZoneCounters for Sessions {
    type Value = Session;

    fn zone(&self) -> &Zone<Session> {
        &self.0
    }
}

/// Session that is going on.
#[derive(Clone)]
struct Session {
    parts: LineParts,
    /// Sum of `$body_bytes_sent`.
    bytes: u64,
    last: Instant,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and counters of one zone.
    parameter "session_log_zone", "zone=name:", "a size that must be given", "the session that is idle for the longest time is written";
}

impl Settings<Http> for SessionLog {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("session_log_format", "name string …", HTTP, Args::at_least(2))
            .default("combined \"…\"")
            .doc("Defines a format of session logs. $body_bytes_sent is the sum of all requests of a session, other variables are those of the first one.")
            .set(|raw, node, _| {
                let name = node.arg(0)?;
                let is_known = name.is("combined") || raw.formats.iter().any(|(candidate, _)| *candidate == name.bytes);
                if is_known {
                    return Err(node.fail(format!("duplicate \"session_log_format\" name \"{name}\"")));
                }
                raw.formats.push((name.bytes.clone(), node.args[1..].to_vec()));
                Ok(())
            }),
        record::new(
            "session_log_zone",
            "path zone=name:size [format=name] [timeout=time] [id=id] [md5=text]",
            HTTP,
            Args::range(2, 6),
        )
        .doc("Declares a log of sessions and the zone in which they are kept. A session is over when it has had no request for the timeout (30s). It is identified by id, the 32 hexadecimal digits of an MD5 hash, or else by the hash of the text of md5.")
        .set(|raw, node, _| {
            raw.zones.push(RawZone::read(node)?);
            Ok(())
        }),
        record::new("session_log", "zone | off", HTTP | SERVER | LOCATION, Args::exact(1))
            .default("off")
            .doc("Log of the sessions that requests belong to.")
            .set(|raw, node, _| raw.log.set_once(node, node.arg(0)?.clone())),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::stored(ID, "Identifier of the session of session_log, in hexadecimal digits."),
        VarDef::stored(BINARY_ID, "Identifier of the session of session_log, 16 bytes."),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] = &[Metric {
        name: "session_log_sessions",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Sessions in a zone of session_log_zone that are not written yet.",
        read: |scrape, out| zone::values::<Sessions>(scrape, out, |sessions| sessions.0.entries.value()),
    }];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let slots = [cx.slot(ID), cx.slot(BINARY_ID)];
        let logs = match outer {
            Some(outer) => outer.logs.clone(),
            None => Arc::new(resolve_zones(raw.formats, raw.zones, cx)?),
        };
        let log = match raw.log.take() {
            None => outer.and_then(|outer| outer.log.clone()),
            Some(word) if word.is("off") => None,
            Some(word) => match logs.get(&word.bytes) {
                Some(log) => Some(log.clone()),
                None => return Err(zone::undeclared(&word.bytes, word.span)),
            },
        };
        Ok(Self { logs, log, slots })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(log) = &self.log else { return };
        let [id, binary_id] = self.slots;
        let hex = log.clone();
        let binary = log.clone();
        plan.compute(id, Arc::new(move |r, out| put_hex(&hex.session_of(r), out)));
        plan.compute(binary_id, Arc::new(move |r, out| write::put(out, &binary.session_of(r))));
        plan.add_log(self.clone());
    }
}

impl LogHandler for SessionLog {
    fn log(&self, r: &Request) {
        if let Some(log) = &self.log {
            log.record(r);
        }
    }
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let mut zone = None;
        let mut format = None;
        let mut timeout = TIMEOUT;
        let mut id = None;
        let mut md5 = None;
        for word in node.args.iter().skip(1) {
            let invalid = || node.invalid_parameter(word);
            let text = |value: &[u8]| Word { bytes: value.into(), ..word.clone() };
            if let Some(value) = word.param("zone") {
                zone = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("format") {
                format = Some(text(value));
            } else if let Some(value) = word.param("timeout") {
                timeout = units::msec(value).filter(|time| !time.is_zero()).ok_or_else(invalid)?;
            } else if let Some(value) = word.param("id") {
                id = Some(text(value));
            } else if let Some(value) = word.param("md5") {
                md5 = Some(text(value));
            } else {
                return Err(invalid());
            }
        }
        let zone = zone.ok_or_else(|| zone::missing(node))?;
        if id.is_none() && md5.is_none() {
            return Err(node.fail("\"session_log_zone\" must have \"id\" or \"md5\" parameter"));
        }
        Ok(Self { path: node.arg(0)?.clone(), zone, format, timeout, id, md5, span: node.span })
    }

    fn resolve(
        self,
        formats: &HashMap<Box<[u8]>, SessionFormat>,
        cx: &mut Resolve<'_>,
    ) -> Result<Log, ConfError> {
        let ZoneParameter { name, size } = self.zone;
        zone::claim(cx, &name, OWNER).map_err(|error| error.at(self.span))?;
        let format = match &self.format {
            None => formats.get(&b"combined"[..]),
            Some(word) => formats.get(&word.bytes),
        };
        let format = format.cloned().ok_or_else(|| {
            let shown = self.format.as_ref().map(Word::to_string).unwrap_or_default();
            ConfError::new(format!("unknown session log format \"{shown}\"")).at(self.span)
        })?;
        let path: PathBuf = OsString::from_vec(cx.full_path(&self.path.bytes)).into();
        let fits = |known_sessions: &Sessions| known_sessions.0.size == size;
        let sessions = cx.keep(&name, fits, || Sessions(Zone::new(&name, size, "")));
        let template =
            |word: Option<Word>, cx: &mut Resolve<'_>| word.map(|word| cx.template(&word)).transpose();
        let id = template(self.id, cx)?;
        let md5 = template(self.md5, cx)?;
        Ok(Log { sessions, sink: cx.sink(&path), format, timeout: self.timeout, id, md5 })
    }
}

/// All logs by the names of their zones.
fn resolve_zones(
    formats: Vec<(Box<[u8]>, Vec<Word>)>,
    zones: Vec<RawZone>,
    cx: &mut Resolve<'_>,
) -> Result<Logs, ConfError> {
    let mut logs = Logs::new();
    if zones.is_empty() {
        return Ok(logs);
    }
    let mut known_values = HashMap::new();
    known_values.insert((*b"combined").into(), SessionFormat::combined(cx)?);
    for (name, strings) in formats {
        known_values.insert(name, SessionFormat::resolve(&strings, cx)?);
    }
    for zone in zones {
        let name = zone.zone.name.clone();
        let span = zone.span;
        let log = Arc::new(zone.resolve(&known_values, cx)?);
        let of_task = log.clone();
        let task = || BackgroundTask::new(move |_| Box::pin(of_task.clone().sweep()));
        cx.keep(&[b"session_log ", &*name].concat(), |_| false, task);
        if logs.insert(name, log).is_some() {
            return Err(ConfError::new("duplicate session log zone").at(span));
        }
    }
    Ok(logs)
}

impl Log {
    /// Identifier of the session that a request belongs to.
    fn session_of(&self, r: &Request) -> SessionId {
        let given = self.id.as_ref().and_then(|id| id_of(&id.value(r)));
        given.unwrap_or_else(|| {
            let text = self.md5.as_ref().map(|md5| md5.value(r)).unwrap_or_default();
            Md5::digest(text).into()
        })
    }

    /// Counts a request that is over in its session.
    fn record(&self, r: &Request) {
        let id = self.session_of(r);
        let bytes = r.costs.sent.body();
        let now = tw_rt::clock::now();
        let zone = &self.sessions.0;
        let shard = zone.shard_of(&id);
        let over = {
            let mut table = zone.lock(shard);
            match table.find(&id) {
                None => None,
                Some(at) => {
                    let session = table.get(at);
                    if !session.is_over(self.timeout, now) {
                        session.bytes += bytes;
                        session.last = now;
                        table.touch(at);
                        return;
                    }
                    let over = session.clone();
                    table.remove(at);
                    zone.entries.sub(1);
                    Some(over)
                }
            }
        };
        over.iter().for_each(|session| self.write(session));
        let session = Session { parts: self.format.parts(r), bytes, last: now };
        self.begin(&id, shard, &session).iter().for_each(|session| self.write(session));
    }

    /// Adds a session. Returns those that are written because it needs their room; it may be one of them.
    fn begin(&self, id: &SessionId, shard: usize, session: &Session) -> Vec<Session> {
        let zone = &self.sessions.0;
        let cost = slab_cost(session.parts.len() + id.len() + OVERHEAD);
        let mut table = zone.lock(shard);
        let mut sessions = Vec::new();
        if let Some(at) = table.find(id) {
            // Another loop has begun the session meanwhile.
            table.get(at).bytes += session.bytes;
            return sessions;
        }
        while table.insert(id, cost, session.clone()).is_none() {
            let Some(oldest) = table.oldest() else {
                sessions.push(session.clone());
                return sessions;
            };
            sessions.push(table.get(oldest).clone());
            table.remove(oldest);
            zone.entries.sub(1);
        }
        zone.entries.add(1);
        sessions
    }

    fn write(&self, session: &Session) {
        if let Some(sink) = self.sink.sink() {
            // A line that finds the ring full is counted by its sink.
            let _ = sink.push(&session.parts.line(session.bytes));
        }
    }

    /// Writes sessions that are over, from time to time.
    async fn sweep(self: Arc<Self>) {
        let interval = SWEEP_INTERVAL.min(self.timeout / 2).max(Duration::from_millis(10));
        loop {
            tw_rt::time::sleep(interval).await;
            for shard in 0..self.sessions.0.shard_count() {
                while self.write_over(shard) == SWEEP_BATCH {
                    tw_rt::yield_now().await;
                }
            }
        }
    }

    /// Writes some of the sessions of a part of the zone that are over; returns their number.
    fn write_over(&self, shard: usize) -> usize {
        let zone = &self.sessions.0;
        let now = tw_rt::clock::now();
        let mut over = Vec::new();
        {
            let mut table = zone.lock(shard);
            while over.len() < SWEEP_BATCH
                && let Some(oldest) = table.oldest()
                && table.get(oldest).is_over(self.timeout, now)
            {
                over.push(table.get(oldest).clone());
                table.remove(oldest);
                zone.entries.sub(1);
            }
        }
        over.iter().for_each(|session| self.write(session));
        over.len()
    }
}

impl Session {
    fn is_over(&self, timeout: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= timeout
    }
}

/// Reads 32 hexadecimal digits.
fn id_of(text: &[u8]) -> Option<SessionId> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut id = SessionId::default();
    if text.len() != 2 * id.len() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(id)
}

fn put_hex(id: &SessionId, out: &mut Vec<u8>) -> Value {
    for byte in id {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    Value::Found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_hexadecimal_digits() {
        let id: SessionId = std::array::from_fn(|at| at as u8 * 16 + 1);
        let mut text = Vec::new();
        assert_eq!(put_hex(&id, &mut text), Value::Found);
        assert_eq!(text, b"01112131415161718191a1b1c1d1e1f1");
        assert_eq!(id_of(&text), Some(id));
        assert_eq!(id_of(&text.to_ascii_uppercase()), Some(id));
        for wrong in [&b""[..], &text[1..], b"x1112131415161718191a1b1c1d1e1f1"] {
            assert_eq!(id_of(wrong), None);
        }
    }
}
