//! Storage of responses: files of their own (`files`), or records of segments (`segments`).

pub(crate) mod files;
pub(crate) mod record_snapshot;
pub(crate) mod segments;
