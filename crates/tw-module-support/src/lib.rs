//! Parts that several modules have in common, in `tw-modules` or in crates beside it: zones of shared memory, files kept in memory,
//! queues for slow work, responses made of files, blocks that define a variable.
//!
//! A part here knows no module by name.

pub mod access_refusal;
pub mod address_source;
pub mod block;
pub mod cached_files;
pub mod changed_body;
pub mod connections;
pub mod cross_origin;
pub mod date_format;
pub mod file_response;
pub mod forwarded;
pub mod loop_sets;
pub mod mapped_values;
pub mod metrics_output;
pub mod page_policy;
pub mod refusal;
pub mod required_values;
pub mod secret;
pub mod small_body;
pub mod trusted_proxies;
pub mod turn_queue;
pub mod types;
pub mod verified_tls;
pub mod zone;
