//! Actions of a rule: `id:1,phase:2,deny,status:403,setvar:'tx.score=+5'`.

use crate::names::Names;
use crate::seclang::settings::{AuditEngine, Mode};
use crate::seclang::target::{self, Target, Use};
use crate::template::Template;
use crate::transform::Transformation;
use crate::variable::Variable;

/// Disruptive action.
#[derive(Debug, Clone)]
pub(crate) enum Disruptive {
    /// The request goes on.
    Pass,
    /// The disruptive action of `SecDefaultAction`.
    Block,
    /// The request is answered with an error.
    Deny,
    /// The connection is closed without an answer.
    Drop,
    /// The request goes on, and other rules are skipped.
    Allow(AllowScope),
    /// The client is redirected.
    Redirect(Template),
}

/// Rules that `allow` skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowScope {
    /// All phases but logging.
    All,
    /// This phase.
    Phase,
    /// The phases of the request.
    Request,
}

/// Change of a value.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// Stores a value.
    Set(Template),
    /// Adds a number.
    Add(Template),
    /// Subtracts a number.
    Subtract(Template),
    /// Removes the value.
    Unset,
}

/// Parser of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyProcessor {
    /// `application/x-www-form-urlencoded`
    Urlencoded,
    /// `multipart/form-data`
    Multipart,
    /// JSON
    Json,
    /// XML
    Xml,
}

impl BodyProcessor {
    /// Name in `REQBODY_PROCESSOR`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Urlencoded => "URLENCODED",
            Self::Multipart => "MULTIPART",
            Self::Json => "JSON",
            Self::Xml => "XML",
        }
    }

    fn find(name: &str) -> Option<Self> {
        let all = [Self::Urlencoded, Self::Multipart, Self::Json, Self::Xml];
        all.into_iter().find(|processor| processor.name().eq_ignore_ascii_case(name))
    }
}

/// Rules that a directive or `ctl` refers to.
#[derive(Debug, Clone)]
pub(crate) enum RuleChoice {
    /// Ranges of ids.
    Ids(Vec<(u64, u64)>),
    /// Text of a tag, or a regular expression for it.
    Tag(Box<str>),
    /// Text of a message, or a regular expression for it.
    Message(Box<str>),
}

/// `ctl`
#[derive(Debug, Clone)]
pub(crate) enum Control {
    /// `ruleEngine`
    RuleEngine(Mode),
    /// `auditEngine`
    AuditEngine(AuditEngine),
    /// `requestBodyAccess`
    RequestBodyAccess(bool),
    /// `responseBodyAccess`
    ResponseBodyAccess(bool),
    /// `requestBodyProcessor`
    RequestBodyProcessor(BodyProcessor),
    /// `forceRequestBodyVariable`
    ForceRequestBodyVariable(bool),
    /// `ruleRemoveById` and others.
    RemoveRules(RuleChoice),
    /// `ruleRemoveTargetById` and others.
    RemoveTarget(RuleChoice, Target),
    /// Of no effect here: the audit log has all parts that are allowed.
    Nothing,
}

/// Effect of a rule for each value that matches.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// `setvar`
    SetVar(Variable, VarName, Change),
    /// `expirevar`
    ExpireVar(Variable, Template, Template),
    /// `initcol`, `setsid`, `setuid`, `setrsc`
    InitCollection(Variable, Template),
    /// `setenv`: a value of `ENV`, which only rules read.
    SetEnv(Template, Template),
    /// `ctl`
    Control(Control),
}

impl Effect {
    /// Returns true if it depends on the value that has matched.
    pub(crate) fn uses_match(&self) -> bool {
        match self {
            Self::SetVar(_, name, change) => name.uses_match() || change.uses_match(),
            Self::ExpireVar(_, name, seconds) => name.uses_match() || seconds.uses_match(),
            Self::InitCollection(_, key) => key.uses_match(),
            Self::SetEnv(name, value) => name.uses_match() || value.uses_match(),
            Self::Control(_) => false,
        }
    }
}

