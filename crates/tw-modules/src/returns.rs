//! `return`: answers with a code, a text or a redirect (nginx: ngx_http_rewrite_module). Rewrite phases.

use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{
    Args, ConfError, Directive, IF_IN_LOCATION, IF_IN_SERVER, LOCATION, SERVER, Setting, Word, record,
};
use tw_http::target;
use tw_server::http::body::Body;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::Template;

/// Highest code that may be returned.
const CODE_MAX: u64 = 999;

/// `return` as written.
#[derive(Default)]
pub(crate) struct Raw {
    action: Setting<(u16, Option<Word>)>,
}

/// `return` of one block; it is not inherited.
pub(crate) struct Return {
    action: Option<Action>,
    phase: Phase,
}

/// What is returned.
struct Action {
    status: u16,
    text: Option<Template>,
}

impl Settings for Return {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "return",
        "code [text] | code URL | URL",
        SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION,
        Args::range(1, 2),
    )
    .doc("Ends the request with this code; 444 closes the connection without an answer.")
    .set(|raw, node, _| {
        let first = node.arg(0)?;
        let is_url = ["http://", "https://", "$scheme"].iter().any(|p| first.bytes.starts_with(p.as_bytes()));
        let action = match (first.number(), node.args.get(1)) {
            (None, None) if is_url => (302, Some(first.clone())),
            (Some(code @ 0..=CODE_MAX), text) => (code as u16, text.cloned()),
            _ => return Err(node.fail(format!("invalid return code \"{first}\""))),
        };
        // The first one ends the request; those after it never run.
        if !raw.action.is_set() {
            raw.action.replace(node, action);
        }
        Ok(())
    })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let action = match raw.action.take() {
            Some((status, text)) => {
                let text = text.filter(|word| !word.bytes.is_empty());
                let text = text.map(|word| cx.template(&word)).transpose()?;
                Some(Action { status, text })
            }
            None => None,
        };
        let phase = if cx.location().is_some() { Phase::Rewrite } else { Phase::ServerRewrite };
        Ok(Self { action, phase })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.action.is_some() {
            plan.add(self.phase, self.clone());
        }
    }
}

impl Handler for Return {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(action) = &self.action else { return Step::PASS };
        if action.text.is_none() && action.status >= 400 {
            return Step::status(action.status);
        }
        // The text may ask for `$status`.
        r.out.status = action.status;
        let value = action.text.as_ref().map_or_else(Vec::new, |text| text.value(r));
        match action.status {
            301 | 302 | 303 | 307 | 308 => {
                r.out.location = value.into();
                Step::status(action.status)
            }
            444 => Step::status(444),
            _ => {
                let core = r.plan().core.clone();
                r.out.content_type =
                    core.types.find(target::exten(&r.uri.path)).unwrap_or(&core.default_type).clone();
                Step::Now(Outcome::Respond(Body::Bytes(Bytes::from(value))))
            }
        }
    }
}
