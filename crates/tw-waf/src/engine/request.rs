//! Variables of the request.

use super::values::{Item, Span, push_number};
use super::{Transaction, VALUES_MAX};
use crate::body::{json, multipart, urlencoded, xml};
use crate::seclang::action::BodyProcessor;
use crate::seclang::settings::LimitAction;
use crate::seclang::target::{XML_ATTRIBUTES, XML_TEXT};
use crate::transform::decode::{form_value, has_valid_escapes, path_value};
use crate::variable::Variable;

/// Connection and times of a request.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Address of the client.
    pub client: &'a str,
    /// Port of the client.
    pub client_port: u16,
    /// Address of the server.
    pub server: &'a str,
    /// Port of the server.
    pub server_port: u16,
    /// Name of the server.
    pub server_name: &'a [u8],
    /// User, if one is known.
    pub user: &'a [u8],
    /// Identifier of the request.
    pub unique_id: &'a [u8],
    /// Unix time in seconds.
    pub time: u64,
    /// Difference of local time to UTC, in seconds.
    pub utc_offset: i64,
}

/// `MODSEC_BUILD`: the version of ModSecurity whose language this is, 3.0.14.
const BUILD: &[u8] = b"030014000";

/// Reason why a body is not checked whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyCheck {
    /// The body goes to the rules.
    Checked,
    /// The body is larger than its limit, and has to be refused.
    TooLarge,
}

impl Transaction {
    /// Sets the connection. Called first.
    pub fn set_connection(&mut self, connection: &Connection<'_>) {
        let Connection {
            client,
            client_port,
            server,
            server_port,
            server_name,
            user,
            unique_id,
            time,
            utc_offset,
        } = *connection;
        self.time = time;
        let values = &mut self.values;
        let span = values.set(Variable::RemoteAddr, client.as_bytes());
        values.set_span(Variable::RemoteHost, span);
        values.set_number(Variable::RemotePort, client_port.into());
        values.set(Variable::ServerAddr, server.as_bytes());
        values.set_number(Variable::ServerPort, server_port.into());
        values.set(Variable::ServerName, server_name);
        values.set(Variable::UniqueId, unique_id);
        if !user.is_empty() {
            values.set(Variable::RemoteUser, user);
        }
        values.set(Variable::ModsecBuild, BUILD);
        self.set_times(time as i64 + utc_offset);
        let app = self.rules.settings.web_app_id.clone();
        self.values.set(Variable::WebAppId, app.as_bytes());
    }

    fn set_times(&mut self, local: i64) {
        let values = &mut self.values;
        let seconds = local.rem_euclid(86_400);
        let (year, month, day) = date_of(local.div_euclid(86_400));
        values.set_number(Variable::TimeEpoch, self.time as i64);
        values.set_number(Variable::TimeYear, year);
        values.set_number(Variable::TimeMon, month - 1);
        values.set_number(Variable::TimeDay, day);
        values.set_number(Variable::TimeHour, seconds / 3600);
        values.set_number(Variable::TimeMin, seconds / 60 % 60);
        values.set_number(Variable::TimeSec, seconds % 60);
        values.set_number(Variable::TimeWday, (local.div_euclid(86_400) + 4).rem_euclid(7));
        let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        values.set(Variable::Time, clock.as_bytes());
    }

