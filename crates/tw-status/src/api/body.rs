//! The body of a change: one object without unknown, repeated or out-of-range members.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tw_conf::units;
use tw_connect::upstream_block::server;
use tw_module_support::small_body::{self, SmallBodyError};
use tw_request::request::Request;
use tw_upstream::{AdminState, PeerParams, Server};

use super::response::{ApiError, ApiFailure};

/// The largest weight: that of DNS.
const WEIGHT_MAX: u64 = 65_535;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the body of a change by `api`.
    ///
    /// Bytes of a body. All fields with long names and routes take less than a kibibyte.
    const BODY_MAX: usize = 16 << 10, bytes, "413";
}

/// Members of a request body.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub(super) struct ServerBody {
    #[serde(deserialize_with = "given")]
    server: Option<Value>,
    #[serde(deserialize_with = "given")]
    service: Option<Value>,
    #[serde(deserialize_with = "given")]
    weight: Option<Value>,
    #[serde(deserialize_with = "given")]
    max_conns: Option<Value>,
    #[serde(deserialize_with = "given")]
    max_fails: Option<Value>,
    #[serde(deserialize_with = "given")]
    fail_timeout: Option<Value>,
    #[serde(deserialize_with = "given")]
    slow_start: Option<Value>,
    #[serde(deserialize_with = "given")]
    route: Option<Value>,
    #[serde(deserialize_with = "given")]
    backup: Option<Value>,
    #[serde(deserialize_with = "given")]
    down: Option<Value>,
    #[serde(deserialize_with = "given")]
    drain: Option<Value>,
}

/// A `null` is a value, too: a wrong one.
fn given<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

/// Parameters of a server that a change sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ParameterChange {
    weight: Option<u32>,
    max_conns: Option<u32>,
    max_fails: Option<u32>,
    fail_timeout_ms: Option<u64>,
    slow_start_ms: Option<u64>,
    route: Option<Option<Arc<[u8]>>>,
    down: Option<bool>,
    drain: Option<bool>,
    /// Expected value, which cannot be changed.
    pub(super) backup: Option<bool>,
}

/// Reads the body of `r`, a change of a server. Waits for the client.
pub(super) async fn read(r: &mut Request) -> Result<ServerBody, ApiFailure> {
    Ok(parse(&read_bytes(r).await?)?)
}

/// Reads the bytes of the body of `r`. Waits for the client.
pub(super) async fn read_bytes(r: &mut Request) -> Result<Vec<u8>, ApiFailure> {
    small_body::read(r, BODY_MAX).await.map_err(|error| match error {
        SmallBodyError::TooLarge => too_large().into(),
        SmallBodyError::Failed(status) => ApiFailure::Status(status),
    })
}

fn too_large() -> ApiError {
    ApiError::new(413, "BodyTooLarge", format!("the body is larger than {BODY_MAX} bytes"))
}

fn parse(body: &[u8]) -> Result<ServerBody, ApiError> {
    object(body, ApiError::format)
}

/// Parses an object of known fields; `format` is the error for other JSON.
pub(super) fn object<T: DeserializeOwned>(
    body: &[u8],
    format: impl FnOnce(String) -> ApiError,
) -> Result<T, ApiError> {
    // An array would be taken for the fields in their order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(format("the body is not an object".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => format(error.to_string()),
        _ => ApiError::new(415, "JsonError", format!("the body is not JSON: {error}")),
    })
}

impl ServerBody {
    /// A server to be added, which listens on `default_port` if it is given without a port.
    pub(super) fn server(self, default_port: Option<u16>) -> Result<Server, ApiError> {
        let name = text("server", "UpstreamConfFormatError", self.server.as_ref())?;
        let name = name.ok_or_else(|| ApiError::format("missing \"server\" argument"))?;
        let service = text("service", "UpstreamBadService", self.service.as_ref())?;
        let mut server = server::named(name, service, default_port)
            .map_err(|error| ApiError::new(400, "UpstreamBadAddress", format!("{error} in \"{name}\"")))?;
        let change = self.parameters()?;
        server.params.backup = change.backup.unwrap_or_default();
        change.apply(&mut server.params);
        Ok(server)
    }

