//! Explanation of the location of a request.

use super::explanation::{Explanation, text};
use tw_request::request::Request;
use tw_request::route::Pattern;

pub(super) fn explain_location(r: &Request, explanation: &mut Explanation) {
    let generation = r.generation();
    let plan = r.plan();
    let server = generation.server(r.route.server);
    let Some(heading) = &plan.heading else {
        let text = if server.locations.is_empty() {
            "none: the server has no locations"
        } else {
            "none fits: what stands in the server block itself is used"
        };
        return explanation.add("location", text, None);
    };
    let why = match &heading.pattern {
        Pattern::Exact(_) => "the URI itself; nothing comes before it".to_owned(),
        Pattern::Prefix { no_regex: true, .. } => {
            "the longest prefix; with ^~, regular expressions are not tried".to_owned()
        }
        Pattern::Prefix { .. } => "the longest prefix; no regular expression matches".to_owned(),
        Pattern::Predicate(_) => {
            "its variable is neither empty nor 0; no regular expression matches".to_owned()
        }
        Pattern::Regex(_) => match server.locations.prefix_of(&r.uri.path) {
            Some(prefix) => {
                let prefix = text(&generation.plan(prefix).name);
                format!("the first regular expression that matches; it comes before the prefix {prefix}")
            }
            None => "the first regular expression that matches".to_owned(),
        },
        Pattern::Named(_) => "by its name".to_owned(),
    };
    let outer =
        generation.plans.iter().find(|plan| plan.limit_except.is_some_and(|(_, id)| id == r.route.plan));
    let span = outer.map_or(heading.span, |outer| outer.heading.as_ref().and_then(|heading| heading.span));
    explanation.add("location", format!("{}: {why}", shown(&heading.pattern)), span);
    if outer.is_some() {
        let text =
            format!("{} is none of its methods: the settings in its block are used", r.method().as_str());
        explanation.add("limit_except", text, heading.span);
    }
}

/// A location as it is written.
fn shown(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(uri) => format!("= {}", text(uri)),
        Pattern::Prefix { uri, no_regex: true } => format!("^~ {}", text(uri)),
        Pattern::Prefix { uri, .. } | Pattern::Predicate(uri) | Pattern::Named(uri) => text(uri),
        Pattern::Regex(regex) => format!("~ {}", regex.pattern()),
    }
}
