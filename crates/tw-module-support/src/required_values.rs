//! Values that must neither be empty nor `0` for a request to pass: `auth_jwt_require`, `auth_require`.

use tw_conf::{ConfError, Node, Word};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// One directive as written.
pub struct RawRequirement {
    values: Vec<Word>,
    status: Option<u16>,
}

/// One directive.
pub struct Requirement {
    values: Box<[Template]>,
    /// Status of a request that does not meet it.
    pub status: u16,
}

impl RawRequirement {
    /// Reads `$value … [error=status]`; the status is one that `is_allowed` names.
    pub fn read(node: &Node, is_allowed: fn(u16) -> bool) -> Result<Self, ConfError> {
        let (values, status) = match node.args.split_last() {
            Some((last, values)) if last.bytes.starts_with(b"error=") => {
                let status = last.param("error").and_then(|text| str::from_utf8(text).ok()?.parse().ok());
                let status = status.filter(|status| is_allowed(*status));
                (values, Some(status.ok_or_else(|| node.invalid_parameter(last))?))
            }
            _ => (node.args.as_slice(), None),
        };
        if values.is_empty() {
            return Err(node.invalid_count());
        }
        match values.iter().find(|value| !value.bytes.starts_with(b"$")) {
            Some(value) => Err(node.invalid_value(value)),
            None => Ok(Self { values: values.to_vec(), status }),
        }
    }

    /// Compiles it, with `status` unless it names another one.
    pub fn resolve(self, status: u16, cx: &mut Resolve<'_>) -> Result<Requirement, ConfError> {
        let values = self.values.iter().map(|value| cx.template(value)).collect::<Result<_, _>>()?;
        Ok(Requirement { values, status: self.status.unwrap_or(status) })
    }
}

impl Requirement {
    /// Returns `true` if all values are there.
    pub fn is_met(&self, r: &Request) -> bool {
        self.values.iter().all(|value| value.is_set(r))
    }
}
