//! Explanation of a response: its status, filters, and limits.

use std::time::Duration;

use super::explanation::{Explanation, text};
use tw_request::config::location::Location;
use tw_request::plan::{Outcome, Plan};
use tw_request::request::Request;

pub(super) fn explain_response(r: &Request, explanation: &mut Explanation) {
    let location = match &*r.response.location {
        b"" => String::new(),
        location => format!(", to {}", text(location)),
    };
    let status = r.state.error_status.unwrap_or(r.response.status);
    explanation.add("response", format!("{status}{location}"), None);
    explain_filters(r.plan(), explanation);
    explain_limits(r, &r.plan().core, explanation);
}

/// Ends the explanation of a request whose content handler is not run.
pub(super) fn explain_end(r: &Request, plan: &Plan, explanation: &mut Explanation) -> Option<Outcome> {
    explain_filters(plan, explanation);
    explain_limits(r, &plan.core, explanation);
    None
}

/// Adds the filters of every response.
fn explain_filters(plan: &Plan, explanation: &mut Explanation) {
    for (about, modules) in [("filters", plan.filter_modules()), ("log", plan.log_modules())] {
        if !modules.is_empty() {
            explanation.add(about, modules.join(", "), None);
        }
    }
}

fn explain_limits(r: &Request, core: &Location, explanation: &mut Explanation) {
    let server = &r.generation().server(r.route.server).settings;
    let size = match core.client_body.max_size {
        0 => "none".to_owned(),
        bytes => size(bytes),
    };
    let times = [
        ("client_header_timeout", Some(server.client_header_timeout)),
        ("client_body_timeout", Some(core.client_body.timeout)),
        ("send_timeout", Some(core.send.timeout)),
        ("keepalive_timeout", Some(core.keepalive.timeout)),
        ("request_timeout", core.request_timeout),
    ];
    let time_text = |(name, time): &(&str, Option<Duration>)| Some(format!("{name} {}", time_of((*time)?)));
    let times: Vec<_> = times.iter().filter_map(time_text).collect();
    explanation.add("limits", format!("client_max_body_size {size}, {}", times.join(", ")), None);
    if let Some(rate) = &core.send.limit_rate {
        explanation.add("", format!("limit_rate {} bytes a second", text(&rate.value(r))), None);
    }
}

/// Bytes as a configuration writes them.
pub(super) fn size(bytes: u64) -> String {
    for (unit, shift) in [("g", 30), ("m", 20), ("k", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A time as a configuration writes it.
pub(super) fn time_of(time: Duration) -> String {
    match time.as_millis() {
        millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis => format!("{millis}ms"),
    }
}
