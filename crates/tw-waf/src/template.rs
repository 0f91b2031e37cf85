//! Texts with values of variables in them: `%{tx.score}`.

use std::sync::Arc;

use crate::names::Names;
use crate::seclang::target::{self, Target, Use};
use crate::variable::Variable;

/// Text with values in it.
#[derive(Debug, Clone)]
pub(crate) enum Template {
    /// Text without values.
    Fixed(Arc<[u8]>),
    /// Parts in their order.
    Parts(Box<[TemplatePart]>),
}

/// TemplatePart of a text.
#[derive(Debug, Clone)]
pub(crate) enum TemplatePart {
    /// Fixed bytes.
    Text(Box<[u8]>),
    /// First value of a target.
    Value(Target),
    /// Value of `TX` by its number.
    Tx(u16),
}

impl Template {
    /// Compiles `text`. The error is its reason.
    pub(crate) fn compile(text: &[u8], names: &mut Names) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        let mut fixed = Vec::new();
        while let Some(at) = memchr::memmem::find(rest, b"%{") {
            let (before, behind) = rest.split_at(at);
            fixed.extend_from_slice(before);
            let Some(end) = memchr::memchr(b'}', behind) else {
                return Err("unterminated \"%{\"".to_owned());
            };
            if !fixed.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut fixed).into()));
            }
            parts.push(value(behind.get(2..end).unwrap_or_default(), names)?);
            rest = behind.get(end + 1..).unwrap_or_default();
            // A percent sign behind the brace belongs to the value, as in ModSecurity.
            if rest.starts_with(b"%") && !rest.starts_with(b"%{") {
                rest = rest.get(1..).unwrap_or_default();
            }
        }
        fixed.extend_from_slice(rest);
        if parts.is_empty() {
            return Ok(Self::Fixed(fixed.into()));
        }
        if !fixed.is_empty() {
            parts.push(TemplatePart::Text(fixed.into()));
        }
        Ok(Self::Parts(parts.into()))
    }

    /// Returns true if it has the value that a rule has matched, or its name.
    pub(crate) fn uses_match(&self) -> bool {
        let is_match = |part: &TemplatePart| {
            let TemplatePart::Value(target) = part else { return false };
            matches!(
                target.variable,
                Variable::MatchedVar
                    | Variable::MatchedVarName
                    | Variable::MatchedVars
                    | Variable::MatchedVarsNames
            )
        };
        match self {
            Self::Fixed(_) => false,
            Self::Parts(parts) => parts.iter().any(is_match),
        }
    }

    /// Variables whose values are in the text.
    pub(crate) fn variables(&self) -> impl Iterator<Item = Variable> + '_ {
        let parts = match self {
            Self::Fixed(_) => &[][..],
            Self::Parts(parts) => parts,
        };
        parts.iter().filter_map(|part| match part {
            TemplatePart::Value(target) => Some(target.variable),
            TemplatePart::Text(_) | TemplatePart::Tx(_) => None,
        })
    }

    /// Bytes of the text, if there are no values in it.
    pub(crate) fn fixed(&self) -> Option<&Arc<[u8]>> {
        match self {
            Self::Fixed(text) => Some(text),
            Self::Parts(_) => None,
        }
    }
}

/// The value that `name` stands for: the first `.` or `:` separates variable and value.
fn value(name: &[u8], names: &mut Names) -> Result<TemplatePart, String> {
    let mut name = name.to_vec();
    if let Some(dot) = name.iter().position(|byte| matches!(byte, b'.' | b':'))
        && let Some(byte) = name.get_mut(dot)
    {
        *byte = b':';
    }
    let target = target::parse_one(&name, Use::Values)?;
    if target.variable == Variable::Tx
        && let target::Selector::Name(name) = &target.selector
    {
        let number = names.number(name).ok_or("too many names of TX")?;
        return Ok(TemplatePart::Tx(number));
    }
    Ok(TemplatePart::Value(target))
}
