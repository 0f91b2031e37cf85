//! The response cache: `proxy_cache` and its kin, purges, `slice`, and what disks and crashes do to it.

mod damaged_bodies;
mod devices;
mod directories;
mod doc_examples;
mod failing_disks;
mod fill_continuation;
mod hedge;
mod kill_and_restart;
mod lost_files;
mod members;
mod memory;
mod nginx_directories;
mod path_parameters;
mod proxy_cache;
mod proxy_cache_purge;
mod purge;
mod refresh_ahead;
mod rfc9111;
mod segments;
mod segments_damaged;
mod segments_served;
mod slice;
mod slow_disk;
mod three_disks_example;
mod warm_restart;
mod weak_validators;
