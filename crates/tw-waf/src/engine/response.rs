//! Variables of the response.

use super::Transaction;
use super::values::Item;
use crate::seclang::settings::LimitAction;
use crate::variable::Variable;

impl Transaction {
    /// Sets the status of the response.
    pub fn set_response_status(&mut self, status: u16, protocol: &str) {
        self.statuses.0 = status;
        self.values.set_number(Variable::ResponseStatus, status.into());
        self.values.set(Variable::ResponseProtocol, protocol.as_bytes());
        let line = format!("{protocol} {status}");
        self.values.set(Variable::StatusLine, line.as_bytes());
    }

    /// Adds a field of the response.
    pub fn add_response_header(&mut self, name: &[u8], value: &[u8]) {
        let name_span = self.values.push(name);
        let value_span = self.values.push(value);
        self.values.add(Variable::ResponseHeaders, Item { name: name_span, value: value_span });
        self.values.add(Variable::ResponseHeadersNames, Item { name: name_span, value: name_span });
        if name.eq_ignore_ascii_case(b"content-type") {
            self.values.set_span(Variable::ResponseContentType, value_span);
        }
    }

    /// Number of bytes of a response body that rules read.
    pub fn response_body_limit(&self) -> usize {
        self.rules.settings.response_body_limit
    }

    /// Returns true if a response with more bytes has to be refused.
    pub fn refuses_long_responses(&self) -> bool {
        self.rules.settings.response_body_limit_action == LimitAction::Reject && self.is_enforcing()
    }

    /// Sets the body of the response, as far as rules read it.
    pub fn set_response_body(&mut self, body: &[u8], is_cut: bool) {
        self.values.set_number(Variable::ResponseContentLength, body.len() as i64);
        if is_cut {
            self.values.set_number(Variable::OutboundDataError, 1);
        }
        let limit = self.rules.settings.response_body_limit;
        self.values.set(Variable::ResponseBody, body.get(..limit).unwrap_or(body));
    }

    /// Sets what was sent in the end, for the logging phase.
    pub fn set_sent(&mut self, status: u16, bytes: u64) {
        self.values.set_number(Variable::ResponseStatus, status.into());
        self.statuses = (status, bytes);
    }
}
