//! `cache_quota` of a location.

use tw_cache::QuotaOwner;
use tw_conf::{ConfError, Node, Word, units};

use crate::guard::quota::QuotaClaim;
use tw_request::request::Request;
use tw_request::vars::Template;

/// `cache_quota` as written.
#[derive(Debug, Clone)]
pub struct RawQuota {
    value: Word,
    max: u64,
}

impl RawQuota {
    /// Reads the directive; `None` for `off`.
    ///
    /// # Errors
    /// An invalid size.
    pub fn read(node: &Node) -> Result<Option<Self>, ConfError> {
        let value = node.arg(0)?.clone();
        let size = match &*node.args {
            [_] if &*value.bytes == b"off" => return Ok(None),
            [_, size] => size,
            _ => return Err(node.fail("a size is missing".to_owned())),
        };
        let max = units::offset(&size.bytes).filter(|max| *max > 0);
        let max = max.ok_or_else(|| node.fail(format!("invalid size \"{size}\"")).at(size.span))?;
        Ok(Some(Self { value, max }))
    }

    /// Quota of a location; `template` compiles the value.
    ///
    /// # Errors
    /// Fails as the value does.
    pub(crate) fn resolve(
        &self,
        template: impl FnOnce(&Word) -> Result<Template, ConfError>,
    ) -> Result<Quota, ConfError> {
        Ok(Quota { value: template(&self.value)?, max: self.max })
    }
}

/// `cache_quota` of a location.
pub(crate) struct Quota {
    value: Template,
    max: u64,
}

impl Quota {
    /// Owner of the response to `r`; `None` if the value is empty.
    pub(crate) fn claim(&self, r: &Request) -> Option<QuotaClaim> {
        let value = self.value.value(r);
        (!value.is_empty()).then(|| QuotaClaim { owner: QuotaOwner::of(&value), max: self.max })
    }
}
