//! Entries that are open: what a loop keeps of them in memory, and how damage of their files ends them.

pub(crate) mod damage;
pub(crate) mod hot_table;
pub(crate) mod open_entries;
