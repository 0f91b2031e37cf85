//! `auth_require`: access by values of variables (nginx: ngx_http_auth_require_module, which is sold). Access phase, behind the
//! modules whose variables decide.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LIMIT_EXCEPT, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_log::Level;
use tw_module_support::required_values::{RawRequirement, Requirement};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

const EVERYWHERE: u32 = HTTP | SERVER | LOCATION | LIMIT_EXCEPT;

/// Values as written; `off` has none.
#[derive(Default)]
pub(crate) struct Raw {
    requirements: Setting<Vec<Option<RawRequirement>>>,
}

/// Values that a request needs.
pub(crate) struct AuthRequire {
    requirements: Arc<[Requirement]>,
}

impl Settings<Http> for AuthRequire {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "auth_require",
        "$value … [error=4xx | 5xx] | off",
        EVERYWHERE,
        Args::at_least(1),
    )
    .default("off")
    .since("1.29.0")
    .doc("Lets a request pass only if none of the values is empty or 0; otherwise the response has status 403, or the one of \"error\". The values begin with a variable. A level may have several of these.")
    .set(|raw, node, _| {
        let requirement = match node.args.as_slice() {
            [word] if word.is("off") => None,
            _ => Some(RawRequirement::read(node, |status| matches!(status, 400..=599))?),
        };
        raw.requirements.push(node, requirement);
        Ok(())
    })];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let requirements = match raw.requirements.take() {
            Some(raw_requirements) => {
                let flatten = raw_requirements.into_iter().flatten();
                flatten.map(|requirement| requirement.resolve(403, cx)).collect::<Result<_, _>>()?
            }
            None => outer.map_or_else(|| [].into(), |outer| outer.requirements.clone()),
        };
        Ok(Self { requirements })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.requirements.is_empty() {
            plan.add(Phase::Access, self.clone());
        }
    }
}

impl Handler for AuthRequire {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match self.requirements.iter().find(|requirement| !requirement.is_met(r)) {
            None => Step::Now(Outcome::PhaseDone),
            Some(unmet) => {
                r.log(Level::Error, format_args!("access forbidden: a value of \"auth_require\" is missing"));
                Step::status(unmet.status)
            }
        }
    }
}
