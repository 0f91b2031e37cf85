//! Record of a transaction in the audit log, as JSON.

use serde_json::{Map, Value, json};

use super::{Transaction, VerdictAction};
use crate::variable::Variable;

fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into_owned().into()
}

impl Transaction {
    /// Record as one line of JSON with its line end, with the parts that `SecAuditLogParts` names. `time` is shown as it is.
    pub fn audit_record(&self, time: &str) -> Vec<u8> {
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
            let body = self.values.first(Variable::RequestBody);
            request.insert("body".into(), text(body));
        }
        let (status, size) = self.statuses;
        let mut response = Map::new();
        response.insert("http_code".into(), status.into());
        response.insert("body_bytes".into(), size.into());
        if has('F') {
            response.insert("headers".into(), self.fields(Variable::ResponseHeaders));
        }
        if has('E') {
            response.insert("body".into(), first(Variable::ResponseBody));
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
        let engine = match self.mode {
            crate::seclang::settings::Mode::On => "Enabled",
            crate::seclang::settings::Mode::DetectionOnly => "DetectionOnly",
            crate::seclang::settings::Mode::Off => "Disabled",
        };
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
