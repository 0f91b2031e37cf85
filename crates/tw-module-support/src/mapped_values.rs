//! Values that a look-up chooses from (`map`, `num_map`): each is kept once, and one with variables is a template.

use std::collections::HashMap;
use std::sync::Arc;

use tw_conf::{ConfError, Node, Span};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::session::Session;
use tw_core::vars::{SlotKind, Template, Value};

use crate::block::refuse_block;

/// Values as written.
#[derive(Default)]
pub struct RawValues {
    list: Vec<(Box<[u8]>, Span)>,
    default: Option<u32>,
    lifetime: ValueLifetime,
}

/// Numbers of the values of a block while it is read.
pub type KnownValues<'n> = HashMap<&'n [u8], u32>;

/// Lifetime of a value.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ValueLifetime {
    /// The session.
    #[default]
    Session,
    /// One use (`volatile`).
    Use,
}

/// Values as used.
pub struct Values<S> {
    /// All values, each once.
    pub texts: Vec<Text<S>>,
    /// The value of `default`.
    pub default: Option<u32>,
}

/// A value.
pub enum Text<S> {
    /// Without variables.
    Constant(Box<[u8]>),
    /// With variables.
    Template(Template<S>),
}

impl RawValues {
    /// Reads a line of a block: `volatile`, `default` with its value, or a pattern with a value, which are returned.
    /// Errors are nginx's, and name the directive `name`.
    pub fn read_line<'n>(
        &mut self,
        line: &'n Node,
        name: &str,
        value_numbers: &mut KnownValues<'n>,
    ) -> Result<Option<(&'n [u8], u32)>, ConfError> {
        refuse_block(line)?;
        let value = match line.args.as_slice() {
            [] if line.name.is("volatile") => {
                self.lifetime = ValueLifetime::Use;
                return Ok(None);
            }
            [value] => value,
            _ => return Err(line.fail(format!("invalid number of the {name} parameters"))),
        };
        let number = *value_numbers.entry(&value.bytes).or_insert_with(|| {
            self.list.push((value.bytes.clone(), value.span));
            self.list.len() as u32 - 1
        });
        if !line.name.is("default") {
            return Ok(Some((&line.name.bytes, number)));
        }
        if self.default.is_some() {
            return Err(line.fail(format!("duplicate default {name} parameter")));
        }
        self.default = Some(number);
        Ok(None)
    }

    /// All values that the variable can have, if that is known already.
    pub fn possible(&self) -> Option<Vec<Box<[u8]>>> {
        let mut texts: Vec<_> = self.list.iter().map(|(text, _)| text.clone()).collect();
        if self.default.is_none() {
            texts.push(Box::default());
        }
        (!texts.iter().any(|text| text.contains(&b'$'))).then_some(texts)
    }

    /// Makes the slot of a variable from `look_up`, which appends the value for a session.
    pub fn slot<P: Protocol, F>(
        self,
        cx: &mut Resolve<'_, P>,
        look_up: impl FnOnce(Values<P::Session>) -> F,
    ) -> Result<SlotKind<P::Session>, ConfError>
    where
        F: Fn(&P::Session, &mut Vec<u8>) + Send + Sync + 'static,
    {
        let mut texts = Vec::with_capacity(self.list.len());
        for (text, span) in self.list {
            texts.push(if text.contains(&b'$') {
                Text::Template(cx.template_text(&text, Some(span))?)
            } else {
                Text::Constant(text)
            });
        }
        let look_up = look_up(Values { texts, default: self.default });
        let compute = Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
            look_up(s, out);
            Value::Found
        });
        Ok(match self.lifetime {
            ValueLifetime::Session => SlotKind::Computed(compute),
            ValueLifetime::Use => SlotKind::Volatile(compute),
        })
    }
}

impl<S: Session> Values<S> {
    /// Appends the value with the number `value`, or the default.
    pub fn push(&self, s: &S, value: Option<u32>, out: &mut Vec<u8>) {
        match value.or(self.default).and_then(|at| self.texts.get(at as usize)) {
            Some(Text::Constant(text)) => out.extend_from_slice(text),
            Some(Text::Template(template)) => template.eval(s, out),
            None => {}
        }
    }
}