    /// Sets the request line. `target` is as the client sent it.
    pub fn set_request_line(&mut self, method: &[u8], target: &[u8], protocol: &[u8]) {
        let separator = self.rules.settings.argument_separator;
        let values = &mut self.values;
        let method = values.set(Variable::RequestMethod, method);
        let raw = values.set(Variable::RequestUriRaw, target);
        let protocol = values.set(Variable::RequestProtocol, protocol);
        let line = [values.get(method), b" ", values.get(raw), b" ", values.get(protocol)].concat();
        values.set(Variable::RequestLine, &line);
        // Without scheme and host.
        let path_begin = match memchr::memmem::find(target, b"://") {
            Some(at) if !target.starts_with(b"/") => {
                let host = at + 3;
                let rest = target.get(host..).unwrap_or_default();
                host + rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len())
            }
            _ => 0,
        };
        let uri = target.get(path_begin..).unwrap_or_default();
        let uri = uri.split(|byte| *byte == b'#').next().unwrap_or_default();
        values.set(Variable::RequestUri, uri);
        let (path, query) = match memchr::memchr(b'?', uri) {
            Some(at) => (uri.get(..at).unwrap_or_default(), uri.get(at + 1..).unwrap_or_default()),
            None => (uri, &b""[..]),
        };
        let name = values.push_with(|out| path_value(path, out));
        values.set_span(Variable::RequestFilename, name);
        values.set_span(Variable::PathInfo, name);
        let file = values.get(name);
        let base = file.iter().rposition(|byte| matches!(byte, b'/' | b'\\')).map_or(0, |at| at + 1);
        let base = file.get(base..).unwrap_or_default().to_vec();
        values.set(Variable::RequestBasename, &base);
        values.set(Variable::QueryString, query);
        let is_valid = has_valid_escapes(query);
        values.set_number(Variable::UrlencodedError, i64::from(!is_valid));
        self.add_arguments(query, separator, Variable::ArgsGet, Variable::ArgsGetNames);
    }

    /// Adds a field of the head.
    pub fn add_request_header(&mut self, name: &[u8], value: &[u8]) {
        let name_span = self.values.push(name);
        let item = Item { name: name_span, value: self.values.push(value) };
        self.values.add(Variable::RequestHeaders, item);
        self.values.add(Variable::RequestHeadersNames, Item { name: name_span, value: name_span });
        if name.eq_ignore_ascii_case(b"cookie") {
            self.add_cookies(value);
        } else if name.eq_ignore_ascii_case(b"host") {
            self.values.set(Variable::ServerName, without_port(value));
        } else if name.eq_ignore_ascii_case(b"content-type") {
            self.processor = processor_of(value);
        } else if name.eq_ignore_ascii_case(b"authorization") {
            let kind = value.split(|byte| *byte == b' ').next().unwrap_or_default();
            self.values.set(Variable::AuthType, kind);
            if let Some(user) = basic_user(value) {
                self.values.set(Variable::RemoteUser, &user);
            }
        }
    }

    /// Ends the head of the request: its rules can run now.
    pub fn end_request_headers(&mut self) {
        let processor = self.processor.map_or("", BodyProcessor::name);
        self.values.set(Variable::ReqbodyProcessor, processor.as_bytes());
        let zeroes = [
            Variable::ReqbodyError,
            Variable::ReqbodyProcessorError,
            Variable::InboundDataError,
            Variable::OutboundDataError,
            Variable::MultipartStrictError,
            Variable::MultipartUnmatchedBoundary,
        ];
        for variable in zeroes {
            self.values.set_number(variable, 0);
        }
        self.sum_arguments();
    }

    /// Chooses the parser of the body (`ctl:requestBodyProcessor`).
    pub(super) fn choose_processor(&mut self, processor: BodyProcessor) {
        self.processor = Some(processor);
        self.values.set(Variable::ReqbodyProcessor, processor.name().as_bytes());
    }

    fn add_cookies(&mut self, field: &[u8]) {
        for pair in field.split(|byte| *byte == b';') {
            let pair = pair.trim_ascii_start();
            if pair.is_empty() {
                continue;
            }
            let (name, value) = match memchr::memchr(b'=', pair) {
                Some(at) => (pair.get(..at).unwrap_or_default(), pair.get(at + 1..).unwrap_or_default()),
                None => (pair, &b""[..]),
            };
            let name = self.values.push(name);
            let value = self.values.push(value.trim_ascii_end());
            self.values.add(Variable::RequestCookies, Item { name, value });
            self.values.add(Variable::RequestCookiesNames, Item { name, value: name });
        }
    }

    fn add_arguments(&mut self, text: &[u8], separator: u8, variable: Variable, names: Variable) {
        let mut buffer = Vec::new();
        urlencoded::parse(text, separator, |name, value| {
            buffer.clear();
            form_value(name, &mut buffer);
            let name = self.values.push(&buffer);
            buffer.clear();
            form_value(value, &mut buffer);
            let value = self.values.push(&buffer);
            self.add_argument(name, value, variable, names)
        });
    }

    /// Adds an argument. Returns false if there are too many.
    fn add_argument(&mut self, name: Span, value: Span, variable: Variable, names: Variable) -> bool {
        let limit = self.rules.settings.arguments_limit.min(VALUES_MAX);
        if self.values.list(Variable::Args).len() >= limit {
            self.body_failed("SecArgumentsLimit exceeded: Skipping request argument, over limit");
            return false;
        }
        let item = Item { name, value };
        if let Some(trace) = &mut self.trace {
            let place = if variable == Variable::ArgsGet { "GET" } else { "BODY" };
            let (name, value) = (self.values.get(name), self.values.get(value));
            let [name, value] = [name, value].map(String::from_utf8_lossy);
            trace.line(format_args!("Adding request argument ({place}): name \"{name}\", value \"{value}\""));
        }
        let name = Item { name, value: name };
        self.values.add(variable, item);
        self.values.add(Variable::Args, item);
        self.values.add(names, name);
        self.values.add(Variable::ArgsNames, name)
    }

    fn sum_arguments(&mut self) {
        let length = |item: &Item| self.values.get(item.name).len() + self.values.get(item.value).len();
        let sum: usize = self.values.list(Variable::Args).iter().map(length).sum();
        self.values.set_number(Variable::ArgsCombinedSize, sum as i64);
    }

    /// Returns false if a body of `length` bytes has to be refused.
    pub fn check_body_length(&self, length: u64) -> BodyCheck {
        let settings = &self.rules.settings;
        let is_beyond = length > settings.request_body_limit as u64;
        if is_beyond && settings.request_body_limit_action == LimitAction::Reject && self.is_enforcing() {
            return BodyCheck::TooLarge;
        }
        BodyCheck::Checked
    }

    /// Number of bytes of the body that rules read.
    pub fn body_limit(&self) -> usize {
        self.rules.settings.request_body_limit
    }

    /// Sets the body, whose length was checked, and parses it.
    pub fn set_request_body(&mut self, body: &[u8], length: u64) {
        let limit = self.rules.settings.request_body_limit;
        if length > limit as u64 {
            self.values.set_number(Variable::InboundDataError, 1);
        }
        let body = body.get(..limit).unwrap_or(body);
        self.values.set_number(Variable::RequestBodyLength, length as i64);
        let has_files = self.processor == Some(BodyProcessor::Multipart);
        // Of other bodies, rules read the parts that their parser finds.
        let is_text = matches!(self.processor, None | Some(BodyProcessor::Urlencoded));
        if !body.is_empty() && (is_text || self.forces_request_body) {
            self.values.set(Variable::RequestBody, body);
        }
        self.set_full_request(body);
        if !has_files && body.len() > self.rules.settings.request_body_no_files_limit {
            self.has_long_body();
            return;
        }
        if body.is_empty() {
            return;
        }
        match self.processor {
            None => {}
            Some(BodyProcessor::Urlencoded) => {
                if !has_valid_escapes(body) {
                    self.values.set_number(Variable::UrlencodedError, 1);
                }
                let separator = self.rules.settings.argument_separator;
                self.add_arguments(body, separator, Variable::ArgsPost, Variable::ArgsPostNames);
            }
            Some(BodyProcessor::Multipart) => self.parse_multipart(body),
            Some(BodyProcessor::Json) => self.parse_json(body),
            Some(BodyProcessor::Xml) => self.parse_xml(body),
        }
        self.sum_arguments();
    }

    /// Notes that the body is longer than it may be without its files.
    fn has_long_body(&mut self) {
        self.values.set_number(Variable::InboundDataError, 1);
        self.body_failed("Request body excluding files is bigger than the maximum expected.");
    }

    /// Sets the whole request, if a rule reads it.
    fn set_full_request(&mut self, body: &[u8]) {
        if !self.rules.reads_full_request {
            return;
        }
        let mut full = Vec::new();
        for item in self.values.list(Variable::RequestHeaders) {
            full.extend_from_slice(self.values.get(item.name));
            full.extend_from_slice(b": ");
            full.extend_from_slice(self.values.get(item.value));
            full.push(b'\n');
        }
        full.extend_from_slice(b"\n\n");
        full.extend_from_slice(body);
        self.values.set(Variable::FullRequest, &full);
        self.values.set_number(Variable::FullRequestLength, full.len() as i64);
    }

    /// Notes that the body cannot be read.
    fn body_failed(&mut self, reason: &str) {
        for variable in [Variable::ReqbodyError, Variable::ReqbodyProcessorError] {
            self.values.set_number(variable, 1);
        }
        self.note(format_args!("{reason}"));
        let text = self.values.set(Variable::ReqbodyErrorMsg, reason.as_bytes());
        self.values.set_span(Variable::ReqbodyProcessorErrorMsg, text);
    }

    fn parse_json(&mut self, body: &[u8]) {
        let depth = self.rules.settings.json_depth_limit;
        let result = json::parse(body, depth, |name, value| {
            let name = self.values.push(name);
            let value = self.values.push(value);
            self.add_argument(name, value, Variable::ArgsPost, Variable::ArgsPostNames)
        });
        if let Err(reason) = result {
            self.body_failed(&format!("JSON parsing error: {reason}"));
        }
    }

    fn parse_xml(&mut self, body: &[u8]) {
        let name = self.values.push(XML_ATTRIBUTES);
        let result = xml::parse(body, |value| {
            let value = self.values.push(value);
            self.values.add(Variable::Xml, Item { name, value });
        });
        match result {
            Ok(text) => {
                let name = self.values.push(XML_TEXT);
                let value = self.values.push(&text);
                self.values.add(Variable::Xml, Item { name, value });
            }
            Err(reason) => {
                self.body_failed(&format!("XML parsing error: XML: Failed parsing document ({reason})"))
            }
        }
    }

    fn parse_multipart(&mut self, body: &[u8]) {
        let mut oddities = multipart::Oddities::default();
        let list = self.values.list(Variable::RequestHeaders);
        let field = list.iter().find(|item| self.values.get(item.name).eq_ignore_ascii_case(b"content-type"));
        let media_type = field.map(|item| self.values.get(item.value)).unwrap_or_default();
        let mut size = 0;
        let mut text_size = 0;
        let mut files = 0;
        let result = multipart::boundary(media_type, &mut oddities).and_then(|boundary| {
            if let Some(trace) = &mut self.trace {
                trace.line(format_args!("Multipart: Boundary: {}", String::from_utf8_lossy(&boundary)));
            }
            multipart::parse(body, &boundary, &mut oddities, |part, value| {
                if part.file.is_some() {
                    size += value.len();
                    files += 1;
                } else {
                    text_size += value.len();
                }
                self.add_part(part, value);
            })
        });
        if files > self.rules.settings.upload_file_limit {
            oddities.flags.push(Variable::MultipartFileLimitExceeded);
        }
        self.values.set_number(Variable::FilesCombinedSize, size as i64);
        if text_size > self.rules.settings.request_body_no_files_limit {
            self.has_long_body();
        }
        for flag in multipart::FLAGS {
            self.values.set_number(flag, 0);
        }
        if let Err(reason) = &result {
            self.values.set_number(Variable::MultipartStrictError, 1);
            self.body_failed(&format!("Multipart parsing error: {reason}"));
        }
        for flag in &oddities.flags {
            self.values.set_number(*flag, 1);
            self.note(format_args!("Multipart: Warning: {}", multipart::warning(*flag)));
        }
        self.values.set_number(Variable::MultipartUnmatchedBoundary, oddities.unmatched_boundary.into());
        if oddities.is_strict_error() {
            self.values.set_number(Variable::MultipartStrictError, 1);
        }
    }

    fn add_part(&mut self, part: &multipart::Part, value: &[u8]) {
        let name = self.values.push(part.name.as_deref().unwrap_or_default());
        for line in &part.head {
            let value = self.values.push(line);
            self.values.add(Variable::MultipartPartHeaders, Item { name, value });
        }
        self.values.add(Variable::MultipartName, Item { name, value: name });
        let Some(file) = &part.file else {
            let value = self.values.push(value);
            self.add_argument(name, value, Variable::ArgsPost, Variable::ArgsPostNames);
            return;
        };
        let file = self.values.push(file);
        let size = self.values.push_with(|out| push_number(value.len() as i64, out));
        self.values.add(Variable::Files, Item { name, value: file });
        self.values.add(Variable::MultipartFilename, Item { name, value: file });
        self.values.add(Variable::FilesNames, Item { name, value: name });
        self.values.add(Variable::FilesSizes, Item { name, value: size });
        let content = self.values.push(value);
        self.values.add(Variable::FilesTmpContent, Item { name, value: content });
    }

    /// Host, URI and identifier for log lines.
    pub(super) fn place(&self) -> (&[u8], &[u8], &[u8]) {
        let list = self.values.list(Variable::RequestHeaders);
        let host = list.iter().find(|item| self.values.get(item.name).eq_ignore_ascii_case(b"host"));
        let host =
            host.map_or_else(|| self.values.first(Variable::ServerAddr), |item| self.values.get(item.value));
        (host, self.values.first(Variable::RequestFilename), self.values.first(Variable::UniqueId))
    }
}