impl VarName {
    fn uses_match(&self) -> bool {
        match self {
            Self::Tx(_) => false,
            Self::Computed(name) => name.uses_match(),
        }
    }
}

impl Change {
    fn uses_match(&self) -> bool {
        match self {
            Self::Set(value) | Self::Add(value) | Self::Subtract(value) => value.uses_match(),
            Self::Unset => false,
        }
    }
}

/// Name of a value of a collection.
#[derive(Debug, Clone)]
pub(crate) enum VarName {
    /// Value of `TX` by its number.
    Tx(u16),
    /// Name that is computed.
    Computed(Template),
}

/// Actions of a rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actions {
    pub(crate) id: Option<u64>,
    pub(crate) phase: Option<u8>,
    pub(crate) is_chain: bool,
    pub(crate) transformations: Vec<Transformation>,
    pub(crate) clears_transformations: bool,
    pub(crate) multi_match: bool,
    pub(crate) capture: bool,
    pub(crate) disruptive: Option<Disruptive>,
    pub(crate) status: Option<u16>,
    pub(crate) log: Option<bool>,
    pub(crate) audit: Option<bool>,
    pub(crate) message: Option<Template>,
    pub(crate) data: Option<Template>,
    pub(crate) severity: Option<u8>,
    pub(crate) tags: Vec<Box<str>>,
    pub(crate) version: Option<Box<str>>,
    pub(crate) revision: Option<Box<str>>,
    pub(crate) maturity: Option<Box<str>>,
    pub(crate) accuracy: Option<Box<str>>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) skip: Option<u32>,
    pub(crate) skip_after: Option<Box<str>>,
}

impl std::fmt::Debug for Transformation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Names of severities in their order.
const SEVERITIES: [&str; 8] =
    ["EMERGENCY", "ALERT", "CRITICAL", "ERROR", "WARNING", "NOTICE", "INFO", "DEBUG"];

impl Actions {
    /// Parses a list of actions. The error is its reason.
    pub(crate) fn parse(text: &[u8], names: &mut Names) -> Result<Self, String> {
        let mut actions = Self::default();
        for part in split(text)? {
            let part = part.trim_ascii();
            if part.is_empty() {
                continue;
            }
            let (name, value) = match memchr::memchr(b':', part) {
                Some(at) => (part.get(..at).unwrap_or_default(), part.get(at + 1..).unwrap_or_default()),
                None => (part, &b""[..]),
            };
            let name = String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase();
            let value = unquoted(value.trim_ascii());
            actions.add(&name, &value, names).map_err(|reason| format!("action \"{name}\": {reason}"))?;
        }
        Ok(actions)
    }

    fn add(&mut self, name: &str, value: &[u8], names: &mut Names) -> Result<(), String> {
        let text = || Box::<str>::from(String::from_utf8_lossy(value));
        match name {
            "id" => self.id = Some(parsed(value)?),
            "phase" => self.phase = Some(phase(value)?),
            "chain" => self.is_chain = true,
            "t" => self.transform(value)?,
            "multimatch" => self.multi_match = true,
            "capture" => self.capture = true,
            "status" => {
                let status = parsed(value)?;
                if !(100..600).contains(&status) {
                    return Err(format!("invalid status {status}"));
                }
                self.status = Some(status);
            }
            "log" => self.log = Some(true),
            "nolog" => {
                self.log = Some(false);
                self.audit = Some(false);
            }
            "auditlog" => self.audit = Some(true),
            "noauditlog" => self.audit = Some(false),
            "msg" => self.message = Some(Template::compile(value, names)?),
            "logdata" => self.data = Some(Template::compile(value, names)?),
            "severity" => self.severity = Some(severity(value)?),
            "tag" => self.tags.push(text()),
            "ver" => self.version = Some(text()),
            "rev" => self.revision = Some(text()),
            "maturity" => self.maturity = Some(text()),
            "accuracy" => self.accuracy = Some(text()),
            "skip" => self.skip = Some(parsed(value)?),
            "skipafter" => self.skip_after = Some(text()),
            "xmlns" => match split_at(value, b'=') {
                Some((prefix, name)) if !prefix.is_empty() && !name.is_empty() => {}
                _ => return Err("expected prefix=name".to_owned()),
            },
            // An action that is written beside it decides.
            "block" if self.disruptive.is_some() => {}
            "pass" | "block" | "deny" | "drop" | "allow" | "redirect" => {
                self.disruptive = Some(disruptive(name, value, names)?);
            }
            _ => self.add_effect(name, value, names)?,
        }
        Ok(())
    }

