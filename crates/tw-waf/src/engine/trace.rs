//! Lines about every rule that runs: its targets, the values that it compares and the result, in the form of ModSecurity's debug log.
//!
//! A transaction with a trace runs every rule for every value, without the filter. The result is the same.

use std::fmt::{self, Write};

use super::Transaction;
use crate::seclang::rule::Rule;
use crate::seclang::target::{Selector, Target, Use};
use crate::template::Template;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of the trace of one request under the rules of the firewall.
    const TRACE_SIZE_MAX: usize = 16 << 20, bytes, "further lines are left out";
    /// Bytes of a value in a line of the trace.
    const TRACED_VALUE_MAX: usize = 80, bytes, "the number of the bytes that are left out is shown";
}

/// Lines of a transaction.
#[derive(Default)]
pub(super) struct Trace {
    text: String,
    is_cut: bool,
}

impl Trace {
    /// Adds a line.
    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        if self.text.len() >= TRACE_SIZE_MAX {
            if !self.is_cut {
                self.text.push_str("Further lines are left out.\n");
                self.is_cut = true;
            }
            return;
        }
        // A string takes all that is written to it.
        let _ = writeln!(self.text, "{line}");
    }
}

impl Trace {
    /// Adds the result of a transformation.
    pub(super) fn transformed(&mut self, name: &str, value: &[u8]) {
        self.line(format_args!(" T (0) t:{name}: \"{}\"", shown(value)));
    }

    /// Adds a value that is compared.
    pub(super) fn target(&mut self, variable: Variable, name: &[u8], value: &[u8]) {
        let variable = variable.name();
        let separator = if name.is_empty() { "" } else { ":" };
        let name = String::from_utf8_lossy(name);
        let value = shown(value);
        self.line(format_args!(" Target value: \"{value}\" (Variable: {variable}{separator}{name})"));
    }
}

impl Transaction {
    /// Keeps lines about all that rules do, from now until the transaction ends. This is slow.
    pub fn start_trace(&mut self) {
        self.trace = Some(Box::default());
    }

    /// Lines about what rules have done since [`start_trace`](Self::start_trace).
    pub fn trace(&self) -> &str {
        self.trace.as_ref().map_or("", |trace| &trace.text)
    }

    /// Adds a line if there is a trace.
    pub(super) fn note(&mut self, line: fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.line(line);
        }
    }

    /// Notes that a rule is evaluated.
    pub(super) fn note_rule(&mut self, rule: &Rule, id: u64) {
        if self.trace.is_none() {
            return;
        }
        if rule.targets.included.is_empty() {
            self.note(format_args!("(Rule: {id}) Executing unconditional rule..."));
            return;
        }
        let name = rule.test.operator_name();
        let parameter = &rule.test.shown.1;
        let targets: Vec<String> = rule.targets.included.iter().map(target_text).collect();
        let targets = targets.join("|");
        match rule.test.operator.parameter() {
            Some(template @ Template::Parts(_)) => {
                let now = shown(&self.expand(template));
                self.note(format_args!(
                    "(Rule: {id}) Executing operator \"{name}\" with param \"{now}\" Was: \"{parameter}\" against {targets}."
                ));
            }
            _ => self.note(format_args!(
                "(Rule: {id}) Executing operator \"{name}\" with param \"{parameter}\" against {targets}."
            )),
        }
    }

    /// Notes a value that a rule stores.
    pub(super) fn note_stored(&mut self, collection: &str, name: &[u8], value: Option<&[u8]>) {
        let name = String::from_utf8_lossy(name);
        match value {
            Some(value) => {
                let value = String::from_utf8_lossy(value);
                self.note(format_args!("Saving variable: {collection}:{name} with value: {value}"));
            }
            None => self.note(format_args!("Removing variable: {collection}:{name}")),
        }
    }
}

/// Text of a target as a rule has it.
fn target_text(target: &Target) -> String {
    let sign = if target.used == Use::Count { "&" } else { "" };
    let name = target.variable.name();
    match &target.selector {
        Selector::All => format!("{sign}{name}"),
        Selector::Name(selected) => format!("{sign}{name}:{}", String::from_utf8_lossy(selected)),
        Selector::Pattern(_, pattern) => format!("{sign}{name}:/{}/", String::from_utf8_lossy(pattern)),
    }
}

/// Beginning of a value; bytes that are not printed are shown as `\xHH`.
fn shown(value: &[u8]) -> String {
    let part = value.get(..TRACED_VALUE_MAX).unwrap_or(value);
    let mut text = String::with_capacity(part.len());
    for byte in part {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => {
                // A string takes all that is written to it.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    if part.len() < value.len() {
        let rest = value.len() - part.len();
        // A string takes all that is written to it.
        let _ = write!(text, " ({rest} characters omitted)");
    }
    text
}
