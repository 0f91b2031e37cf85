//! Services of a loop that another protocol has: connections for other listening addresses, and requests of HTTP.

use std::any::Any;
use std::rc::Rc;

use tw_connect::Resolving;
use tw_core::event_loop::AcceptedConnection;
use tw_tls::ocsp::ResponderUrl;

use crate::local_future::LocalFuture;

/// Services of a loop that the application has, as it knows all protocols.
pub trait LoopServices {
    /// Serves a connection as one that was accepted on its listening address, until it is closed.
    fn serve(&self, connection: AcceptedConnection) -> LocalFuture<'static, ()>;

    /// Asks an OCSP responder.
    fn query_ocsp(&self, query: OcspQuery) -> LocalFuture<'static, Result<Vec<u8>, String>>;

    /// State of HTTP on the loop, for modules that know its type and send requests; `None` if the loop ends.
    fn http(&self) -> Option<Rc<dyn Any>>;
}

/// Question for an OCSP responder.
pub struct OcspQuery {
    /// URL of the responder.
    pub url: ResponderUrl,
    /// Request in DER.
    pub der: Vec<u8>,
    /// Bytes of a response at most.
    pub size_max: usize,
    /// Name servers for the host of the responder.
    pub resolving: Resolving,
}