    fn add_effect(&mut self, name: &str, value: &[u8], names: &mut Names) -> Result<(), String> {
        let effect = match name {
            "setvar" => set_var(value, names)?,
            "expirevar" => {
                let Assignment { variable, name: key, value: seconds } = assignment(value)?;
                let Some(seconds) = seconds else { return Err("no time".to_owned()) };
                if !variable.is_persistent() {
                    return Err("only values of a collection that is kept can expire".to_owned());
                }
                Effect::ExpireVar(
                    variable,
                    Template::compile(&key, names)?,
                    Template::compile(&seconds, names)?,
                )
            }
            "initcol" => {
                let (name, key) = split_at(value, b'=').ok_or("no key")?;
                Effect::InitCollection(collection(name)?, Template::compile(key, names)?)
            }
            "setsid" => Effect::InitCollection(Variable::Session, Template::compile(value, names)?),
            "setenv" => {
                let (name, value) = split_at(value, b'=').ok_or("no value")?;
                Effect::SetEnv(Template::compile(name, names)?, Template::compile(value, names)?)
            }
            "setuid" => Effect::InitCollection(Variable::User, Template::compile(value, names)?),
            "setrsc" => Effect::InitCollection(Variable::Resource, Template::compile(value, names)?),
            "ctl" => Effect::Control(control(value)?),
            "append"
            | "prepend"
            | "exec"
            | "pause"
            | "proxy"
            | "deprecatevar"
            | "sanitisearg"
            | "sanitisematched"
            | "sanitisematchedbytes"
            | "sanitiserequestheader"
            | "sanitiseresponseheader" => {
                return Err("not supported".to_owned());
            }
            _ => return Err("unknown action".to_owned()),
        };
        self.effects.push(effect);
        Ok(())
    }

    fn transform(&mut self, value: &[u8]) -> Result<(), String> {
        let name = String::from_utf8_lossy(value);
        if name.eq_ignore_ascii_case("none") {
            self.transformations.clear();
            self.clears_transformations = true;
            return Ok(());
        }
        let Some(transformation) = Transformation::find(&name) else {
            return Err(format!("unknown transformation \"{name}\""));
        };
        self.transformations.push(transformation);
        Ok(())
    }

    /// Takes what is not set here from `defaults`.
    pub(crate) fn inherit(&mut self, defaults: &Self) {
        if !self.clears_transformations {
            let own = std::mem::replace(&mut self.transformations, defaults.transformations.clone());
            self.transformations.extend(own);
        }
        // A rule without a disruptive action has none, as in ModSecurity 3.
        if matches!(self.disruptive, Some(Disruptive::Block)) {
            self.disruptive.clone_from(&defaults.disruptive);
        }
        self.status = self.status.or(defaults.status);
        self.log = self.log.or(defaults.log);
        self.audit = self.audit.or(defaults.audit);
        self.severity = self.severity.or(defaults.severity);
    }

    /// Replaces actions by those of `SecRuleUpdateActionById`.
    pub(crate) fn update(&mut self, update: Self) {
        if update.clears_transformations || !update.transformations.is_empty() {
            self.transformations = update.transformations;
        }
        self.disruptive = update.disruptive.or_else(|| self.disruptive.take());
        self.status = update.status.or(self.status);
        self.log = update.log.or(self.log);
        self.audit = update.audit.or(self.audit);
        self.severity = update.severity.or(self.severity);
        self.message = update.message.or_else(|| self.message.take());
        self.data = update.data.or_else(|| self.data.take());
        self.skip_after = update.skip_after.or_else(|| self.skip_after.take());
        self.multi_match |= update.multi_match;
        self.capture |= update.capture;
        self.tags.extend(update.tags);
        self.effects.extend(update.effects);
    }
}

