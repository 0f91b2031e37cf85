//! Host of unit tests: a connection without a loop and without a protocol.

use std::cell::RefCell;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::rc::{Rc, Weak};
use std::time::Instant;

use tw_core::event_loop::{ClientInfo, ConnectionSlot, Connections, EvictableConnection, Tally};
use tw_log::Level;
use tw_net::proxy_protocol::Header;
use tw_rt::{FirstBytes, Socket};

use crate::host::Host;

struct TestClient;

impl ClientInfo for TestClient {
    fn id(&self) -> u64 {
        1
    }

    fn address(&self) -> &str {
        "192.0.2.1"
    }
}

/// A host that remembers what it was given.
pub(crate) struct TestHost {
    pub(crate) connections: Connections,
    pub(crate) header: RefCell<Option<Header>>,
    pub(crate) lines: RefCell<Vec<String>>,
    slot: ConnectionSlot,
    tally: Tally,
}

impl TestHost {
    pub(crate) fn new() -> Self {
        let client: Rc<dyn ClientInfo> = Rc::new(TestClient);
        let connections = Connections::default();
        let weak: Weak<dyn ClientInfo> = Rc::downgrade(&client);
        let slot = connections.add_client(weak);
        Self {
            connections,
            header: RefCell::default(),
            lines: RefCell::default(),
            slot,
            tally: Tally::default(),
        }
    }
}

impl Host for TestHost {
    fn accepted(&self) -> Instant {
        tw_rt::clock::now()
    }

    fn peer_text(&self) -> &str {
        "192.0.2.1"
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.lines.borrow_mut().push(format!("{}: {message}", level.word()));
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        EvictableConnection::new(&self.connections, &self.slot)
    }

    fn set_proxy_header(&self, header: Header) {
        assert!(self.header.replace(Some(header)).is_none(), "a header is set once");
    }
}

/// Runs a test on a runtime with sockets and timers.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Two connected sockets: that of a client, and that of the server.
pub(crate) fn socket_pair() -> (UnixStream, Socket) {
    let (client, server) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    (client, Socket::unix(server.into(), FirstBytes::Later))
}
