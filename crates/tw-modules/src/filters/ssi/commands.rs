//! The commands of SSI, their parameters, and the places where they are allowed.

use tw_log::Text;

use super::parser::{Command, PARAMETERS_MAX};
use super::words::CommandError;

/// Known command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandKind {
    Include,
    Echo,
    Config,
    Set,
    If,
    Elif,
    Else,
    Endif,
    Block,
    Endblock,
}

/// State of the conditions of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConditionState {
    /// Outside.
    None,
    /// After `if` or `elif`.
    If,
    /// After `else`.
    Else,
}

/// Name and parameters of a command.
pub(super) struct CommandSpec {
    name: &'static str,
    pub(super) kind: CommandKind,
    /// Parameters, and `true` for those that are required.
    parameters: &'static [(&'static str, bool)],
    /// The last place among conditions where it may stand, if it belongs to them.
    pub(super) condition: Option<ConditionState>,
}

// Indexes of parameters in `CommandSpec::parameters`.
pub(super) const VIRTUAL: usize = 0;
pub(super) const FILE: usize = 1;
pub(super) const WAIT: usize = 2;
pub(super) const INCLUDE_SET: usize = 3;
pub(super) const STUB: usize = 4;
pub(super) const VAR: usize = 0;
pub(super) const DEFAULT: usize = 1;
pub(super) const ENCODING: usize = 2;
pub(super) const VALUE: usize = 1;
pub(super) const ERRMSG: usize = 0;
pub(super) const TIMEFMT: usize = 1;
pub(super) const EXPR: usize = 0;
pub(super) const NAME: usize = 0;

const fn command(
    name: &'static str,
    kind: CommandKind,
    parameters: &'static [(&'static str, bool)],
    condition: Option<ConditionState>,
) -> CommandSpec {
    CommandSpec { name, kind, parameters, condition }
}

const KNOWN: &[CommandSpec] = &[
    command(
        "include",
        CommandKind::Include,
        &[("virtual", false), ("file", false), ("wait", false), ("set", false), ("stub", false)],
        None,
    ),
    command("echo", CommandKind::Echo, &[("var", true), ("default", false), ("encoding", false)], None),
    command("config", CommandKind::Config, &[("errmsg", false), ("timefmt", false)], None),
    command("set", CommandKind::Set, &[("var", true), ("value", true)], None),
    command("if", CommandKind::If, &[("expr", true)], None),
    command("elif", CommandKind::Elif, &[("expr", true)], Some(ConditionState::If)),
    command("else", CommandKind::Else, &[], Some(ConditionState::If)),
    command("endif", CommandKind::Endif, &[], Some(ConditionState::Else)),
    command("block", CommandKind::Block, &[("name", true)], None),
    command("endblock", CommandKind::Endblock, &[], None),
];

/// Values of the parameters of a command, in the order of [`CommandSpec::parameters`].
pub(super) type Values<'a> = [Option<&'a [u8]>; 5];

impl CommandSpec {
    /// The command of this name.
    pub(super) fn find(name: &[u8]) -> Option<&'static Self> {
        KNOWN.iter().find(|command_spec| command_spec.name.as_bytes() == name)
    }

    /// The values of its parameters.
    pub(super) fn values<'a>(&self, command: &'a Command) -> Result<Values<'a>, CommandError> {
        let mut values = Values::default();
        if command.parameters.len() > PARAMETERS_MAX {
            return Err(format!("too many SSI command parameters: \"{}\"", self.name));
        }
        for (name, value) in &command.parameters {
            let position = self.parameters.iter().position(|(candidate, _)| candidate.as_bytes() == name);
            let Some(place) = position.and_then(|at| values.get_mut(at)) else {
                let name = Text(name);
                return Err(format!("invalid parameter name: \"{name}\" in \"{}\" SSI command", self.name));
            };
            if place.replace(value).is_some() {
                let name = Text(name);
                return Err(format!("duplicate \"{name}\" parameter in \"{}\" SSI command", self.name));
            }
        }
        let mut arguments = self.parameters.iter().zip(&values);
        match arguments.find(|((_, is_needed), value)| *is_needed && value.is_none()) {
            Some(((name, _), _)) => {
                Err(format!("mandatory \"{name}\" parameter is absent in \"{}\" SSI command", self.name))
            }
            None => Ok(values),
        }
    }
}

/// Returns true if a command means the same whatever other pages do meanwhile: an include that neither reads nor sets anything
/// that pages have in common.
pub(super) fn is_independent(command: &Command) -> bool {
    let is_own =
        |(name, value): &(Vec<u8>, Vec<u8>)| !value.contains(&b'$') && !matches!(&**name, b"stub" | b"set");
    CommandSpec::find(&command.name).is_some_and(|command_spec| command_spec.kind == CommandKind::Include)
        && command.parameters.iter().all(is_own)
}

/// The text of a command, as it is kept in a block.
pub(super) fn text_of(command: &Command) -> Vec<u8> {
    let mut text = b"<!--#".to_vec();
    text.extend_from_slice(&command.name);
    for (name, value) in &command.parameters {
        for part in [b" ", &**name, b"=\"", value, b"\""] {
            text.extend_from_slice(part);
        }
    }
    text.extend_from_slice(b" -->");
    text
}
