//! Values of claims and header parameters as variables have them.

use std::io::Write as _;

use serde_json::{Map, Value as Json};
use tw_core::vars::Value;

/// Path from the top of a token's header or claims to a value.
pub(crate) struct ClaimPath(Box<[Box<str>]>);

impl ClaimPath {
    /// The path of these names.
    pub(crate) fn new(names: impl IntoIterator<Item = Box<str>>) -> Self {
        Self(names.into_iter().collect())
    }

    /// The only name of the path.
    pub(crate) fn single(&self) -> Option<&str> {
        match &*self.0 {
            [name] => Some(name),
            _ => None,
        }
    }

    /// Appends the value at this path.
    pub(crate) fn append(&self, members: &Map<String, Json>, out: &mut Vec<u8>) -> Value {
        let Some((first, rest)) = self.0.split_first() else { return Value::Missing };
        let found_value = rest.iter().try_fold(members.get(&**first), |value, name| match value {
            Some(Json::Object(inner)) => Some(inner.get(&**name)),
            _ => None,
        });
        append_value(found_value.flatten(), out)
    }
}

/// Appends the value of a member at the top.
pub(crate) fn append_member(members: &Map<String, Json>, name: &[u8], out: &mut Vec<u8>) -> Value {
    append_value(str::from_utf8(name).ok().and_then(|name| members.get(name)), out)
}

/// Appends a value: text as it is, elements of a list with commas between them. An object has no value, nor has `null`.
pub(crate) fn append_value(value: Option<&Json>, out: &mut Vec<u8>) -> Value {
    match value {
        None | Some(Json::Null | Json::Object(_)) => return Value::Missing,
        Some(Json::Array(elements)) => {
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                append_scalar(element, out);
            }
        }
        Some(scalar) => append_scalar(scalar, out),
    }
    Value::Found
}

/// Appends text as it is, and everything else as JSON has it.
fn append_scalar(value: &Json, out: &mut Vec<u8>) {
    match value {
        Json::String(text) => out.extend_from_slice(text.as_bytes()),
        // Writing to memory does not fail.
        other => drop(write!(out, "{other}")),
    }
}
