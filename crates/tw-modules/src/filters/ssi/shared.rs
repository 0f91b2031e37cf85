//! State that the pages of one request of a client share: variables, blocks, captures.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use tw_core::regex::{Captures, Match, Regex};
use tw_request::request::Request;
use tw_request::vars::Value;

use super::words::CommandError;

// DIFF(nginx): there they take what memory there is.
/// Bytes of variables and blocks that a request may keep: pages could make them without end.
pub(super) const SSI_KEPT_MAX: usize = 4 << 20;
/// Groups of a pattern that have a name of one digit.
const CAPTURES: usize = 10;

/// State that the pages of one request share.
#[derive(Default)]
pub(super) struct SsiState {
    variables: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
    blocks: RefCell<Vec<Block>>,
    captures: RefCell<Captures>,
    /// Bytes in `variables` and `blocks`.
    kept: Cell<usize>,
    /// Stubs that are inside each other just now.
    pub(super) stubs: Cell<u8>,
    /// Set once the lack of subrequests was logged: one line is enough.
    pub(super) refusal_is_logged: Cell<bool>,
}

/// `block`
struct Block {
    name: Vec<u8>,
    content: Vec<u8>,
}

impl SsiState {
    /// Counts bytes that are kept.
    fn keep(&self, bytes: usize) -> Result<(), CommandError> {
        let kept = self.kept.get() + bytes;
        if kept > SSI_KEPT_MAX {
            return Err("too many SSI variables and blocks".to_owned());
        }
        self.kept.set(kept);
        Ok(())
    }

    /// Sets a variable, whose name is in lower case.
    pub(super) fn set(&self, name: &[u8], value: Vec<u8>) -> Result<(), CommandError> {
        let mut variables = self.variables.borrow_mut();
        if let Some(known_name) = variables.get_mut(name) {
            self.kept.set(self.kept.get().saturating_sub(known_name.len()));
            known_name.clear();
            self.keep(value.len())?;
            *known_name = value;
            return Ok(());
        }
        self.keep(name.len() + value.len())?;
        variables.insert(name.to_vec(), value);
        Ok(())
    }

    /// Makes sure that there is a variable of this name.
    pub(super) fn declare(&self, name: &[u8]) -> Result<(), CommandError> {
        if self.variables.borrow().contains_key(name) { Ok(()) } else { self.set(name, Vec::new()) }
    }

    /// The value of a variable, whose name is in lower case: of a page, else of the request.
    pub(super) fn get(&self, r: &Request, name: &[u8], out: &mut Vec<u8>) -> Value {
        if let [digit @ b'0'..=b'9'] = name {
            let captures = self.captures.borrow();
            let group = usize::from(digit - b'0');
            // A group that took no part is empty, if one behind it did.
            if let Some(text) = (group..CAPTURES).find_map(|n| captures.group(n).map(|text| (n, text))) {
                if text.0 == group {
                    out.extend_from_slice(text.1);
                }
                return Value::Found;
            }
        }
        if let Some(value) = self.variables.borrow().get(name) {
            out.extend_from_slice(value);
            return Value::Found;
        }
        let name = std::str::from_utf8(name).unwrap_or_default();
        match r.generation().config.slots.find(name) {
            Some(variable) => variable.eval(r, out),
            None => Value::Missing,
        }
    }

    /// Returns `true` if a text matches; keeps the captures.
    pub(super) fn matches(&self, pattern: &Regex, text: &[u8]) -> Result<bool, CommandError> {
        let mut captures = self.captures.borrow_mut();
        match pattern.captures(text, &mut captures) {
            Ok(Match::No) => Ok(false),
            Ok(Match::Yes) => {
                for (group, name) in pattern.names() {
                    self.set(name.as_bytes(), captures.group(*group).unwrap_or_default().to_vec())?;
                }
                Ok(true)
            }
            Err(_) => Err(format!("regex \"{}\" exceeded its limit of backtracking", pattern.pattern())),
        }
    }

    /// Begins a block.
    pub(super) fn begin_block(&self, name: &[u8]) -> Result<(), CommandError> {
        self.keep(name.len() + size_of::<Block>())?;
        self.blocks.borrow_mut().push(Block { name: name.to_vec(), content: Vec::new() });
        Ok(())
    }

    /// Adds to the last block.
    pub(super) fn add_to_block(&self, text: &[u8]) -> Result<(), CommandError> {
        self.keep(text.len())?;
        if let Some(block) = self.blocks.borrow_mut().last_mut() {
            block.content.extend_from_slice(text);
        }
        Ok(())
    }

    /// The content of the first block with this name.
    pub(super) fn block(&self, name: &[u8]) -> Option<Vec<u8>> {
        let blocks = self.blocks.borrow();
        blocks.iter().find(|block| block.name == name).map(|block| block.content.clone())
    }
}
