//! Buffering of response bodies.

use std::sync::Arc;

use tw_conf::{Buffers, ConfError, Setting};

use super::kind::ProxyKind;
use tw_request::config::location::TempPath;
use tw_request::protocol::Resolve;

/// Settings of the buffer of response bodies.
#[derive(Clone)]
pub struct BufferSettings {
    /// `buffering`
    pub is_on: bool,
    /// `buffers`: memory for a body.
    pub memory: Buffers,
    /// `max_temp_file_size`: bytes of a body in a file; 0 disables files.
    pub max_temp_file_size: u64,
    /// `temp_path`; `None` where bodies are never kept in a file.
    pub temp_path: Option<Arc<TempPath>>,
}

/// Directives of [`BufferSettings`] as written.
#[derive(Default)]
pub struct RawBuffers {
    /// `buffering`
    pub buffering: Setting<bool>,
    /// `buffers`
    pub memory: Setting<Buffers>,
    /// `busy_buffers_size`
    pub busy_size: Setting<usize>,
    /// `max_temp_file_size`
    pub max_temp_file_size: Setting<u64>,
    /// `temp_file_write_size`
    pub temp_file_write_size: Setting<usize>,
    /// `temp_path`
    pub temp_path: Setting<TempPath>,
}

impl BufferSettings {
    /// Resolves the directives, and checks them as nginx does.
    pub(super) fn resolve(
        raw: RawBuffers,
        outer: Option<&Self>,
        buffer_size: usize,
        kind: &ProxyKind,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let default = Buffers { count: 8, size: rustix::param::page_size() };
        let memory = raw.memory.or(outer.map(|o| o.memory), default);
        let max_temp_file_size = raw.max_temp_file_size.or(outer.map(|o| o.max_temp_file_size), 1 << 30);
        Sizes { buffer_size, memory, max_temp_file_size }.check(
            raw.busy_size.get().copied(),
            raw.temp_file_write_size.get().copied(),
            kind.prefix,
        )?;
        let span = raw.temp_path.span();
        let temp_path = match (raw.temp_path.take(), outer) {
            (Some(path), _) => Some(cx.block.temp_path(path, span)),
            (None, Some(outer)) => outer.temp_path.clone(),
            (None, None) => kind.temp_path.map(|name| {
                let path = cx.full_path_c(name);
                cx.block.temp_path(TempPath { path, levels: [0; 3] }, None)
            }),
        };
        let is_on = raw.buffering.or(outer.map(|o| o.is_on), kind.buffers);
        Ok(Self { is_on, memory, max_temp_file_size, temp_path })
    }

    /// Bytes of a body in memory at most.
    pub fn memory_size(&self) -> usize {
        self.memory.count * self.memory.size
    }
}

/// Sizes that depend on each other.
struct Sizes {
    buffer_size: usize,
    memory: Buffers,
    max_temp_file_size: u64,
}

impl Sizes {
    fn check(
        &self,
        busy_size: Option<usize>,
        temp_file_write_size: Option<usize>,
        prefix: &str,
    ) -> Result<(), ConfError> {
        let Buffers { count, size } = self.memory;
        if count < 2 {
            return Err(ConfError::new(format!("there must be at least 2 \"{prefix}buffers\"")));
        }
        let larger = self.buffer_size.max(size);
        if let Some(busy) = busy_size {
            if busy < larger {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
                )));
            }
            if busy > (count - 1) * size {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be less than the size of all \"{prefix}buffers\" minus one buffer"
                )));
            }
        }
        if temp_file_write_size.is_some_and(|size| size < larger) {
            return Err(ConfError::new(format!(
                "\"{prefix}temp_file_write_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        if self.max_temp_file_size != 0 && self.max_temp_file_size < larger as u64 {
            return Err(ConfError::new(format!(
                "\"{prefix}max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        Ok(())
    }
}