    /// A change of a server that is there.
    pub(super) fn change(self) -> Result<ParameterChange, ApiError> {
        if self.server.is_some() || self.service.is_some() {
            return Err(ApiError::new(400, "UpstreamServerImmutable", "server address is immutable"));
        }
        self.parameters()
    }

    fn parameters(&self) -> Result<ParameterChange, ApiError> {
        let any = 0..=u64::from(u32::MAX);
        let change = ParameterChange {
            weight: number("weight", "UpstreamBadWeight", 1..=WEIGHT_MAX, self.weight.as_ref())?,
            max_conns: number("max_conns", "UpstreamBadMaxConns", any.clone(), self.max_conns.as_ref())?,
            max_fails: number("max_fails", "UpstreamBadMaxFails", any, self.max_fails.as_ref())?,
            fail_timeout_ms: time("fail_timeout", "UpstreamBadFailTimeout", self.fail_timeout.as_ref())?,
            slow_start_ms: time("slow_start", "UpstreamBadSlowStart", self.slow_start.as_ref())?,
            route: text("route", "UpstreamBadRoute", self.route.as_ref())?.map(read_route).transpose()?,
            down: flag("down", self.down.as_ref())?,
            drain: flag("drain", self.drain.as_ref())?,
            backup: flag("backup", self.backup.as_ref())?,
        };
        if change.down == Some(true) && change.drain == Some(true) {
            return Err(ApiError::format("a server is either \"down\" or to \"drain\""));
        }
        Ok(change)
    }
}

impl ParameterChange {
    /// Applies the parameters that it has.
    pub(super) fn apply(&self, params: &mut PeerParams) {
        fn set<T: Clone>(param: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                param.clone_from(value);
            }
        }
        set(&mut params.weight, &self.weight);
        set(&mut params.max_conns, &self.max_conns);
        set(&mut params.max_fails, &self.max_fails);
        set(&mut params.fail_timeout_ms, &self.fail_timeout_ms);
        set(&mut params.slow_start_ms, &self.slow_start_ms);
        set(&mut params.route, &self.route);
        params.admin = match (self.down, self.drain, params.admin) {
            (Some(true), ..) => AdminState::Down,
            (_, Some(true), _) => AdminState::Drain,
            (Some(false), _, AdminState::Down) | (_, Some(false), AdminState::Drain) => AdminState::Up,
            (.., admin) => admin,
        };
    }
}

fn read_route(text: &str) -> Result<Option<Arc<[u8]>>, ApiError> {
    let invalid =
        || ApiError::new(400, "UpstreamBadRoute", "\"route\" has letters that a cookie cannot have");
    let route = server::route(text).ok_or_else(invalid)?;
    Ok(Some(route).filter(|route| !route.is_empty()))
}

fn number(
    name: &str,
    code: &'static str,
    range: RangeInclusive<u64>,
    value: Option<&Value>,
) -> Result<Option<u32>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let number = value.as_u64().filter(|number| range.contains(number)).and_then(|n| u32::try_from(n).ok());
    let invalid = || {
        let from = range.start();
        let to = range.end();
        ApiError::new(400, code, format!("\"{name}\" must be a number from {from} to {to}"))
    };
    number.map(Some).ok_or_else(invalid)
}

fn time(name: &str, code: &'static str, value: Option<&Value>) -> Result<Option<u64>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let span = value.as_str().and_then(|text| units::sec(text.as_bytes()));
    let millis = span.map(|span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let invalid =
        || ApiError::new(400, code, format!("\"{name}\" must be a time in seconds, such as \"10s\""));
    millis.map(Some).ok_or_else(invalid)
}

fn text<'a>(name: &str, code: &'static str, value: Option<&'a Value>) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| ApiError::new(400, code, format!("\"{name}\" must be a text")))
}

