//! A compiled program: a flat list of operations with jumps.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::regex::{Caseless, Regex};
use tw_server::http::plan::Phase;
use tw_server::load::Resolve;
use tw_server::vars::{Template, Var, VarTarget};

use super::condition::{ExpectedResult, FileTest, IfCondition, VariableWord};
use super::raw::{RawOperation, RewriteDirective};
use super::replace::Replacement;
use super::return_response::ReturnResponse;

/// Operations of one block, run for each request.
pub(super) struct Program {
    pub(super) operations: Box<[Operation]>,
}

/// One step of a program.
pub(super) enum Operation {
    Rewrite(Arc<Regex>, Replacement),
    Set(VarTarget, Template),
    Return(ReturnResponse),
    Break,
    If {
        test: Test,
        /// Index of the operation after the block, for a request whose condition is false.
        end: usize,
        enter: IfSettings,
    },
}

/// Settings to use when a condition is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfSettings {
    /// Settings of the `if` with this number in its location.
    If(usize),
    /// Settings as they are: the location is not chosen yet.
    Nothing,
}

/// The condition of an `if`.
pub(super) enum Test {
    True(Var),
    Equal(Var, ExpectedResult, Template),
    Matches(Var, ExpectedResult, Arc<Regex>),
    File(FileTest, ExpectedResult, Template),
}

impl Program {
    /// Compiles the program of a block that runs in `phase`.
    pub(super) fn compile(
        written: Vec<RawOperation>,
        phase: Phase,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let mut compiler = Compiler { operations: Vec::with_capacity(written.len()), ifs: 0, phase };
        compiler.block(written, cx)?;
        Ok(Self { operations: compiler.operations.into() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

struct Compiler {
    operations: Vec<Operation>,
    /// `if` blocks so far.
    ifs: usize,
    phase: Phase,
}

impl Compiler {
    fn block(&mut self, written: Vec<RawOperation>, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        for written in written {
            let operation = match written {
                RawOperation::Rewrite(rewrite) => compile_rewrite(rewrite, cx)?,
                RawOperation::Set { variable, value } => {
                    let name = variable.lossy();
                    let place = cx
                        .vars
                        .set_target(name.strip_prefix('$').unwrap_or(&name))
                        .map_err(|error| error.at(variable.span))?;
                    Operation::Set(place, cx.template(&value)?)
                }
                RawOperation::Return(answer) => Operation::Return(answer.compile(cx)?),
                RawOperation::Break => Operation::Break,
                RawOperation::If(condition, inner) => {
                    self.branch(condition, inner, cx)?;
                    continue;
                }
            };
            self.operations.push(operation);
        }
        Ok(())
    }

    fn branch(
        &mut self,
        condition: IfCondition,
        inner: Vec<RawOperation>,
        cx: &mut Resolve<'_>,
    ) -> Result<(), ConfError> {
        let enter = match self.phase {
            Phase::Rewrite => IfSettings::If(self.ifs),
            _ => IfSettings::Nothing,
        };
        self.ifs += 1;
        let at = self.operations.len();
        self.operations.push(Operation::If { test: Test::compile(condition, cx)?, end: 0, enter });
        self.block(inner, cx)?;
        let after = self.operations.len();
        if let Some(Operation::If { end, .. }) = self.operations.get_mut(at) {
            *end = after;
        }
        Ok(())
    }
}

fn compile_rewrite(rewrite: RewriteDirective, cx: &mut Resolve<'_>) -> Result<Operation, ConfError> {
    let regex = compile_regex(&rewrite.pattern, Caseless::No, cx)?;
    Ok(Operation::Rewrite(regex, Replacement::compile(&rewrite, cx)?))
}

fn compile_regex(pattern: &Word, caseless: Caseless, cx: &mut Resolve<'_>) -> Result<Arc<Regex>, ConfError> {
    let regex = cx.regex(&pattern.bytes, caseless).map_err(|error| {
        ConfError::new(format!("regex compilation failed: {error} in \"{pattern}\"")).at(pattern.span)
    })?;
    for (_, name) in regex.names() {
        cx.vars.capture(name).map_err(|error| error.at(pattern.span))?;
    }
    Ok(regex)
}

impl Test {
    fn compile(condition: IfCondition, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut bind = |name: VariableWord| cx.vars.bind(&name.name, Some(name.word.span));
        Ok(match condition {
            IfCondition::True(name) => Self::True(bind(name)),
            IfCondition::Equal(name, expected, value) => {
                Self::Equal(bind(name), expected, cx.template(&value)?)
            }
            IfCondition::Matches(name, expected, pattern, caseless) => {
                Self::Matches(bind(name), expected, compile_regex(&pattern, caseless, cx)?)
            }
            IfCondition::File(test, expected, path) => Self::File(test, expected, cx.template(&path)?),
        })
    }
}
