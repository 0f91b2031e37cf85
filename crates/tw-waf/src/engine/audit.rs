//! Record of a transaction in the audit log, in ModSecurity's own format or as JSON.

use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use super::message::shown;
use super::{Transaction, VerdictAction};
use crate::seclang::settings::AuditLogFormat;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a body in a record of the audit log of the firewall.
    ///
    /// Records are made on a loop: this takes a third of a millisecond as JSON.
    const BODY_MAX: usize = 128 << 10, bytes, "the rest is not shown";
}

fn cut(body: &[u8]) -> &[u8] {
    body.get(..BODY_MAX).unwrap_or(body)
}

/// Time of a record, in the forms that logs have.
#[derive(Debug, Clone, Copy)]
pub struct RecordTime<'a> {
    /// `29/Nov/2026:17:15:00 +0000`
    pub local: &'a str,
    /// `2026-11-29T17:15:00+00:00`
    pub iso8601: &'a str,
}

fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into_owned().into()
}

impl Transaction {
    /// Record with its line ends, with the parts that `SecAuditLogParts` names.
    pub fn audit_record(&self, time: RecordTime<'_>) -> Vec<u8> {
        match self.rules.settings.audit_log_format {
            AuditLogFormat::Native => self.native_record(time.local),
            AuditLogFormat::Json => self.json_record(time.iso8601),
        }
    }

    /// Line about a record that has a file of its own.
    pub fn audit_index_line(&self, time: RecordTime<'_>, file: &str, record: &[u8]) -> Vec<u8> {
        let field = |name: &str| self.dashed(self.request_field(name));
        let (status, bytes) = self.statuses;
        let md5 = Md5::digest(record);
        let md5: String = md5.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!(
            "{} {} {} [{}] \"{}\" {status} {bytes} \"{}\" \"{}\" {} - {file} 0 {} md5:{md5}\n",
            field("host"),
            self.dashed(self.values.first(Variable::RemoteAddr)),
            self.dashed(self.values.first(Variable::RemoteUser)),
            time.local,
            self.dashed(self.values.first(Variable::RequestLine)),
            field("referer"),
            field("user-agent"),
            self.dashed(self.values.first(Variable::UniqueId)),
            record.len(),
        );
        line.into_bytes()
    }

    fn request_field(&self, name: &str) -> &[u8] {
        let list = self.values.list(Variable::RequestHeaders);
        let item = list.iter().find(|item| self.values.get(item.name).eq_ignore_ascii_case(name.as_bytes()));
        item.map(|item| self.values.get(item.value)).unwrap_or_default()
    }

    /// A value for a log line: control characters, quotes and backslashes are escaped.
    fn dashed(&self, value: &[u8]) -> String {
        if value.is_empty() { "-".to_owned() } else { shown(value) }
    }

    /// Record in parts, each behind a line with its letter. The boundary is the request's identifier, which no client knows.
    fn native_record(&self, time: &str) -> Vec<u8> {
        let parts = &self.rules.settings.audit_log_parts;
        let first = |variable| self.values.first(variable);
        let boundary: String =
            Md5::digest(first(Variable::UniqueId)).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let mut out = Vec::new();
        let mark = |out: &mut Vec<u8>, part: char| {
            out.extend_from_slice(format!("---{boundary}---{part}--\n").as_bytes());
        };
        mark(&mut out, 'A');
        let [id, client, port, server, server_port] = [
            Variable::UniqueId,
            Variable::RemoteAddr,
            Variable::RemotePort,
            Variable::ServerAddr,
            Variable::ServerPort,
        ]
        .map(|variable| shown(first(variable)));
        let line = format!("[{time}] {id} {client} {port} {server} {server_port}\n");
        out.extend_from_slice(line.as_bytes());
        if parts.contains('B') {
            mark(&mut out, 'B');
            let head = [
                first(Variable::RequestMethod),
                first(Variable::RequestUriRaw),
                first(Variable::RequestProtocol),
            ];
            out.extend_from_slice(&head.join(&b' '));
            out.push(b'\n');
            self.push_fields(Variable::RequestHeaders, &mut out);
            out.push(b'\n');
        }
        let body = cut(first(Variable::RequestBody));
        if (parts.contains('C') || parts.contains('I')) && !body.is_empty() {
            mark(&mut out, if parts.contains('C') { 'C' } else { 'I' });
            out.extend_from_slice(body);
            out.extend_from_slice(b"\n\n");
        }
        let body = cut(first(Variable::ResponseBody));
        if parts.contains('E') && !body.is_empty() {
            mark(&mut out, 'E');
            out.extend_from_slice(body);
            out.extend_from_slice(b"\n\n");
        }
        if parts.contains('F') {
            mark(&mut out, 'F');
            let protocol = String::from_utf8_lossy(first(Variable::RequestProtocol)).into_owned();
            out.extend_from_slice(format!("{protocol} {}\n", self.statuses.0).as_bytes());
            self.push_fields(Variable::ResponseHeaders, &mut out);
            out.push(b'\n');
        }
        if parts.contains('H') {
            mark(&mut out, 'H');
            for message in &self.messages {
                out.extend_from_slice(format!("{}\n", self.log_line(message)).as_bytes());
            }
            out.push(b'\n');
        }
        mark(&mut out, 'Z');
        out.push(b'\n');
        out
    }

