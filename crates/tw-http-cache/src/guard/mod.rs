//! Limits and protections, as states without I/O: the breaker leaves a slow disk out, hedges race against it, background fetches and quotas
//! are counted.

pub(crate) mod background;
pub(crate) mod breaker;
pub(crate) mod hedge;
pub(crate) mod quota;