fn flag(name: &str, value: Option<&Value>) -> Result<Option<bool>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    value.as_bool().map(Some).ok_or_else(|| ApiError::format(format!("\"{name}\" must be true or false")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(body: &str) -> Result<Server, &'static str> {
        parse(body.as_bytes()).and_then(|body| body.server(Some(80))).map_err(|refusal| refusal.code)
    }

    #[test]
    fn bodies_are_read_strictly() {
        for (body, code) in [
            ("", "JsonError"),
            ("{", "JsonError"),
            ("{}x", "JsonError"),
            ("\"server\"", "UpstreamConfFormatError"),
            ("[\"10.0.0.1:80\"]", "UpstreamConfFormatError"),
            ("{}", "UpstreamConfFormatError"),
            (r#"{"server":null}"#, "UpstreamConfFormatError"),
            (r#"{"server":"10.0.0.1","wieght":1}"#, "UpstreamConfFormatError"),
            (r#"{"server":"10.0.0.1","server":"10.0.0.2"}"#, "UpstreamConfFormatError"),
            (r#"{"server":"10.0.0.1","down":"yes"}"#, "UpstreamConfFormatError"),
            (r#"{"server":"10.0.0.1","down":true,"drain":true}"#, "UpstreamConfFormatError"),
            (r#"{"server":"10.0.0.1:0"}"#, "UpstreamBadAddress"),
            (r#"{"server":"a;b"}"#, "UpstreamBadAddress"),
            (r#"{"server":"app.test:80","service":"http"}"#, "UpstreamBadAddress"),
            (r#"{"server":"10.0.0.1","weight":0}"#, "UpstreamBadWeight"),
            (r#"{"server":"10.0.0.1","weight":null}"#, "UpstreamBadWeight"),
            (r#"{"server":"10.0.0.1","weight":65536}"#, "UpstreamBadWeight"),
            (r#"{"server":"10.0.0.1","weight":1.5}"#, "UpstreamBadWeight"),
            (r#"{"server":"10.0.0.1","max_conns":-1}"#, "UpstreamBadMaxConns"),
            (r#"{"server":"10.0.0.1","max_fails":4294967296}"#, "UpstreamBadMaxFails"),
            (r#"{"server":"10.0.0.1","fail_timeout":"10x"}"#, "UpstreamBadFailTimeout"),
            (r#"{"server":"10.0.0.1","slow_start":5}"#, "UpstreamBadSlowStart"),
            (r#"{"server":"10.0.0.1","route":"a\r\nb"}"#, "UpstreamBadRoute"),
        ] {
            assert_eq!(added(body).map(|_| ()), Err(code), "{body}");
        }
        let deep = "[".repeat(10_000);
        assert_eq!(added(&format!("{{\"server\":{deep}")).map(|_| ()), Err("JsonError"));
    }

    #[test]
    fn an_unknown_field_is_named() {
        let refusal = parse(br#"{"wieght":1}"#).map(|_| ()).unwrap_err().answer("");
        let text = String::from_utf8(refusal.json).unwrap();
        assert!(text.contains("unknown field `wieght`, expected one of `server`"), "{text}");
    }

    #[test]
    fn change_sets_the_given_parameters() {
        let all = r#"{"server":"10.0.0.1:81","weight":3,"max_conns":4,"max_fails":5,"fail_timeout":"1m",
                      "slow_start":"30s","route":"r","backup":true,"drain":true}"#;
        let mut params = added(all).unwrap().params;
        let expected = PeerParams {
            weight: 3,
            max_conns: 4,
            max_fails: 5,
            fail_timeout_ms: 60_000,
            slow_start_ms: 30_000,
            route: Some(b"r".as_slice().into()),
            backup: true,
            admin: AdminState::Drain,
        };
        assert_eq!(params, expected);
        let mut admin = |body: &str| {
            parse(body.as_bytes()).and_then(ServerBody::change).unwrap().apply(&mut params);
            params.admin
        };
        for (body, expected) in [
            (r#"{"down":false}"#, AdminState::Drain),
            (r#"{"drain":false}"#, AdminState::Up),
            (r#"{"down":true}"#, AdminState::Down),
            (r#"{"drain":false}"#, AdminState::Down),
            (r#"{"drain":true,"down":false}"#, AdminState::Drain),
            (r#"{"down":true,"drain":false}"#, AdminState::Down),
            (r#"{"down":false,"route":""}"#, AdminState::Up),
            ("{}", AdminState::Up),
        ] {
            assert_eq!(admin(body), expected, "{body}");
        }
        assert_eq!(params, PeerParams { route: None, admin: AdminState::Up, ..expected });
        let moved = parse(br#"{"server":"10.0.0.2"}"#).and_then(ServerBody::change);
        assert_eq!(moved.unwrap_err().code, "UpstreamServerImmutable");
    }
}
