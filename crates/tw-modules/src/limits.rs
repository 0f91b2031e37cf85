//! Modules that hold requests back: by rate, by bandwidth, by the load of the loop.

pub(crate) mod limit_rate;
pub(crate) mod limit_req;
pub(crate) mod overload;
