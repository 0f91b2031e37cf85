//! `subs_filter`: replaces strings and regular expressions in the lines of a body, rule by rule (nginx:
//! ngx_http_subs_filter_module, a module of Weibin Yao). Header filter.

mod lines;
mod rule;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, Buffers, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_module_support::changed_body::{Validators, changed, remove_length};
use tw_module_support::types::{self, RawTypes, Types};
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

use self::lines::Lines;
use self::rule::{RawRule, Rule};

const ALL: u32 = HTTP | SERVER | LOCATION;
const TYPES: &[&str] = &["text/html"];
const LINE_BUFFER: usize = 32 << 10;
const BUFFERS: Buffers = Buffers { count: 32, size: 4096 };

/// Rules as written.
#[derive(Default)]
pub(crate) struct Raw {
    rules: Setting<Vec<RawRule>>,
    bypass: Setting<Vec<Word>>,
    types: RawTypes,
    line_buffer_size: Setting<usize>,
    buffers: Setting<Buffers>,
}

/// Rules of one location.
pub(crate) struct SubsFilter {
    rules: Option<Arc<[Rule]>>,
    bypass: Arc<[Template]>,
    types: Types,
    line_buffer_size: usize,
    buffers: Buffers,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Rules of `subs_filter` in one block.
    const RULES_MAX: usize = 255, count, "the configuration is refused";
    /// Bytes of a line for `subs_filter`: `subs_line_buffer_size` times the number of `subs_buffers`.
    const LINE_MAX: usize = 64 << 20, bytes, "the configuration is refused";
    /// Bytes that the rules of `subs_filter` search in one turn of a loop.
    constant bytes rule::TURN_WORK, "the rest waits for another turn";
    /// Bytes of a line for `subs_filter`, times the number of `subs_buffers`.
    directive "subs_line_buffer_size", "the line is changed in parts of this size";
}

impl Settings<Http> for SubsFilter {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("subs_filter", "source replacement [g|i|o|r]", ALL, Args::range(2, 3))
            .doc("Replaces a string (`r`: a regular expression) in every line of the body; both may have variables. `i` ignores letter case, `o` replaces the first occurrence only.")
            .set(|raw, node, _| {
                if raw.rules.get().is_some_and(|rules| rules.len() == RULES_MAX) {
                    return Err(node.fail(format!("number of rules exceeds {RULES_MAX}")));
                }
                raw.rules.push(node, RawRule::read(node)?);
                Ok(())
            }),
        record::new("subs_filter_bypass", "string …", ALL, Args::at_least(1))
            .doc("Leaves the body as it is if one of the values is neither empty nor `0`.")
            .set(|raw, node, _| {
                raw.bypass.extend(node, node.args.iter().cloned());
                Ok(())
            }),
        record::new("subs_filter_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types besides text/html whose lines are changed; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
        // ngx_http_subs_filter_module accepts two words here and ignores the second.
        record::new("subs_line_buffer_size", "size", ALL, Args::range(1, 2))
            .default("32k")
            .doc("Sets the length of a line that is changed as a whole, together with the number of `subs_buffers`.")
            .set(|raw, node, _| raw.line_buffer_size.set_size(node)),
        record::new("subs_buffers", "number size", ALL, Args::exact(2))
            .default("32 4k")
            .doc("The number times `subs_line_buffer_size` is the length of a line that is changed as a whole. The size has no effect.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let span = raw.line_buffer_size.span().or(raw.buffers.span());
        let settings = Self {
            rules: match raw.rules.take() {
                Some(rules) => Some(rules.iter().map(|rule| rule.resolve(cx)).collect::<Result<_, _>>()?),
                None => outer.and_then(|o| o.rules.clone()),
            },
            bypass: match raw.bypass.take() {
                Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<_, _>>()?,
                None => outer.map(|o| o.bypass.clone()).unwrap_or_default(),
            },
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
            line_buffer_size: raw.line_buffer_size.or(outer.map(|o| o.line_buffer_size), LINE_BUFFER),
            buffers: raw.buffers.or(outer.map(|o| o.buffers), BUFFERS),
        };
        match (settings.line_max(), span) {
            (1..=LINE_MAX, _) | (_, None) => Ok(settings),
            (_, Some(span)) => Err(ConfError::new(format!(
                "\"subs_line_buffer_size\" times the number of \"subs_buffers\" must be between 1 and {LINE_MAX}"
            ))
            .at(span)),
        }
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.rules.is_some() {
            plan.add_header_filter(self.clone());
        }
    }
}

impl SubsFilter {
    /// Bytes of a line that is changed as a whole.
    fn line_max(&self) -> usize {
        self.line_buffer_size.saturating_mul(self.buffers.count)
    }
}

impl HeaderFilter for SubsFilter {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        let Some(rules) = &self.rules else { return body };
        if body.is_empty()
            || r.response.fields.has(HeaderName::ContentEncoding)
            || !self.types.contain(&r.response)
            || self.bypass.iter().any(|value| value.is_set(r))
        {
            return body;
        }
        let lines = Lines::new(rules.clone(), self.line_max(), r);
        if !r.is_subrequest() {
            remove_length(r);
            Validators::Remove.apply(&mut r.response);
        }
        changed(body, lines)
    }
}
