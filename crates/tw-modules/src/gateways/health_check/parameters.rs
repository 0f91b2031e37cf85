//! Parameters of `health_check` that all protocols have, and the choice of a `match` block.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Node, Word, units};
use tw_upstream::HealthCheckParams;

/// Blocks by name.
pub(crate) type MatchBlocks<T> = HashMap<Box<[u8]>, Arc<T>>;

/// Parameters of a check.
#[derive(Clone, Default)]
pub(crate) struct CheckParameters {
    /// Intervals and thresholds.
    pub(crate) params: HealthCheckParams,
    /// `match=`
    pub(crate) expected: Option<Word>,
    /// `port=`
    pub(crate) port: Option<u16>,
}

impl CheckParameters {
    /// Reads a parameter. Returns false if it is none that all protocols have.
    pub(crate) fn read(&mut self, node: &Node, word: &Word) -> Result<bool, ConfError> {
        let params = &mut self.params;
        let invalid = || node.fail(format!("invalid parameter \"{word}\""));
        let count = |value: &[u8]| {
            let count = units::number(value).and_then(|n| u32::try_from(n).ok());
            count.filter(|count| *count > 0).ok_or_else(invalid)
        };
        let millis = |value: &[u8]| units::msec(value).map(as_ms).ok_or_else(invalid);
        if let Some(value) = word.param("interval") {
            params.interval_ms = millis(value).ok().filter(|ms| *ms > 0).ok_or_else(invalid)?;
        } else if let Some(value) = word.param("jitter") {
            params.jitter_ms = millis(value)?;
        } else if let Some(value) = word.param("fails") {
            params.fails = count(value)?;
        } else if let Some(value) = word.param("passes") {
            params.passes = count(value)?;
        } else if word.param("match").is_some_and(|name| !name.is_empty()) {
            self.expected = Some(word.clone());
        } else if let Some(value) = word.param("port") {
            let port = count(value).ok().and_then(|port| u16::try_from(port).ok());
            self.port = Some(port.ok_or_else(invalid)?);
        } else {
            match &*word.bytes {
                b"mandatory" => params.mandatory = true,
                b"persistent" => params.persistent = true,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Checks the parameters, once all are read.
    pub(crate) fn check(&self, node: &Node) -> Result<(), ConfError> {
        if self.params.persistent && !self.params.mandatory {
            return Err(node.fail("\"persistent\" of \"health_check\" needs \"mandatory\""));
        }
        Ok(())
    }

    /// The block that `match=` names; `None` without one.
    pub(crate) fn criteria<T>(&self, blocks: &MatchBlocks<T>) -> Result<Option<Arc<T>>, ConfError> {
        let Some(word) = &self.expected else { return Ok(None) };
        let name = word.param("match").unwrap_or_default();
        let shown = String::from_utf8_lossy(name);
        let unknown = || ConfError::new(format!("unknown match \"{shown}\"")).at(word.span);
        blocks.get(name).cloned().map(Some).ok_or_else(unknown)
    }
}

fn as_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
