//! Scripted upstream server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// One connection to an origin.
pub struct Conn<S = TcpStream> {
    /// Reader of the proxy's bytes.
    pub reader: BufReader<S>,
    /// Number of the connection, from 0.
    pub nth: usize,
}

impl<S: Read + Write> Conn<S> {
    /// The head of the next request; `None` when there is none.
    pub fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        Some(head)
    }

    /// Sends this text. Ignores a closed connection.
    pub fn send(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.reader.get_mut().write_all(text.as_ref());
    }

    /// Answers with 200, these field lines, each with its end, and this body.
    pub fn answer(&mut self, fields: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        self.send(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len()));
        self.send(body);
    }
}

/// An origin on an address of its own that serves every connection on a thread of its own until the process ends.
///
/// # Panics
/// There is no address or thread left.
#[must_use]
pub fn origin(serve: impl Fn(Conn) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address is left");
    let addr = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for (nth, stream) in listener.incoming().enumerate() {
            // A failure to accept, for want of a descriptor perhaps, does not end the origin.
            let Ok(stream) = stream else { continue };
            // A response in two writes must not wait for the acknowledgement of the first (Nagle's algorithm).
            let _ = stream.set_nodelay(true);
            let serve = serve.clone();
            let reader = BufReader::new(stream);
            thread::spawn(move || serve(Conn { reader, nth }));
        }
    });
    addr
}

/// Starts an origin that serves each connection request by request: `answer` gets the head of each, and the number of
/// earlier requests. Returns the address and a counter of all requests.
///
/// # Panics
/// As [`origin`].
#[must_use]
pub fn counting(
    answer: impl Fn(&mut Conn, &str, usize) + Send + Sync + Clone + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let request_count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&request_count);
    let addr = origin(move |mut conn| {
        while let Some(head) = conn.head() {
            answer(&mut conn, &head, counted.fetch_add(1, SeqCst));
        }
    });
    (addr, request_count)
}

/// Stream of an origin over TLS.
pub type TlsConn = StreamOwned<ServerConnection, TcpStream>;

impl Conn<TlsConn> {
    /// Sends a TLS close_notify. Without it a dropped connection looks truncated.
    pub fn close_notify(&mut self) {
        let stream = self.reader.get_mut();
        stream.conn.send_close_notify();
        // The peer may have closed the connection already.
        let _ = stream.conn.complete_io(&mut stream.sock);
    }

    /// TLS session.
    pub fn session(&self) -> &ServerConnection {
        &self.reader.get_ref().conn
    }
}

/// An origin as [`origin`] over TLS: a connection whose handshake fails is dropped.
///
/// # Panics
/// As [`origin`].
#[must_use]
pub fn secured(
    config: Arc<ServerConfig>,
    serve: impl Fn(Conn<TlsConn>) + Send + Sync + Clone + 'static,
) -> SocketAddr {
    origin(move |conn| {
        let Ok(session) = ServerConnection::new(Arc::clone(&config)) else { return };
        let mut stream = StreamOwned::new(session, conn.reader.into_inner());
        while stream.conn.is_handshaking() {
            if stream.conn.complete_io(&mut stream.sock).is_err() {
                return;
            }
        }
        serve(Conn { reader: BufReader::new(stream), nth: conn.nth });
    })
}