fn disruptive(name: &str, value: &[u8], names: &mut Names) -> Result<Disruptive, String> {
    Ok(match name {
        "pass" => Disruptive::Pass,
        "block" => Disruptive::Block,
        "drop" => Disruptive::Drop,
        "redirect" => Disruptive::Redirect(Template::compile(value, names)?),
        "allow" => Disruptive::Allow(match &*value.to_ascii_lowercase() {
            b"" => AllowScope::All,
            b"phase" => AllowScope::Phase,
            b"request" => AllowScope::Request,
            _ => return Err("invalid scope".to_owned()),
        }),
        _ => Disruptive::Deny,
    })
}

fn phase(value: &[u8]) -> Result<u8, String> {
    match &*value.to_ascii_lowercase() {
        b"request" => Ok(2),
        b"response" => Ok(4),
        b"logging" => Ok(5),
        _ => match parsed(value)? {
            phase @ 1..=5 => Ok(phase),
            phase => Err(format!("invalid phase {phase}")),
        },
    }
}

fn severity(value: &[u8]) -> Result<u8, String> {
    let name = String::from_utf8_lossy(value);
    let candidate = SEVERITIES.iter().position(|candidate| candidate.eq_ignore_ascii_case(&name));
    match candidate.or_else(|| name.parse().ok()) {
        Some(severity @ 0..=7) => Ok(severity as u8),
        _ => Err(format!("invalid severity \"{name}\"")),
    }
}

fn parsed<T: std::str::FromStr>(value: &[u8]) -> Result<T, String> {
    let text = String::from_utf8_lossy(value);
    text.trim().parse().map_err(|_| format!("invalid number \"{text}\""))
}

/// Splits `text` at the first `byte`.
fn split_at(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(byte, text)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn collection(name: &[u8]) -> Result<Variable, String> {
    let name = String::from_utf8_lossy(name);
    let variable = Variable::find(name.trim());
    variable
        .filter(|variable| variable.is_persistent() || *variable == Variable::Tx)
        .ok_or_else(|| format!("unknown collection \"{name}\""))
}

/// `collection.name=value`
struct Assignment {
    variable: Variable,
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

fn assignment(text: &[u8]) -> Result<Assignment, String> {
    let (left, value) = match split_at(text, b'=') {
        Some((left, right)) => (left, Some(right.to_vec())),
        None => (text, None),
    };
    let dot = left.iter().position(|byte| matches!(byte, b'.' | b':')).ok_or("no name of a value")?;
    let (variable, name) = left.split_at(dot);
    let variable = collection(variable)?;
    Ok(Assignment { variable, name: name.get(1..).unwrap_or_default().trim_ascii().to_vec(), value })
}

fn set_var(value: &[u8], names: &mut Names) -> Result<Effect, String> {
    let (is_unset, value) = value.strip_prefix(b"!").map_or((false, value), |rest| (true, rest));
    let Assignment { variable, name: key, value: right } = assignment(value)?;
    let change = match right.as_deref() {
        _ if is_unset => Change::Unset,
        None => Change::Set(Template::compile(b"1", names)?),
        Some([b'+', number @ ..]) => Change::Add(Template::compile(number, names)?),
        Some([b'-', number @ ..]) => Change::Subtract(Template::compile(number, names)?),
        Some(text) => Change::Set(Template::compile(text, names)?),
    };
    let name = Template::compile(&key, names)?;
    let name = match (variable, name.fixed()) {
        (Variable::Tx, Some(fixed)) => VarName::Tx(names.number(fixed).ok_or("too many names of TX")?),
        _ => VarName::Computed(name),
    };
    Ok(Effect::SetVar(variable, name, change))
}

fn flag(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("invalid value \"{value}\"")),
    }
}