    fn push_fields(&self, variable: Variable, out: &mut Vec<u8>) {
        for item in self.values.list(variable) {
            out.extend_from_slice(self.values.get(item.name));
            out.extend_from_slice(b": ");
            out.extend_from_slice(self.values.get(item.value));
            out.push(b'\n');
        }
    }

    fn json_record(&self, time: &str) -> Vec<u8> {
        let parts = &self.rules.settings.audit_log_parts;
        let has = |part: char| parts.contains(part);
        let first = |variable| text(self.values.first(variable));
        let mut request = Map::new();
        request.insert("method".into(), first(Variable::RequestMethod));
        request.insert("http_version".into(), first(Variable::RequestProtocol));
        request.insert("uri".into(), first(Variable::RequestUri));
        if has('B') {
            request.insert("headers".into(), self.fields(Variable::RequestHeaders));
        }
        if has('C') || has('I') {
            request.insert("body".into(), text(cut(self.values.first(Variable::RequestBody))));
        }
        let (status, size) = self.statuses;
        let mut response = Map::new();
        response.insert("http_code".into(), status.into());
        response.insert("body_bytes".into(), size.into());
        if has('F') {
            response.insert("headers".into(), self.fields(Variable::ResponseHeaders));
        }
        if has('E') {
            response.insert("body".into(), text(cut(self.values.first(Variable::ResponseBody))));
        }
        let mut record = json!({
            "client_ip": first(Variable::RemoteAddr),
            "client_port": first(Variable::RemotePort),
            "host_ip": first(Variable::ServerAddr),
            "host_port": first(Variable::ServerPort),
            "server_id": first(Variable::ServerName),
            "unique_id": first(Variable::UniqueId),
            "time_stamp": time,
            "request": request,
            "response": response,
        });
        if has('H')
            && let Some(record) = record.as_object_mut()
        {
            record.insert("producer".into(), self.producer());
            record.insert(
                "messages".into(),
                self.messages.iter().map(|message| self.message_record(message)).collect(),
            );
        }
        let mut line = json!({ "transaction": record }).to_string().into_bytes();
        line.push(b'\n');
        line
    }

    fn producer(&self) -> Value {
        let engine = self.mode.state();
        let verdict = self.verdict.as_ref().map(|verdict| {
            let action = match &verdict.action {
                VerdictAction::Deny(status) => json!({"action": "deny", "status": status}),
                VerdictAction::Drop => json!({"action": "drop"}),
                VerdictAction::Redirect(status, location) => {
                    json!({"action": "redirect", "status": status, "location": text(location)})
                }
            };
            json!({"rule": verdict.rule, "phase": verdict.phase, "consequence": action})
        });
        json!({
            "modsecurity": "Tailwater",
            "secrules_engine": engine,
            "components": self.rules.settings.components,
            "interruption": verdict,
        })
    }

    fn message_record(&self, message: &super::Message) -> Value {
        json!({
            "message": text(&message.message),
            "details": {
                "match": message.cause,
                "ruleId": message.id.to_string(),
                "file": &*message.place.file,
                "lineNumber": message.place.line.to_string(),
                "data": text(&message.data),
                "severity": message.severity.map(|severity| severity.to_string()).unwrap_or_default(),
                "ver": message.version.as_deref().unwrap_or_default(),
                "rev": message.revision.as_deref().unwrap_or_default(),
                "tags": message.tags.iter().map(|tag| tag.to_string()).collect::<Vec<_>>(),
                "maturity": message.ratings.0.as_deref().unwrap_or("0"),
                "accuracy": message.ratings.1.as_deref().unwrap_or("0"),
            },
        })
    }

    /// Fields of a head: a name that is there several times has a list.
    fn fields(&self, variable: Variable) -> Value {
        let mut fields = Map::new();
        for item in self.values.list(variable) {
            let name = String::from_utf8_lossy(self.values.get(item.name)).into_owned();
            let value = text(self.values.get(item.value));
            match fields.get_mut(&name) {
                None => {
                    fields.insert(name, value);
                }
                Some(Value::Array(list)) => list.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
            }
        }
        fields.into()
    }
}
