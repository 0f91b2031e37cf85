//! `mqtt_preread`, `mqtt`: the CONNECT packet with which a session of MQTT begins, as variables and with other fields (nginx:
//! ngx_stream_mqtt_preread_module, ngx_stream_mqtt_filter_module). Preread phase.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, Buffers, ConfError, Directive, STREAM, STREAM_SERVER, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::write::put;
use tw_core::vars::{Template, Value, VarDef};
use tw_log::Level;
use tw_stream::Stream;
use tw_stream::mqtt::{Connect, FirstPacket, first_packet};
use tw_stream::plan::Plan;
use tw_stream::preread::{PrereadHandler, PrereadStep};
use tw_stream::session::{SessionStatus, StreamSession};

const ALL: u32 = STREAM | STREAM_SERVER;

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    preread: Setting<bool>,
    is_on: Setting<bool>,
    buffers: Setting<Buffers>,
    rewrite_buffer_size: Setting<usize>,
    assignments: Vec<(Field, Word)>,
}

/// Settings of a server.
pub(crate) struct Mqtt {
    preread: bool,
    is_on: bool,
    buffers: Buffers,
    /// `mqtt_rewrite_buffer_size`, bytes; not inherited.
    rewrite_size: Option<usize>,
    /// `mqtt_set_connect`; not inherited.
    assignments: Vec<(Field, Template<StreamSession>)>,
}

/// Field of a CONNECT packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    ClientId,
    Username,
    Password,
}

const FIELDS: &[(&str, Field)] =
    &[("clientid", Field::ClientId), ("username", Field::Username), ("password", Field::Password)];

/// Fields of the packet of a session.
struct Identity {
    client_id: Vec<u8>,
    username: Vec<u8>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of a CONNECT packet: their number times their size.
    directive "mqtt_buffers", "the session ends with status 400";
    /// Bytes of a CONNECT packet with its new fields.
    directive "mqtt_rewrite_buffer_size", "the session ends with status 500";
}

impl Settings<Stream> for Mqtt {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("mqtt_preread", ALL)
            .default("off")
            .since("1.23.4")
            .doc("Reads the client identifier and the user name of the CONNECT packet before a session goes on.")
            .set(|raw, node, _| raw.preread.set_flag(node)),
        record::flag("mqtt", ALL)
            .default("off")
            .since("1.23.4")
            .doc("Reads the CONNECT packet of a session, and sends it with the fields of mqtt_set_connect.")
            .set(|raw, node, _| raw.is_on.set_flag(node)),
        record::new("mqtt_buffers", "number size", ALL, Args::exact(2))
            .default("100 1k")
            .since("1.25.1")
            .doc("Number and size of buffers for a CONNECT packet.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
        record::size("mqtt_rewrite_buffer_size", STREAM_SERVER)
            .since("1.23.4")
            .doc("Bytes of a CONNECT packet with the fields of mqtt_set_connect at most; mqtt_buffers sets them, too.")
            .set(|raw, node, cx| {
                let message = "the \"mqtt_rewrite_buffer_size\" directive is deprecated, use the \"mqtt_buffers\" directive instead";
                cx.warn(node.name.span, message.to_owned());
                raw.rewrite_buffer_size.set_size(node)
            }),
        record::new("mqtt_set_connect", "clientid | username | password value", STREAM_SERVER, Args::exact(2))
            .since("1.23.4")
            .doc("Gives a field of the CONNECT packet another value; may hold variables.")
            .set(|raw, node, _| {
                let [name, value] = node.words()?;
                let field = FIELDS.iter().find(|(field, _)| name.is(field));
                let (_, field) = field.ok_or_else(|| node.invalid_value(name))?;
                raw.assignments.push((*field, value.clone()));
                Ok(())
            }),
    ];

