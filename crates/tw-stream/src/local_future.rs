//! Futures of one loop.

use std::pin::Pin;

/// Boxed future of one loop; it may borrow the session.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
