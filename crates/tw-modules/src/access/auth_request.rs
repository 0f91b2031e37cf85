//! `auth_request`: authorization by a subrequest to another location (nginx: ngx_http_auth_request_module). Access
//! phase.
//!
//! The subrequest has no body. Its status decides: 2xx grants access, 401 and 403 refuse it, anything else is an error.
//! Variables can be set from its response (`auth_request_set`).

use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_http::HeaderName;
use tw_log::{Level, Text};
use tw_module_support::block::variable_name;
use tw_phases::subrequest::{ParentBody, Subrequest};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{After, Request, Uri};
use tw_request::vars::{EvalStatus, Template, VarTarget};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// URI of the subrequest, and variables set from its response, as written.
#[derive(Default)]
pub(crate) struct Raw {
    uri: Setting<Arc<[u8]>>,
    set: Setting<Vec<(Word, String, Word)>>,
}

/// URI of the subrequest of one block, and variables set from its response.
pub(crate) struct AuthRequest {
    /// Empty for `off`.
    uri: Arc<[u8]>,
    set: Arc<[(VarTarget, Template)]>,
}

/// Decision of the response to the subrequest.
struct AuthDecision {
    status: u16,
    /// Action that the decision leads to.
    after: After,
    values: Vec<Vec<u8>>,
    challenges: Vec<Bytes>,
    health: EvalStatus,
}

impl Settings<Http> for AuthRequest {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("auth_request", "uri | off", ALL, Args::exact(1))
            .default("off")
            .since("1.5.4")
            .doc("Asks another location whether a request may pass: 2xx lets it, 401 and 403 do not.")
            .set(|raw, node, _| {
                raw.uri.set_with(node, |node| {
                    Ok(match &*node.arg(0)?.bytes {
                        b"off" => [].into(),
                        uri => uri.into(),
                    })
                })
            }),
        record::new("auth_request_set", "$variable value", ALL, Args::exact(2))
            .since("1.5.4")
            .doc("Gives a variable a value once that location has answered; the value may have variables of its response.")
            .set(|raw, node, _| {
                let [variable, value] = node.words()?;
                let name = variable_name(node, variable)?;
                raw.set.push(node, (variable.clone(), name, value.clone()));
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let set = match raw.set.take() {
            Some(written_values) => {
                let mut set = Vec::new();
                for (variable, name, value) in written_values {
                    let place = cx.vars.target(&name, variable.span)?;
                    set.push((place, cx.template(&value)?));
                }
                set.into()
            }
            None => outer.map_or_else(|| [].into(), |o| o.set.clone()),
        };
        Ok(Self { uri: raw.uri.or_else(|| outer.map(|o| o.uri.clone()), || [].into()), set })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.uri.is_empty() {
            plan.add(Phase::Access, self.clone());
        }
    }
}

impl Handler for AuthRequest {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(self.authorize(r)))
    }
}

impl AuthRequest {
    async fn authorize(&self, r: &mut Request) -> Outcome {
        let uri = Uri { path: self.uri.to_vec(), args: Vec::new() };
        let question = match Subrequest::run(r, uri, ParentBody::Hidden).await {
            Ok(question) => question,
            Err(refused) => {
                r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(&self.uri)));
                return Outcome::Status(500);
            }
        };
        let decision = question.request().map(|part| self.decision_of(part));
        question.end(r).await;
        let Some(decision) = decision.filter(|decision| decision.health != EvalStatus::Failed) else {
            return Outcome::Status(500);
        };
        for ((place, _), value) in self.set.iter().zip(decision.values) {
            place.store(r, value);
        }
        match decision.status {
            // The client is gone, or is to get nothing.
            status if decision.after == After::Abort => Outcome::Status(status),
            200..=299 => Outcome::PhaseDone,
            403 => Outcome::Status(403),
            401 => {
                for challenge in decision.challenges {
                    r.response.fields.append(HeaderName::WwwAuthenticate, challenge);
                }
                Outcome::Status(401)
            }
            status => {
                r.log(Level::Error, format_args!("auth request unexpected status: {status}"));
                Outcome::Status(500)
            }
        }
    }

    fn decision_of(&self, part: &Request) -> AuthDecision {
        let values = self.set.iter().map(|(_, template)| template.value(part)).collect();
        let name = HeaderName::WwwAuthenticate.as_str().as_bytes();
        let all = |fields: &tw_http::Fields| -> Vec<Bytes> {
            fields.get_all(name).map(Bytes::copy_from_slice).collect()
        };
        let mut challenges = all(&part.response.fields);
        if challenges.is_empty() {
            // The challenges may be missing in the response of the subrequest, because they are hidden or an error page
            // replaces it. They are then taken from the upstream response.
            challenges = all(&part.upstream.answer.fields);
        }
        let status = part.response.status;
        let after = part.state.after;
        AuthDecision { status, after, values, challenges, health: part.bindings.take_eval_status() }
    }
}
