//! Futures that handlers and bodies return.

use std::future::Future;
use std::pin::Pin;

/// Boxed future of one loop; it may borrow the request.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Boxes the future that `make` returns.
///
/// Memory comes first, so that the future is made there. `Box::pin` makes it on the stack and copies all of it, also the
/// room for what it will hold later: several kilobytes for a proxied request.
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