fn control(value: &[u8]) -> Result<Control, String> {
    let (name, value) = split_at(value, b'=').ok_or("no value")?;
    let name = String::from_utf8_lossy(name).trim().to_ascii_lowercase();
    let text = String::from_utf8_lossy(value).trim().to_owned();
    let removed = |text: &str| -> Result<(String, Target), String> {
        let (choice, target) = text.split_once(';').ok_or("no target")?;
        let target = target.trim();
        let target = target.strip_prefix('!').unwrap_or(target);
        Ok((choice.trim().to_owned(), target::parse_one(target.as_bytes(), Use::Values)?))
    };
    Ok(match name.as_str() {
        "ruleengine" => Control::RuleEngine(Mode::parse(&text)?),
        "auditengine" => Control::AuditEngine(AuditEngine::parse(&text)?),
        "auditlogparts" | "debugloglevel" => Control::Nothing,
        "requestbodyaccess" => Control::RequestBodyAccess(flag(&text)?),
        "responsebodyaccess" => Control::ResponseBodyAccess(flag(&text)?),
        "forcerequestbodyvariable" => Control::ForceRequestBodyVariable(flag(&text)?),
        "requestbodyprocessor" => {
            let processor =
                BodyProcessor::find(&text).ok_or_else(|| format!("unknown processor \"{text}\""))?;
            Control::RequestBodyProcessor(processor)
        }
        "ruleremovebyid" => Control::RemoveRules(RuleChoice::Ids(id_ranges(&text)?)),
        "ruleremovebytag" => Control::RemoveRules(RuleChoice::Tag(text.into())),
        "ruleremovebymsg" => Control::RemoveRules(RuleChoice::Message(text.into())),
        "ruleremovetargetbyid" => {
            let (choice, target) = removed(&text)?;
            Control::RemoveTarget(RuleChoice::Ids(id_ranges(&choice)?), target)
        }
        "ruleremovetargetbytag" => {
            let (choice, target) = removed(&text)?;
            Control::RemoveTarget(RuleChoice::Tag(choice.into()), target)
        }
        "ruleremovetargetbymsg" => {
            let (choice, target) = removed(&text)?;
            Control::RemoveTarget(RuleChoice::Message(choice.into()), target)
        }
        _ => return Err(format!("\"{name}\" is not supported")),
    })
}

/// Parses ids and ranges of ids, with commas or spaces between them.
pub(crate) fn id_ranges(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let parts = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
    let ranges = parts.map(|part| {
        let (begin, end) = part.split_once('-').unwrap_or((part, part));
        let begin = begin.parse().ok()?;
        let end = end.parse().ok()?;
        Some((begin, end))
    });
    let ranges: Option<Vec<_>> = ranges.collect();
    ranges.filter(|ranges| !ranges.is_empty()).ok_or_else(|| format!("invalid ids \"{text}\""))
}

/// The value without single quotes around it; a backslash before a quote is removed.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let inner = value.strip_prefix(b"'").and_then(|value| value.strip_suffix(b"'"));
    let Some(inner) = inner else { return value.to_vec() };
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().peekable();
    while let Some(byte) = bytes.next() {
        if *byte == b'\\' && bytes.peek() == Some(&&b'\'') {
            continue;
        }
        out.push(*byte);
    }
    out
}

/// Splits a list at commas outside single quotes.
fn split(text: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut is_quoted = false;
    let mut previous = b',';
    for (at, &byte) in text.iter().enumerate() {
        if byte == b'\'' && previous != b'\\' {
            is_quoted = !is_quoted;
        } else if byte == b',' && !is_quoted {
            parts.push(text.get(begin..at).unwrap_or_default());
            begin = at + 1;
        }
        previous = byte;
    }
    if is_quoted {
        return Err("unterminated quoted value of an action".to_owned());
    }
    parts.push(text.get(begin..).unwrap_or_default());
    Ok(parts)
}
