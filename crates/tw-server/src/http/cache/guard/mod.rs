//! Protection against a slow or failing disk: the breaker leaves it out, the hedge races against it.

pub(crate) mod breaker;
pub(crate) mod hedge;