    const VARIABLES: &'static [VarDef<StreamSession>] = &[
        VarDef::one(
            "mqtt_preread_clientid",
            |s, out| s.held::<Identity>().map_or(Value::Missing, |packet| put(out, &packet.client_id)),
            "Client identifier of the CONNECT packet.",
        ),
        VarDef::one(
            "mqtt_preread_username",
            |s, out| s.held::<Identity>().map_or(Value::Missing, |packet| put(out, &packet.username)),
            "User name of the CONNECT packet.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let compile = |(field, word): (Field, Word)| Ok((field, cx.template(&word)?));
        let assignments = raw.assignments.into_iter().map(compile).collect::<Result<_, ConfError>>()?;
        Ok(Self {
            preread: raw.preread.or(outer.map(|outer| outer.preread), false),
            is_on: raw.is_on.or(outer.map(|outer| outer.is_on), false),
            buffers: raw.buffers.or(outer.map(|outer| outer.buffers), Buffers { count: 100, size: 1 << 10 }),
            rewrite_size: raw.rewrite_buffer_size.take(),
            assignments,
        })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.preread {
            plan.add_preread(Arc::new(MqttPreread));
        }
        if self.is_on {
            plan.add_preread(self.clone());
        }
    }
}

/// `mqtt_preread`
struct MqttPreread;

impl PrereadHandler for MqttPreread {
    fn preread(&self, s: &mut StreamSession) -> PrereadStep {
        if s.transport.datagrams().is_some() {
            return PrereadStep::Pass;
        }
        let identity = match first_packet(&s.preread) {
            FirstPacket::Incomplete => return PrereadStep::More,
            FirstPacket::Other => return PrereadStep::Pass,
            FirstPacket::Connect(packet, _) => Identity {
                client_id: packet.client_id.to_vec(),
                username: packet.username.unwrap_or_default().to_vec(),
            },
        };
        s.hold(Rc::new(identity));
        PrereadStep::Pass
    }
}

impl PrereadHandler for Mqtt {
    fn preread(&self, s: &mut StreamSession) -> PrereadStep {
        if s.transport.datagrams().is_some() {
            return PrereadStep::Pass;
        }
        let bytes = s.preread.clone();
        let (packet, len) = match first_packet(&bytes) {
            FirstPacket::Incomplete => return PrereadStep::More,
            FirstPacket::Connect(packet, len) => (packet, len),
            FirstPacket::Other => {
                s.log(Level::Info, format_args!("client sent no valid MQTT CONNECT packet"));
                return PrereadStep::End(SessionStatus::BAD_REQUEST);
            }
        };
        if len > self.size_max(s) {
            s.log(Level::Error, format_args!("too large MQTT CONNECT packet"));
            return PrereadStep::End(SessionStatus::BAD_REQUEST);
        }
        let values: Vec<_> = self.assignments.iter().map(|(field, value)| (*field, value.value(s))).collect();
        let mut changed: Connect<'_> = packet;
        for (field, value) in &values {
            match field {
                Field::ClientId => changed.client_id = value,
                Field::Username => changed.username = Some(value),
                Field::Password => changed.password = Some(value),
            }
        }
        let mut text = Vec::new();
        if changed.write(&mut text).is_none() {
            s.log(Level::Error, format_args!("too long field of an MQTT CONNECT packet"));
            return PrereadStep::End(SessionStatus::INTERNAL_SERVER_ERROR);
        }
        if text.len() > self.rewrite_size.unwrap_or_else(|| self.size_max(s)) {
            s.log(Level::Error, format_args!("too large MQTT CONNECT packet with its new fields"));
            return PrereadStep::End(SessionStatus::INTERNAL_SERVER_ERROR);
        }
        text.extend_from_slice(bytes.get(len..).unwrap_or_default());
        s.preread = Bytes::from(text);
        PrereadStep::Pass
    }

    fn size_max(&self, _: &StreamSession) -> usize {
        self.buffers.count.saturating_mul(self.buffers.size)
    }
}
