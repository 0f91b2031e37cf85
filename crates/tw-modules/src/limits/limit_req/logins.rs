//! `limit_req` in `mail`: rate of logins with the same key, such as the address of the client or the name of the user. A login beyond the
//! rate is delayed up to `burst=`, and refused beyond that.

use std::sync::Arc;

use tw_conf::{ConfError, Directive, Word};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::{Template, VarDef};
use tw_log::Level;
use tw_mail::Mail;
use tw_mail::plan::Plan;
use tw_mail::session::MailSession;
use tw_module_support::refusal;

use super::bucket::REQUEST;
use super::{
    DIRECTIVES, LIMITS, LimitReq, METRICS, Raw, ReqDecision, ReqZone, STATUS, STATUS_DOC, decide, lower,
};

impl Settings<Mail> for LimitReq<MailSession> {
    type Raw = Raw;

    const LIMITS: &'static [tw_base::Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = DIRECTIVES;

    const VARIABLES: &'static [VarDef<MailSession>] = &[VarDef::stored(STATUS, STATUS_DOC)];

    const METRICS: &'static [Metric] = METRICS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Mail>) -> Result<Self, ConfError> {
        Self::resolve_for(raw, outer, cx, refuse_cost)
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.limits.is_empty() {
            plan.add_access_check(AccessStage::Limits, self.clone());
        }
    }
}

/// Refuses `cost=`: a login has no cost that is known later.
fn refuse_cost(
    word: &Word,
    _: &ReqZone<MailSession>,
    _: &mut Resolve<'_, Mail>,
) -> Result<Template<MailSession>, ConfError> {
    Err(ConfError::new("\"cost\" is not supported in \"mail\"").at(word.span))
}

impl AccessCheck<MailSession> for LimitReq<MailSession> {
    fn check(&self, s: &mut MailSession) -> AccessDecision {
        let decide = |s: &MailSession, key: &mut Vec<u8>| decide(s, &self.limits, key);
        let Some(decision) = refusal::decide_once(s, self.slot, decide) else { return AccessDecision::Pass };
        let dry_run = if self.refusal.dry_run { ", dry run" } else { "" };
        let (status, decision) = match decision {
            ReqDecision::NotCounted => return AccessDecision::Pass,
            ReqDecision::Passed => ("PASSED", AccessDecision::Pass),
            ReqDecision::Delayed(span, excess, zone) => {
                let (logins, rest) = (excess / REQUEST, excess % REQUEST);
                let message =
                    format_args!("delaying login{dry_run}, excess: {logins}.{rest:03}, by zone \"{zone}\"");
                s.log(lower(self.refusal.level), message);
                if self.refusal.dry_run {
                    ("DELAYED_DRY_RUN", AccessDecision::Pass)
                } else {
                    s.delay_login(span);
                    ("DELAYED", AccessDecision::Pass)
                }
            }
            ReqDecision::Rejected(excess, zone, seconds) => {
                let (logins, rest) = (excess / REQUEST, excess % REQUEST);
                let message =
                    format_args!("limiting logins{dry_run}, excess: {logins}.{rest:03} by zone \"{zone}\"");
                s.log(self.refusal.level, message);
                self.refusal.decision(seconds)
            }
            ReqDecision::Full(zone) => {
                s.log(Level::Alert, format_args!("could not allocate node in limit_req zone \"{zone}\""));
                self.refusal.decision(1)
            }
        };
        s.set_slot(self.slot, status);
        decision
    }
}
