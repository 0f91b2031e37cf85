//! Web application firewall: rules in ModSecurity's language, SecLang, over requests and responses. No I/O and no clock: bytes and time are
//! arguments.
//!
//! ```text
//! seclang    the language                     ruleset    compiled rules, shared by all threads
//! variable   names of values                  operator   comparisons
//! transform  transformations                  filter     which rules can match a value at all
//! engine     one request under the rules      body       parsers of bodies
//! collection counters that outlive requests   template   texts with values in them
//! ```
//! Every regular expression runs in time linear to its input: what needs more is an error when the rules are compiled, as is everything
//! else that cannot be enforced.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod body;
mod collection;
mod engine;
mod filter;
mod names;
mod operator;
mod ruleset;
mod seclang;
mod template;
mod transform;
mod variable;

pub use collection::Store;
pub use engine::{
    BodyCheck, Connection, Message, Phase, PhaseProgress, RecordTime, Severity, Transaction, Verdict,
    VerdictAction,
};
pub use filter::Memo;
pub use ruleset::{RuleMatches, RuleSet};
pub use seclang::settings::{AuditLogFormat, AuditLogType, LimitAction, Mode, Settings};
pub use seclang::{Files, Place, RuleError, Source};

tw_base::limits! {
    /// Limits of the firewall.
    pub const LIMITS;

    use operator::LIMITS;
    use filter::LIMITS;
    use engine::LIMITS;
    use engine::AUDIT_LIMITS;
    use engine::MESSAGE_LIMITS;
    use engine::PHASE_LIMITS;
    use engine::TRACE_LIMITS;
    use collection::LIMITS;
    use body::multipart::LIMITS;
    use seclang::directive::LIMITS;
}
