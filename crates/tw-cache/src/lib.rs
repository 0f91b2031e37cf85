//! Response cache: storage and reuse policy, index, purges and file format.
//!
//! ```text
//! policy      what may be stored and used, and for how long: pure functions
//! format      the file of an entry, as bytes
//! index       what is kept, shared by all loops
//! segment     many entries in one file, as bytes
//! purge       what is no longer to be used, whatever is kept
//! rendezvous  which of the directories of a cache has a key
//! snapshot    the index as a file, for the next process
//! ```
//! No protocol on the wire and no clock: time is an argument, in seconds of the clock on the wall where HTTP compares
//! dates.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod format;
mod index;
mod key;
pub mod policy;
mod purge;
mod quota;
mod rendezvous;
pub mod segment;
mod snapshot;

pub use format::Meta;
pub use index::{
    Claim, ClaimRefused, Commit, CommitRefused, EntryState, EvictionPolicy, EvictionTarget, Index,
    IndexCounts, IndexEntry, LoadOutcome, LoadedEntry, LoadedRecord, Location, Move, Progress, PurgeOutcome,
    RecordOutcome, RemovalState, RemovedEntry, RestoreOutcome, SEGMENTS_MAX, ScanCursor, ScannedEntry,
    ScannedRecord, SegmentAddress, StoredEntry, UnseenEntry, UseCount,
};
pub use key::Key;
pub use purge::{
    PURGES_SIZE_MAX, Purge, PurgeFileError, PurgeFileFacts, Purges, Sequence, Subject, Tag, Verdict,
};
pub use quota::{CountedResponse, QuotaBlock, QuotaCounts, QuotaCursor, QuotaOwner, QuotaRow, QuotaTable};
pub use rendezvous::{RendezvousMember, rendezvous};
pub use snapshot::{
    BLOCK_SIZE as SNAPSHOT_BLOCK_SIZE, RecordSnapshot, RecordSnapshotWriter, SnapshotEntry, SnapshotError,
    SnapshotPart, SnapshotReader, SnapshotStep, SnapshotWriter,
};

tw_base::limits! {
    /// Limits of a cache.
    pub const LIMITS;

    section "caches";
    use index::LIMITS;
    use policy::LIMITS;
    use format::LIMITS;
    use purge::LIMITS;
    use quota::LIMITS;
    use segment::LIMITS;
    use snapshot::LIMITS;
}