/// Name of a host without its port.
fn without_port(host: &[u8]) -> &[u8] {
    let end = match host.iter().rposition(|byte| *byte == b']') {
        Some(bracket) => bracket + 1,
        None => host.iter().position(|byte| *byte == b':').unwrap_or(host.len()),
    };
    host.get(..end).unwrap_or(host)
}

/// User of `Basic` credentials, which nobody has checked yet.
fn basic_user(field: &[u8]) -> Option<Vec<u8>> {
    let (kind, rest) = field.split_at_checked(5)?;
    if !kind.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut decoded = Vec::new();
    crate::transform::decode::base64(rest.trim_ascii(), &mut decoded);
    let end = memchr::memchr(b':', &decoded)?;
    decoded.truncate(end);
    Some(decoded)
}

/// Parser of bodies of this media type that needs no rule.
fn processor_of(media_type: &[u8]) -> Option<BodyProcessor> {
    let lower = media_type.trim_ascii_start().to_ascii_lowercase();
    if lower.starts_with(b"application/x-www-form-urlencoded") {
        Some(BodyProcessor::Urlencoded)
    } else if lower.starts_with(b"multipart/form-data") {
        Some(BodyProcessor::Multipart)
    } else {
        None
    }
}

/// Year, month and day of a number of days since 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    // Eras of 400 years that begin in March, so that the leap day is the last one of a year.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::date_of;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date_of(0), (1970, 1, 1));
        assert_eq!(date_of(19_782), (2024, 2, 29));
        assert_eq!(date_of(20_786), (2026, 11, 29));
    }
}
