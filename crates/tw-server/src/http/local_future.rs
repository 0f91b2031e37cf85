//! Type of futures that handlers and bodies return.

use std::future::Future;
use std::pin::Pin;

/// Boxed future of one loop; it may borrow the request.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
