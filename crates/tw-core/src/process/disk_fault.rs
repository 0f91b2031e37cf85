//! `debug_disk_fault`: operations on files that are delayed, or fail, on purpose. No counterpart in nginx.

use std::fmt;
use std::time::Duration;

use tw_base::fault::{FAULT_DELAY_MAX, FAULT_ERRORS, FaultOp, Probability, fault_error, fault_error_name};
use tw_conf::{ConfError, Cx, Node, Span, Word, units};
use tw_disk::FaultRule;

/// One `debug_disk_fault` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFault {
    /// Operations, and what becomes of them.
    pub rule: FaultRule,
    /// Position in the configuration.
    pub span: Span,
}

impl DiskFault {
    /// Reads `path=path [op=operation,…] [delay=time] [error=name] [rate=percent]`.
    pub(super) fn parse(node: &Node, cx: &Cx<'_>) -> Result<Self, ConfError> {
        let mut path = None;
        let mut rule = FaultRule {
            path: Box::default(),
            ops: FaultOp::ALL.into(),
            delay: Duration::ZERO,
            error: None,
            rate: Probability::ALWAYS,
        };
        for word in &node.args {
            let invalid = |what: &str| node.fail(format!("invalid {what} value \"{word}\""));
            if let Some(value) = word.param("path") {
                path = Some(clean(value, cx).ok_or_else(|| invalid("path"))?);
            } else if let Some(value) = word.param("op") {
                rule.ops = operations(node, value)?;
            } else if let Some(value) = word.param("delay") {
                let delay = units::msec(value).filter(|delay| *delay <= FAULT_DELAY_MAX);
                rule.delay = delay.ok_or_else(|| invalid("delay"))?;
            } else if let Some(value) = word.param("error") {
                rule.error = Some(fault_error(value).ok_or_else(|| unknown_error(node, word))?);
            } else if let Some(value) = word.param("rate") {
                let hint = "a probability in percent: 0.1%";
                rule.rate = units::probability(value).ok_or_else(|| invalid("rate").hint(hint))?;
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        rule.path = path.ok_or_else(|| node.error("needs \"path=\""))?;
        if rule.delay.is_zero() && rule.error.is_none() {
            return Err(node.error("needs \"delay=\" or \"error=\""));
        }
        Ok(Self { rule, span: node.span })
    }
}

/// A path as files are opened by it: absolute, without a slash at its end.
fn clean(value: &[u8], cx: &Cx<'_>) -> Option<Box<[u8]>> {
    if value.is_empty() {
        return None;
    }
    let full = cx.full_path(value);
    let names = full.as_os_str().as_encoded_bytes().split(|byte| *byte == b'/');
    let mut clean = Vec::new();
    for name in names.filter(|name| !matches!(*name, b"" | b".")) {
        if name == b".." {
            return None;
        }
        clean.push(b'/');
        clean.extend_from_slice(name);
    }
    if clean.is_empty() {
        clean.push(b'/');
    }
    full.is_absolute().then(|| clean.into())
}

fn operations(node: &Node, value: &[u8]) -> Result<Box<[FaultOp]>, ConfError> {
    let unknown = |name: &[u8]| {
        let known_names: Vec<_> = FaultOp::ALL.iter().map(|op| op.name()).collect();
        node.fail(format!("unknown operation \"{}\"", String::from_utf8_lossy(name)))
            .hint(format!("operations are: {}", known_names.join(", ")))
    };
    value.split(|byte| *byte == b',').map(|name| FaultOp::parse(name).ok_or_else(|| unknown(name))).collect()
}

fn unknown_error(node: &Node, word: &Word) -> ConfError {
    let known_names: Vec<_> = FAULT_ERRORS.iter().map(|(name, _)| *name).collect();
    node.fail(format!("invalid error value \"{word}\""))
        .hint(format!("errors are: {}", known_names.join(", ")))
}

/// The effect in words: `10% of the operations (open, read) below "/srv" are delayed by 50 ms and fail with EIO`.
impl fmt::Display for DiskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultRule { path, ops, delay, error, rate } = &self.rule;
        write!(f, "{rate} of the operations")?;
        if ops.len() < FaultOp::COUNT {
            let names: Vec<_> = ops.iter().map(|op| op.name()).collect();
            write!(f, " ({})", names.join(", "))?;
        }
        write!(f, " below \"{}\" ", String::from_utf8_lossy(path))?;
        if !delay.is_zero() {
            write!(f, "are delayed by {} ms", delay.as_millis())?;
        }
        match (error, delay.is_zero()) {
            (Some(errno), true) => write!(f, "fail with {}", fault_error_name(*errno)),
            (Some(errno), false) => write!(f, " and fail with {}", fault_error_name(*errno)),
            (None, _) => Ok(()),
        }
    }
}
