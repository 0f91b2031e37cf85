//! Listening datagram sockets of a loop, as those see them who answer by them, and the datagrams that arrive.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};

use rustix::net::SocketAddrAny;
use tw_net::Addr;
use tw_rt::{DatagramSender, OutgoingMessage, ReceiveBatch, SendOutcome};

/// Listening datagram socket of a loop, for those who answer by it.
pub struct DatagramListener {
    /// Number of the socket, whichever loop or process has it.
    pub id: u64,
    /// Address it listens on.
    pub address: Rc<Addr>,
    pub(super) sender: DatagramSender,
    /// Task that receives.
    pub(super) receiver: RefCell<Option<Waker>>,
}

/// A datagram that has arrived.
pub struct ReceivedDatagram<'a> {
    /// Content; empty for a datagram without any.
    pub bytes: &'a [u8],
    /// Sender, as an answer needs it; `None` if it is a Unix socket without a name.
    pub peer: Option<&'a SocketAddrAny>,
    /// Local address that it was sent to, if the socket takes those of several.
    pub local: Option<IpAddr>,
    /// Listening address of the configuration that it belongs to.
    pub listen: &'a Rc<Addr>,
    /// Mark of explicit congestion notification, if the socket tells; 0 for none.
    pub ecn: u8,
}

impl DatagramListener {
    /// Sends messages as far as the socket takes them.
    pub fn send(&self, messages: &[OutgoingMessage<'_>]) -> SendOutcome {
        self.sender.send(messages)
    }

    /// Lets a change of the process that receives wake the task of `cx`.
    pub(super) fn wake_on_change(&self, cx: &Context<'_>) {
        let mut receiver = self.receiver.borrow_mut();
        if !receiver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *receiver = Some(cx.waker().clone());
        }
    }

    /// Waits until the socket may take messages again, after it has not taken some.
    ///
    /// # Errors
    /// No descriptor is left.
    pub async fn writable(&self) -> io::Result<()> {
        self.sender.writable().await
    }
}

/// Room for the datagrams of one call, which the sockets of a loop share one after another.
#[derive(Default)]
pub struct DatagramBuffer(Cell<Option<Box<ReceiveBatch>>>);

impl DatagramBuffer {
    /// Lends the room to `receive`. A megabyte, of which small datagrams touch a page each.
    pub fn with<T>(&self, receive: impl FnOnce(&mut ReceiveBatch) -> T) -> T {
        let mut batch = self.0.take().unwrap_or_default();
        let outcome = receive(&mut batch);
        self.0.set(Some(batch));
        outcome
    }
}
