//! Match of a rule, for logs.

use std::fmt;
use std::sync::Arc;

use super::{Matched, Transaction, VerdictAction};
use crate::seclang::Place;
use crate::seclang::rule::Rule;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a matched value, and of the text of a rule, in a log line of the firewall.
    const SHOWN_MAX: usize = 512, bytes, "the rest is not shown";
}

/// Severity of a rule: 0 is an emergency, 7 debugging.
pub type Severity = u8;

/// Match of a rule with `log`.
#[derive(Debug, Clone)]
pub struct Message {
    /// Id of the rule.
    pub id: u64,
    /// False of a rule with `nolog,auditlog`, which only the audit log shows.
    pub is_logged: bool,
    /// Phase.
    pub phase: u8,
    /// Position of the rule.
    pub place: Place,
    /// `msg`
    pub message: Vec<u8>,
    /// `logdata`
    pub data: Vec<u8>,
    /// `severity`
    pub severity: Option<Severity>,
    /// `tag`
    pub tags: Arc<[Box<str>]>,
    /// `ver`
    pub version: Option<Box<str>>,
    /// `rev`
    pub revision: Option<Box<str>>,
    /// `maturity` and `accuracy`
    pub ratings: (Option<Box<str>>, Option<Box<str>>),
    /// Cause: operator, parameter, variable, value.
    pub cause: String,
    /// Consequence: `Access denied with code 403 (phase 2).`, `Warning.`
    pub consequence: String,
    /// Name of the disruptive action of the rule.
    pub action: &'static str,
}

/// Texts of a match with their values.
pub(super) struct MessageTexts {
    /// `msg`
    pub(super) message: Option<Vec<u8>>,
    /// `logdata`
    pub(super) data: Option<Vec<u8>>,
    /// Parameter of the last operator, if there are values in it.
    pub(super) parameter: Option<Vec<u8>>,
    /// True if the match has a line in the error log.
    pub(super) is_logged: bool,
}

impl Message {
    pub(super) fn new(
        head: &Rule,
        matched: Option<&Matched>,
        texts: MessageTexts,
        action: Option<&VerdictAction>,
    ) -> Self {
        let MessageTexts { message, data, parameter: expanded, is_logged } = texts;
        let phase = head.phase;
        let consequence = match action {
            Some(VerdictAction::Deny(status) | VerdictAction::Redirect(status, _)) => {
                format!("Access denied with code {status} (phase {phase}).")
            }
            Some(VerdictAction::Drop) => format!("Access denied with connection close (phase {phase})."),
            None => "Warning.".to_owned(),
        };
        let last = head.chain().last().unwrap_or(head);
        let cause = match matched {
            Some(matched) if !last.targets.included.is_empty() => {
                let name = last.test.operator_name();
                let (_, parameter) = &last.test.shown;
                format!(
                    "Matched \"Operator `{name}' with parameter `{}' against variable `{}' (Value: `{}' )",
                    shown(expanded.as_deref().unwrap_or(parameter.as_bytes())),
                    shown(&matched.full_name()),
                    shown(&matched.value)
                )
            }
            _ => "Unconditional match in SecAction.".to_owned(),
        };
        let actions = &head.actions;
        let cut = |text: Option<Vec<u8>>| {
            let mut text = text.unwrap_or_default();
            text.truncate(SHOWN_MAX);
            text
        };
        Self {
            id: head.id,
            is_logged,
            phase,
            place: head.place.clone(),
            message: cut(message),
            data: cut(data),
            severity: actions.severity,
            tags: actions.tags.clone().into(),
            version: actions.version.clone(),
            revision: actions.revision.clone(),
            ratings: (actions.maturity.clone(), actions.accuracy.clone()),
            cause,
            consequence,
            action: actions.disruptive.as_ref().map_or("pass", |action| action.word()),
        }
    }
}

/// Bytes of a value with control characters escaped, cut to what a line may have.
pub(super) fn shown(text: &[u8]) -> String {
    let part = text.get(..SHOWN_MAX.min(text.len())).unwrap_or_default();
    let mut out = String::new();
    for byte in part {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if part.len() < text.len() {
        out.push_str(&format!(" ({} characters omitted)", text.len() - part.len()));
    }
    out
}

/// Line of a match in the error log, in the form that readers of ModSecurity's lines know.
pub struct LogLine<'a> {
    message: &'a Message,
    transaction: &'a Transaction,
}

impl Transaction {
    /// Line of one of its matches.
    pub fn log_line<'a>(&'a self, message: &'a Message) -> LogLine<'a> {
        LogLine { message, transaction: self }
    }
}

impl fmt::Display for LogLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message;
        let Place { file, line } = &message.place;
        write!(f, "ModSecurity: {} {}", message.consequence, message.cause)?;
        write!(f, " [file \"{file}\"] [line \"{line}\"] [id \"{}\"]", message.id)?;
        let text =
            |text: &Option<Box<str>>, default: &str| shown(text.as_deref().unwrap_or(default).as_bytes());
        write!(f, " [rev \"{}\"]", text(&message.revision, ""))?;
        write!(f, " [msg \"{}\"] [data \"{}\"]", shown(&message.message), shown(&message.data))?;
        match message.severity {
            Some(severity) => write!(f, " [severity \"{severity}\"]")?,
            None => f.write_str(" [severity \"0\"]")?,
        }
        write!(f, " [ver \"{}\"]", text(&message.version, ""))?;
        let (maturity, accuracy) = &message.ratings;
        write!(f, " [maturity \"{}\"]", text(maturity, "0"))?;
        write!(f, " [accuracy \"{}\"]", text(accuracy, "0"))?;
        for tag in &*message.tags {
            write!(f, " [tag \"{}\"]", shown(tag.as_bytes()))?;
        }
        let (host, uri, id) = self.transaction.place();
        write!(f, " [hostname \"{}\"] [uri \"{}\"] [unique_id \"{}\"]", shown(host), shown(uri), shown(id))
    }
}
