//! A compiled program: a flat list of operations with jumps.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::regex::{Caseless, Regex};
use tw_request::plan::Phase;
use tw_request::protocol::Resolve;
use tw_request::vars::{Template, Var, VarTarget};

use super::condition::{ExpectedResult, FileTest, IfCondition, VariableWord};
use super::raw::{RawOperation, RewriteDirective};
use super::replace::Replacement;
use super::return_response::ReturnResponse;
use super::set_misc::{Base32, Call, UpstreamLists};

/// Operations of one block, run for each request.
#[derive(Default)]
pub(super) struct Program {
    pub(super) operations: Box<[Operation]>,
}

/// One step of a program.
pub(super) enum Operation {
    Rewrite(Arc<Regex>, Replacement),
    Set(VarTarget, Template),
    Call(VarTarget, Box<Call>),
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
    /// Compiles the program of a block that runs in `phase`. Mistakes are kept.
    pub(super) fn compile(
        written_operations: Vec<RawOperation>,
        phase: Phase,
        base32: &Base32,
        lists: &UpstreamLists,
        cx: &mut Resolve<'_>,
    ) -> Self {
        let operations = Vec::with_capacity(written_operations.len());
        let mut compiler = Compiler { operations, ifs: 0, phase, base32: base32.clone(), lists };
        compiler.block(written_operations, cx);
        Self { operations: compiler.operations.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }
}

struct Compiler<'a> {
    operations: Vec<Operation>,
    /// `if` blocks so far.
    ifs: usize,
    phase: Phase,
    /// Settings of the block that is being compiled.
    base32: Base32,
    lists: &'a UpstreamLists,
}

impl Compiler<'_> {
    fn block(&mut self, operations: Vec<RawOperation>, cx: &mut Resolve<'_>) {
        for operation in operations {
            if let Err(error) = self.add(operation, cx) {
                cx.mistakes.add(error);
            }
        }
    }

    fn add(&mut self, written_operation: RawOperation, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        let operation = match written_operation {
            RawOperation::Rewrite(rewrite) => compile_rewrite(rewrite, cx)?,
            RawOperation::Set { variable, value } => {
                Operation::Set(target(&variable, cx)?, cx.template(&value)?)
            }
            RawOperation::Call(call) => {
                let place = target(&call.variable, cx)?;
                Operation::Call(place, Box::new(call.compile(&self.base32, self.lists, cx)?))
            }
            RawOperation::Return(answer) => Operation::Return(answer.compile(cx)?),
            RawOperation::Break => Operation::Break,
            RawOperation::If(condition, inner, base32) => {
                let base32 = base32.resolve(&self.base32);
                let outer = std::mem::replace(&mut self.base32, base32);
                self.branch(condition, inner, cx);
                self.base32 = outer;
                return Ok(());
            }
        };
        self.operations.push(operation);
        Ok(())
    }

    fn branch(&mut self, condition: IfCondition, inner: Vec<RawOperation>, cx: &mut Resolve<'_>) {
        let enter = match self.phase {
            Phase::Rewrite => IfSettings::If(self.ifs),
            _ => IfSettings::Nothing,
        };
        self.ifs += 1;
        let at = self.operations.len();
        match Test::compile(condition, cx) {
            Ok(test) => self.operations.push(Operation::If { test, end: 0, enter }),
            Err(error) => cx.mistakes.add(error),
        }
        self.block(inner, cx);
        let after = self.operations.len();
        if let Some(Operation::If { end, .. }) = self.operations.get_mut(at) {
            *end = after;
        }
    }
}

/// Target of the values of `$variable`.
fn target(variable: &Word, cx: &mut Resolve<'_>) -> Result<VarTarget, ConfError> {
    let name = variable.lossy();
    cx.vars.set_target(name.strip_prefix('$').unwrap_or(&name), variable.span)
}

fn compile_rewrite(rewrite: RewriteDirective, cx: &mut Resolve<'_>) -> Result<Operation, ConfError> {
    let regex = cx.regex_of(&rewrite.pattern.bytes, Caseless::No, rewrite.pattern.span)?;
    Ok(Operation::Rewrite(regex, Replacement::compile(&rewrite, cx)?))
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
                Self::Matches(bind(name), expected, cx.regex_of(&pattern.bytes, caseless, pattern.span)?)
            }
            IfCondition::File(test, expected, path) => Self::File(test, expected, cx.template(&path)?),
        })
    }
}
